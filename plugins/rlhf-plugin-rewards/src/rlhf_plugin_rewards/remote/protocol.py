"""Encoding of requests to a reward server, and decoding of its answers.

A request is ``{"query": [text], "prompts": [text], "labels": [any]}``, where a query is prompt and response together.
On demand it also has ``"token_ids": [[int]]``. An answer is ``{"rewards": [number], "scores": [number], "extra_logs":
{name: [number]}}``, in which ``scores`` and ``extra_logs`` may be missing. The names are OpenRLHF's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest, RewardResult
from rlhf_core.outside.json_reader import BrokenJson, parse_json

from ..labels import label_of


class BadAnswer(ValueError):
    """An answer that does not follow the protocol; the text describes the answer."""


def body_of(
    requests: Sequence[RewardRequest], *, label_key: str | None, with_token_ids: bool
) -> bytes:
    """Return the body of a request.

    Args:
        label_key: column that is sent as the label; None sends null.

    Raises:
        RewardError: a row has no column ``label_key``, or a value there that JSON cannot hold.
    """
    labels = [
        None if label_key is None else label_of(request.row, label_key) for request in requests
    ]
    message: dict[str, Any] = {
        "query": [request.prompt + request.response for request in requests],
        "prompts": [request.prompt for request in requests],
        "labels": labels,
    }
    if with_token_ids:
        message["token_ids"] = [list(request.token_ids) for request in requests]
    try:
        return json.dumps(message, allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"column {label_key!r} holds a value that cannot be sent as JSON: {error}",
            code="reward/unsendable",
        ) from error


def results_of(answer: bytes, count: int) -> list[RewardResult | RewardError]:
    """Return the results of ``count`` samples; for a sample without a finite reward, an error.

    Raises:
        BadAnswer: the answer is no JSON, or does not have one entry per sample.
    """
    try:
        message: Any = parse_json(answer)
    except BrokenJson as error:
        raise BadAnswer(f"no JSON ({error})") from error
    if not isinstance(message, Mapping):
        raise BadAnswer(f"a {type(message).__name__}; expected an object with 'rewards'")
    if "rewards" not in message:
        raise BadAnswer(f"an object with {_listed(message)}; expected 'rewards'")
    rewards = _column(message["rewards"], "rewards", count)
    columns: dict[str, Sequence[Any]] = {}
    if message.get("scores") is not None:
        columns["score"] = _column(message["scores"], "scores", count)
    logs = message.get("extra_logs") or {}
    if not isinstance(logs, Mapping):
        raise BadAnswer(f"a {type(logs).__name__} as extra_logs; expected an object")
    columns |= {
        str(name): _column(values, f"extra_logs {name!r}", count) for name, values in logs.items()
    }
    return [
        _result(reward, {name: values[index] for name, values in columns.items()})
        for index, reward in enumerate(rewards)
    ]


def _column(values: Any, name: str, count: int) -> Sequence[Any]:
    if count == 1 and not isinstance(values, list):
        values = [
            values
        ]  # some servers answer a request for one sample with a number instead of a list
    if not isinstance(values, list):
        raise BadAnswer(f"a {type(values).__name__} as {name}; expected a list of {count} numbers")
    if len(values) != count:
        raise BadAnswer(f"{len(values)} {name} for {count} samples; expected one for each")
    return values


def _result(reward: Any, metrics: Mapping[str, Any]) -> RewardResult | RewardError:
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return RewardError(
            f"the server's reward is {reward!r}; expected a finite number",
            code="reward/wrong-answer",
        )
    return RewardResult(reward=float(reward), metrics=dict(metrics))


def _listed(message: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, list(message)[:8])) or "nothing in it"
