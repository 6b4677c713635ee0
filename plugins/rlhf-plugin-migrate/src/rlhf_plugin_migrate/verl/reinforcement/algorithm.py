"""Rules of the algorithm: which estimator, loss and KL verl's keys mean together."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions

ACTOR = "actor_rollout_ref.actor"
_ESTIMATOR = "algorithm.adv_estimator"
_NORM = "algorithm.norm_adv_by_std_in_grpo"
_ESTIMATORS = {
    "gae": "gae",
    "grpo": "group_norm",
    "grpo_vectorized": "group_norm",
    "reinforce_plus_plus": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
    "remax": "remax",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "opo": "opo",
    "grpo_passk": "grpo_passk",
    "gdpo": "gdpo",
    "gpg": "dr_grpo",
    "optimal_token_baseline": "optimal_token_baseline",
    "tir_optimal_token_baseline": "optimal_token_baseline",
}
"""verl's estimator -> ours."""
_LOSSES = {
    "vanilla": "ppo",
    "gspo": "gspo_token",
    "sapo": "sapo",
    "gpg": "gpg",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "geo_mean": "gmpo",
    "cispo": "cispo",
    "dppo_tv": "dppo",
    "dppo_kl": "dppo",
}
"""verl's loss -> ours."""
_BY_SEQUENCE = ("gspo_token", "sapo")
_AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_CLIPPED = ("ppo", "gspo_token", "gmpo", "clip_cov", "cispo")
_KL_NAMES = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_OF_GROUPS = {
    "group_norm": "none",
    "dr_grpo": "none",
    "rloo": "none",
    "opo": "none",
    "reinforce_baseline": "full",
}
"""Estimator that compares the samples of a prompt -> how advantages are whitened where there is one sample."""
_N = "actor_rollout_ref.rollout.n"
_IN_LOSS, _IN_REWARD = f"{ACTOR}.use_kl_loss", "algorithm.use_kl_in_reward"


def has_critic(source: SourceOptions) -> bool:
    """Return True if the estimator has a critic."""
    return source.text(_ESTIMATOR) == "gae"


def has_reference(source: SourceOptions) -> bool:
    """Return True if there is a KL, so that a reference is needed."""
    return source.flag(_IN_LOSS) or source.flag(_IN_REWARD)


def set_advantage(source: SourceOptions, out: Outcome) -> None:
    """Set the estimator with discount and lambda."""
    theirs = source.text(_ESTIMATOR)
    name = _ESTIMATORS.get(theirs, "group_norm")
    if name == "group_norm" and not source.flag(_NORM):
        name = "dr_grpo"
    is_alone = source.whole(_N) == 1 and name in _OF_GROUPS
    if is_alone:
        out.set("algo.advantage.reinforce.whiten", _OF_GROUPS[name], _ESTIMATOR, _N)
        out.differs(
            _ESTIMATOR,
            f"with one sample of each prompt verl's {theirs} has no baseline: the reward counts",
        )
        name = "reinforce"
    is_known = theirs in _ESTIMATORS
    comment = "" if is_known else f"in the place of {theirs}; see the report"
    out.set("algo.advantage.estimator", name, _ESTIMATOR, _NORM, comment=comment)
    if not is_known:
        out.missing(
            _ESTIMATOR,
            f"{theirs} is no estimator of verl's own, and {name} stands in its place: write yours into a file "
            "(docs/first-algorithm.md), and start the run with --estimator FILE.py:NAME",
        )
    if name == "group_norm":
        out.differs(
            _ESTIMATOR,
            "the standard deviation gets eps 1e-4 and not 1e-6, and equal rewards give no advantage",
        )
    elif theirs == "gpg":
        out.differs(_ESTIMATOR, "advantages are not scaled by the share of groups that have some")
    elif name in ("reinforce_baseline", "gdpo"):
        out.differs(_ESTIMATOR, "advantages are whitened over the batch, as in verl")
    if name == "optimal_token_baseline":
        out.set("algo.advantage.optimal_token_baseline.tail", "zero", _ESTIMATOR)
    if theirs == "grpo_passk":
        norm = "sample" if source.flag(_NORM) else "none"
        out.set("algo.advantage.grpo_passk.std", norm, _NORM)
    elif name not in ("group_norm", "dr_grpo"):
        out.nothing(_NORM, f"{name} does not read it")
    if name in ("gae", "reinforce"):
        out.copy(f"algo.advantage.{name}.gamma", "algorithm.gamma")
    else:
        out.nothing("algorithm.gamma", f"{name} has no discount")
    if name == "gae":
        out.copy("algo.advantage.gae.lambda_", "algorithm.lam")
    else:
        out.nothing("algorithm.lam", f"{name} has no lambda")


def loss_of(source: SourceOptions) -> str:
    """Return our name of the policy loss."""
    return _LOSSES.get(source.text(f"{ACTOR}.policy_loss.loss_mode"), "ppo")


def set_loss(source: SourceOptions, out: Outcome) -> None:
    """Set the policy loss with its bounds, and its aggregation."""
    mode, loss = f"{ACTOR}.policy_loss.loss_mode", loss_of(source)
    theirs = source.text(mode)
    out.set("algo.loss.policy", loss, mode)
    if theirs not in _LOSSES:
        out.missing(mode, f"{theirs} is no loss here; ppo is taken")
    _set_bounds(source, out, loss, theirs)
    for key, option, of in (
        ("policy_loss.tau_pos", "tau_pos", "sapo"),
        ("policy_loss.tau_neg", "tau_neg", "sapo"),
        ("policy_loss.clip_cov_ratio", "fraction", "clip_cov"),
        ("policy_loss.clip_cov_lb", "cov_low", "clip_cov"),
        ("policy_loss.clip_cov_ub", "cov_high", "clip_cov"),
        ("policy_loss.kl_cov_ratio", "fraction", "kl_cov"),
        ("policy_loss.ppo_kl_coef", "kl_coef", "kl_cov"),
    ):
        if loss == of:
            out.copy(f"algo.loss.{loss}.{option}", f"{ACTOR}.{key}")
        else:
            out.nothing(f"{ACTOR}.{key}", f"the loss is {loss}")
    _set_aggregation(source, out, loss)


