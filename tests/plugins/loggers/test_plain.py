from pathlib import Path

import pytest

from rlhf_core.contracts import RunResult
from rlhf_plugin_loggers.plain import PlainProgress


@pytest.fixture
def lines():
    return []


def run_steps(progress, clock, steps, seconds_each):
    for step in steps:
        clock.now += seconds_each
        progress.step_end(step, {"reward/mean": step / 100})


def test_the_first_and_the_last_step_are_always_written(lines, clock):
    progress = PlainProgress(lines.append, 0, 10, clock)

    run_steps(progress, clock, range(1, 11), seconds_each=0.01)

    assert [line.split()[1] for line in lines] == ["1/10", "10/10"]


def test_quick_steps_are_written_every_two_seconds(lines, clock):
    progress = PlainProgress(lines.append, 0, 1000, clock)

    run_steps(progress, clock, range(1, 101), seconds_each=0.5)

    # 50 s: the first step, then every fourth, as 4 * 0.5 s = 2 s.
    assert [line.split()[1] for line in lines] == [
        f"{step}/1000" for step in [1, *range(5, 101, 4)]
    ]


def test_slow_steps_are_all_written(lines, clock):
    progress = PlainProgress(lines.append, 0, 5, clock)

    run_steps(progress, clock, range(1, 6), seconds_each=30)

    assert len(lines) == 5


def test_a_long_run_writes_a_line_a_minute_at_the_most(lines, clock):
    progress = PlainProgress(lines.append, 0, 10**6, clock)
    run_steps(progress, clock, [1], seconds_each=1)
    clock.now += 100_000
    run_steps(progress, clock, [2], seconds_each=1)
    before = len(lines)

    run_steps(progress, clock, range(3, 603), seconds_each=1)

    assert len(lines) - before == 10  # 600 s


def test_an_evaluated_step_is_written_before_its_evaluation(lines, clock):
    progress = PlainProgress(lines.append, 0, 10, clock)
    run_steps(progress, clock, [1, 2], seconds_each=0.01)

    progress.eval_end(2, {"eval/test/T0/pass@1": 0.5})

    assert [line.split("  ")[0] for line in lines] == ["step 1/10", "step 2/10", "step 2/10"]
    assert lines[-1] == "step 2/10  evaluation: test T0 pass@1 0.500"


def test_an_evaluation_does_not_repeat_a_written_step(lines, clock):
    progress = PlainProgress(lines.append, 0, 10, clock)
    run_steps(progress, clock, [1], seconds_each=0.01)

    progress.eval_end(1, {"eval/test/T0/pass@1": 0.5})

    assert len(lines) == 2


def test_an_interrupted_run_shows_the_step_it_reached(lines, clock):
    progress = PlainProgress(lines.append, 0, 10, clock)
    run_steps(progress, clock, [1, 2, 3], seconds_each=0.01)

    progress.run_end(RunResult(status="interrupted", steps=3, seconds=1.0))

    assert lines[-1].startswith("step 3/10")


def test_the_time_left_is_the_pace_of_the_steps_times_what_remains(lines, clock):
    progress = PlainProgress(lines.append, 20, 30, clock)

    run_steps(progress, clock, [21, 22, 23], seconds_each=6)

    assert lines[-1] == "step 23/30  reward 0.230  42 s left"  # 6 s * 7


def test_a_slow_first_step_is_not_what_remains(lines, clock):
    progress = PlainProgress(lines.append, 0, 100, clock)

    run_steps(progress, clock, [1], seconds_each=600)
    run_steps(progress, clock, [2, 3], seconds_each=6)

    assert [line for line in lines if "left" in line] == [
        "step 3/100  reward 0.0300  9:42 min left"  # 6 s * 97
    ]


def test_a_resumed_run_says_so_and_writes_its_own_first_step(lines, clock, run_info):
    progress = PlainProgress(lines.append, 20, 30, clock)

    progress.run_start(run_info(total_steps=30, start_step=20))
    run_steps(progress, clock, [21], seconds_each=0.01)

    assert lines[0].endswith("30 steps, going on after step 20")
    assert lines[1].startswith("step 21/30")


def test_what_was_noted_before_the_start_comes_before_the_first_step(lines, clock, run_info):
    progress = PlainProgress(lines.append, 0, 30, clock)

    progress.run_start(run_info(notes=("groups of the policy", "placement")))
    run_steps(progress, clock, [1], seconds_each=0.01)

    assert lines[1:3] == ["groups of the policy", "placement"]
    assert lines[3].startswith("step 1/30")


def test_a_checkpoint_is_written_with_its_path(lines, clock):
    progress = PlainProgress(lines.append, 0, 10, clock)

    progress.checkpoint_saved(4, Path("runs/a/checkpoints/step-00000004"))

    assert lines == ["step 4/10  checkpoint: runs/a/checkpoints/step-00000004"]


def test_a_long_note_is_one_line_that_names_the_file_with_all_of_it(lines, clock, run_info):
    progress = PlainProgress(lines.append, 0, 3, clock)

    progress.run_start(run_info(notes=("group decay: " + "model.layers.*.up_proj.weight, " * 20,)))

    (note,) = [line for line in lines if line.startswith("group decay: ")]
    assert len(note) <= 160
    assert note.endswith(" ... (full text in run.log)")
