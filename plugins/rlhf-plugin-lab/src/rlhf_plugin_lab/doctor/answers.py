"""Diagnoses of answers: cut off, empty, ever longer, or the same whatever the prompt is."""

from __future__ import annotations

from collections import defaultdict

from .diagnosis import REWARDS, Finding, diagnosis
from .record import FEWEST, LAST, Record, Texts
from .repeated import PROMPTS, RARE, SAME_TEXT, same_answer_of
from .standstill import evidence, is_stuck, outlook

CUT_OFF = 0.95
"""Share of answers that are cut off, on average over the last steps."""
EMPTY = 1.0
"""Mean number of tokens of answers that end at once."""
LONGER = 2.0
"""Growth of the mean length."""
CUT_BEFORE, CUT_NOW = 0.1, 0.5
"""Shares of answers that are cut off before and after a drift: growth that stays within the limit is no trouble."""
LEFT = 0.5
"""Reward below the best batch's, in standard deviations of samples, at which an answer is no solution."""


@diagnosis("response/truncated", *REWARDS)
def cut_off(record: Record) -> Finding | None:
    """Return a finding where nearly all answers are cut off at their limit and the reward has not risen.

    A hint where an answer that was cut earned more than the least: the limit is then no bar to every reward.
    """
    share = record.last("response/truncated", FEWEST)
    if share < CUT_OFF or record.rises or record.number("rollout.max_new_tokens") == 1:
        return None
    return Finding(
        sentence=f"{100 * share:.0f} % of the answers were cut off at their limit, so the reward judges "
        "unfinished ones, and it has not risen",
        evidence={
            "response/truncated": share,
            "response/length_mean": record.last("response/length_mean"),
            "rise of reward/mean": record.rise,
        },
        change=("rollout.max_new_tokens", "rollout.stop", "model.path"),
        is_sure=not _cut_ones_earn(record.texts),
        step=record.series("response/truncated").steps[-1],
    )


def _cut_ones_earn(texts: Texts) -> bool:
    """Return whether a recorded answer that was cut off has more than the lowest recorded reward."""
    lowest = min(texts.rewards, default=0.0)
    return any(text.truncated and text.reward > lowest for text in texts.last)


@diagnosis("response/length_mean", *REWARDS)
def empty_answers(record: Record) -> Finding | None:
    """Return a finding where answers end with their first token and the reward has not risen."""
    length = record.last("response/length_mean")
    if length > EMPTY or record.rises or record.number("rollout.max_new_tokens") == 1:
        return None
    return Finding(
        sentence=f"answers of the last {LAST} steps had {length:.3g} tokens on average: they end at once, and the "
        "reward has not risen. The prompt's format likely tells the model to say nothing",
        evidence={"response/length_mean": length, "rise of reward/mean": record.rise},
        change=("data.template", "data.chat", "rollout.min_new_tokens"),
        step=record.series("response/length_mean").steps[-1],
    )


@diagnosis("response/length_mean", "response/truncated", *REWARDS)
def length_drift(record: Record) -> Finding | None:
    """Return a finding where answers have grown into their limit and the reward has not risen."""
    before, now = record.first("response/length_mean"), record.last("response/length_mean")
    was, share = record.first("response/truncated"), record.last("response/truncated")
    if now < LONGER * before or was > CUT_BEFORE or share < CUT_NOW or record.rises:
        return None
    return Finding(
        sentence=f"answers have grown from {before:.3g} to {now:.3g} tokens and {100 * share:.0f} % are cut off, "
        "while the reward has not risen: length itself is what the policy is moved by",
        evidence={
            "response/length_mean at first": before,
            "response/length_mean at last": now,
            "response/truncated at last": share,
            "rise of reward/mean": record.rise,
        },
        change=("algo.loss.aggregation", "reward.shapers", "algo.kl.coef"),
        step=record.series("response/length_mean").steps[-1],
    )


@diagnosis(*REWARDS, texts=LAST)
def one_answer(record: Record) -> Finding | None:
    """Return a finding where nearly all prompts get the same answer, and it is not what the reward pays most for.

    A hint while the policy still tries others, or groups have rewards to compare: it may read its prompts later.
    """
    same = same_answer_of(record.texts)
    if same is None or _is_solved(record):
        return None
    return Finding(
        sentence=f"{100 * same.share:.0f} % of the last recorded prompts got one and the same answer, though rewards "
        "differ between prompts: the policy no longer reads its prompt "
        f"({100 * same.before:.0f} % had that answer at first){outlook(record)}",
        evidence={**same.evidence(), **evidence(record)},
        change=("actor.adam.lr", "algo.loss.entropy_coef", "algo.kl.coef"),
        step=record.texts.last[-1].step,
        is_sure=is_stuck(record),
    )


@diagnosis(*REWARDS, texts=LAST)
def prompt_ignored(record: Record) -> Finding | None:
    """Return a finding where one answer that was rare at first is given to nearly all prompts, and paid in full.

    To say nothing is no answer: a policy may learn to end first, and what to say before later.
    """
    same = same_answer_of(record.texts)
    if same is None or not same.answer or same.before > RARE:
        return None
    if not _is_solved(record) or not record.rises:
        return None
    return Finding(
        sentence=f"{100 * same.share:.0f} % of the last recorded prompts got one and the same answer, "
        f"{same.shown()}, and the reward is at its highest: what is paid for does not depend on "
        f"the prompt ({100 * same.before:.0f} % had that answer at first). It is right only if all prompts of the "
        "data have one answer",
        evidence={**same.evidence(), "rise of reward/mean": record.rise},
        change=("reward.use", "data.train", "algo.kl.coef"),
        step=record.texts.last[-1].step,
    )


@diagnosis(*REWARDS, texts=LAST)
def same_samples(record: Record) -> Finding | None:
    """Return a finding where the samples of a prompt are all the same text, before the task is solved.

    A hint while other samples than those that are recorded have rewards to compare, or the policy still tries others.
    """
    groups = defaultdict(list)
    for text in record.texts.last:
        groups[text.step, text.group].append(text.answer)
    several = [answers for answers in groups.values() if len(answers) > 1]
    if len(several) < PROMPTS:
        return None
    share = sum(len(set(answers)) == 1 for answers in several) / len(several)
    if share < SAME_TEXT or _is_solved(record):
        return None
    return Finding(
        sentence=f"in {100 * share:.0f} % of the last recorded groups all samples are the same text, and the task "
        f"is not solved: the policy has hardly anything to compare{outlook(record)}",
        evidence={"groups": len(several), "share with equal samples": share, **evidence(record)},
        change=("rollout.temperature", "algo.loss.entropy_coef", "actor.adam.lr"),
        step=record.texts.last[-1].step,
        is_sure=is_stuck(record),
    )


def _is_solved(record: Record) -> bool:
    """Return whether rewards are nearly the highest recorded, here or held out, or hardly differ any more and are as
    high as ever. A model that could the task before the run has no lower rewards to compare with."""
    if record.is_solved:
        return True
    best = max(record.values("reward/mean"))
    below = best - record.last("reward/mean")
    return not record.is_unsolved and below <= LEFT * record.spread
