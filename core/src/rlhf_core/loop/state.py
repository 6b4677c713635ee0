"""What the loop itself remembers between steps: everything that is neither weights nor a file of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..config.run import RunConfig


@dataclass(slots=True, kw_only=True)
class LoopState:
    """Saved with each checkpoint as JSON."""

    step: int = 0
    """Steps done."""
    prompts_taken: int = 0
    """Position of the data cursor, over all epochs."""
    in_flight: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, prompt) of what was drawn for later steps; a resumed run starts it again."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Prompt -> mean length of its episodes when it was last finished."""
    version: int = 0
    """Version of the policy's weights: the number of steps that changed them."""
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    entropy: float | None = None
    """Of the policy (nats per token) at the last step; only kept where the bonus follows it."""
    supervised_taken: int = 0
    """Position in the supervised rows, over all their epochs."""
    skipped_updates: dict[str, int] = field(default_factory=dict)
    """Role -> updates in a row whose gradient was not finite."""
    best_step: int | None = None
    best_value: float | None = None
    seconds: float = 0.0
    """Time spent in steps so far, over all resumes."""
    shapers: list[dict[str, Any]] = field(default_factory=list)
    """State of the reward shapers, in their order."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LoopState:
        """Invert ``to_json``; other keys of the checkpoint's state are passed over."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in values.items() if name in names})


def initial_state(run: RunConfig) -> LoopState:
    """Return the state of a run that has done nothing yet."""
    return LoopState(kl_coef=run.algo.kl.coef, entropy_coef=run.algo.loss.entropy_coef)
