"""Diagnoses of the policy and its updates: no entropy, far from the reference, clipped, too fast, too slow."""

from __future__ import annotations

import statistics

from .diagnosis import REWARDS, Finding, diagnosis
from .record import FEWEST, LAST, Record, windows

ENTROPY_GONE = 0.01
"""Entropy in nats per token below which all samples of a prompt are the same: the more probable of two tokens has a
probability of 0.998. It is the number of the warnings of a run that goes on."""
KL_FAR = 10.0
"""KL to the reference in nats per token from which on a policy does not come back, where the reward has not risen: its
tokens have a probability of 5e-5 under the reference. It is the number of the warnings, too."""
KL_NONSENSE = 15.0
"""KL in nats per token that is wrong even beside a rising reward: a reference that knows nothing gives each of a
million tokens 13.8, so this one finds the policy's tokens worse than random ones."""
KL_STEPS = 3
CLIPPED = 0.6
"""Share of clipped tokens. Sequence ratios (GSPO) clip 0.15 to 0.25 in runs that learn."""
ONE_SIGN = 0.95
"""Sum of the advantages by the sum of their sizes: -1 is all negative."""
AT_ONE = 1e-3
"""Distance of the mean ratio from 1 within which the loss of a clipped ratio is the mean advantage."""
UPDATE_KL = 0.5
"""Median KL of an update in nats per token. Updates that learn have 1e-4 to 0.05, and PPO's usual bound is 0.015."""
HARDLY = 0.25
"""Rise of the reward, in standard deviations of samples, up to which such updates have taught little: they are ten
times as large as those of runs that learn, so that a rise by what luck does is no excuse."""
CRASHED = 0.02
"""Entropy that is left, as a share of the first one."""
CRASHED_WITHIN = 20
"""Steps within which it crashed."""
MOVED = 0.006
"""Change of the entropy from window to window, of its mean, below which hardly a weight has moved. Batches alone
change it by 1 to 3 %, the means of 12 batches at a rate a thousandth of one that learns by 0.3 to 0.54 %; at one that
learns by 1 % or more, also where only an entropy bonus moves them."""
KL_STILL = 1e-5
"""KL to the reference in nats per token after ``STILL_STEPS`` steps. A rate of 1e-6 has 1e-3 by then."""
STILL_STEPS = 50
NOT_FINITE = 3
"""Last steps in a row whose loss or gradient is no number."""
LR = ("actor.adam.lr", "actor.warmup_ratio", "actor.max_norm")


@diagnosis("policy/entropy", *REWARDS)
def entropy_gone(record: Record) -> Finding | None:
    """Return a finding where the policy is practically certain of each token before its task is solved."""
    now, before = record.last("policy/entropy"), record.first("policy/entropy", 3)
    harmless = record.is_solved or (record.rises and not record.is_unsolved)
    if now > ENTROPY_GONE or before < 10 * now or harmless:
        return None
    return Finding(
        sentence=f"the entropy went from {before:.3g} to {now:.2g} nats per token and the task is not solved: the "
        "policy has stopped trying other answers",
        evidence={
            "policy/entropy at first": before,
            "policy/entropy at last": now,
            "rise of reward/mean": record.rise,
        },
        change=("algo.loss.entropy_coef", "algo.loss.entropy_target", "actor.adam.lr"),
        step=record.series("policy/entropy").steps[-1],
    )


@diagnosis("kl/ref", *REWARDS)
def kl_far(record: Record) -> Finding | None:
    """Return a finding where the policy writes what the reference would never write."""
    kl = min(record.values("kl/ref")[-KL_STEPS:], default=0.0)
    if kl < KL_FAR or (record.rises and kl < KL_NONSENSE):
        return None
    return Finding(
        sentence=f"the KL to the reference is {kl:.3g} nats per token or more in each of the last {KL_STEPS} "
        "steps: the policy writes what the reference would never write",
        evidence={"kl/ref at first": record.first("kl/ref"), "kl/ref at last": kl},
        change=("algo.kl.coef", "actor.adam.lr"),
        step=record.series("kl/ref").steps[-1],
    )


@diagnosis("clip/fraction_low", "clip/fraction_high", *REWARDS)
def all_clipped(record: Record) -> Finding | None:
    """Return a finding where most tokens are clipped and the reward has not risen."""
    share = record.last("clip/fraction_low") + record.last("clip/fraction_high")
    if share < CLIPPED or record.rises:
        return None
    return Finding(
        sentence=f"{100 * share:.0f} % of the tokens are clipped, which takes their gradient, and the reward has "
        "not risen: updates leave the bounds of the loss at once",
        evidence={"clipped tokens": share, "policy/approx_kl": record.last("policy/approx_kl")},
        change=("actor.adam.lr", "train.inner_epochs", "train.batch_size"),
        step=record.series("clip/fraction_high").steps[-1],
    )


