"""Migration of a YAML file for TRL's DPO to ``rlhf dpo``."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from .common.shared_rules import set_reference
from .example_rules import set_run

_LOSSES = {
    "sigmoid": "dpo",
    "robust": "robust",
    "ipo": "ipo",
    "hinge": "hinge",
    "aot": "aot",
    "aot_unpaired": "aot_unpaired",
    "apo_zero": "apo_zero",
    "apo_down": "apo_down",
    "bco_pair": "bco",
}
"""TRL's loss on pairs -> ours."""
_SMOOTHED = ("cdpo", "robust", "aot", "aot_unpaired")


def migrate(source: SourceOptions, processes: int, adapter: str) -> Outcome:
    """Return the configuration that a file for DPO means.

    Args:
        processes: number of processes that accelerate starts.
        adapter: not used: there is no reward function.
    """
    out = Outcome(source, command="dpo")
    set_run(source, out, processes, sequences_per_row=2)
    _set_loss(source, out)
    set_reference(source, out, updates=1, is_used=True)
    return out


def _set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the preference losses of a sum; of those the first one as the loss, and ``sft`` as the chosen answers'
    likelihood."""
    value = source.value("loss_type")
    kinds = [str(kind) for kind in value] if isinstance(value, list) else [str(value)]
    weights = dict(zip(kinds, _weights(source, len(kinds)), strict=True))
    known = [kind for kind in weights if kind in _LOSSES]
    if rest := [kind for kind in weights if kind != "sft" and kind not in known]:
        out.missing(
            "loss_type", f"{', '.join(rest)}: without counterpart; see rlhf dpo --help for others"
        )
    losses = [_ours(kind, source) for kind in known] or ["dpo"]
    keys = ("loss_type", "label_smoothing") if losses[0] == "cdpo" else ("loss_type",)
    out.set("preference.loss", losses[0], *keys)
    if losses[1:]:
        out.set("preference.weight", weights[known[0]], "loss_weights")
        out.set("preference.terms.use", losses[1:], "loss_type")
        for kind, loss in zip(known[1:], losses[1:], strict=True):
            out.set(f"preference.terms.{loss}.weight", weights[kind], "loss_weights")
    _set_options(source, out, losses)
    _set_likelihood(source, out, weights, known)
    _set_divergence(source, out, losses)


def _ours(kind: str, source: SourceOptions) -> str:
    loss = _LOSSES[kind]
    return "cdpo" if loss == "dpo" and source.number("label_smoothing") else loss


def _set_options(source: SourceOptions, out: Outcome, losses: list[str]) -> None:
    smoothing = source.number("label_smoothing")
    for index, loss in enumerate(losses):
        section = f"preference.terms.{loss}" if index else f"preference.{loss}"
        out.copy(f"{section}.beta", "beta")
        if loss == "ipo":
            out.set(f"{section}.length_normalized", True, "loss_type", comment="as in TRL")
        if loss in _SMOOTHED:
            out.set(f"{section}.label_smoothing", smoothing, "label_smoothing")
    if "cdpo" in losses:
        how = 'TRL ignores it with sigmoid; preference.loss = "dpo" trains as TRL does'
        out.differs("label_smoothing", how)
    if not set(losses) & set(_SMOOTHED):
        why = "0 smooths nothing" if not smoothing else f"{losses[0]} does not read it"
        out.nothing("label_smoothing", why)


def _set_divergence(source: SourceOptions, out: Outcome, losses: list[str]) -> None:
    """Set the divergence of DPO; TRL has others than the KL for further losses too."""
    kind = source.text("f_divergence_type")
    coef = source.number("f_alpha_divergence_coef")
    if kind != "alpha_divergence":
        out.nothing("f_alpha_divergence_coef", "it concerns alpha_divergence")
    if kind == "reverse_kl":
        out.nothing("f_divergence_type", "it is the reverse KL, as here")
    elif losses != ["dpo"]:
        names = ", ".join(losses)
        out.missing("f_divergence_type", f"{names}: with the reverse KL; dpo alone has others")
    elif kind == "alpha_divergence" and not 0.0 < coef < 1.0:
        out.missing("f_divergence_type", f"its coefficient {coef:g} is not between 0 and 1")
        out.nothing("f_alpha_divergence_coef", "see f_divergence_type")
    else:
        out.set("preference.dpo.f_divergence", kind, "f_divergence_type")
        if kind == "alpha_divergence":
            out.set("preference.dpo.alpha", 1.0 - coef, "f_alpha_divergence_coef")


def _set_likelihood(
    source: SourceOptions, out: Outcome, weights: dict[str, float], known: list[str]
) -> None:
    """Set the weight of ``sft``: beside a single loss relative to that one's."""
    if "sft" not in weights or not known:
        if len(known) < 2:
            out.nothing("loss_weights", "there is one loss, whose weight is 1")
        return
    if len(known) > 1:
        out.set("preference.nll_coef", weights["sft"], "loss_weights", "loss_type")
        out.differs("loss_weights", "of sft: answers count alike, not tokens")
        return
    out.set("preference.nll_coef", weights["sft"] / weights[known[0]], "loss_weights", "loss_type")
    out.differs(
        "loss_weights",
        "the weight of sft is relative to that of the other loss, which is 1 here, and answers count alike, not tokens",
    )


def _weights(source: SourceOptions, number: int) -> list[float]:
    value = source.value("loss_weights")
    if isinstance(value, list) and len(value) == number:
        return [float(weight) for weight in value]
    return [1.0] * number
