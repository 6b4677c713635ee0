"""Requests and outcomes as lines of JSON, in columns instead of objects, since hundreds of samples are sent at once.

Bytes and dates of a data row, which JSON lacks, are marked. A value of a type that cannot be sent is refused
with the name of its column.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rlhf_core.batch.trajectory import Stop, Turn
from rlhf_core.contracts.reward import RewardRequest
from rlhf_core.errors import RewardError
from rlhf_core.media.reference import MediaRef
from rlhf_core.media.sample_image import SampleImage
from rlhf_core.media.spans import MediaSpan
from rlhf_core.problem import Problem, ProblemKind

from ..processes import marked_json
from ..processes.marked_json import copied
from .outcome import RewardOutcome

_BITS = bytes.maketrans(b"\0\1", b"01")
_FLAGS = bytes.maketrans(b"01", b"\0\1")


def request_lines(call: int, requests: Sequence[RewardRequest], at_once: int) -> Iterator[bytes]:
    """Yield the lines of a batch of requests, of ``at_once`` each; the last line says so.

    Raises:
        RewardError: see ``requests_line``.
    """
    for start in range(0, len(requests), at_once):
        end = start + at_once
        yield requests_line(call, requests[start:end], last=end >= len(requests))


def requests_line(call: int, requests: Sequence[RewardRequest], *, last: bool = True) -> bytes:
    """Return the line of requests. The samples of one group share a row object, which is sent once.

    Args:
        last: no line of this call follows.

    Raises:
        RewardError: a row holds a value that cannot be sent; the message names uid and column.
    """
    rows: dict[int, Mapping[str, Any]] = {id(request.row): request.row for request in requests}
    position = {key: index for index, key in enumerate(rows)}
    message = {
        "call": call,
        "last": last,
        "uid": [request.uid for request in requests],
        "rows": list(rows.values()),
        "row": [position[id(request.row)] for request in requests],
        "prompt": [request.prompt for request in requests],
        "response": [request.response for request in requests],
        "tokens": _pack_ints(request.token_ids for request in requests),
        "num_tokens": [len(request.token_ids) for request in requests],
        "mask": _bits(request.action_mask for request in requests),
        "turns": [
            [(turn.start, turn.end, turn.reward, turn.stop, turn.place) for turn in request.turns]
            for request in requests
        ],
        "truncated": [request.truncated for request in requests],
        "media": [list(map(_image_fields, request.media)) for request in requests],
    }
    try:
        return line(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unsendable(requests, error) from error


def requests_of(message: Mapping[str, Any]) -> list[RewardRequest]:
    """Return the requests of a line of ``requests_line``; each request gets its own copy of the row."""
    # As fast as numpy, which would be a third of the time in which a worker starts.
    tokens = _cut(base64.b64decode(message["tokens"]), "i", message["num_tokens"])
    masks = _cut(message["mask"].encode("ascii").translate(_FLAGS), "?", message["num_tokens"])
    rows = message["rows"]
    columns = zip(
        message["uid"],
        message["row"],
        message["prompt"],
        message["response"],
        tokens,
        masks,
        message["turns"],
        message["truncated"],
        message["media"],
        strict=True,
    )
    return [
        RewardRequest(
            uid=uid,
            row=copied(rows[row]),
            prompt=prompt,
            response=response,
            token_ids=token_ids,
            action_mask=mask,
            turns=tuple(
                Turn(start=first, end=last, reward=reward, stop=Stop(stop), place=place)
                for first, last, reward, stop, place in turns
            ),
            truncated=truncated,
            media=tuple(map(_image, media)),
        )
        for uid, row, prompt, response, token_ids, mask, turns, truncated, media in columns
    ]


def answer_line(call: int, answer: Sequence[RewardOutcome] | Problem) -> bytes:
    """Return the line of a batch's outcomes, or of the problem of the whole batch."""
    if isinstance(answer, Problem):
        return line({"call": call, "problem": _problem_fields(answer)})
    return line(
        {
            "call": call,
            "reward": [outcome.reward for outcome in answer],
            "metrics": [dict(outcome.metrics) or None for outcome in answer],
            "steps": [list(outcome.step_rewards) or None for outcome in answer],
            "problems": {
                str(index): _problem_fields(outcome.problem)
                for index, outcome in enumerate(answer)
                if outcome.problem is not None
            },
        }
    )


