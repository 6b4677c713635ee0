"""State of the loop between steps: everything that is neither in a role nor in a file of records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from rlhf_config.common import NotNegative
from rlhf_config.run import RunConfig

from ..durable.typed_values import typed


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best value of one evaluation metric, and what it is the best of: values are compared only if all of that is
    the same."""

    metric: str
    mode: Literal["max", "min"]
    data: str
    """Digest of what was evaluated (``resuming.best.evaluated_on``)."""
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
    """The state of a run whose learning rates may be changed from outside while it goes on (``loop.control``)."""

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
