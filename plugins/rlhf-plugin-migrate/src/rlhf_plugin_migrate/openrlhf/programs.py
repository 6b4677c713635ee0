"""Programs of OpenRLHF: the function that migrates each, or the command that replaces it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..shell.launchers import Launch, note_launch
from ..table.outcome import Outcome
from .printed import lora_combiner, serve_rm
from .reinforcement import train_ppo_ray
from .supervised import train_dpo, train_rm, train_sft

Program = Callable[[Launch, str], Outcome]
"""Function from a launch, and the path of the file with reward functions, to an outcome."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command that replaces a program, where there is no configuration to write."""

    text: str
    outcome: Outcome


def _reinforcement(launch: Launch, adapter: str) -> Outcome:
    outcome = train_ppo_ray.migrate(launch.words, adapter)
    return note_launch(launch, outcome, "; on a Ray cluster examples/cluster/submit.sh -c FILE")


def _supervised(migrate: Callable[[Sequence[str], int | None], Outcome]) -> Program:
    def program(launch: Launch, adapter: str) -> Outcome:
        return note_launch(launch, migrate(launch.words, launch.processes))

    return program


_PROGRAMS: dict[str, Program] = {
    "train_ppo_ray": _reinforcement,
    "train_sft": _supervised(train_sft.migrate),
    "train_rm": _supervised(train_rm.migrate),
    "train_dpo": _supervised(train_dpo.migrate),
}
_PRINTED = {"serve_rm": serve_rm.migrate, "lora_combiner": lora_combiner.migrate}

NOT_MIGRATED = {
    "train_kto": "rlhf dpo --preference.loss kto is its counterpart, docs/supervised.md",
    "train_prm": "rlhf prm is its counterpart, docs/supervised.md",
    "train_kd": "rlhf distill is its counterpart, docs/supervised.md",
}
"""Program of OpenRLHF before 0.9.6, whose flags have no table -> its counterpart."""


def answer(launch: Launch) -> Program | CommandLine | str:
    """Return the function that migrates a program, the command that replaces it, or a message that there is neither."""
    name, where = launch.program, f"line {launch.line}: {launch.program}"
    if name in _PROGRAMS:
        return _PROGRAMS[name]
    if name in _PRINTED:
        return CommandLine(*_PRINTED[name](launch.words))
    if name in NOT_MIGRATED:
        return (
            f"{where}: OpenRLHF has it no longer, so its flags have no table; {NOT_MIGRATED[name]}"
        )
    known = ", ".join([*_PROGRAMS, *_PRINTED])
    return f"{where}: OpenRLHF has no such program, or none that is known here. Known: {known}"
