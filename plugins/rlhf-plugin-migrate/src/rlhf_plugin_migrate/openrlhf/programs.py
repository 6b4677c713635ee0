"""Programs of OpenRLHF: the function that migrates each, the command that replaces it, or why there is neither yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..shell.launchers import Launch
from ..table.outcome import Outcome, ReportRow, Status
from . import serve_rm, train_ppo_ray

Program = Callable[[Launch, str], Outcome]
"""Function from a launch, and the path of the file with reward functions, to an outcome."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command that replaces a program, where there is no configuration to write."""

    text: str
    outcome: Outcome


def _reinforcement(launch: Launch, adapter: str) -> Outcome:
    outcome = train_ppo_ray.migrate(launch.words, adapter)
    if launch.unresolved:
        outcome.warnings.append(
            f"only a shell could work out {', '.join(launch.unresolved)}: replace it, or give its value with --set"
        )
    if launch.launcher:
        text = "rlhf train -c FILE; on a Ray cluster examples/cluster/submit.sh -c FILE"
        outcome.others.append(ReportRow(f"{launch.launcher} ...", Status.NOTHING, text))
    return outcome


_PROGRAMS: dict[str, Program] = {"train_ppo_ray": _reinforcement}

NOT_MIGRATED = {
    "train_sft": "rlhf sft is its counterpart, docs/supervised.md",
    "train_rm": "rlhf rm, its counterpart, is not there yet either",
    "train_dpo": "rlhf dpo is its counterpart, docs/supervised.md",
    "lora_combiner": "rlhf merge is its counterpart, docs/inference.md",
}
"""Program whose flags have no table yet -> what there is of its counterpart."""


def answer(launch: Launch) -> Program | CommandLine | str:
    """Return the function that migrates a program, the command that replaces it, or a message that there is neither."""
    name, where = launch.program, f"line {launch.line}: {launch.program}"
    if name in _PROGRAMS:
        return _PROGRAMS[name]
    if name == "serve_rm":
        return CommandLine(*serve_rm.migrate(launch.words))
    if name in NOT_MIGRATED:
        return f"{where}: its flags cannot be migrated yet; {NOT_MIGRATED[name]}"
    known = ", ".join([*_PROGRAMS, "serve_rm"])
    return f"{where}: OpenRLHF has no such program, or none that is known here. Known: {known}"
