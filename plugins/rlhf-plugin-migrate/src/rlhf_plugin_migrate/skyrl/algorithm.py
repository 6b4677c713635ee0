"""Rules of the algorithm: estimator, loss, KL, correction, filter and penalty that SkyRL's keys mean together."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions

ALGORITHM, ANSWER = "trainer.algorithm", "generator.sampling_params.max_generate_length"
ESTIMATOR = f"{ALGORITHM}.advantage_estimator"
_ESTIMATORS = {
    "gae": "gae",
    "grpo": "group_norm",
    "rloo": "rloo",
    "reinforce++": "reinforce",
    "maxrl": "maxrl",
}
_LOSSES = {
    "regular": "ppo",
    "dual_clip": "ppo",
    "gspo": "gspo_token",
    "cispo": "cispo",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "sapo": "sapo",
    "dppo": "dppo",
}
_OF_LOSSES = {
    "sapo.tau_pos": "sapo.tau_pos",
    "sapo.tau_neg": "sapo.tau_neg",
    "clip_cov.clip_ratio": "clip_cov.fraction",
    "clip_cov.clip_cov_lb": "clip_cov.cov_low",
    "clip_cov.clip_cov_ub": "clip_cov.cov_high",
    "kl_cov.kl_cov_frac": "kl_cov.fraction",
    "kl_cov.ppo_kl_coef": "kl_cov.kl_coef",
    "cispo.cispo_eps_clip_low": "cispo.clip_low",
    "cispo.cispo_eps_clip_high": "cispo.clip_high",
    "dppo.delta_high": "dppo.threshold",
}
"""Key of one loss, below ``trainer.algorithm`` -> our option of it, below ``algo.loss``."""
_CLIPPED = ("ppo", "gspo_token", "clip_cov")
_AGGREGATIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
}


def set_advantage(source: SourceOptions, out: Outcome) -> None:
    """Set the estimator with discount and lambda, and the bonus of entropy."""
    norm, theirs = f"{ALGORITHM}.grpo_norm_by_std", source.text(ESTIMATOR)
    name = _ESTIMATORS.get(theirs, "group_norm")
    name = "dr_grpo" if name == "group_norm" and not source.flag(norm) else name
    out.set("algo.advantage.estimator", name, ESTIMATOR, norm)
    if theirs not in _ESTIMATORS:
        out.missing(
            ESTIMATOR,
            f"{theirs} is no estimator of SkyRL's own, and {name} stands in its place: write yours into a file "
            "(docs/first-algorithm.md), and start the run with --estimator FILE.py:NAME",
        )
    elif name == "group_norm":
        out.differs(ESTIMATOR, "the standard deviation gets eps 1e-4 and not 1e-6")
    if name in ("gae", "reinforce"):
        out.copy(f"algo.advantage.{name}.gamma", f"{ALGORITHM}.gamma")
    if name == "gae":
        out.copy("algo.advantage.gae.lambda_", f"{ALGORITHM}.lambd")
    bonus = f"{ALGORITHM}.use_entropy_loss"
    if source.flag(bonus):
        out.copy("algo.loss.entropy_coef", f"{ALGORITHM}.entropy_loss_coef", bonus)


def set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the policy loss with its bounds, and its aggregation."""
    key, reduction = f"{ALGORITHM}.policy_loss_type", f"{ALGORITHM}.loss_reduction"
    theirs = source.text(key)
    loss = _LOSSES.get(theirs, "ppo")
    out.set("algo.loss.policy", loss, key)
    if theirs not in _LOSSES:
        out.missing(key, f"{theirs} is no loss here; ppo is taken")
    if loss in _CLIPPED:
        out.copy(f"algo.loss.{loss}.clip_low", f"{ALGORITHM}.eps_clip_low")
        out.copy(f"algo.loss.{loss}.clip_high", f"{ALGORITHM}.eps_clip_high")
    for name, option in _OF_LOSSES.items():
        if option.startswith(f"{loss}."):
            out.copy(f"algo.loss.{option}", f"{ALGORITHM}.{name}")
    if loss == "dppo":
        kind = f"{ALGORITHM}.dppo.dppo_type"
        out.set("algo.loss.dppo.divergence", source.text(kind).removeprefix("binary_"), kind)
    if theirs == "dual_clip":
        out.copy("algo.loss.ppo.dual_clip", f"{ALGORITHM}.clip_ratio_c")
    mode = source.text(reduction)
    out.set("algo.loss.aggregation", _AGGREGATIONS.get(mode, "token-mean"), reduction)
    if mode not in _AGGREGATIONS:
        out.differs(
            reduction, "all tokens of an update count alike, whatever their micro-batch or prompt"
        )


