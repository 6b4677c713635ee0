"""Rules of the algorithm: which estimator, loss, KL and correction the flags mean together."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions

_WHITENED = ("gae", "reinforce", "reinforce_baseline")
_DISCOUNTED = ("gae", "reinforce")
_LEVEL = "algo.advantage.is_correction_level"
_MODE = "algo.advantage.is_correction_mode"
_GATE = "algo.advantage.is_correction_gating"
_THRESHOLD = "algo.advantage.is_correction_threshold"
_ENABLE = "algo.advantage.is_correction_enable"
_TYPE = "algo.advantage.is_correction_type"
_OLD_TYPES = {
    "tis": ("token", "clip"),
    "icepop": ("token", "mask"),
    "seq-mask-tis": ("seq", "mask"),
}
"""Correction of OpenRLHF up to 0.11.0 -> level and mode of today; the gate is the ratio."""


def has_critic(source: SourceOptions) -> bool:
    """Return True if the estimator has a critic: OpenRLHF builds none for the others, whatever else is set."""
    return source.text("algo.advantage.estimator") == "gae"


def has_reference(source: SourceOptions) -> bool:
    """Return True if a reference model is built: OpenRLHF builds none with a coefficient of 0."""
    return source.number("algo.kl.init_coef") > 0


def set_advantage(source: SourceOptions, out: Outcome) -> None:
    """Set the estimator with discount, lambda and whitening."""
    name = source.text("algo.advantage.estimator")
    section = f"algo.advantage.{name}"
    out.set("algo.advantage.estimator", name, "algo.advantage.estimator")
    if name == "group_norm" and source.given("algo.advantage.estimator"):
        out.differs(
            "algo.advantage.estimator",
            "the standard deviation gets eps 1e-4 and not 1e-9, so that equal rewards give no advantage",
        )
    if name in _DISCOUNTED:
        out.copy(f"{section}.gamma", "algo.advantage.gamma")
    else:
        out.nothing("algo.advantage.gamma", f"{name} has no discount; OpenRLHF sets it to 1, too")
    if name == "gae":
        out.copy(f"{section}.lambda_", "algo.advantage.lambd")
    else:
        out.nothing("algo.advantage.lambd", f"{name} does not read it")
    if name in _WHITENED:
        whiten = "mean" if source.flag("algo.advantage.no_std_norm") else "full"
        out.set(f"{section}.whiten", whiten, "algo.advantage.no_std_norm")
    else:
        out.nothing("algo.advantage.no_std_norm", f"{name} does not whiten, in OpenRLHF neither")


def set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the policy loss with its bounds, its aggregation and the entropy bonus."""
    loss = source.text("actor.policy_loss_type")
    out.set("algo.loss.policy", loss, "actor.policy_loss_type")
    bounds = source.numbers("actor.eps_clip_low_high")
    flag = "actor.eps_clip_low_high" if bounds else "actor.eps_clip"
    low, high = bounds or [source.number("actor.eps_clip")] * 2
    comment = "the paper has 3e-4 and 4e-4" if loss == "gspo" else ""
    out.set(f"algo.loss.{loss}.clip_low", low, flag, comment=comment)
    out.set(f"algo.loss.{loss}.clip_high", high, flag)
    if bounds:
        out.nothing("actor.eps_clip", "--actor.eps_clip_low_high overrides it")
    dual = source.value("actor.dual_clip")
    if dual is not None and loss == "ppo":
        out.set("algo.loss.ppo.dual_clip", dual, "actor.dual_clip")
    elif dual is not None:
        out.missing("actor.dual_clip", "only the loss ppo has a dual clip")
    _set_aggregation(source, out, loss)
    entropy = source.value("actor.entropy_coef")
    out.set("algo.loss.entropy_coef", entropy or 0.0, "actor.entropy_coef")


def _set_aggregation(source: SourceOptions, out: Outcome, loss: str) -> None:
    mode = source.text("actor.loss_agg_mode")
    if loss == "gspo":
        if mode != "seq-mean-token-mean" and source.given("actor.loss_agg_mode"):
            out.nothing("actor.loss_agg_mode", "gspo always averages by sequence, in OpenRLHF too")
        mode = "seq-mean-token-mean"
    # Written out always: auto takes another one for some estimators, such as dr_grpo.
    out.set("algo.loss.aggregation", mode, "actor.loss_agg_mode")
    others = [
        name
        for name, on in (
            ("the KL", has_reference(source) and source.flag("algo.kl.use_loss")),
            ("the entropy bonus", bool(source.value("actor.entropy_coef"))),
        )
        if on
    ]
    if mode != "token-mean" and others:
        out.differs(
            "actor.loss_agg_mode",
            f"{' and '.join(others)} are aggregated like the policy loss; in OpenRLHF always by token",
        )


