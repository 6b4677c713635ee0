"""Tokenizing of texts in which some control words are control tokens and others are ordinary text.

A second tokenizer has the same tokens, but each control word has a private spelling there that no text has. So the
places that are control tokens are spelled privately, all others stay as they are, and the library does the rest: its
normalizer, its pre-tokenizer and its flags work as they do for any text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.errors import DataError

from .control_words import ControlText, ControlWords, PlacesOfWords, TextSpan

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

_OPEN, _CLOSE = "\ue0f0", "\ue0f1"
"""Characters of Unicode's private use area around a private spelling."""


class LocatedTokens(NamedTuple):
    """Tokens of a text with their places in it."""

    token_ids: list[int]
    spans: list[tuple[int, int]]
    """First character of each token, and the character after its last."""


class Speller:
    """Tokenizer of ``ControlText``. A tokenizer written in Python is asked piece by piece, as well as it can.

    Args:
        words: the control words of ``tokenizer``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, words: ControlWords) -> None:
        self._tokenizer = tokenizer
        self._words = words
        # A text could imitate a spelling that it can know, and become a control token.
        nonce = secrets.token_hex(8)
        self._spellings = {
            word: f"{_OPEN}{nonce}{number}{_CLOSE}" for number, word in enumerate(words.ids)
        }
        self._forbidden = frozenset(words.ids.values())
        self._backend = (
            _respelled(tokenizer, self._spellings, words.ids) if tokenizer.is_fast else None
        )
        if tokenizer.unk_token_id is not None:
            self._forbidden -= {tokenizer.unk_token_id}

    def encode(self, texts: Sequence[ControlText]) -> list[list[int]]:
        """Return the tokens of each text.

        Raises:
            DataError: the tokenizer has no other way to write a control word than its token.
        """
        if self._backend is None:
            found = [self._encode_pieces(text) for text in texts]
        else:
            spelled = [self._spelled(text)[0] for text in texts]
            found = [
                one.ids for one in self._backend.encode_batch(spelled, add_special_tokens=False)
            ]
        for text, ids in zip(texts, found, strict=True):
            self._check(text, ids)
        return found

    def locate(self, text: ControlText) -> LocatedTokens:
        """Return the tokens of a text with their places in it; the tokenizer is a fast one.

        Raises:
            DataError: as from ``encode``.
        """
        assert self._backend is not None
        spelled, places = self._spelled(text)
        encoded = self._backend.encode(spelled, add_special_tokens=False)
        self._check(text, encoded.ids)
        spans = [(places.index(start), places.index(end)) for start, end in encoded.offsets]
        return LocatedTokens(list(encoded.ids), spans)

    def _spelled(self, text: ControlText) -> tuple[str, PlacesOfWords]:
        """Return a text as the second tokenizer reads it, and the way back from its places."""
        places = PlacesOfWords()
        pieces, behind = [], 0
        for span in text.active or ():
            spelling = self._spellings[text.text[slice(*span)]]
            pieces += [text.text[behind : span.start], spelling]
            places.add(span.start - behind, len(spelling), span.end - span.start)
            behind = span.end
        return "".join([*pieces, text.text[behind:]]), places

    def _encode_pieces(self, text: ControlText) -> list[int]:
        ids: list[int] = []
        behind = 0
        for span in (*(text.active or ()), TextSpan(len(text.text), len(text.text))):
            piece = text.text[behind : span.start]
            if piece:
                ids += self._tokenizer(
                    piece, add_special_tokens=False, split_special_tokens=True, verbose=False
                )["input_ids"]
            if span.end > span.start:
                ids.append(self._words.ids[text.text[slice(*span)]])
            behind = span.end
        return ids

    def _check(self, text: ControlText, ids: Sequence[int]) -> None:
        """Refuse tokens among which a control word of the text is a control token after all."""
        allowed = len(text.active or ())
        if sum(token in self._forbidden for token in ids) > allowed:
            raise DataError(
                f"the tokenizer has no tokens for {' '.join(text.inert)} but the control tokens themselves. Leave such "
                "texts out, or, where rows are read, let them be control tokens with --data.control_words tokens",
                code="template/control-words",
            )


def _respelled(
    tokenizer: PreTrainedTokenizerBase, spellings: Mapping[str, str], ids: Mapping[str, int]
) -> Tokenizer:
    """Return a tokenizer of the ``tokenizers`` library in which some words have other spellings."""
    from tokenizers import Tokenizer

    described = json.loads(tokenizer.backend_tokenizer.to_str())
    described.update(truncation=None, padding=None)
    for added in described["added_tokens"]:
        if added["content"] in spellings:
            added.update(content=spellings[added["content"]], normalized=False)
    _respell_model(described["model"], spellings)
    made: Tokenizer = Tokenizer.from_str(json.dumps(described, ensure_ascii=False))
    moved = [
        word for word, spelling in spellings.items() if made.token_to_id(spelling) != ids[word]
    ]
    assert not moved, moved
    return made


def _respell_model(model: dict[str, Any], spellings: Mapping[str, str]) -> None:
    """Rename words in the vocabulary, which would otherwise find them in a text, and leave out what makes them."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):
        model["vocab"] = [[spellings.get(piece, piece), score] for piece, score in vocabulary]
    else:
        model["vocab"] = {spellings.get(word, word): token for word, token in vocabulary.items()}
    if model.get("unk_token") in spellings:
        model["unk_token"] = spellings[model["unk_token"]]
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _makes(merge, spellings)]


def _makes(merge: str | Sequence[str], words: Mapping[str, str]) -> bool:
    """Return whether a merge makes a word, or is made of one."""
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return first in words or second in words or first + second in words
