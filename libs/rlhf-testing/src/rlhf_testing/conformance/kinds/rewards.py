"""Checks of rewards (``contracts.Reward``)."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Sequence
from typing import Any

from rlhf_core.batch.trajectory import Turn
from rlhf_core.contracts.reward import RewardRequest, RewardResult

from ..subject import Subject, checks_in

RESPONSES = (
    "42",
    "The answer is \\boxed{42}.",
    "",
    " \n\t",
    "\N{GRINNING FACE} \N{SNOWMAN} 42 \N{HEBREW LETTER ALEF}",
    "x" * 20_000,
    "\\frac{1}{0} {{{ $$$",
    "-1e308 + inf nan",
)


def _requests() -> list[RewardRequest]:
    row = {"prompt": "6 * 7 = ?", "answer": "42", "label": "42", "solution": "42"}
    return [
        RewardRequest(
            uid=f"0.{index}.0.0",
            row=dict(row),
            prompt="6 * 7 = ?",
            response=response,
            token_ids=(5, 6, 7),
            action_mask=(False, True, True),
            turns=(Turn(start=1, end=3),),
            truncated=index % 2 == 1,
        )
        for index, response in enumerate(RESPONSES)
    ]


def _score(subject: Subject, requests: Sequence[RewardRequest]) -> list[Any]:
    returned = subject.make().score(requests)

    async def wait() -> Any:
        return await returned

    results = asyncio.run(wait()) if inspect.isawaitable(returned) else returned
    return list(results)


def check_one_finite_score_per_sample(subject: Subject) -> None:
    """As many results as requests, each a finite number or an exception; also for empty, long and odd responses."""
    requests = _requests()
    results = _score(subject, requests)
    assert len(results) == len(requests), f"{len(results)} results for {len(requests)} samples"
    for request, result in zip(requests, results, strict=True):
        shown = repr(request.response[:20])
        if isinstance(result, Exception):
            continue
        assert isinstance(result, RewardResult), (
            f"{shown}: a {type(result).__name__}; expected a RewardResult, or an exception"
        )
        assert math.isfinite(result.reward), f"{shown}: a reward of {result.reward}"
        _assert_placed(result, sum(request.action_mask), shown)
        for name, value in result.metrics.items():
            assert math.isfinite(value), f"{shown}: metric {name} is {value}"


def _assert_placed(result: RewardResult, num_actions: int, shown: str) -> None:
    """Assert that the parts of a reward stand on actions and add up to it."""
    if not result.step_rewards:
        return
    for action, part in result.step_rewards:
        assert 0 <= action < num_actions, f"{shown}: action {action} of {num_actions}"
        assert math.isfinite(part), f"{shown}: a step reward of {part}"
    total = math.fsum(part for _, part in result.step_rewards)
    assert math.isclose(total, result.reward, abs_tol=1e-5), (
        f"{shown}: step rewards add up to {total}, the reward is {result.reward}"
    )


def check_step_rewards_are_declared(subject: Subject) -> None:
    """A reward with parts on single tokens says so with ``needs={"credits_tokens"}``, or its options do."""
    for result in _score(subject, _requests()):
        if isinstance(result, RewardResult) and result.step_rewards:
            assert "credits_tokens" in subject.needs, "step_rewards without the need credits_tokens"


def check_samples_are_scored_apart(subject: Subject) -> None:
    """One by one, or in another order, every sample has the score that it has in a batch."""
    requests = _requests()
    together = [_value(result) for result in _score(subject, requests)]
    alone = [_value(_score(subject, [request])[0]) for request in requests]
    assert together == alone, f"{together} together, {alone} one by one"
    backwards = [_value(result) for result in _score(subject, requests[::-1])][::-1]
    assert together == backwards, f"{together} in order, {backwards} backwards"


def check_nothing_to_score(subject: Subject) -> None:
    """No requests give no results."""
    results = _score(subject, [])
    assert results == [], f"{results} for no samples"


def check_requests_stay_as_they_are(subject: Subject) -> None:
    """The rows are not changed: other rewards read them too."""
    requests = _requests()
    before = json.dumps([dict(request.row) for request in requests])
    _score(subject, requests)
    assert json.dumps([dict(request.row) for request in requests]) == before, "a row was changed"


def _value(result: Any) -> tuple[float, ...] | str:
    if not isinstance(result, RewardResult):
        return type(result).__name__
    return float(result.reward), *(number for pair in result.step_rewards for number in pair)


CHECKS = checks_in(__name__)
