"""Options that all adapters of this plugin have."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config


class LowRankOptions(Config):
    """A product of two thin matrices beside each adapted weight: W + scaling * B A."""

    rank: int = Field(16, ge=1, le=1024, description="of the factors: rows of A, columns of B")
    alpha: int | None = Field(
        None, ge=1, description="the product B A is scaled by alpha / rank; unset: twice the rank"
    )
    target: tuple[str, ...] = Field(
        (),
        description="modules to adapt: ends of names such as q_proj, or regular expressions for whole names; unset: "
        "all linear layers but the output head",
    )
    dropout: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of an adapter's inputs set to 0 in training"
    )
    modules_to_save: tuple[str, ...] = Field(
        (), description="modules that are trained whole, as a copy beside the base's"
    )
    use_rslora: bool = Field(
        False, description="scale B A by alpha / sqrt(rank), which suits high ranks"
    )

    def needed_by_options(self) -> frozenset[str]:
        """With dropout the old log-probs, in a pass of their own: an update's are what dropout makes of them."""
        return frozenset({"old_logprobs"} if self.dropout else ())

    @property
    def scaled_by(self) -> int:
        """The scaling's numerator."""
        return 2 * self.rank if self.alpha is None else self.alpha