def kl_mode(source: SourceOptions) -> str:
    """Return where the KL is: ``loss``, ``reward`` or, empty, nowhere."""
    if source.flag(f"{ALGORITHM}.use_kl_in_reward"):
        return "reward"
    return "loss" if source.flag(f"{ALGORITHM}.use_kl_loss") else ""


def set_kl(source: SourceOptions, out: Outcome) -> None:
    """Set the KL penalty."""
    switches = (f"{ALGORITHM}.use_kl_loss", f"{ALGORITHM}.use_kl_in_reward")
    kind, mode = f"{ALGORITHM}.kl_estimator_type", kl_mode(source)
    if not mode:
        out.set("algo.kl.coef", 0.0, *switches)
        return
    out.set("algo.kl.mode", mode, *switches)
    out.copy("algo.kl.coef", f"{ALGORITHM}.kl_loss_coef")
    theirs, known = source.text(kind), ("k2", "k3") if mode == "loss" else ("k1", "k2", "k3")
    out.set("algo.kl.estimator", theirs if theirs in known else "k2", kind)
    if theirs not in known:
        out.differs(kind, "k2 has the gradient of the KL, which k1 and abs as a loss have not")


def set_correction(source: SourceOptions, out: Outcome) -> None:
    """Set the correction between sampler and trainer."""
    prefix, old = f"{ALGORITHM}.off_policy_correction", f"{ALGORITHM}.use_tis"
    kind = f"{prefix}.tis_ratio_type"
    if source.text(kind) == "sequence":
        out.set("algo.correction.kind", "importance", kind)
        out.set("algo.correction.importance.level", "sequence", kind)
        out.set("algo.correction.importance.mode", "truncate", kind)
        out.copy("algo.correction.importance.high", f"{prefix}.sequence_tis_ratio_clip_high")
    elif source.text(kind) == "token" or source.flag(old):
        newer, older = f"{prefix}.token_tis_ratio_clip_high", f"{ALGORITHM}.tis_imp_ratio_cap"
        out.set("algo.correction.kind", "tis", kind, old)
        out.copy("algo.correction.tis.high", older if source.flag(old) else newer)


def set_filter(source: SourceOptions, out: Outcome) -> None:
    """Set the filter of groups whose rewards are all the same."""
    dynamic, zero = f"{ALGORITHM}.dynamic_sampling.type", f"{ALGORITHM}.zero_variance_filter"
    if source.text(dynamic) in ("filter", "replace"):
        batches = f"{ALGORITHM}.dynamic_sampling.max_sample_batches"
        out.set("rollout.filters", ["zero_variance"], dynamic)
        out.set("rollout.max_refills", max(source.whole(batches) - 1, 0), batches)
        if source.text(dynamic) == "replace":
            out.differs(dynamic, "dropped groups are replaced by those of new prompts")
    elif source.flag(zero):
        out.set("rollout.filters", ["zero_variance"], zero)


def set_overlong(source: SourceOptions, out: Outcome) -> None:
    """Set the penalty for answers that come near the largest length."""
    buffer = f"{ALGORITHM}.overlong_buffer_len"
    if source.value(buffer) is not None:
        out.set("reward.shapers", ["overlong"], buffer)
        out.copy("reward.overlong.buffer", buffer)
        out.copy("reward.overlong.factor", f"{ALGORITHM}.overlong_buffer_penalty_factor")
        out.copy("reward.overlong.max_tokens", ANSWER, buffer)
