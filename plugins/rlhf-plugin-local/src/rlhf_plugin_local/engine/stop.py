"""Stop strings: does the text that a turn has decoded to so far contain one?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

UNFINISHED = "\ufffd"
"""Character that decoders write for bytes that do not make up a character yet."""
LONGEST_CHARACTER = 8
"""Tokens after which such bytes count as no character: none needs more than 4 bytes."""


class StopWatcher:
    """Decodes a turn token by token and remembers whether a stop string has appeared.

    Only the new end of the text is decoded, behind the tokens just before it, because decoders treat a token
    differently at the start of a text.

    Args:
        decode: token ids to text, special tokens included, so that one can be a stop string.
        stop: the strings, none of them empty.
        ignored: number of first tokens of a turn that complete none. A string may begin in them and end behind them, as
            with vLLM.
    """

    def __init__(self, decode: Decode, stop: tuple[str, ...], ignored: int = 0) -> None:
        self.found = False
        self._ignored = ignored
        self._ignored_text = 0
        """Characters at the beginning of the tail and the new tokens' text in which no stop string ends."""
        self._decode = decode
        self._stop = stop
        self._overlap = max(map(len, stop)) - 1
        self._tail = ""
        """The last characters of the text so far, too few to hold a stop string."""
        self._context: list[int] = []
        self._new: list[int] = []

    def push(self, token: int) -> bool:
        """Take the turn's next token and return whether a stop string has appeared by now."""
        if self.found:
            return True
        self._new.append(token)
        known = len(self._decode(self._context)) if self._context else 0
        text = self._tail + self._decode([*self._context, *self._new])[known:]
        if self._ignored:
            self._ignored -= 1
            self._ignored_text = len(text.rstrip(UNFINISHED))
        else:
            self.found = any(
                text.find(stop, max(0, self._ignored_text - len(stop) + 1)) >= 0
                for stop in self._stop
            )
        if not text.endswith(UNFINISHED) or len(self._new) >= LONGEST_CHARACTER:
            self._tail = text[-self._overlap :] if self._overlap else ""
            self._ignored_text = len(self._tail)
            self._context, self._new = self._new, []
        return self.found


def decoder_of(model_path: str, *, trust_remote_code: bool) -> Decode:
    """Load the tokenizer of a model and return its decoding function."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    if tokenizer.is_fast:
        backend = tokenizer.backend_tokenizer
        return lambda ids: str(backend.decode(list(ids), skip_special_tokens=False))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
