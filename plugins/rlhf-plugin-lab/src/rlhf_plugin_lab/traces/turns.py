"""From a recorded rollout to the turns of its ``TrainingTrace``: a turn is an answer, with all that was read before it.

What a trace has no field for is in ``metadata``: where the turn comes from, the reward of its episode, and the recorded
columns, a number or null for each token of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_core import DataError
from rlhf_core.lazy import NDArray, np
from rlhf_episodes.traces import TrainingTurn

from ..recorded.problems import Problems
from .messages import turn_texts, unicode_of
from .rows import LOGPROB, VERSION, TokenRows

_ROUNDING = 1e-4
"""Largest log-prob above 0 that is rounding of one, in nats."""
_OF_SAMPLES = ("rewards", "unshaped", "end", "step_rewards")
"""Entries of a sample that are copied as they are."""


def turns_of(
    step: int,
    uid: str,
    sample: Mapping[str, Any],
    rows: TokenRows,
    shared: Mapping[str, Any],
    problems: Problems,
) -> Iterator[TrainingTurn]:
    """Yield the turns of the policy in one rollout that have log-probs of the sampler.

    Args:
        sample: the rollout's record.
        rows: its tokens.
        shared: metadata that all turns of the run have.
    """
    spans, texts = rows.turns(), turn_texts(sample)
    if len(texts) != len(spans):
        problems.note("texts that are not those of the tokens are left out", uid)
    about = {**shared, **_about(step, uid, sample)}
    for number, (start, end) in enumerate(spans):
        try:
            logprobs = _logprobs(rows, start, end)
            if logprobs is None:
                problems.note(
                    "turns without log-probs of the sampler are left out", f"{uid}, token {start}"
                )
                continue
            last = number == len(spans) - 1
            text = texts[number] if len(texts) == len(spans) else None
            cut = "length" if sample.get("truncated") is True else "stop"
            yield TrainingTurn(
                node_id=f"{unicode_of(uid)}/{start}",
                prompt_token_ids=tuple(rows.token_ids[:start].tolist()),
                completion_token_ids=tuple(rows.token_ids[start:end].tolist()),
                per_token_logps=logprobs,
                loss_mask=(0,) * start + (1,) * (end - start),
                request={"messages": text.read} if text else {},
                response=_response(text.written, cut if last else None) if text else {},
                metadata={**about, "turn": number, **_columns(rows, start, end)},
            )
        except DataError as error:
            problems.note("turns that are no TrainingTurn are left out", str(error))


def _about(step: int, uid: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is recorded of a rollout beside its tokens and texts."""
    found: dict[str, Any] = {"step": step, "uid": unicode_of(uid)}
    found["truncated"] = sample.get("truncated") is True
    if "reward" in sample:
        found["total_reward"] = _finite(sample["reward"])
    for name in _OF_SAMPLES:
        if name in sample:
            found[name] = _finite(sample[name])
    if "images" in sample:
        found["image_files"] = _finite(sample["images"])
    return found


def _finite(value: Any) -> Any:
    """Return a JSON value with null where a number is none, as JSON has no NaN, and Unicode alone."""
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, str):
        return unicode_of(value)
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {unicode_of(name): _finite(each) for name, each in value.items()}
    return value


def _logprobs(rows: TokenRows, start: int, end: int) -> tuple[float, ...] | None:
    """Return the sampler's log-probs of a turn, of which those above 0 by rounding are 0; None where one is missing."""
    column = rows.columns.get(LOGPROB)
    if column is None or not np.isfinite(column[start:end]).all():
        return None
    span = column[start:end]
    return tuple(_shortest(np.where((span > 0) & (span <= _ROUNDING), np.float32(0.0), span)))


def _shortest(column: NDArray[np.float32]) -> list[float]:
    """Return the numbers of least digits that are these in float32."""
    return [float(text) for text in column.astype(np.float32).astype(str)]


def _columns(rows: TokenRows, start: int, end: int) -> dict[str, Any]:
    """Return the further columns of a turn, a number or null for each of its tokens, and the version of the weights
    that sampled them, where it is one."""
    found: dict[str, Any] = {}
    columns: dict[str, list[float | None]] = {}
    for name, column in rows.columns.items():
        span = column[start:end]
        known = np.isfinite(span)
        if name == VERSION and known.all() and len(set(span.tolist())) == 1:
            found["weight_version"] = int(span[0])
        elif name != LOGPROB and known.any():
            numbers = zip(_shortest(span), known.tolist(), strict=True)
            columns[name] = [number if is_known else None for number, is_known in numbers]
    return {**found, "columns": columns}


def _response(text: str, finish_reason: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": finish_reason}]}