@diagnosis("clip/fraction_low", "advantage/abs_mean", "loss/policy", "policy/ratio", *REWARDS)
def only_negative(record: Record) -> Finding | None:
    """Return a finding where every advantage is negative: tokens are pushed down and none is pulled up.

    With ratios of 1 the loss of a clipped ratio is minus the mean advantage, so it equals their mean size exactly where
    all are negative. Advantages that are all positive are no trouble: that is learning from the best answers.
    """
    sizes = record.values("advantage/abs_mean")[-FEWEST:]
    losses = record.values("loss/policy")[-FEWEST:]
    ratios = record.values("policy/ratio")[-FEWEST:]
    if not len(sizes) == len(losses) == len(ratios) or min(sizes) <= 0.0:
        return None
    if max(abs(ratio - 1.0) for ratio in ratios) > AT_ONE or record.rises:
        return None
    shares = [loss / size for loss, size in zip(losses, sizes, strict=True)]
    if min(shares) < ONE_SIGN or max(shares) > 1.0 / ONE_SIGN:
        return None
    return Finding(
        sentence=f"every advantage of the last {len(sizes)} steps is negative: tokens are pushed down and none is "
        "pulled up. The reward is never above its baseline",
        evidence={
            "loss/policy by advantage/abs_mean": min(shares),
            "rise of reward/mean": record.rise,
        },
        change=("algo.advantage.estimator", "reward.use"),
        step=record.series("loss/policy").steps[-1],
    )


@diagnosis("policy/entropy", *REWARDS)
def rate_too_high(record: Record) -> Finding | None:
    """Return a finding where an update moved the policy further than its batch can tell, for ten steps at any time, or
    the entropy crashed within the first steps, and the reward has hardly risen.

    A policy that was thrown far at first may take small updates ever after, for nothing is left that they could move.
    """
    kls = record.values("policy/approx_kl")
    starts = range(max(len(kls) - LAST, 0) + 1)
    update = max(statistics.median(kls[at : at + LAST] or [0.0]) for at in starts)
    entropies = record.values("policy/entropy")
    first, early = entropies[0], min(entropies[:CRASHED_WITHIN])
    if update >= UPDATE_KL and record.rise <= HARDLY * record.spread:
        sentence = f"an update moved the policy by {update:.3g} nats per token, over {LAST} steps"
    elif record.rises or record.is_solved:
        return None
    elif early <= CRASHED * first and record.last("policy/entropy") <= CRASHED * first:
        sentence = f"the entropy fell from {first:.3g} to {early:.2g} nats per token within {CRASHED_WITHIN} steps"
    else:
        return None
    return Finding(
        sentence=f"{sentence}, and the reward has hardly risen: the learning rate is likely too high",
        evidence={
            f"policy/approx_kl, largest median of {LAST} steps": update,
            "policy/entropy at first": first,
            f"lowest of {CRASHED_WITHIN} steps": early,
            "policy/lr": record.last("policy/lr"),
            "rise of reward/mean": record.rise,
        },
        change=(*LR, "rollout.max_staleness") if record.values("rollout/staleness_mean") else LR,
        step=record.series("policy/entropy").steps[: len(entropies)][-1],
    )


@diagnosis("policy/entropy", "policy/grad_norm", *REWARDS, steps=STILL_STEPS)
def rate_too_low(record: Record) -> Finding | None:
    """Return a finding where there is a gradient and no weight moves."""
    entropies, kls = record.values("policy/entropy"), record.values("kl/ref")
    if record.last("policy/grad_norm") <= 0.0 or not record.spread > 0.0 or record.rises:
        return None
    mean = statistics.fmean(entropies)
    means = windows(entropies)
    change = max(means) - min(means)
    by_entropy = change <= MOVED * mean and mean > ENTROPY_GONE
    kl = statistics.median(abs(each) for each in kls[-LAST:]) if kls else None
    if not by_entropy or (kl is not None and kl > KL_STILL):
        return None
    evidence = {
        "policy/entropy, largest change of windows": change,
        "policy/entropy, mean": mean,
        "policy/lr": record.last("policy/lr"),
        "rise of reward/mean": record.rise,
    }
    return Finding(
        sentence=f"in {len(entropies)} steps the entropy stayed within {100 * change / mean:.2g} % over windows "
        "of steps, and the reward has not risen, although there is a gradient: the learning rate is likely too low",
        evidence=evidence if kl is None else evidence | {"kl/ref": kl},
        change=("actor.adam.lr", "actor.warmup_ratio"),
        step=record.series("policy/entropy").steps[-1],
    )


@diagnosis("policy/grad_norm|reward_model/grad_norm", steps=NOT_FINITE)
def not_finite(record: Record) -> Finding | None:
    """Return a finding where the last losses, or norms of gradients, are NaN or infinite."""
    for name, series in record.metrics.series.items():
        watched = name.startswith("loss/") or name.endswith("/grad_norm")
        tail = series.values[-NOT_FINITE:]
        if watched and len(tail) == NOT_FINITE and all(value is None for value in tail):
            return Finding(
                sentence=f"{name} is NaN or infinite in each of the last {NOT_FINITE} steps: nothing is "
                "learned from them",
                evidence={"steps": float(sum(value is None for value in series.values))},
                change=(*LR, "model.dtype"),
                step=series.steps[-NOT_FINITE],
            )
    return None
