"""The options of ``rlhf generate``. Sections that ``rlhf train`` has too have the same names there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from rlhf_config import (
    CommandOptions,
    Labels,
    NamedPaths,
    OptionTree,
    PaddingSampling,
    RewardOptions,
    SamplingOptions,
    Selections,
    Selector,
    blind_rewards,
    folder_problem,
    refuse_typed,
)
from rlhf_config.common import EngineSelection, Positive
from rlhf_core import CapabilityError, Config, ConfigError
from rlhf_core.capabilities import AVOIDED
from rlhf_core.plugins import Plugins

from ..serving.options import (
    ADAPTER,
    VISION,
    ModelToServe,
    adapter_without_effect,
    check_adapter,
    check_sight,
    images_without_effect,
    models_of,
)
from ..worklist.options import Display, PromptsWithImages, Scores

COMPLETIONS = "completions.jsonl"
CHOSEN = ("best", "rejection", "pairs")
"""Ways to choose a data set, each of which names its file."""
_IN_FLIGHT = 1024
"""Completions in flight with each engine, unless an option says how many prompts are."""


class Answers(PaddingSampling, SamplingOptions):
    n_samples_per_prompt: Positive = Field(1, description="number of completions of each prompt")
    concurrency: Positive | None = Field(
        None,
        description="largest number of prompts at the same time; unset: as many as make 1024 completions for each "
        "engine",
    )

    def prompts_in_flight(self, num_engines: int) -> int:
        """Return how many prompts are in work at most, over all engines."""
        return self.concurrency or max(1, _IN_FLIGHT * num_engines // self.n_samples_per_prompt)


class SelectOptions(Config):
    mode: Literal["all", "best", "rejection", "pairs"] = Field(
        "all",
        description="rows to choose beside all completions. all: none; best: the best of each prompt, for rlhf sft; "
        "rejection: all that reach the threshold, for rlhf sft; pairs: the best and the worst, for rlhf dpo",
    )
    threshold: float | None = Field(
        None, description="smallest reward of a completion that best and rejection choose"
    )
    truncated: bool = Field(
        False,
        description="also choose from completions that were cut off at the token limit; false: leave them out",
    )


class Continuation(Config):
    checkpoint: Literal["auto", "restart"] | None = Field(
        None,
        description="auto: continue with the completions in the folder; restart: start over, and keep the old "
        "completions in a folder beside the new ones",
    )


class GenerateOptions(CommandOptions):
    """All options of ``rlhf generate`` but those of components."""

    seed: int = Field(42, ge=0, lt=2**63, description="seed of all random draws of the run")
    output: str = Field(
        "runs/generate", min_length=1, description="folder for the completions and the chosen rows"
    )
    model: ModelToServe
    data: PromptsWithImages = PromptsWithImages()
    rollout: Answers = Answers()
    reward: Scores = Scores()
    select: SelectOptions = SelectOptions()
    log: Display = Display()
    resume: Continuation = Continuation()
    engine: EngineSelection
    engines: int = Field(
        1,
        ge=1,
        le=64,
        description="number of engines, which share the prompts; each gets an equal share of the GPUs",
    )


def _check(run: GenerateOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    for problem in _problems(run, labels):
        raise problem
    features: frozenset[str] = frozenset() if run.model.vision is None else frozenset({"images"})
    for chosen in selections.values():
        for selection in chosen:
            lacking = selection.needs - features
            if lacking:
                raise CapabilityError(
                    f"{labels(selection.slot)} {selection.registered.name} needs {', '.join(sorted(lacking))}, "
                    "which rlhf generate does not supply"
                )
            excluded = selection.registered.component.conflicts
            if features & (excluded | selection.options.excluded_by_options()):
                raise CapabilityError(
                    f"{labels(selection.slot)} {selection.registered.name} cannot be combined with "
                    f"{labels('model.vision')}: {AVOIDED['images']}",
                    code="config/conflicting-component",
                )
    check_adapter(run.model, selections, labels)
    check_sight(run.model, selections, labels)
    refuse_typed(_without_effect(run, selections), labels)


def _problems(run: GenerateOptions, labels: Labels) -> Iterator[ConfigError]:
    rollout, mode = run.rollout, run.select.mode
    if not run.data.train:
        yield ConfigError(
            "--data: expected data files; got none. Add --data FILE.jsonl.", code="config/no-data"
        )
    if mode != "all" and not run.reward.use:
        yield ConfigError(
            f"{labels('select.mode')} {mode}: it compares rewards, and there is none. Add --reward NAME.",
            code="config/no-reward",
        )
    if mode == "rejection" and run.select.threshold is None:
        yield ConfigError(
            f"{labels('select.mode')} rejection: expected --select.threshold X, which completions have to reach. "
            "For the best of each prompt set --select.mode best.",
            code="config/no-threshold",
        )
    if mode == "pairs" and rollout.n_samples_per_prompt < 2:
        yield ConfigError(
            f"{labels('select.mode')} pairs: it takes two completions of a prompt; "
            f"{labels('rollout.n_samples_per_prompt')} is {rollout.n_samples_per_prompt}. Set it to 2 or more.",
            code="config/too-few-samples-per-prompt",
        )
    if rollout.temperature == 0 and rollout.n_samples_per_prompt > 1:
        yield ConfigError(
            f"{labels('rollout.temperature')} 0 takes the most probable token, so all "
            f"{rollout.n_samples_per_prompt} completions of a prompt would be the same. Raise it, or set "
            "--rollout.n_samples_per_prompt 1.",
            code="config/equal-samples",
        )
    if rollout.min_new_tokens > rollout.max_new_tokens:
        yield ConfigError(
            f"{labels('rollout.min_new_tokens')} {rollout.min_new_tokens}: expected at most "
            f"--rollout.max_new_tokens, which is {rollout.max_new_tokens}",
            code="config/min-above-max-tokens",
        )


def _without_effect(run: GenerateOptions, selections: Selections) -> Iterator[tuple[str, str]]:
    mode = run.select.mode
    if mode in ("all", "pairs"):
        yield "select.threshold", f"nothing has to reach it. Set --select.mode best; it is {mode}."
    if mode == "all":
        yield "select.truncated", "nothing is chosen. Set --select.mode too."
    if run.rollout.temperature == 0:
        for name in ("top_p", "top_k", "min_p"):
            yield f"rollout.{name}", "at temperature 0 nothing is drawn. Leave that option out."
    yield from adapter_without_effect(run.model)
    yield from images_without_effect(run.model)


def _outputs(run: GenerateOptions, labels: Labels) -> Iterator[str]:
    output = Path(run.output)
    label = f"{labels('output')} {run.output}"
    if problem := folder_problem(output):
        yield f"{label}: {problem}"
    if os.path.isfile(output / "config.json"):
        yield f"{label}: there is a model in this folder; choose another one"
    if os.path.isfile(output / "metrics.jsonl"):
        yield f"{label}: there is a training run in this folder; choose another one"
    if run.resume.checkpoint is None and os.path.lexists(output / COMPLETIONS):
        yield (
            f"{label}: there are completions already. Add --resume to continue them, or --resume restart to start "
            "over and keep them in a folder beside the new ones; or choose another folder."
        )


def _data(run: GenerateOptions) -> NamedPaths:
    yield from (("data.train", source) for source in run.data.train)


_USAGE = """\
Usage: rlhf generate [-c FILE.toml]... [--OPTION VALUE]...

Writes completions of prompts, with their scores, and chooses rows for rlhf sft or rlhf dpo from them.
Options come from the files in order, then from the command line. Both use the same names.
This text has the options of the selected components. To see those of another:
  rlhf generate --reward NAME --help

  -c FILE            a TOML file with options; may be given several times, later ones win
  --check            check whether the configuration is valid, and stop
  --dry-run          show what would be generated, and stop
  --resume           continue with the completions in the folder; --resume restart: start over and keep the old ones
  -h, --help         this text"""

GENERATE = OptionTree(
    command="generate",
    purpose="Writes completions of prompts.",
    example="--reward NAME",
    model=GenerateOptions,
    selectors=(
        Selector("engine.name", "rlhf_engines"),
        VISION,
        Selector("reward.use", "rlhf_rewards", many=True),
    ),
    shared={"reward.use": RewardOptions},
    check=_check,
    cautions=lambda run, selections, labels: tuple(blind_rewards(selections, labels)),
    models=lambda run: models_of(run.model),
    peft=frozenset({ADAPTER}),
    data=_data,
    outputs=_outputs,
    usage=_USAGE,
)
