"""Steps without an update: the warning at half of the limit, the error at it, and what begins the count anew."""

import pytest

from rlhf_core import EmptyStepsError
from rlhf_testing.errors import has_code
from rlhf_trainer.rollouts.settling import EmptySteps

HARD = {"filter/dropped_groups/too_hard": 4.0, "filter/refills": 1.0}


def test_half_of_the_limit_warns_once_and_the_limit_ends_the_run(caplog):
    watch = EmptySteps(4)

    for step in (1, 2, 3):
        watch.note(step, HARD, updated=False)
    (warning,) = caplog.messages
    with pytest.raises(EmptyStepsError) as ended:
        watch.note(4, {"filter/dropped_groups/errors": 1.0}, updated=False)

    assert warning == (
        "nothing was learned from rewards in 2 steps in a row, up to step 2: all groups were dropped (too_hard: 8). "
        "The run ends after 4 such steps (--train.max_empty_steps)."
    )
    assert (
        "in 4 steps in a row, up to step 4: all groups were dropped (too_hard: 12, errors: 1)"
        in str(ended.value)
    )
    assert "--rollout.filters" in str(ended.value)
    assert "--train.max_empty_steps" in str(ended.value)


def test_an_update_begins_the_count_anew(caplog):
    watch = EmptySteps(2)

    for step in range(1, 9):
        watch.note(step, HARD, updated=step % 2 == 0)

    assert watch.in_a_row == 0
    assert len(caplog.messages) == 4


def test_a_resumed_run_goes_on_counting_and_a_limit_of_one_ends_at_once():
    with pytest.raises(EmptyStepsError, match="3 steps", check=has_code("training/empty-steps")):
        EmptySteps(3, before=2).note(3, {}, updated=False)
    with pytest.raises(
        EmptyStepsError, match=r"1 step.*step 1", check=has_code("training/empty-steps")
    ):
        EmptySteps(1).note(1, {}, updated=False)
