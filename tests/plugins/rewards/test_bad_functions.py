"""What a user's function can do wrong, through the panel that a run uses."""

from pathlib import Path

import pytest
from tests.deadlines import HANG_S, PATIENT_S

from rlhf_core import RewardError
from rlhf_guard.rewards.process import WorkerProcess

FILE = Path(__file__).with_name("bad_functions.py")

CAUGHT = {
    "raises": "raised ZeroDivisionError: division by zero",
    "raises_base_exception": "raised KeyboardInterrupt",
    "returns_none": "returned None; expected one finite number, which is 0 where the reward does not apply",
    "returns_nan": "returned nan; expected one finite number",
    "returns_infinity": "returned -inf; expected one finite number",
    "returns_huge": "returned 1e+300; expected at most 1e+35",
    "returns_text": "returned '1.0' (str); expected one finite number",
    "returns_list": "returned [1.0, 2.0] (list); expected one finite number",
    "returns_generator": "(generator); expected one finite number",
    "returns_matrix": "returned a ndarray of shape (2, 2); expected one finite number",
    "returns_dict_without_reward": "the dict that the function returned has no 'reward', only score",
    "returns_text_as_metric": "returned 'fine' (str) as metric 'note'",
    "returns_hostile_object": "returned <Hostile, whose repr raised RuntimeError>",
    "recurses": "raised RecursionError",
    "exits": "raised SystemExit: 3",
    "async_raises": "raised LookupError: no such label",
    "async_exits": "raised SystemExit: 3",
    "batch_raises": "raised ValueError: one of them is bad",
    "batch_is_too_short": "returned 0 values for 1 responses",
    "batch_returns_number": "returned a float; expected a list of 1 numbers",
    "batch_returns_none_inside": "returned None; expected one finite number, which is 0 where",
}
"""Function -> what is said of it, whether isolated or not."""

STOPPED = {
    "allocates": "raised MemoryError",
    "sleeps": "did not finish within",
    "loops_in_c": "did not finish within",
    "ignores_signals": "did not finish within",
    "exits_hard": "ended its process (exit code 3)",
    "crashes": "ended its process (killed by SIGSEGV)",
    "kills_its_group": "ended its process (killed by SIGKILL)",
    "kills_its_parent": "ended its process",
    "closes_everything": "ended its process",
}
"""Function -> what is said of it; these need a process of their own."""

HANGING = {"sleeps", "loops_in_c", "ignores_signals"}
"""Of these a call with the bad sample cannot end well, so it has a second; calls without it have their time."""

HARMLESS = [
    "forks_and_returns_twice",
    "starts_many_processes",
    "starts_a_thread",
    "prints_a_lot",
    "mutates_its_row",
]

BAD = 2


def options_of(function):
    return {"path": f"{FILE}:{function}"}


def four(request_for):
    return [request_for(index=index, bad=index == BAD) for index in range(4)]


@pytest.fixture
def limits(monkeypatch):
    """``limits(function)``: options by which a process has the time of a hang, but for calls that do hang."""

    def of(function):
        if function in HANGING:
            monkeypatch.setattr(WorkerProcess, "score", hurried)
        return {"timeout_s": PATIENT_S}

    return of


async def hurried(worker, requests, limit_s, *, whole=WorkerProcess.score):
    guilty = any(request.row["bad"] for request in requests)
    return await whole(worker, requests, 1.0 if guilty else limit_s)


def check_policies(panel_scores, request_for, function, text, policies, **options):
    requests = four(request_for)
    if "fail" in policies:
        with pytest.raises(RewardError) as caught:
            panel_scores(options_of(function), requests, **options)
        assert f"could not score 0.{BAD}.0.0" in str(caught.value)
        assert text in str(caught.value)
    if "drop" in policies:
        scores = panel_scores(options_of(function), requests, on_error="drop", **options)
        assert [one.reward for one in scores] == [1.0, 1.0, None, 1.0]
        assert [one.dropped for one in scores] == [None, None, "mine_failed", None]
    if "value" in policies:
        scores = panel_scores(
            options_of(function), requests, on_error="value", error_value=-1.0, **options
        )
        assert [one.reward for one in scores] == [1.0, 1.0, -1.0, 1.0]
        assert [one.metrics["mine/failed"] for one in scores] == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("function", CAUGHT)
def test_an_error_concerns_its_sample_alone(panel_scores, request_for, function):
    every = ("fail", "drop", "value")
    check_policies(panel_scores, request_for, function, CAUGHT[function], every, isolate=False)


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(
    "function", ["allocates", pytest.param("loops_in_c", marks=pytest.mark.slow), "crashes"]
)
def test_a_process_that_has_to_be_replaced_costs_only_the_guilty_sample(
    panel_scores, request_for, limits, function
):
    text = STOPPED[function]
    check_policies(panel_scores, request_for, function, text, ["value"], **limits(function))


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("function", HARMLESS)
def test_what_only_looks_dangerous_is_scored(panel_scores, request_for, function):
    scores = panel_scores(options_of(function), four(request_for), timeout_s=HANG_S, times=3)

    assert [one.reward for one in scores] == [1.0] * 4


CASES = [
    # Each function comes with one policy, and each policy with a third of the functions; the rest by make test-all.
    pytest.param(function, policy, marks=[] if (row + column) % 3 == 0 else pytest.mark.matrix)
    for row, function in enumerate([*CAUGHT, *STOPPED])
    for column, policy in enumerate(["fail", "drop", "value"])
]


@pytest.mark.slow
@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(("function", "policy"), CASES)
def test_every_policy_holds_in_a_process_of_its_own(
    panel_scores, request_for, limits, function, policy
):
    text = (CAUGHT | STOPPED)[function]
    check_policies(panel_scores, request_for, function, text, [policy], **limits(function))


def test_the_message_has_the_line_of_the_user_s_file(panel_scores, request_for):
    with pytest.raises(RewardError) as caught:
        panel_scores(options_of("raises"), four(request_for))

    line = next(
        number
        for number, text in enumerate(FILE.read_text().splitlines(), start=1)
        if "1 / 0" in text
    )
    assert f"{FILE}:{line} in raises: return 1 / 0 if bad else 1.0" in str(caught.value)
