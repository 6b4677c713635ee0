"""Checks of a captured trace against what the policy really read and wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .adapter import CapturedRow, CapturedTrace
from .policy import SampledAnswer


class Nonconforming(Exception):
    """An endpoint that does not do what a scenario asks for; the text says what was expected and what came."""


def expect(condition: object, text: str) -> None:
    """Raise unless the condition holds.

    Raises:
        Nonconforming: it does not.
    """
    if not condition:
        raise Nonconforming(text)


def check_exact(trace: CapturedTrace, sampled: Sequence[SampledAnswer]) -> None:
    """Check that exactly these answers train: each token once, on the tokens that were read before it, with the
    log-prob of its sampling and, where the endpoint records versions of the weights, its version, and no other token.

    Raises:
        Nonconforming: one is missing, doubled, altered or masked wrongly, or something else trains.
    """
    left = [_spans(row) for row in trace.rows]
    for number, answer in enumerate(sampled):
        holder = next((index for index, spans in enumerate(left) if _take(spans, answer)), None)
        expect(
            holder is not None,
            f"answer {number} ({len(answer.token_ids)} tokens after {len(answer.prompt_ids)}) does not train as it was "
            f"sampled, once; {_shown(trace)}",
        )
    rest = sum(len(span.token_ids) for spans in left for span in spans)
    expect(rest == 0, f"{rest} tokens train that were sampled by nobody, or a second time")


def check_paths(trace: CapturedTrace, count: int) -> None:
    """Check how many conversations the endpoint tells apart.

    Raises:
        Nonconforming: they are more or fewer.
    """
    expect(trace.num_paths == count, f"expected {count} path(s), got {trace.num_paths}")


class Span(NamedTuple):
    """A run of trained tokens."""

    before: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...] | None


def _spans(row: CapturedRow) -> list[Span]:
    """Return the runs of trained tokens of a row."""
    spans: list[Span] = []
    start, used = 0, 0
    while start < len(row.mask):
        if not row.mask[start]:
            start += 1
            continue
        end = start
        while end < len(row.mask) and row.mask[end]:
            end += 1
        count = end - start
        versions = None if row.versions is None else row.versions[used : used + count]
        spans.append(
            Span(
                row.token_ids[:start],
                row.token_ids[start:end],
                row.logprobs[used : used + count],
                versions,
            )
        )
        used += count
        start = end
    return spans


def _take(spans: list[Span], answer: SampledAnswer) -> bool:
    """Remove the span that is the answer, and return whether there was one."""
    wanted = Span(answer.prompt_ids, answer.token_ids, answer.logprobs, answer.versions)
    for index, span in enumerate(spans):
        if span == (wanted if span.versions is not None else wanted._replace(versions=None)):
            del spans[index]
            return True
    return False


def _shown(trace: CapturedTrace) -> str:
    trained = [sum(row.mask) for row in trace.rows]
    return f"the trace has {len(trace.rows)} rows, with {trained} tokens that train"
