"""State of the loop between steps: everything that is neither in a role nor in a file of records.

The best evaluation so far is a part of it. Values are compared only with values of the same metric, mode and data: a
run that goes on with another one has no best yet, and keeps the checkpoint of the earlier one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from rlhf_config.common import CheckpointConfig, NotNegative
from rlhf_config.resolved import ResolvedOptions
from rlhf_config.run import RunConfig
from rlhf_core.errors import CheckpointError

log = logging.getLogger(__name__)

MEASURES = ("eval", "env", "reward")
"""Sections that decide what an evaluation measures."""
SCHEDULE = ("every", "at_start")
"""Options of ``eval`` that decide when alone."""
SHOWN = 200
"""Most characters of a wrong value in an error."""

ValuesT = TypeVar("ValuesT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best value of one evaluation metric, and what it is the best of: values are compared only if all of that is
    the same."""

    metric: str
    mode: Literal["max", "min"]
    data: str
    """Digest of what was evaluated (``evaluated_on``)."""
    step: NotNegative
    value: float


@dataclass(slots=True, kw_only=True)
class RunState:
    """The state that every kind of run has; each checkpoint has it as JSON."""

    step: NotNegative = 0
    """Number of steps done."""
    bests: list[Best] = field(default_factory=list)
    """The best of each metric, mode and data that the run has had; the checkpoints of all of them are kept."""
    seconds: float = 0.0
    """Time spent in steps so far, resumed runs included."""
    observers: dict[str, Any] = field(default_factory=dict)
    """State of each observer, by qualified name."""
    ended_by: str = ""
    """Qualified name of the observer that ended the run; empty: none did."""
    end: str = ""
    """Who ended the run and why, in one line; empty: nobody did."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the state that ``to_json`` wrote; other keys of the checkpoint's ``state.json`` are ignored.

        Raises:
            CheckpointError: a value is of another type.
        """
        return typed(cls, values)


@dataclass(slots=True, kw_only=True)
class RatedState(RunState):
    """The state of a run whose learning rates may be changed from outside while it goes on (``run_kind.Control``)."""

    lr_factors: dict[str, float] = field(default_factory=dict)
    """Role -> factor of its learning rate, ``StepPlan.lr_factor``; 1 for a role that is not named."""


@dataclass(slots=True, kw_only=True)
class LoopState(RatedState):
    """The state of ``rlhf train``."""

    prompts_taken: NotNegative = 0
    """Position of the data cursor, over all epochs."""
    num_prompts: NotNegative = 0
    """Prompts of an epoch, environments' tasks included; 0 before the first step. The position is in epochs of this
    length."""
    sampler: dict[str, Any] = field(default_factory=dict)
    """State of the prompt sampler; empty without one."""
    source: dict[str, Any] = field(default_factory=dict)
    """State of the rows of ``data.source``; empty without one."""
    last_epochs: dict[int, int] = field(default_factory=dict)
    """Prompt -> epoch of its last draw, of those that a sampler may draw again (``Cursor.last_epochs``)."""
    in_flight: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, prompt) of each group drawn for later steps; a resumed run starts these again."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Prompt -> mean length of its episodes when it was last finished."""
    version: NotNegative = 0
    """Version of the policy's weights: the number of steps that changed them."""
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    entropy: float | None = None
    """Mean entropy of the policy at the last step, nats per token; kept only where the entropy bonus follows it."""
    supervised_taken: NotNegative = 0
    """Position in the supervised rows, over all their epochs."""
    num_supervised: NotNegative = 0
    """Number of the supervised rows; 0 before the first step, and without any."""
    skipped_updates: dict[str, int] = field(default_factory=dict)
    """Role -> updates in a row whose gradient was not finite."""
    empty_steps: NotNegative = 0
    """Steps in a row that learned from no reward."""
    shapers: list[dict[str, Any]] = field(default_factory=list)
    """State of the reward shapers, in their order."""


def initial_state(run: RunConfig) -> LoopState:
    """Return the state of a run that has done nothing yet."""
    return LoopState(kl_coef=run.algo.kl.coef, entropy_coef=run.algo.loss.entropy_coef)


def adopt_options(state: LoopState, run: RunConfig, changed: Collection[str]) -> None:
    """Let a resumed run's state follow its options: a coefficient that nothing adapts is the option's, and an adapted
    one starts over at an option that was changed.

    Args:
        changed: paths of the options that differ from the checkpoint's.
    """
    if run.algo.kl.target is None or "algo.kl.coef" in changed:
        state.kl_coef = run.algo.kl.coef
    if run.algo.loss.entropy_target is None or "algo.loss.entropy_coef" in changed:
        state.entropy_coef = run.algo.loss.entropy_coef


def typed(form: type[ValuesT], values: Mapping[str, Any]) -> ValuesT:
    """Return the values that JSON gave as a dataclass; those that it has no field for are left out.

    Raises:
        CheckpointError: a value is missing or of another type.
    """
    names = form.__dataclass_fields__  # type: ignore[attr-defined]
    own = {name: value for name, value in values.items() if name in names}
    try:
        # As JSON, where a list is a tuple's form too; strict, since 3 is neither "3" nor true.
        return TypeAdapter(form).validate_json(json.dumps(own), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        came = "" if first["type"] == "missing" else f"; got {first['input']!r}"[:SHOWN]
        raise CheckpointError(
            f"{place!r} is damaged: {first['msg']}{came}", code="checkpoint/damaged"
        ) from error


def evaluated_on(resolved: ResolvedOptions[Any], inputs: Mapping[str, str]) -> str:
    """Return a digest of what a run's evaluations measure: their options, environments and rewards, and their files.

    Args:
        inputs: the result of ``input_digests``.
    """
    sections = {name: resolved.tree.get(name, {}) for name in MEASURES}
    sections["eval"] = {
        key: value for key, value in sections["eval"].items() if key not in SCHEDULE
    }
    files = {name: digest for name, digest in inputs.items() if name.startswith("eval.")}
    text = json.dumps([sections, files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def note_best(
    state: RunState,
    values: Mapping[str, float],
    options: CheckpointConfig,
    data: str,
    headline: str | None,
) -> bool:
    """Return whether an evaluation is the best so far by ``checkpoint.best_metric``, and keep it in the state if so.

    Args:
        data: the result of ``evaluated_on``.
        headline: the metric that ``auto`` means; None: there is none, and no best one.
    """
    best = options.best(headline)
    if best is None or state.step == 0:
        return False
    name, mode = best
    value = values.get(name, math.nan)
    if math.isnan(value):
        # Its set lost all samples to a reward's errors, say; that it has the metric was checked before.
        log.warning(
            "%s was not evaluated at step %s, which is therefore not the best one (--checkpoint.best_metric)",
            name,
            state.step,
        )
        return False
    same = [b for b in state.bests if (b.metric, b.mode, b.data) == (name, mode, data)]
    others = [b for b in state.bests if b not in same]
    sign = 1 if mode == "max" else -1
    if any(sign * value <= sign * before.value for before in same):
        return False
    # A new list: checkpoints of earlier steps hold the old one.
    state.bests = [*others, Best(metric=name, mode=mode, data=data, step=state.step, value=value)]
    return True
