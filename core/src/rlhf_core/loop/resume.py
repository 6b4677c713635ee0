"""Where a run goes on: the newest valid checkpoint, and the books agreeing with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.resolved import Resolved
from ..errors import CheckpointError, ConfigError
from . import checkpoint
from .ledger import replay
from .plugin_record import Record
from .run_folder import AUTO, RunFolder
from .state import LoopState

BINDING = (
    "seed",
    "model",
    "data",
    "rollout.n_samples_per_prompt",
    "rollout.batch_size",
    "reward.shapers",
    "actor.optim",
    "critic.optim",
)
"""Options that a checkpoint's state depends on."""
FREE = ("resume", "output", "log", "checkpoint", "eval")
"""Options that may change between a run and its continuation without a word."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A checkpoint that was found whole."""

    path: Path
    state: LoopState
    made_with: Record
    """Plugins and libraries of the run that saved it."""


def find_resume_point(resolved: Resolved, folder: RunFolder) -> ResumePoint | None:
    """Return the checkpoint to go on from, or None to start at the beginning.

    Raises:
        CheckpointError: the named checkpoint is missing or damaged, or the ledger disagrees with it.
        ConfigError: the configuration differs from the checkpoint's where its state depends on it.
    """
    wanted = resolved.run.resume.checkpoint
    if wanted is None:
        return None
    if wanted == AUTO:
        found = checkpoint.newest_valid(folder.checkpoints)
        if found is None:
            return None
        path, values = found
    else:
        path = Path(wanted)
        values = checkpoint.read(path)
    _compare(values["config"], resolved.tree, path)
    state = LoopState.from_json(values)
    if path.parent == folder.checkpoints:
        _check_books(folder.ledger, state)
    return ResumePoint(path, state, values["made_with"])


def _check_books(ledger: Path, state: LoopState) -> None:
    balance = replay(ledger, up_to_step=state.step)
    in_flight = {f"{epoch}.{prompt}" for epoch, prompt in state.in_flight}
    for group in sorted(in_flight ^ set(balance.unsettled()))[:1]:
        expected = "in flight" if group in in_flight else "settled"
        raise CheckpointError(
            f"{ledger} does not balance at step {state.step}: group {group}, which should be {expected}, was planned "
            f"{balance.planned[group]}, trained {balance.trained[group]} and dropped {balance.dropped[group]} times"
        )


def _compare(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    before, after = dict(_leaves(saved)), dict(_leaves(now))
    changed = sorted(
        key
        for key in {*before, *after}
        if before.get(key) != after.get(key) and not _is_under(key, FREE)
    )
    for key in changed:
        if _is_under(key, BINDING):
            raise ConfigError(
                f"--{key} is {after.get(key)!r}, but the checkpoint {path} was made with {before.get(key)!r}. "
                f"Set it back, or start a new run in another --output."
            )
    if changed:
        changes = ", ".join(f"{key} {before.get(key)!r} -> {after.get(key)!r}" for key in changed)
        log.warning("resuming with changed options: %s", changes)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, list(value) if isinstance(value, tuple) else value


def _is_under(key: str, sections: tuple[str, ...]) -> bool:
    return any(key == section or key.startswith(section + ".") for section in sections)
