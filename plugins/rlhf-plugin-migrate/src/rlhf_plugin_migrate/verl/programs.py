"""Programs of verl that a command starts: how each is migrated, or why it is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..shell.launchers import Launch, launch_at, note_launch
from ..shell.script import ShellCommand
from ..table.option_table import tables_of
from ..table.outcome import Outcome
from ..table.source import SourceOptions
from .common.config_file import as_engine, pairs_of_config, set_config
from .common.hydra import Pair, options_of, pairs_of, pairs_of_text
from .reinforcement import main_ppo
from .reinforcement.engine_keys import vllm_argument
from .supervised import sft

_MODULE = re.compile(
    r"(verl|recipe)((?:\.\w+)*)\.(\w*main_\w+|\w*sft_trainer\w*|fully_async_main|model_merger)"
)
_FILE = re.compile(
    r"(?:.*/)?(verl|recipe)((?:/\w+)*)/(main_\w+|\w*sft_trainer\w*|fully_async_main)\.py"
)
_PPO = {"main_ppo", "main_ppo_sync", "main_dapo", "main_entropy", "fully_async_main"}
_OWN = {"dapo", "entropy", "partial_rollout"}
"""Recipes whose program has the keys of ``main_ppo``."""
_ELSEWHERE = {
    "main_generation": "rlhf generate",
    "main_generation_server": "rlhf generate",
    "main_eval": "rlhf eval",
    "model_merger": "the model is exported at the end of a run",
}


def verl_launch_of(command: ShellCommand) -> Launch | None:
    """Return the start of a program of verl in a command, or None if there is none."""
    for index, word in enumerate(command.words):
        if found := _MODULE.fullmatch(word) or _FILE.fullmatch(word):
            return launch_at(command, index, _program(found[1], found[2], found[3]))
    return None


def _program(package: str, folders: str, name: str) -> str:
    if name == "fsdp_sft_trainer":
        return name
    if "sft_trainer" in name:
        return "sft_trainer"
    is_ours = package == "verl" or re.split(r"[./]", folders)[1] in _OWN
    is_robot = "vla" in folders
    return (
        "main_ppo"
        if name in _PPO and is_ours and not is_robot
        else f"{folders.strip('./')}.{name}".strip(".")
    )


def refusal_of(launch: Launch) -> str:
    """Return why a program has no table, with what does the same here; empty if it has one."""
    if launch.program in TABLES:
        return ""
    instead = _ELSEWHERE.get(launch.program.rpartition(".")[2])
    advice = f"; here: {instead}" if instead else "; its algorithm is its own"
    return f"line {launch.line}: {launch.title}: expected verl.trainer.main_ppo or a trainer of given answers{advice}"


def options(launch: Launch) -> SourceOptions:
    """Return the options of a launch: its overrides, before those the keys of a file of its own."""
    pairs, others = pairs_of(launch.words)
    pairs = [as_engine(pair) for pair in pairs]
    return options_of([*pairs_of_config(pairs), *pairs], others, TABLES[launch.program])


def program_of_text(text: str, name: str) -> tuple[str, SourceOptions]:
    """Return the program that a YAML file of hydra is for, and its options.

    Raises:
        ConfigError: the text is no such file.
    """
    pairs, others = pairs_of_text(text, name)
    program = _program_of(pairs)
    is_whole = not text.lstrip().startswith("-")
    return program, options_of(pairs, others, TABLES[program], is_whole=is_whole)


def left_out(text: str) -> str:
    """Return a warning on the keys of a YAML file that are not looked at; empty if it has only what somebody wrote."""
    if text.lstrip().startswith("-"):
        return ""
    return (
        "a whole configuration has hundreds of keys of engines, profilers and the like, which are not looked at: "
        "overrides.yaml beside it has those that you wrote, and each gets a line"
    )


def _program_of(pairs: Sequence[Pair]) -> str:
    names = {name for _, name, _ in pairs}
    if any(name.startswith("actor_rollout_ref.") for name in names):
        return "main_ppo"
    return "fsdp_sft_trainer" if "model.partial_pretrain" in names else "sft_trainer"


def migrate(program: str, source: SourceOptions, processes: int | None, adapter: str) -> Outcome:
    """Return the configuration that options of a program mean.

    Args:
        processes: number of processes that the launcher of a trainer of given answers starts.
        adapter: path of the file that calls the user's reward function, if it is needed.
    """
    outcome = _MIGRATE[program](source, processes, adapter)
    set_config(source, outcome)
    return outcome


def launched(launch: Launch, processes: int | None, adapter: str) -> Outcome:
    """Return the configuration of a launch, with what is to be said of it; the arguments are those of ``migrate``."""
    outcome = migrate(launch.program, options(launch), launch.processes or processes, adapter)
    return note_launch(launch, outcome)


TABLES = tables_of(
    Path(__file__).with_name("options.toml"),
    {"VLLM_ARGUMENT": vllm_argument},
)
"""The tables, by program."""
_MIGRATE: dict[str, Callable[[SourceOptions, int | None, str], Outcome]] = {
    "main_ppo": lambda source, processes, adapter: main_ppo.migrate(source, adapter),
    "sft_trainer": lambda source, processes, adapter: sft.migrate(source, processes),
    "fsdp_sft_trainer": lambda source, processes, adapter: sft.migrate(source, processes),
}
