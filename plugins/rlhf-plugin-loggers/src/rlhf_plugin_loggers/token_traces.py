"""Samples as traces with their tokens: messages, and for each turn of the policy a span with what is known of its
tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_core.lazy import np

if TYPE_CHECKING:
    from rlhf_core.contracts import RolloutSample, SampleTokens

MAX_TOKENS = 20_000
"""Largest number of tokens of the traces of one step; samples that do not fit as a whole are left out."""
Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrace:
    """One sample."""

    messages: list[Message]
    """``role`` and ``content``: the prompt is the user's, as is what an environment answered."""
    metadata: dict[str, str | float | bool]
    spans: list[dict[str, Any]]
    """JSON values, a span for each turn of the policy."""


def token_traces(samples: Sequence[RolloutSample], most: int) -> list[TokenTrace]:
    """Return traces of the first ``most`` samples whose tokens are known, ``MAX_TOKENS`` together at most."""
    left = MAX_TOKENS
    found: list[TokenTrace] = []
    for sample in samples:
        tokens = sample.tokens
        if len(found) < most and tokens is not None and len(tokens.token_ids) <= left:
            left -= len(tokens.token_ids)
            found.append(_trace(sample, tokens))
    return found


def _trace(sample: RolloutSample, tokens: SampleTokens) -> TokenTrace:
    turns = _turns(tokens)
    return TokenTrace(
        messages=_messages(sample, tokens, turns),
        metadata={"uid": sample.uid, "reward": sample.reward, "truncated": sample.truncated},
        spans=[
            {
                "id": f"{sample.uid}/{start}",
                "name": f"turn {number}",
                "kind": "generation",
                "usage": {"input_tokens": start, "output_tokens": end - start},
                "output": _columns(tokens, start, end),
            }
            for number, (start, end) in enumerate(turns)
        ],
    )


def _turns(tokens: SampleTokens) -> list[tuple[int, int]]:
    """Return beginning and end of each run of actions."""
    edges = np.diff(np.concatenate([[False], tokens.action_mask, [False]]).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
    return list(zip(starts, ends, strict=True))


def _messages(
    sample: RolloutSample, tokens: SampleTokens, turns: Sequence[tuple[int, int]]
) -> list[Message]:
    """Return the sample's texts; those of several turns are joined of the texts of single tokens, in which a character
    of several tokens is not whole."""
    messages = [{"role": "user", "content": sample.prompt}]
    if len(turns) <= 1:
        return [*messages, {"role": "assistant", "content": sample.response}]
    read = turns[0][0]
    for start, end in turns:
        if read < start:
            messages.append({"role": "user", "content": "".join(tokens.texts[read:start])})
        messages.append({"role": "assistant", "content": "".join(tokens.texts[start:end])})
        read = end
    return messages


def _columns(tokens: SampleTokens, start: int, end: int) -> dict[str, list[Any]]:
    """Return the tokens of a turn and their columns, with null where a number is not known."""
    before = int(np.count_nonzero(tokens.action_mask[:start]))
    actions = slice(before, before + end - start)
    return {
        "token_ids": tokens.token_ids[start:end].tolist(),
        "texts": list(tokens.texts[start:end]),
        "weight_version": tokens.weight_version[actions].tolist(),
        **{
            name: [_shown(value) for value in column[actions].tolist()]
            for name, column in tokens.columns.items()
        },
    }


def _shown(value: float) -> float | None:
    """Return a number with six digits, which is about what float32 holds."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
