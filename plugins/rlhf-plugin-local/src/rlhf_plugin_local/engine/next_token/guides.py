"""Grammars that answers have to match: which tokens may come next, and how much of the probability they have.

The automaton is llguidance's. The log-prob of a draw is that of the masked softmax, log p(a) - log Z, where Z is the
mass of what is allowed; Z is kept, because the trainer has p alone.

Axes: ``V`` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Several
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core import RequestError


class Guide:
    """One answer below a grammar.

    Args:
        matcher: llguidance's ``LLMatcher``, before the first token.
        num_tokens: V.
    """

    def __init__(self, matcher: Any, num_tokens: int) -> None:
        self.masses: list[float] = []
        """Probability of the tokens that were allowed, of each token so far."""
        self.is_stuck = False
        """No token could go on."""
        self._matcher = matcher
        self._num_tokens = num_tokens

    def allowed(self) -> NDArray[np.bool_]:
        """Return (V,) true at the tokens that may come next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=self._num_tokens, bitorder="little").astype(bool)

    def restrict(self, logits: Tensor, temperature: float) -> Tensor:
        """Return logits (V,) with -inf where the grammar forbids a token; unchanged if it forbids all.

        Args:
            temperature: that of the draw, below which masses are measured; 0: as 1.
        """
        allowed = torch.from_numpy(self.allowed()).to(logits.device)
        # Where no token goes on, llguidance allows the end all the same, and keeps an error.
        if self._matcher.get_error():
            self.is_stuck = True
            self.masses.append(0.0)
            return logits
        kept = logits.masked_fill(~allowed, -math.inf)
        scale = temperature or 1.0
        mass = ((kept / scale).logsumexp(0) - (logits / scale).logsumexp(0)).exp().item()
        self.masses.append(min(mass, 1.0))
        return kept

    def push(self, token: int) -> None:
        """Take the token that was drawn."""
        if not self.is_stuck:
            self._matcher.consume_token(token)


class GuideMaker:
    """Makes guides for the answers of one model.

    Args:
        num_tokens: V, rows of the model's output head.

    Raises:
        RequestError: llguidance is not installed, or the tokenizer is no fast one. Other answers need neither.
    """

    def __init__(
        self,
        model_path: str,
        num_tokens: int,
        eos_token_ids: Several[int],
        *,
        trust_remote_code: bool,
    ) -> None:
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise RequestError(
                "an answer of a given form needs llguidance.\n  pip install 'rlhf-plugin-local[structured]'",
                code="engine/form-unsupported",
            ) from error
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model_path, trust_remote_code=trust_remote_code)
        ends = list(eos_token_ids) or None
        try:
            self._tokenizer = from_tokenizer(tokenizer, num_tokens, ends)
        except ValueError as error:
            if not tokenizer.is_fast:
                raise RequestError(
                    f"an answer of a given form needs a fast tokenizer, and that of {model_path} is none",
                    code="engine/form-unsupported",
                ) from error
            # No decoder that llguidance knows, so each token is the text that it is alone.
            words = TokenizerWrapper(_Texts(tokenizer))
            self._tokenizer = LLTokenizer(words, num_tokens, ends)
        self._num_tokens = num_tokens

    def make(self, grammar: str) -> Guide:
        """Return a guide of one answer.

        Raises:
            RequestError: the grammar cannot be read.
        """
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
        if problem := matcher.get_error():
            raise RequestError(
                f"the form of the answer cannot be read: {problem[:200].strip()}",
                code="engine/form-unreadable",
            )
        return Guide(matcher, self._num_tokens)


class _Texts:
    """A tokenizer whose tokens are whole texts, in the form that llguidance asks for."""

    def __init__(self, tokenizer: Any) -> None:
        self.eos_token_id = tokenizer.eos_token_id
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = list(tokenizer.all_special_ids)
        backend = tokenizer.backend_tokenizer
        self.tokens = [
            backend.decode([token], skip_special_tokens=False).encode()
            for token in range(len(tokenizer))
        ]
        self._encode = backend.encode
        self._unknown = tokenizer.unk_token_id

    def __call__(self, text: bytes) -> list[int]:
        ids = self._encode(text.decode(), add_special_tokens=False).ids
        # What stands for any character that is not known says none.
        return [token for token in ids if token != self._unknown]
