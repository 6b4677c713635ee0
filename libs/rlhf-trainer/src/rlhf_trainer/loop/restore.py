"""Restoring of roles, reward shapers, prompt samplers and observers from a checkpoint; errors name component and
plugin."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_config.resolved import Resolved, ResolvedOptions, Selection
from rlhf_core.contracts.data.sampler import PromptSampler
from rlhf_core.contracts.reward import RewardShaper
from rlhf_core.errors import CheckpointError, ResumeError, RLHFError
from rlhf_data.made.source_rows import SourceRows

from ..learning.roles import CRITIC
from .listeners import Observers
from .resume import ResumePoint
from .run_kind import SavedRole
from .state import LoopState

log = logging.getLogger(__name__)


async def restore_roles(
    point: ResumePoint[Any], resolved: ResolvedOptions[Any], roles: Mapping[str, SavedRole]
) -> None:
    """Load the state of each role that checkpoints hold.

    Raises:
        ResumeError: the checkpoint lacks a role that the run has, or a backend cannot take its state back.
    """
    backend = resolved.one("backend.name").registered.label
    for name, role in roles.items():
        folder = point.path / name
        if not folder.is_dir():
            raise ResumeError(
                f"{point.path} has no {name}, which this run needs: it was made by a run without one. "
                "Choose the components of that run, or start a new run in another --output.",
                code="resume/missing-state",
            )
        chosen = resolved.one("critic.optim" if name == CRITIC else "actor.optim")
        optimizer = chosen.registered.label
        with _named(f"the {name} of {backend} with {optimizer}", folder):
            await role.load(folder)


def check_epoch(state: LoopState, num_prompts: int, num_supervised: int = 0) -> None:
    """Compare the numbers of a run's prompts and supervised rows with those of the checkpoint, and keep them in the
    state.

    Args:
        num_supervised: 0 where the run reads none.

    Raises:
        ResumeError: one differs, so that the run's place among them means something else now.
    """
    for now, was, what in (
        (num_prompts, state.num_prompts, "prompts in an epoch"),
        (num_supervised, state.num_supervised, "rows of supervised.data"),
    ):
        if 0 not in (now, was) and now != was:
            raise ResumeError(
                f"expected {was} {what}, as there were when the checkpoint was made; now there are {now}. Rows, and "
                "options of data and environments that decide their number, cannot change: put them back, or start a "
                "new run in another --output.",
                code="resume/data-changed",
            )
    state.num_prompts = num_prompts
    state.num_supervised = num_supervised or state.num_supervised


def restore_components(
    point: ResumePoint[LoopState],
    resolved: Resolved,
    *,
    shapers: Sequence[RewardShaper] = (),
    rows: SourceRows | None = None,
    sampler: PromptSampler | None = None,
) -> None:
    """Give the reward shapers, the rows of the data source and the prompt sampler, as far as the run has them, their
    states. The caller has checked that the checkpoint has the same components.

    Raises:
        DataError: rows that the run has read are others now.
        ResumeError: a component cannot take its state back.
    """
    state, chosen = point.state, resolved.selections.get("reward.shapers", ())
    parts: list[tuple[str, Selection, Any, Any]] = [
        ("reward shaper", *part) for part in zip(chosen, shapers, state.shapers, strict=True)
    ]
    if rows is not None:
        parts.append(("data source", resolved.one("data.source"), rows, state.source))
    if sampler is not None:
        parts.append(("prompt sampler", resolved.one("data.sampler"), sampler, state.sampler))
    for kind, selection, part, saved in parts:
        with _named(f"the {kind} {selection.registered.label}", point.path / "state.json"):
            part.load_state_dict(saved)


def restore_observers(point: ResumePoint[Any], observers: Observers, *, past_end: bool) -> None:
    """Give the observers their states, and decide whether a run goes on that an observer ended.

    Args:
        past_end: True: it goes on, and the observer that ended it starts over.

    Raises:
        ResumeError: an observer cannot take its state back.
    """
    state = point.state
    if state.end and not past_end:
        log.warning(
            "the run was %s. Nothing of it is left to do; --resume.past_end continues it",
            state.end,
        )
    elif state.end:
        log.info("continuing a run that was %s", state.end)
        state.observers.pop(state.ended_by, None)
        state.end = state.ended_by = ""
    source = point.path / "state.json"
    observers.load(state.observers, lambda label: _named(f"the observer {label}", source))


@contextmanager
def _named(who: str, source: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        problem = f"{who} cannot take its state back: {error}"
        raise ResumeError(problem, code="resume/state-refused") from error
    except RLHFError:
        raise  # such as a dead rank: its message names its place already
    except Exception as error:  # a plugin may raise anything
        # The traceback goes to run.log alone.
        log.info("%s cannot take its state back", who, exc_info=True)
        raise ResumeError(
            f"{who} cannot take its state back from {source}: {type(error).__name__}: {error}. "
            "Install the version that the checkpoint was made with (plugins.json in the run folder has it).",
            code="resume/state-refused",
        ) from error
