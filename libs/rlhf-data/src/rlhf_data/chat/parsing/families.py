"""Forms of thoughts and tool calls, by a tokenizer's added tokens and its chat template."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from . import blocks, deepseek, gemma, harmony, lfm2, llama, mistral


class CallForm(NamedTuple):
    """A form of tool calls."""

    name: str
    marks: tuple[str, ...]
    sign: str
    """Mark by which the form is known."""
    bounds_turns: bool = False
    """Whether the marks begin and end messages, of anyone, and not only calls."""


class ThoughtTags(NamedTuple):
    """Marks around a thought."""

    begin: str
    end: str

    @property
    def channel(self) -> str:
        """Text behind ``begin`` that is no part of the thought: the name of Gemma 4's channel."""
        return "thought\n" if self.begin == gemma.CHANNEL else ""


THOUGHTS = (
    ThoughtTags("<think>", "</think>"),
    ThoughtTags("[THINK]", "[/THINK]"),
    ThoughtTags("<thinking>", "</thinking>"),
    ThoughtTags("<thought>", "</thought>"),
    ThoughtTags("<reasoning>", "</reasoning>"),
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtTags(gemma.CHANNEL, gemma.CHANNEL_END),
)

CALLS = (
    CallForm(
        "deepseek",
        (deepseek.BEGIN, deepseek.END, deepseek.SEPARATOR, deepseek.ALL_BEGIN, deepseek.ALL_END),
        deepseek.BEGIN,
    ),
    CallForm("mistral", (mistral.CALLS, mistral.ARGS, mistral.CALL_ID), mistral.CALLS),
    CallForm("gemma", (gemma.OPEN, gemma.CLOSE, gemma.QUOTE), gemma.OPEN),
    CallForm(
        "harmony",
        (
            *(harmony.START, harmony.CHANNEL, harmony.CONSTRAIN, harmony.MESSAGE),
            *(harmony.END, harmony.CALL, harmony.RETURN),
        ),
        harmony.CHANNEL,
        bounds_turns=True,
    ),
    CallForm("lfm2", (lfm2.OPEN, lfm2.CLOSE), lfm2.OPEN),
    CallForm("hermes", (blocks.OPEN, blocks.CLOSE), blocks.OPEN),
    CallForm("llama", (llama.TAG,), llama.TAG),
)
"""The forms, in the order in which they are looked for."""

ANSWER_WORDS = frozenset(
    word
    for one in (*(form.marks for form in CALLS if not form.bounds_turns), *THOUGHTS)
    for word in one
)
"""Marks that have a place in answers alone."""


def thoughts_of(words: Collection[str], template: str) -> ThoughtTags | None:
    """Return the marks around thoughts that a tokenizer has as tokens and its template writes, or else that one of them
    has, the tokenizer first."""
    both = {word for word in words if word in template}
    for known in (both, words, template):
        for tags in THOUGHTS:
            if tags.end in known:
                return tags
    return None


def calls_of(words: Collection[str], template: str) -> CallForm | None:
    """Return the form of tool calls; None: no form is known."""
    for known in (template, words):
        for form in CALLS:
            if form.sign in known:
                return form
    return None
