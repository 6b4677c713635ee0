"""Migration of a YAML file for TRL's DPO to ``rlhf dpo``."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from .common.yaml_file import read_keys
from .dpo_keys import KEYS
from .example_rules import set_run

_LOSSES = {
    "sigmoid": "dpo",
    "robust": "robust",
    "ipo": "ipo",
    "hinge": "hinge",
    "apo_zero": "apo_zero",
    "apo_down": "apo_down",
    "bco_pair": "bco",
}
"""TRL's loss on pairs -> ours."""
_SMOOTHED = ("cdpo", "robust")


def read(text: str, name: str) -> SourceOptions:
    """Return the options of a YAML file for DPO.

    Raises:
        ConfigError: the text is not such a file.
    """
    return read_keys(text, name, "DPO", KEYS)


def migrate(source: SourceOptions, processes: int, adapter: str) -> Outcome:
    """Return the configuration that a file for DPO means.

    Args:
        processes: number of processes that accelerate starts.
        adapter: not used: there is no reward function.
    """
    out = Outcome(source, command="dpo")
    set_run(source, out, processes, sequences_per_row=2)
    _set_loss(source, out)
    return out


def _set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the preference loss; of a sum, the first one on pairs, and ``sft`` as the chosen answers' likelihood."""
    value = source.value("loss_type")
    kinds = [str(kind) for kind in value] if isinstance(value, list) else [str(value)]
    weights = _weights(source, len(kinds))
    known = [kind for kind in kinds if kind in _LOSSES]
    loss = _LOSSES[known[0]] if known else "dpo"
    smoothing = source.number("label_smoothing")
    if loss == "dpo" and smoothing:
        loss = "cdpo"
    keys = ("loss_type", "label_smoothing") if loss == "cdpo" else ("loss_type",)
    out.set("preference.loss", loss, *keys)
    if rest := [kind for kind in kinds if kind != "sft" and kind not in known[:1]]:
        out.missing(
            "loss_type", f"{', '.join(rest)}: {loss} is set alone; see rlhf dpo --help for others"
        )
    out.set(f"preference.{loss}.beta", source.number("beta"), "beta")
    if loss == "ipo":
        out.set("preference.ipo.length_normalized", True, "loss_type", comment="as in TRL")
    if loss in _SMOOTHED:
        out.set(f"preference.{loss}.label_smoothing", smoothing, "label_smoothing")
    else:
        out.nothing(
            "label_smoothing", "0 smooths nothing" if not smoothing else f"{loss} does not read it"
        )
    _set_weights(source, out, kinds, weights, known)
    _set_divergence(source, out, loss)


def _set_divergence(source: SourceOptions, out: Outcome, loss: str) -> None:
    """Set the divergence of DPO; TRL has others than the KL for further losses too."""
    kind = source.text("f_divergence_type")
    coef = source.number("f_alpha_divergence_coef")
    if kind != "alpha_divergence":
        out.nothing("f_alpha_divergence_coef", "it concerns alpha_divergence")
    if kind == "reverse_kl":
        out.nothing("f_divergence_type", "it is the reverse KL, as here")
    elif loss != "dpo":
        out.missing("f_divergence_type", f"{loss} is with the reverse KL; dpo alone has others")
    elif kind == "alpha_divergence" and not 0.0 < coef < 1.0:
        out.missing("f_divergence_type", f"its coefficient {coef:g} is not between 0 and 1")
        out.nothing("f_alpha_divergence_coef", "see f_divergence_type")
    else:
        out.set("preference.dpo.f_divergence", kind, "f_divergence_type")
        if kind == "alpha_divergence":
            out.set("preference.dpo.alpha", 1.0 - coef, "f_alpha_divergence_coef")


def _set_weights(
    source: SourceOptions, out: Outcome, kinds: list[str], weights: list[float], known: list[str]
) -> None:
    if "sft" not in kinds or not known:
        out.nothing("loss_weights", "there is one loss, whose weight is 1")
        return
    share = weights[kinds.index("sft")] / weights[kinds.index(known[0])]
    out.set("preference.nll_coef", share, "loss_weights", "loss_type")
    out.differs(
        "loss_weights",
        "the weight of sft is relative to that of the other loss, which is 1 here, and answers count alike, not tokens",
    )


def _weights(source: SourceOptions, number: int) -> list[float]:
    value = source.value("loss_weights")
    if isinstance(value, list) and len(value) == number:
        return [float(weight) for weight in value]
    return [1.0] * number
