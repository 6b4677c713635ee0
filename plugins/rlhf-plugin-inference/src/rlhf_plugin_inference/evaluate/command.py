"""The command ``rlhf eval``, its second form ``rlhf eval compare`` excepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_cli.training import TrainingCommand, execute, layers_of, split_arguments
from rlhf_config import EnvironmentOptions, OptionTree, RewardOptions, Selector, blind_rewards
from rlhf_core import plugins as plugin_loader

from ..serving.options import ADAPTER, VISION
from . import checks
from .options import EvalOptions

_HERE = "rlhf_plugin_inference.evaluate"
_SHORT = {
    "--url": "--remote.url",
    "--model-name": "--remote.model",
    "--by-task": "--report.by_task",
    "--table": "--report.table",
}
"""Flags of this command alone, and the options that they stand for."""

_USAGE = """\
Usage: rlhf eval MODEL --data FILE... --reward NAME [--OPTION VALUE]...
       rlhf eval MODEL --env NAME... --rollout.max_length N [--OPTION VALUE]...
       rlhf eval --url http://HOST/v1 --model-name NAME ...
       rlhf eval compare FOLDER FOLDER

Evaluates a model on tasks, without training it.
The report has mean rewards and pass@k with confidence intervals, numbers of tokens, and how answers ended.
MODEL is a folder or hub name, the folder of a run, or a PEFT folder.
The same command continues an interrupted evaluation. In a finished folder it prints the table again.
Options come from the files in order, then from the command line. Both use the same names.
This text has the options of the selected components. To see those of another:
  rlhf eval --env NAME --help

  -c FILE            a TOML file with options; may be given several times, later ones win
  --url URL          evaluate an OpenAI-compatible server, with the key in OPENAI_API_KEY (--remote.url)
  --model-name NAME  name of the model on that server (--remote.model)
  --by-task          print a line for each task too (--report.by_task)
  --table FORM       form of the table: text, or markdown, csv or json for other tools (--report.table)
  --resume restart   start over; the results in the folder are kept beside the new ones
  --overwrite        start over and replace the results in the folder
  --check            check whether the configuration is valid, and stop
  --dry-run          show what would be evaluated, and stop
  -h, --help         this text"""

EVAL = OptionTree(
    command="eval",
    purpose="Evaluates a model.",
    example="MODEL --env NAME",
    model=EvalOptions,
    selectors=(
        Selector("engine.name", "rlhf_engines"),
        VISION,
        Selector("rollout.executor", "rlhf_rollout_executors"),
        Selector("env.use", "rlhf_environments", many=True, labeled=True),
        Selector("reward.use", "rlhf_rewards", many=True),
        Selector("eval.metrics", "rlhf_eval_metrics", many=True),
    ),
    shared={"reward.use": RewardOptions, "env.use": EnvironmentOptions},
    check=checks.check,
    cautions=lambda run, selections, labels: tuple(blind_rewards(selections, labels)),
    models=checks.models,
    adapters=frozenset({"model.path"}),
    peft=frozenset({ADAPTER}),
    data=checks.data,
    outputs=checks.outputs,
    usage=_USAGE,
)

_COMMAND = TrainingCommand(
    options=EVAL,
    defaults=Path(__file__).with_name("eval.toml"),
    run=f"{_HERE}.run:run",
    describe=f"{_HERE}.describe:describe",
    rows=f"{_HERE}.rows:check_rows",
)


def evaluate(words: Sequence[str]) -> int:
    """Run ``rlhf eval WORDS`` and return the exit code."""
    words = [_long(word) for word in words]
    if words and not words[0].startswith("-"):
        words = ["--model", *words]
    command = _COMMAND
    if _names_environments(words):
        command = replace(command, defaults=Path(__file__).with_name("environments.toml"))
    return execute(command, words, plugin_loader.load())


def _long(word: str) -> str:
    flag, equals, value = word.partition("=")
    return _SHORT.get(flag, flag) + equals + value


def _names_environments(words: Sequence[str]) -> bool:
    """Return whether files or words select an environment, with which another executor is the usual one."""
    for layer in layers_of(split_arguments(words), _COMMAND.defaults):
        section: Any = layer.values.get("env")
        if isinstance(section, Mapping) and section.get("use"):
            return True
    return False
