"""Migration of ``train_rm`` to ``rlhf rm``."""

from __future__ import annotations

from collections.abc import Sequence

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.command_line import FLAGS, read_flags
from .shared_rules import set_pairs, set_run


def migrate(words: Sequence[str], processes: int | None) -> Outcome:
    """Return the configuration that the flags of ``train_rm`` mean.

    Args:
        processes: number of processes that the launcher starts; None: it does not say.
    """
    source = read_flags(words, FLAGS["train_rm"])
    out = Outcome(source, command="rm")
    set_run(source, out, processes, sequences_per_row=2, role="reward_model")
    set_pairs(source, out)
    _set_loss(source, out)
    return out


def _set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the ranking loss. OpenRLHF takes any other name than sigmoid for log-exp, which reads no margin."""
    kind, margin = "model.loss_type", "model.margin_loss_enable"
    is_sigmoid = source.text(kind) == "sigmoid"
    out.set("ranking.loss", "sigmoid" if is_sigmoid else "log_exp", kind)
    if source.flag(margin) and is_sigmoid:
        out.set("data.margin_key", "margin", margin)
        out.differs(margin, "a row without a margin is a bad row; in OpenRLHF it has a margin of 0")
    else:
        out.nothing(margin, "off" if is_sigmoid else "OpenRLHF's log-exp loss reads no margin")