def set_kl(source: SourceOptions, out: Outcome) -> None:
    """Set the KL penalty: its place, its estimator and its controller."""
    coef = source.number("algo.kl.init_coef")
    out.set("algo.kl.coef", coef, "algo.kl.init_coef")
    others = ("use_loss", "estimator", "unbiased_gradient", "target", "horizon")
    if not coef:
        out.nothing(
            (f"algo.kl.{name}" for name in others), "there is no KL with a coefficient of 0"
        )
        return
    in_loss, estimator = source.flag("algo.kl.use_loss"), source.text("algo.kl.estimator")
    unbiased = source.flag("algo.kl.unbiased_gradient")
    out.set("algo.kl.mode", "loss" if in_loss else "reward", "algo.kl.use_loss")
    if in_loss and estimator == "k1" and not unbiased:
        estimator = "k2"
        out.differs(
            "algo.kl.estimator" if source.given("algo.kl.estimator") else "algo.kl.use_loss",
            "k1 as a loss has a gradient of zero on average and is refused here; k2 has the gradient of the KL",
        )
    out.set("algo.kl.estimator", estimator, "algo.kl.estimator")
    if in_loss and not unbiased:
        comment = 'OpenRLHF lets tokens beyond 10 nats go; "linear" still pulls them back'
        out.set("algo.kl.tail", "clamp", "algo.kl.use_loss", comment=comment)
    if in_loss:
        out.set("algo.kl.unbiased_gradient", unbiased, "algo.kl.unbiased_gradient")
    else:
        out.nothing("algo.kl.unbiased_gradient", "it only concerns a KL in the loss")
    target = source.value("algo.kl.target")
    if target is not None:
        out.set("algo.kl.target", target, "algo.kl.target")
        out.copy("algo.kl.horizon", "algo.kl.horizon")
    else:
        out.nothing("algo.kl.horizon", "the coefficient is fixed without --algo.kl.target")


def set_correction(source: SourceOptions, out: Outcome) -> None:
    """Set the importance-sampling correction from the four flags of today, or from those of 0.11.0 and before."""
    level, mode, gate = source.text(_LEVEL), source.text(_MODE), source.text(_GATE)
    deciding = [_LEVEL, _MODE, _GATE]
    if source.flag(_ENABLE):
        level, mode = _OLD_TYPES[source.text(_TYPE)]
        gate, deciding = "ratio", [_ENABLE, _TYPE]
    out.nothing(
        {_LEVEL, _MODE, _GATE, _TYPE} - set(deciding),
        f"{' and '.join(f'--{other}' for other in deciding)} say which correction it is",
    )
    if level == "off":
        out.nothing((*deciding, _THRESHOLD), "the correction is off")
        return
    if source.text("actor.policy_loss_type") == "gspo":
        out.set("algo.loss.old_logprobs", "rollout", *deciding)
        comment = "with gspo OpenRLHF applies no weight or mask; the sampler takes the old policy's place in the ratio"
        out.differs(deciding, comment)
        out.nothing(_THRESHOLD, "with gspo OpenRLHF applies no threshold")
        return
    threshold = source.numbers(_THRESHOLD)
    low, high = (0.0, threshold[0]) if len(threshold) == 1 else (threshold[0], threshold[-1])
    kind, options = correction(level, mode, gate, low, high)
    out.set("algo.correction.kind", kind, *deciding)
    for name, value in options.items():
        sources = [_THRESHOLD] if name in ("low", "high") else deciding
        out.set(f"algo.correction.{kind}.{name}", value, *sources)


def correction(
    level: str, mode: str, gate: str, low: float, high: float
) -> tuple[str, dict[str, float | str]]:
    """Return the name of a correction and its options.

    Args:
        level: ``token`` or ``seq``.
        mode: ``mask`` or ``clip``.
        gate: ``ratio``, ``binary_kl`` or ``tv``.
        low: 0 for no lower bound.
    """
    named = {
        ("token", "clip", "ratio"): "tis",
        ("token", "mask", "ratio"): "icepop",
        ("seq", "mask", "ratio"): "seq_mask_tis",
        ("seq", "mask", "binary_kl"): "flash_mask",
    }.get((level, mode, gate))
    # A published correction has bounds around 1; any others are those of the general one.
    around_one = (0 < low <= 1 or (named == "tis" and low == 0)) and high >= 1
    bounds: dict[str, float | str] = {"low": low if low else "none", "high": high}
    if named == "flash_mask":
        return named, {"high": high}
    if named and around_one:
        return named, bounds
    options: dict[str, float | str] = {
        "level": "geometric" if level == "seq" else "token",
        "mode": mode if low or mode == "mask" else "truncate",
        "gate": gate,
    }
    return "importance", options | (bounds if low else {"high": high})
