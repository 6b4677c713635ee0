"""Migration of ``train_dpo`` to ``rlhf dpo``."""

from __future__ import annotations

from collections.abc import Sequence

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.command_line import FLAGS, read_flags
from .shared_rules import set_pairs, set_run

_IPO, _SMOOTHING = "model.ipo_enable", "model.label_smoothing"


def migrate(words: Sequence[str], processes: int | None) -> Outcome:
    """Return the configuration that the flags of ``train_dpo`` mean.

    Args:
        processes: number of processes that the launcher starts; None: it does not say.
    """
    source = read_flags(words, FLAGS["train_dpo"])
    out = Outcome(source, command="dpo")
    set_run(source, out, processes, sequences_per_row=2)
    set_pairs(source, out)
    _set_loss(source, out)
    _set_reference(source, out)
    return out


def _set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the preference loss: ipo, which OpenRLHF takes on sums and does not smooth, else cdpo or dpo."""
    smoothing = source.number(_SMOOTHING)
    loss = "ipo" if source.flag(_IPO) else "cdpo" if smoothing else "dpo"
    out.set("preference.loss", loss, _IPO, *([_SMOOTHING] if loss == "cdpo" else []))
    out.copy(f"preference.{loss}.beta", "model.beta")
    if loss == "cdpo":
        out.set("preference.cdpo.label_smoothing", smoothing, _SMOOTHING)
    else:
        why = "OpenRLHF's ipo does not read it" if loss == "ipo" else "0 is dpo"
        out.nothing(_SMOOTHING, why)


def _set_reference(source: SourceOptions, out: Outcome) -> None:
    flag = "ref.model_name_or_path"
    if source.text(flag) in ("", source.text("model.model_name_or_path")):
        out.nothing(flag, "the reference is the model at the start")
    else:
        out.missing(
            flag,
            "the reference is the model at the start, and no other one can be named for rlhf dpo",
        )
