"""The draw of one token for each row, with whatever the rows' sampling asks for.

Axes: ``R`` rows, ``V`` vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_core.contracts import SamplingParams

from . import sampling


class DrawKind(NamedTuple):
    """The operations that a draw needs beyond a sample from softmax(logits); those that no row needs are left out."""

    some_greedy: bool = False
    """Some rows take the most probable token."""
    all_greedy: bool = False
    tempered: bool = False
    """Some rows divide their logits."""
    truncated: bool = False
    """Some rows keep only probable tokens."""
    delayed: bool = False
    """Some rows may not end before a certain number of tokens."""

    @classmethod
    def of(cls, kinds: Collection[SamplingParams]) -> DrawKind:
        """Return the operations that rows of these parameters need."""
        greedy = [kind.temperature == 0 for kind in kinds]
        return cls(
            some_greedy=any(greedy),
            all_greedy=all(greedy),
            tempered=any(kind.temperature not in (0, 1) for kind in kinds),
            truncated=any(kind.truncates for kind in kinds),
            delayed=any(kind.min_new_tokens for kind in kinds),
        )


def draw_rows(
    logits: Tensor, rows: Mapping[str, Tensor], kind: DrawKind, is_eos: Tensor
) -> tuple[Tensor, Tensor]:
    """Return tokens (R,) and their log-probabilities (R,) under what they were drawn from.

    Args:
        logits: (R, V) float32.
        rows: (R,) each: index, min_new, seed, temperature (0 is greedy), top_k, top_p, min_p.
        is_eos: (V,) true for end-of-sequence tokens.
    """
    index = rows["index"]
    if kind.delayed:
        early = (index < rows["min_new"])[:, None]  # (R, 1)
        logits = logits.masked_fill(early & is_eos, -torch.inf)
    if kind.all_greedy:
        return sampling.argmax(logits)
    is_greedy = rows["temperature"] == 0
    scaled = logits
    if kind.tempered:
        scaled = logits / torch.where(is_greedy, 1.0, rows["temperature"])[:, None]
    if kind.truncated:
        scaled = sampling.truncate(scaled, rows["top_k"], rows["top_p"], rows["min_p"])
    tokens, logprobs = sampling.draw(scaled, rows["seed"], index)
    if kind.some_greedy:
        best, best_logprobs = sampling.argmax(logits)
        tokens = torch.where(is_greedy, best, tokens)
        logprobs = torch.where(is_greedy, best_logprobs, logprobs)
    return tokens, logprobs