def _set_bounds(source: SourceOptions, out: Outcome, loss: str, theirs: str) -> None:
    low, high, both, dual = (f"{ACTOR}.clip_ratio{end}" for end in ("_low", "_high", "", "_c"))
    # Both have a default of their own, so that clip_ratio alone changes nothing.
    out.nothing(
        both, "verl reads clip_ratio_low and clip_ratio_high, which are 0.2 unless they are set"
    )
    if source.given(both) and not source.given(low, high) and source.number(both) != 0.2:
        out.differs(
            both, "verl reads clip_ratio_low and clip_ratio_high, which are 0.2 unless they are set"
        )
    if loss in _CLIPPED:
        # Below 0 there is no ratio: 1 is no bound, and verl's 10 neither.
        out.set(f"algo.loss.{loss}.clip_low", min(source.number(low), 1.0), low)
        out.copy(f"algo.loss.{loss}.clip_high", high)
    elif loss == "dppo":
        out.set(
            "algo.loss.dppo.divergence",
            "tv" if theirs == "dppo_tv" else "kl",
            f"{ACTOR}.policy_loss.loss_mode",
        )
        out.copy("algo.loss.dppo.threshold", high, low)
        if source.number(low) != source.number(high):
            out.differs(low, "there is one threshold for both directions")
    else:
        out.nothing((low, high), f"{loss} does not clip")
    if loss == "ppo":
        out.copy("algo.loss.ppo.dual_clip", dual)
    elif loss == "dppo":
        out.copy("algo.loss.dppo.max_ratio", dual)
    else:
        out.nothing(dual, f"{loss} has no such bound")


def _set_aggregation(source: SourceOptions, out: Outcome, loss: str) -> None:
    key = f"{ACTOR}.loss_agg_mode"
    mode = source.text(key)
    if loss in _BY_SEQUENCE:
        if mode != "seq-mean-token-mean":
            out.nothing(key, f"{loss} always averages by sequence, in verl too")
        mode = "seq-mean-token-mean"
    if mode in _AGGREGATIONS:
        # Written out always: auto takes another one for some estimators, such as dr_grpo.
        out.set("algo.loss.aggregation", mode, key)
        return
    ours = "seq-mean-token-sum-norm" if mode == "seq-mean-token-sum" else "token-mean"
    out.set("algo.loss.aggregation", ours, key)
    out.differs(
        key,
        "the loss is divided by a constant more than in verl, to which Adam is indifferent and actor.max_norm is not",
    )


def set_kl(source: SourceOptions, out: Outcome) -> None:
    """Set the KL penalty: in the loss or in the reward, not in both."""
    loss_keys = (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
    reward_keys = ("algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty")
    adapted = ("algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon")
    in_loss, in_reward = source.flag(_IN_LOSS), source.flag(_IN_REWARD)
    if in_loss and in_reward:
        out.missing(_IN_REWARD, "there is one KL: that of the loss is taken")
    out.nothing(() if in_loss else (*loss_keys, _IN_LOSS), "there is no KL in the loss")
    out.nothing(
        ()
        if in_reward and not in_loss
        else (*reward_keys, *adapted, "algorithm.kl_ctrl.type", _IN_REWARD),
        "there is no KL in the reward",
    )
    if not has_reference(source):
        out.set("algo.kl.coef", 0.0, _IN_LOSS, _IN_REWARD)
        return
    switch = _IN_LOSS if in_loss else _IN_REWARD
    coef, kind = loss_keys if in_loss else reward_keys
    out.set("algo.kl.mode", "loss" if in_loss else "reward", switch)
    out.copy("algo.kl.coef", coef)
    _set_kl_estimator(source, out, kind, in_loss=in_loss)
    if in_loss:
        out.set("algo.kl.tail", "clamp", switch, comment="verl lets tokens beyond 10 nats go")
    elif source.text("algorithm.kl_ctrl.type") == "adaptive":
        out.set("algo.kl.target", source.number(adapted[0]), adapted[0], "algorithm.kl_ctrl.type")
        out.set("algo.kl.horizon", int(source.number(adapted[1])), adapted[1])
    else:
        out.nothing((*adapted, "algorithm.kl_ctrl.type"), "the coefficient is fixed")


def _set_kl_estimator(source: SourceOptions, out: Outcome, key: str, *, in_loss: bool) -> None:
    written = source.text(key)
    unbiased = written.endswith("+")
    name = _KL_NAMES.get(written.removesuffix("+"), "k2")
    if written.removesuffix("+") not in _KL_NAMES:
        out.missing(key, f"{written} is no estimator here; k2 is taken")
    if in_loss and name == "k1" and not unbiased:
        name = "k2"
        out.differs(
            key,
            "k1 as a loss has a gradient of zero on average and is refused; k2 has the gradient of the KL",
        )
    out.set("algo.kl.estimator", name, key)
    if in_loss and unbiased:
        out.set("algo.kl.unbiased_gradient", True, key)
