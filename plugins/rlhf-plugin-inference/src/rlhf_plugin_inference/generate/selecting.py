"""From completions with rewards to rows that ``rlhf sft`` and ``rlhf dpo`` read: pure functions on one prompt.

A completion can be chosen if it has a reward and a text that is not blank, and was not cut off at the token limit
(unless the options allow that): a model that imitates it would learn to stop where it was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.contracts import Stop

from .options import SelectOptions
from .records import AnsweredPrompt, ScoredAnswer

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A prompt from which nothing was chosen."""

    reason: str
    """A few words, by which such prompts are counted."""


Chooser = Callable[[AnsweredPrompt, SelectOptions], list[Row] | LeftOut]


def usable(prompt: AnsweredPrompt, options: SelectOptions) -> list[ScoredAnswer]:
    """Return the completions that can be chosen, each text once, in the order of samples."""
    found: dict[str, ScoredAnswer] = {}
    for answer in prompt.completions:
        cut = answer.stop == Stop.LENGTH and not options.truncated
        if answer.reward is not None and _is_text(answer.text) and not cut:
            found.setdefault(answer.text, answer)
    return list(found.values())


def best(prompt: AnsweredPrompt, options: SelectOptions) -> list[Row] | LeftOut:
    """Return the row of the completion with the highest reward, of equal ones the first."""
    answers = usable(prompt, options)
    if not answers:
        return LeftOut("no completion to choose from")
    chosen = max(answers, key=_reward)
    if options.threshold is not None and _reward(chosen) < options.threshold:
        return LeftOut("below the threshold")
    return [_imitated(prompt, chosen)]


def rejection(prompt: AnsweredPrompt, options: SelectOptions) -> list[Row] | LeftOut:
    """Return a row for each completion whose reward is at least the threshold."""
    assert options.threshold is not None
    answers = usable(prompt, options)
    if not answers:
        return LeftOut("no completion to choose from")
    rows = [_imitated(prompt, one) for one in answers if _reward(one) >= options.threshold]
    return rows or LeftOut("below the threshold")


def pairs(prompt: AnsweredPrompt, options: SelectOptions) -> list[Row] | LeftOut:
    """Return one row of the completions with the highest and with the lowest reward; of equal ones the first."""
    answers = usable(prompt, options)
    if len(answers) < 2:
        return LeftOut("fewer than two completions to choose from")
    chosen, rejected = max(answers, key=_reward), min(answers, key=_reward)
    margin = _reward(chosen) - _reward(rejected)
    if margin == 0:
        return LeftOut("equal rewards")
    row = {"chosen": chosen.text, "rejected": rejected.text, "margin": margin}
    return [{**_asked(prompt), **row, "index": prompt.index}]


CHOOSERS: Mapping[str, Chooser] = {"best": best, "rejection": rejection, "pairs": pairs}
"""Mode -> what becomes of a prompt."""


def _imitated(prompt: AnsweredPrompt, answer: ScoredAnswer) -> Row:
    """Return a row of ``rlhf sft``."""
    return {
        **_asked(prompt),
        "response": answer.text,
        "reward": answer.reward,
        "index": prompt.index,
    }


def _asked(prompt: AnsweredPrompt) -> Row:
    """Return the columns of the prompt: messages of a chat, so that the template is applied anew, and the variables by
    which it was; else the text."""
    if prompt.messages is None:
        return {"prompt": prompt.prompt}
    given = prompt.chat_template_kwargs
    return {
        "prompt": list(prompt.messages),
        **({"chat_template_kwargs": dict(given)} if given else {}),
    }


def _reward(answer: ScoredAnswer) -> float:
    assert answer.reward is not None
    return answer.reward


def _is_text(text: str) -> bool:
    """Return whether a text can be learned from: a NUL is in no tokenizer's files, and a blank answer says nothing."""
    return bool(text.strip()) and "\0" not in text
