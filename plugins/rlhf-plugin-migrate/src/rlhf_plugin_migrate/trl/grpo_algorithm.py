"""Rules of TRL's algorithm: advantage, loss, KL, entropy and correction."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions

_AGGREGATIONS = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "cispo": "token-mean",
    "sapo": "seq-mean-token-mean",
    "vespo": "token-mean",
    "luspo": "auto",
}
"""TRL's loss type -> how token losses become one number."""

_OTHER_LOSSES = ("cispo", "sapo", "vespo", "luspo")
_VESPO = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")


def set_advantage(source: SourceOptions, out: Outcome) -> None:
    """Set the estimator: GRPO with or without the group's standard deviation, or GDPO."""
    scale = source.text("scale_rewards").lower()
    scale = {"true": "group", "false": "none"}.get(scale, scale)
    keys = ("scale_rewards", "multi_objective_aggregation")
    if source.text("multi_objective_aggregation") == "normalize_then_sum":
        out.set("algo.advantage.estimator", "gdpo", *keys)
        out.differs(
            "multi_objective_aggregation", "the sum is whitened over tokens; TRL's over samples"
        )
        return
    out.set("algo.advantage.estimator", "dr_grpo" if scale == "none" else "group_norm", *keys)
    if scale == "batch":
        out.missing(
            "scale_rewards",
            "no estimator divides by the batch's standard deviation; the group's is taken",
        )


def set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the policy loss with its bounds and its aggregation."""
    kind = source.text("loss_type")
    by_sequence = source.text("importance_sampling_level") == "sequence"
    loss = kind if kind in _OTHER_LOSSES else "gspo" if by_sequence else "ppo"
    out.set("algo.loss.policy", loss, "loss_type", "importance_sampling_level")
    out.set("algo.loss.aggregation", _AGGREGATIONS[kind], "loss_type")
    if kind == "bnpo":
        out.differs(
            "loss_type", "a token counts the same in all micro-batches of an update, as in dapo"
        )
    if kind == "vespo" or kind == "sapo":
        out.nothing(("epsilon", "epsilon_high"), f"{kind} does not clip")
    else:
        _set_bounds(source, out, loss)
    delta = source.value("delta")
    if delta is not None and loss == "ppo":
        out.set("algo.loss.ppo.dual_clip", delta, "delta")
    elif delta is not None:
        out.missing("delta", "only the loss ppo has a bound of this kind (dual_clip)")
    else:
        out.nothing("delta", "unset")
    for key, path in (("sapo_temperature_pos", "sapo.tau_pos"), ("sapo_temperature_neg", "sapo.tau_neg"), *(
        (f"vespo_{name}", f"vespo.{name}") for name in _VESPO
    )):  # fmt: skip
        if path.startswith(f"{loss}."):
            out.copy(f"algo.loss.{path}", key)
        else:
            out.nothing(key, f"the loss is {loss}")


def _set_bounds(source: SourceOptions, out: Outcome, loss: str) -> None:
    low = source.number("epsilon")
    key = "epsilon_high" if source.value("epsilon_high") is not None else "epsilon"
    high = source.number(key)
    if loss == "cispo":
        out.set("algo.loss.cispo.clip_low", 1.0, "loss_type", comment="no lower bound, as in TRL")
        out.set(
            "algo.loss.cispo.clip_high",
            max(high - 1.0, 1e-6),
            key,
            comment="TRL's bound is that of the ratio itself",
        )
        if key != "epsilon":
            out.nothing("epsilon", "cispo has an upper bound only")
        return
    out.set(f"algo.loss.{loss}.clip_low", low, "epsilon")
    out.set(f"algo.loss.{loss}.clip_high", high, key)
    if key == "epsilon":
        out.nothing("epsilon_high", "unset: it is epsilon")


def set_kl(source: SourceOptions, out: Outcome) -> None:
    """Set the KL penalty, which TRL adds to the loss."""
    coef = source.number("beta")
    out.set("algo.kl.coef", coef, "beta")
    if not coef:
        out.nothing("use_bias_correction_kl", "there is no KL with beta 0")
        return
    out.set("algo.kl.mode", "loss", "beta")
    out.set("algo.kl.estimator", "k3", "beta")
    unbiased = source.flag("use_bias_correction_kl")
    out.set("algo.kl.unbiased_gradient", unbiased, "use_bias_correction_kl")
    if unbiased:
        out.differs(
            "use_bias_correction_kl",
            "the gradient is that of the KL itself, which TRL's weight gives on average",
        )


def set_entropy(source: SourceOptions, out: Outcome) -> None:
    """Set the target of an adapted entropy bonus."""
    if source.flag("use_adaptive_entropy"):
        out.set(
            "algo.loss.entropy_target",
            source.number("entropy_target"),
            "use_adaptive_entropy",
            "entropy_target",
        )
        out.copy("algo.loss.entropy_step", "entropy_coef_delta")
    else:
        out.nothing(
            ("use_adaptive_entropy", "entropy_target", "entropy_coef_delta"),
            "the entropy bonus is fixed",
        )


def set_correction(source: SourceOptions, out: Outcome) -> None:
    """Set the correction between vLLM and the trainer, which TRL makes by default."""
    prefix = "vllm_importance_sampling"
    keys = [f"{prefix}_{name}" for name in ("correction", "mode", "clip_max", "clip_min", "cap")]
    if not (source.flag("use_vllm") and source.flag(keys[0])):
        out.nothing(keys, "TRL corrects only with use_vllm and the correction on")
        return
    by, _, mode = source.text(keys[1]).partition("_")
    cap = keys[4] if source.given(keys[4]) else keys[2]
    high = source.number(cap) if source.value(cap) is not None else 1e6
    low = source.number(keys[3]) if source.value(keys[3]) is not None else 0.0
    named = {("token", "truncate"): "tis", ("sequence", "mask"): "mis"}.get((by, mode))
    if (by, mode) == ("token", "mask") and low:
        named = "icepop"
    kind = named if named and high >= 1 and low <= 1 else "importance"
    out.set("algo.correction.kind", kind, *keys[:2])
    if kind == "importance":
        out.set("algo.correction.importance.level", by, keys[1])
        ours = mode if mode == "mask" or not low else "clip"
        out.set("algo.correction.importance.mode", ours, keys[1])
        if mode == "mask" and by == "sequence":
            out.set("algo.correction.importance.weight", "sequence", keys[1])
    out.set(f"algo.correction.{kind}.high", high, cap)
    out.set(f"algo.correction.{kind}.low", low if low else "none", keys[3])
    out.nothing({keys[2], keys[4]} - {cap}, f"{cap} is read")
