"""Text and tokens that a model's processor writes into a conversation beside its chat template.

A processor of Transformers works on the rendered text, before it is tokenized. So what it writes around images may
become one token with what the template has there, and what the tokenizer puts before any text stands before a
conversation too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorText:
    """Text and tokens that a processor writes into each conversation."""

    begin: tuple[int, ...] = ()
    """Tokens before a conversation that does not begin with them."""
    marker: str = ""
    """Word that the chat template writes for an image."""
    around: str = ""
    """Text that is written before the marker, and behind it."""

    def written(self, text: str) -> str:
        """Return a rendered conversation with the text around its markers."""
        if not self.around:
            return text
        return text.replace(self.marker, f"{self.around}{self.marker}{self.around}")

    def moved(self, text: str, index: int) -> int:
        """Return the place in ``written(text)`` of a place in a text that is in no marker."""
        if not self.around:
            return index
        return index + 2 * len(self.around) * text.count(self.marker, 0, index)

    def begun(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens of a conversation with those before it."""
        begin = self.begin
        if not begin or tuple(token_ids[: len(begin)]) == begin:
            return token_ids
        return (*begin, *token_ids)


NOTHING = ProcessorText()
"""For models whose chat template writes all there is."""
