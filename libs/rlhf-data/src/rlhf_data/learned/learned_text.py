"""Text with the spans of it that are learned."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_core.media.reference import MediaRef

from ..chat.control_words import ControlText, TextSpan

Span = TextSpan
"""Part of a text or of a list of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedText:
    """Text that is tokenized as a whole, with the spans of characters that are learned."""

    text: str
    spans: tuple[Span, ...]
    """Learned spans in order, none empty; each is a turn, or the mark behind a step."""
    is_plain: bool = False
    """Whether no template made the text, so that the special tokens with which the tokenizer starts texts go before."""
    is_ended: bool = False
    """Whether an end-of-sequence token goes behind the text, as part of the last span."""
    active: tuple[Span, ...] | None = None
    """Control words that are control tokens, as in ``ControlText``."""
    inert: tuple[str, ...] = ()
    """Control words that are ordinary text, each once."""
    out_of_turn: str | None = None
    """The conversation's first message that is out of turn, as ``turn_order`` names it."""
    media: tuple[MediaRef, ...] = ()
    """Images of the text, in the order of their markers in it."""

    def control_text(self) -> ControlText:
        """Return the text for the tokenizer."""
        return ControlText(text=self.text, active=self.active, inert=self.inert)


def plain_text(text: ControlText, start: int = 0) -> LearnedText:
    """Return a text without a chat template that is learned from character ``start`` on, and ends there."""
    return LearnedText(
        text=text.text,
        spans=(Span(start, len(text.text)),),
        is_plain=True,
        is_ended=True,
        active=text.active,
        inert=text.inert,
    )
