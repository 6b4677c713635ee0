"""The form of OpenEnv 0.10's ``TrainingTrace``, version 1, and what has to hold in it.

Source: ``openenv.core.harness.training`` of openenv 0.10.0 (BSD-3-Clause), https://pypi.org/project/openenv/0.10.0/.
The fields and the checks are the same; this is a reading of our own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf_core import DataError

VERSION = 1
_FIELDS = {
    "node_id",
    "prompt_token_ids",
    "completion_token_ids",
    "per_token_logps",
    "loss_mask",
    "request",
    "response",
    "metadata",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTurn:
    """One request to the policy.

    Raises:
        DataError: lengths differ, a token id is negative, a log-prob is positive or not finite, or a token of the
            prompt trains.
    """

    node_id: str
    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    per_token_logps: tuple[float, ...]
    """One for each token of the completion."""
    loss_mask: tuple[int, ...]
    """0 or 1 for each token of prompt and completion; 0 for those of the prompt."""
    request: Mapping[str, Any] = field(default_factory=dict)
    response: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem is not None:
            raise DataError(
                f"training trace, turn {self.node_id!r}: {problem}", code="trace/malformed"
            )

    def _problem(self) -> str | None:
        read, written = len(self.prompt_token_ids), len(self.completion_token_ids)
        if not self.node_id:
            return "node_id is empty; expected a name"
        if not read:
            return "prompt_token_ids is empty; expected the tokens that the engine read"
        if any(
            type(token) is not int or token < 0
            for token in (*self.prompt_token_ids, *self.completion_token_ids)
        ):
            return "a token id is no whole number from 0"
        if len(self.per_token_logps) != written:
            return f"{len(self.per_token_logps)} log-probs for {written} tokens"
        if any(not math.isfinite(number) or number > 0 for number in self.per_token_logps):
            return "a log-prob is positive or not finite"
        if len(self.loss_mask) != read + written:
            return f"loss_mask has {len(self.loss_mask)} numbers for {read} + {written} tokens"
        if any(type(mark) is not int or mark not in (0, 1) for mark in self.loss_mask):
            return "loss_mask has something else than 0 and 1"
        if any(self.loss_mask[:read]):
            return "a token of the prompt trains"
        return None

    def as_json(self) -> dict[str, Any]:
        """Return the turn as JSON has it."""
        return {
            "node_id": self.node_id,
            "prompt_token_ids": list(self.prompt_token_ids),
            "completion_token_ids": list(self.completion_token_ids),
            "per_token_logps": list(self.per_token_logps),
            "loss_mask": list(self.loss_mask),
            "request": dict(self.request),
            "response": dict(self.response),
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTrace:
    """The requests of one episode, each once.

    Raises:
        DataError: two turns have one name.
    """

    turns: tuple[TrainingTurn, ...]

    def __post_init__(self) -> None:
        names = [turn.node_id for turn in self.turns]
        if len(set(names)) != len(names):
            raise DataError(
                "training trace: two turns have one node_id; expected a name for each",
                code="trace/repeated-node",
            )

    def as_json(self) -> dict[str, Any]:
        """Return the trace as JSON has it."""
        return {"schema_version": VERSION, "turns": [turn.as_json() for turn in self.turns]}


def parse_trace(value: object) -> TrainingTrace:
    """Return the trace that JSON has.

    Raises:
        DataError: it is no trace of version 1.
    """
    trace = _object(value, {"schema_version", "turns"}, "training trace")
    version = trace.get("schema_version", VERSION)
    if version != VERSION:
        raise DataError(
            f"training trace: schema_version is {version!r}; expected {VERSION}",
            code="trace/malformed",
        )
    turns = _array(trace.get("turns"), "turns")
    return TrainingTrace(turns=tuple(_turn(turn, index) for index, turn in enumerate(turns)))


def _turn(value: object, index: int) -> TrainingTurn:
    where = f"turns[{index}]"
    turn = _object(value, _FIELDS, where)
    if not isinstance(turn.get("node_id"), str):
        raise DataError(
            f"training trace: {where}.node_id is missing; expected a text", code="trace/malformed"
        )
    logps = _array(turn.get("per_token_logps"), f"{where}.per_token_logps")
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in logps):
        raise DataError(
            f"training trace: {where}.per_token_logps has something else than numbers",
            code="trace/malformed",
        )
    return TrainingTurn(
        node_id=turn["node_id"],
        prompt_token_ids=tuple(_array(turn.get("prompt_token_ids"), f"{where}.prompt_token_ids")),
        completion_token_ids=tuple(
            _array(turn.get("completion_token_ids"), f"{where}.completion_token_ids")
        ),
        per_token_logps=tuple(map(float, logps)),
        loss_mask=tuple(_array(turn.get("loss_mask"), f"{where}.loss_mask")),
        request=_object(turn.get("request", {}), None, f"{where}.request"),
        response=_object(turn.get("response", {}), None, f"{where}.response"),
        metadata=_object(turn.get("metadata", {}), None, f"{where}.metadata"),
    )


def _object(value: object, known: set[str] | None, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataError(
            f"training trace: {where}: expected an object, got {type(value).__name__}",
            code="trace/malformed",
        )
    unknown = [] if known is None else sorted(value.keys() - known)
    if unknown:
        raise DataError(
            f"training trace: {where} has {', '.join(unknown)}, which version 1 has not",
            code="trace/malformed",
        )
    return value


def _array(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise DataError(
            f"training trace: {where}: expected an array, got {type(value).__name__}",
            code="trace/malformed",
        )
    return value
