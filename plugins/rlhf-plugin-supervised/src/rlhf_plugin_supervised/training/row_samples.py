"""Rows of examples as samples: texts and their parts, numbers, images, and tokens with their columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.contracts import SampleTokens, TrajectoryColumns
from rlhf_data import TokenizerRenderer
from rlhf_trainer.runs import images_entry

from .seen import Kind, Seen, SeenRow

LEARNED, READ = "policy", "environment"
"""Who wrote a part of a response, in the words of ``samples.jsonl``: learned tokens stand where the policy's do."""
COLUMNS = {
    "loss": "loss",
    "old_logprobs": "trainer_logprob",
    "ref_logprobs": "reference_logprob",
    "values": "value",
}
"""Column of tokens -> its name in a record, which is that of the observer ``token_files``."""


def samples_of(
    rows: TrajectoryColumns,
    seen: Seen,
    renderer: TokenizerRenderer,
    epoch: int,
    *,
    with_tokens: bool,
) -> list[dict[str, Any]]:
    """Return rows as samples, as JSON values.

    Args:
        rows: rows whose images are in the run's store.
        epoch: the first part of their names.
        with_tokens: each sample has ``tokens``, with the columns that are known.
    """
    samples = []
    for at, (row, uid) in enumerate(zip(seen.rows, rows.uid.tolist(), strict=True)):
        token_ids = rows.token_ids[slice(*rows.token_offsets[at : at + 2])]
        learned = rows.action_mask[slice(*rows.token_offsets[at : at + 2])]
        sample = {
            "uid": ".".join(map(str, [epoch, *uid[1:]])),
            **_texts(seen.kind, row, token_ids, learned, renderer),
            "reward": row.score,
            "rewards": dict(row.numbers),
            "truncated": bool(rows.truncated[at]),
            "example": seen.kind,
            **images_entry(rows, at),
        }
        if row.chosen is not None:
            sample["chosen"] = row.chosen
        if with_tokens:
            own = slice(*rows.action_offsets[at : at + 2])
            columns = {name: column[own] for name, column in seen.columns.items()}
            sample["tokens"] = _tokens(token_ids, learned, columns, renderer)
        samples.append(sample)
    return samples


def _texts(
    kind: Kind,
    row: SeenRow,
    token_ids: NDArray[np.int32],
    learned: NDArray[np.bool_],
    renderer: TokenizerRenderer,
) -> dict[str, Any]:
    """Return prompt and response, and their parts: what is learned of and what is read, or the labeled steps."""
    places = np.flatnonzero(learned)
    first = 0 if kind == "steps" else int(places[0])
    edges = places + 1 if kind == "steps" else np.flatnonzero(np.diff(learned)) + 1
    bounds = [first, *edges[edges > first].tolist()]
    if bounds[-1] < len(token_ids):
        bounds.append(len(token_ids))
    spans = list(itertools.pairwise(bounds))
    texts = renderer.decode_batch([token_ids[start:end].tolist() for start, end in spans])
    found: dict[str, Any] = {
        "prompt": renderer.decode(token_ids[:first].tolist()),
        "response": renderer.decode(token_ids[first:].tolist()),
    }
    if kind == "steps":
        found["steps"] = [[text, *numbers] for text, numbers in zip(texts, row.steps, strict=False)]
    elif len(spans) > 1:
        writers = [LEARNED if learned[start] else READ for start, _ in spans]
        found["parts"] = [list(pair) for pair in zip(writers, texts, strict=True)]
    return found


def _tokens(
    token_ids: NDArray[np.int32],
    learned: NDArray[np.bool_],
    columns: Mapping[str, NDArray[np.float32]],
    renderer: TokenizerRenderer,
) -> SampleTokens:
    found, places = np.unique(token_ids, return_inverse=True)
    texts: Sequence[str] = renderer.decode_batch(
        [[token] for token in found.tolist()], skip_special_tokens=False
    )
    return SampleTokens(
        token_ids=token_ids,
        texts=tuple(texts[place] for place in places.tolist()),
        action_mask=learned,
        weight_version=np.zeros(int(learned.sum()), dtype=np.int32),
        columns=columns,
    )


def plain_tokens(tokens: SampleTokens) -> dict[str, Any]:
    """Return tokens as JSON values: ``texts``, each once, and ``order``, the place of each token's text in them;
    ``learned`` with first and end of each span of learned tokens; and of each column a number with four digits at each
    learned token, null for one that is not finite."""
    # Without dropout and smoothing the loss of a token is its negative log-prob.
    known = tokens.columns.keys() - ({"old_logprobs"} if "loss" in tokens.columns else set())
    # An image has hundreds of tokens with one text.
    places = {text: at for at, text in enumerate(dict.fromkeys(tokens.texts))}
    edges = np.flatnonzero(np.diff(tokens.action_mask, prepend=False, append=False))
    return {
        "texts": list(places),
        "order": [places[text] for text in tokens.texts],
        "learned": edges.reshape(-1, 2).tolist(),
        **{
            shown: [_short(number) for number in tokens.columns[name].tolist()]
            for name, shown in COLUMNS.items()
            if name in known
        },
    }


def _short(number: float) -> float | None:
    return float(f"{number:.4g}") if math.isfinite(number) else None
