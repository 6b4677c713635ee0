"""Text to tokens and back, with control words as a run wants them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from rlhf_core.contracts.executor import ControlWordUse

from .control_words import ControlText, ControlWords, TextSpan
from .spelling import LocatedTokens, Speller

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextTokenizer:
    """A Transformers tokenizer for texts without the special tokens that it puts around them.

    Args:
        control_words: use of control words in texts that somebody else wrote.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, control_words: ControlWordUse = "text"
    ) -> None:
        self.tokenizer = tokenizer
        self.words = ControlWords(tokenizer)
        self.are_inert = control_words == "text"
        """Whether control words in texts that somebody else wrote are ordinary text."""
        self.prefix = _leading_special_tokens(tokenizer)
        """Special tokens that the tokenizer puts before any text."""
        self._decodes_plainly = _decodes_plainly(tokenizer)

    def text(self, text: str, active: Sequence[TextSpan] = ()) -> ControlText:
        """Return a text that somebody else wrote, but for its ``active`` spans."""
        return self.words.as_text(text, active) if self.are_inert else ControlText(text=text)

    def joined(self, first: ControlText, second: ControlText) -> ControlText:
        """Return both texts as one; a control word that begins in one and ends in the other is ordinary text."""
        spans = list(self.active(first))
        moved = len(first.text)
        spans += [TextSpan(span.start + moved, span.end + moved) for span in self.active(second)]
        return self.text(first.text + second.text, spans)

    def active(self, text: ControlText) -> Sequence[TextSpan]:
        """Return the places of a text's control words that are control tokens."""
        return self.words.find(text.text) if text.active is None else text.active

    def encode(self, texts: Sequence[ControlText]) -> list[list[int]]:
        """Return the tokens of each text; calls the tokenizer once for the texts that it may read as it does.

        Raises:
            DataError: the tokenizer cannot write a control word as ordinary text.
        """
        plain = [one.text for one in texts if one.active is None]
        spelled = [one for one in texts if one.active is not None]
        ids: list[list[int]] = []
        if plain:
            ids = self.tokenizer(
                plain,
                add_special_tokens=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )["input_ids"]
        if not spelled:
            return ids
        plain_ids, spelled_ids = iter(ids), iter(self._speller.encode(spelled))
        return [next(plain_ids if one.active is None else spelled_ids) for one in texts]

    def locate(self, texts: Sequence[ControlText]) -> list[LocatedTokens]:
        """Return the tokens of each text with their places in it; needs a fast tokenizer.

        Raises:
            DataError: as from ``encode``.
        """
        plain = [one.text for one in texts if one.active is None]
        found: Iterator[LocatedTokens] = iter(())
        if plain:
            encoded = self.tokenizer(
                plain,
                add_special_tokens=False,
                return_offsets_mapping=True,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
            found = map(LocatedTokens, encoded["input_ids"], encoded["offset_mapping"])
        return [next(found) if one.active is None else self._speller.locate(one) for one in texts]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the tokens, with no spaces removed."""
        text: str = self.tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def decode_batch(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each sequence, as ``decode`` gives it; the ``tokenizers`` library uses all cores."""
        if not self._decodes_plainly:
            return [self.decode(one, skip_special_tokens=skip_special_tokens) for one in sequences]
        backend = self.tokenizer.backend_tokenizer
        texts: list[str] = backend.decode_batch(
            list(sequences), skip_special_tokens=skip_special_tokens
        )
        return texts

    @cached_property
    def _speller(self) -> Speller:
        # Made when the first text needs it: a vocabulary of 150 000 tokens takes a second.
        return Speller(self.tokenizer, self.words)


def _decodes_plainly(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether ``decode`` is that of the ``tokenizers`` library.

    This is not so for a tokenizer written in Python, nor for a class that changes the result of decoding.
    """
    from transformers import PreTrainedTokenizerFast

    return isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        getattr(type(tokenizer), name) is getattr(PreTrainedTokenizerFast, name)
        for name in ("decode", "_decode")
    )


def _leading_special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the special tokens that the tokenizer puts before any text."""
    plain: list[int] = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    whole: list[int] = tokenizer("a", add_special_tokens=True, verbose=False)["input_ids"]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start]
    return []