def answer_of(sent: bytes, call: int, count: int) -> list[RewardOutcome] | Problem:
    """Invert ``answer_line``, for a call with ``count`` samples.

    The line may be anything: user code runs in the process that sends it, and can write to the connection.

    Raises:
        ValueError: it is no answer to this call.
    """
    try:
        message = marked_json.decode(sent)
        if message.get("call") != call:
            raise ValueError(f"it belongs to call {message.get('call')}, not {call}")
        if "problem" in message:
            return _problem(message["problem"])
        answer = _outcomes(message)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if len(answer) != count:
        raise ValueError(f"it has {len(answer)} results for {count} samples")
    return answer


def _outcomes(message: Mapping[str, Any]) -> list[RewardOutcome]:
    problems = {int(index): _problem(fields) for index, fields in message["problems"].items()}
    columns = zip(message["reward"], message["metrics"], message["steps"], strict=True)
    return [
        _outcome(reward, metrics or {}, steps or [], problems.get(index))
        for index, (reward, metrics, steps) in enumerate(columns)
    ]


def _outcome(
    reward: object, metrics: Mapping[str, Any], steps: Sequence[Any], problem: Problem | None
) -> RewardOutcome:
    if (reward is None) == (problem is None):
        raise ValueError("a sample has a score or a problem, and this one has both or neither")
    if steps and reward is None:
        raise ValueError("a sample without a score has parts of one")
    return RewardOutcome(
        reward=None if reward is None else _number(reward),
        metrics={name: _number(value) for name, value in metrics.items()},
        step_rewards=tuple((_index(action), _number(part)) for action, part in steps),
        problem=problem,
    )


def _number(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(number := float(value)):  # type: ignore[arg-type]
        raise ValueError(f"{str(value)[:60]!r} is no finite number")
    return number


def _index(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{str(value)[:60]!r} is no index of an action")
    return value


def line(message: Mapping[str, Any]) -> bytes:
    """Return the message as one line of JSON."""
    return marked_json.encode(message) + b"\n"


def _image_fields(image: SampleImage) -> list[Any]:
    span = image.span
    return [image.folder, span.start, span.length, span.image.fields()]


def _image(fields: Sequence[Any]) -> SampleImage:
    folder, start, length, image = fields
    span = MediaSpan(start=start, length=length, image=MediaRef.of(image))
    return SampleImage(folder=folder, span=span)


def _bits(masks: Iterable[Sequence[bool]]) -> str:
    return b"".join(map(bytes, masks)).translate(_BITS).decode("ascii")


def _pack_ints(parts: Iterable[Sequence[int]]) -> str:
    packed = b"".join(struct.pack(f"{len(part)}i", *part) for part in parts)
    return base64.b64encode(packed).decode("ascii")


def _cut(packed: bytes, code: str, lengths: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    """Yield one tuple for each length, of values that ``struct`` has packed by ``code``."""
    size, start = struct.calcsize(code), 0
    for length in lengths:
        yield struct.unpack_from(f"{length}{code}", packed, start)
        start += length * size


def _problem_fields(problem: Problem) -> dict[str, Any]:
    return {
        "kind": problem.kind,
        "text": problem.text,
        "where": problem.where,
        "code": problem.code,
    }


def _problem(fields: Mapping[str, Any]) -> Problem:
    return Problem(
        kind=ProblemKind(fields["kind"]),
        text=str(fields["text"]),
        where=tuple(map(str, fields["where"])),
        code=fields["code"] and str(fields["code"]),
    )


def _unsendable(requests: Sequence[RewardRequest], error: Exception) -> RewardError:
    for request in requests:
        for column, value in request.row.items():
            try:
                line({"value": value})
            except (TypeError, ValueError, RecursionError) as cause:
                return RewardError(
                    f"{request.uid}: column {column!r} of its row holds a {cause}, which cannot be sent to a reward's "
                    "own process; expected text, numbers, booleans, lists, dicts, bytes or dates",
                    code="reward/unsendable",
                )
    return RewardError(
        f"a request cannot be sent to a reward's own process: {error}", code="reward/unsendable"
    )
