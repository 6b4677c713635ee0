"""What ``--dry-run`` says of a run's checkpoints."""

import pytest

from rlhf_trainer.loop.describe import describe


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {},
            "checkpoints every 10 minutes, at the end, when the run is stopped or fails; the newest 2 and the best one "
            "are kept",
        ),
        (
            {"every": 5, "at_end": False, "keep": 3, "best_metric": "eval/rows/T0/reward"},
            "checkpoints every 5 steps, when the run is stopped or fails; the newest 3 and the best one are kept",
        ),
        (
            {"every_minutes": 0.0, "best_metric": None},
            "checkpoints at the end, when the run is stopped or fails; the newest 2 are kept",
        ),
    ],
)
def test_it_says_when_checkpoints_are_written_and_which_are_kept(small_run, options, said):
    evaluated = {"eval": {"fraction": 0.25}}

    with small_run.configured(evaluated, {"checkpoint": options}) as (resolved, plugins):
        text = describe(resolved, plugins)

    assert said in text
