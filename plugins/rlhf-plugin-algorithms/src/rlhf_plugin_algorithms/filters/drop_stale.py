"""Filter of prompts with tokens that too old weights sampled, for runs whose sampling is ahead of training."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Component, Config
from rlhf_core.contracts import RolloutInfo, TrajectoryColumns


class DropStaleConfig(Config):
    limit: int = Field(
        4,
        ge=0,
        le=1_000_000,
        description="largest number of versions by which the weights that sampled a token may be behind; less than "
        "rollout.max_staleness, beyond which there are none",
    )

    def needed_by_options(self) -> frozenset[str]:
        """Samples that are dropped."""
        return frozenset({f"staleness>={self.limit + 1}"})


class DropStale:
    """Sample filter that drops a group if ``version to be trained - oldest version of a token > limit``.

    The oldest token decides, not the first or the last: a long response may have been sampled under several weights.
    """

    def __init__(self, config: DropStaleConfig) -> None:
        self.config = config

    def keep(self, group: TrajectoryColumns, info: RolloutInfo) -> str | None:
        """Return None or ``stale``."""
        oldest = int(group.oldest_version.min(initial=info.version))
        return "stale" if info.version - oldest > self.config.limit else None


COMPONENT = Component(
    name="drop_stale",
    factory=DropStale,
    config=DropStaleConfig,
    summary="drops prompts with a token that too old weights sampled",
)
