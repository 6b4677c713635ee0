"""Rules of the algorithm: estimator, loss, KL, correction and filter that SkyRL's keys mean together."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions

ALGORITHM = "trainer.algorithm"
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
        gamma = f"{ALGORITHM}.gamma"
        out.set(f"algo.advantage.{name}.gamma", source.number(gamma), gamma)
    if name == "gae":
        lambd = f"{ALGORITHM}.lambd"
        out.set("algo.advantage.gae.lambda_", source.number(lambd), lambd)
    bonus, coef = f"{ALGORITHM}.use_entropy_loss", f"{ALGORITHM}.entropy_loss_coef"
    if source.flag(bonus):
        out.set("algo.loss.entropy_coef", source.number(coef), bonus, coef)


def set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the policy loss with its bounds, and its aggregation."""
    key, reduction = f"{ALGORITHM}.policy_loss_type", f"{ALGORITHM}.loss_reduction"
    theirs = source.text(key)
    loss = _LOSSES.get(theirs, "ppo")
    out.set("algo.loss.policy", loss, key)
    if theirs not in _LOSSES:
        out.missing(key, f"{theirs} is no loss here; ppo is taken")
    if loss in _CLIPPED:
        for side in ("low", "high"):
            bound = f"{ALGORITHM}.eps_clip_{side}"
            out.set(f"algo.loss.{loss}.clip_{side}", source.number(bound), bound)
    for name, option in _OF_LOSSES.items():
        if option.startswith(f"{loss}."):
            own = f"{ALGORITHM}.{name}"
            out.set(f"algo.loss.{option}", source.number(own), own)
    if loss == "dppo":
        kind = f"{ALGORITHM}.dppo.dppo_type"
        out.set("algo.loss.dppo.divergence", source.text(kind).removeprefix("binary_"), kind)
    if theirs == "dual_clip":
        dual = f"{ALGORITHM}.clip_ratio_c"
        out.set("algo.loss.ppo.dual_clip", source.number(dual), dual)
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
    coef, kind = f"{ALGORITHM}.kl_loss_coef", f"{ALGORITHM}.kl_estimator_type"
    mode, theirs = kl_mode(source), source.text(kind)
    if not mode:
        out.set("algo.kl.coef", 0.0, *switches)
        return
    out.set("algo.kl.mode", mode, *switches)
    out.set("algo.kl.coef", source.number(coef), coef)
    known = ("k2", "k3") if mode == "loss" else ("k1", "k2", "k3")
    out.set("algo.kl.estimator", theirs if theirs in known else "k2", kind)
    if theirs not in known:
        out.differs(kind, "k2 has the gradient of the KL, which k1 and abs as a loss have not")


def set_correction(source: SourceOptions, out: Outcome) -> None:
    """Set the correction between sampler and trainer, and the filter of groups."""
    prefix, old = f"{ALGORITHM}.off_policy_correction", f"{ALGORITHM}.use_tis"
    kind = f"{prefix}.tis_ratio_type"
    if source.text(kind) == "sequence":
        limit = f"{prefix}.sequence_tis_ratio_clip_high"
        out.set("algo.correction.kind", "importance", kind)
        out.set("algo.correction.importance.level", "sequence", kind)
        out.set("algo.correction.importance.mode", "truncate", kind)
        out.set("algo.correction.importance.high", source.number(limit), limit)
    elif source.text(kind) == "token" or source.flag(old):
        limit = (
            f"{ALGORITHM}.tis_imp_ratio_cap"
            if source.flag(old)
            else f"{prefix}.token_tis_ratio_clip_high"
        )
        out.set("algo.correction.kind", "tis", kind, old)
        out.set("algo.correction.tis.high", source.number(limit), limit)
    dynamic, zero = f"{ALGORITHM}.dynamic_sampling.type", f"{ALGORITHM}.zero_variance_filter"
    if source.text(dynamic) in ("filter", "replace"):
        batches = f"{ALGORITHM}.dynamic_sampling.max_sample_batches"
        out.set("rollout.filters", ["zero_variance"], dynamic)
        out.set("rollout.max_refills", max(source.whole(batches) - 1, 0), batches)
        if source.text(dynamic) == "replace":
            out.differs(dynamic, "dropped groups are replaced by those of new prompts")
    elif source.flag(zero):
        out.set("rollout.filters", ["zero_variance"], zero)
