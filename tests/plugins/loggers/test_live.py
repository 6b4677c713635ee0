import io
from pathlib import Path

import pytest
from rich.console import Console

from rlhf_core.contracts import RunResult
from rlhf_plugin_loggers.live import LiveProgress

METRICS = {
    "reward/mean": 0.5,
    "kl/ref": 0.01,
    "policy/entropy": 1.25,
    "response/length_mean": 12.0,
    "timing/generate_tokens_per_s": 8000.0,
    "timing/train_tokens_per_s": 20000.0,
}


def console_of(width):
    return Console(
        file=io.StringIO(), force_terminal=True, color_system=None, width=width, height=24
    )


def line_at(width, clock, *, metrics=METRICS):
    progress = LiveProgress(console_of(width), 0, 10, clock)
    for step in (3, 4, 5):
        clock.now += 0.6
        progress.step_end(step, metrics)
    return progress._line(width, ascii_only=True).plain


def test_the_line_has_everything_when_there_is_room(clock):
    assert line_at(200, clock) == (
        "5/10 #####-----  3 s left  reward 0.500  KL(ref) 0.0100  entropy 1.250  length 12.00"
        "  generate 8.0k tok/s  train 20k tok/s"
    )


@pytest.mark.parametrize("width", [25, 40, 60, 80, 100, 130])
def test_the_line_never_wraps_and_keeps_the_reward_longest(width, clock):
    line = line_at(width, clock)

    assert len(line) <= width
    assert ("reward" in line) == (width >= 40)


def test_before_the_first_step_the_clock_shows_that_it_is_running(clock):
    progress = LiveProgress(console_of(100), 0, 10, clock)
    clock.now += 61

    assert "1:01 min, first step is running" in progress._line(100).plain


def test_what_was_noted_before_the_start_is_above_the_line(clock, run_info):
    console = console_of(40)
    progress = LiveProgress(console, 0, 10, clock)

    progress.run_start(run_info(notes=("group [decay]: " + "x" * 60,)))
    progress.run_end(RunResult(status="finished", steps=0, seconds=1.0))

    text = console.file.getvalue()
    assert f"group [decay]: {'x' * 60}" in text  # not cut: the terminal wraps it
    assert text.rfind("0/10") > text.find("group [decay]")


def test_evaluations_and_checkpoints_stay_above_the_line(clock, run_info):
    console = console_of(100)
    progress = LiveProgress(console, 0, 10, clock)

    progress.run_start(run_info(total_steps=10))
    progress.step_end(1, METRICS)
    progress.eval_end(1, {"eval/[test]/T0/pass@1": 0.5})
    progress.checkpoint_saved(1, Path("checkpoints/step-00000001"))
    progress.run_end(RunResult(status="finished", steps=1, seconds=1.0))

    text = console.file.getvalue()
    assert "step 1  evaluation: [test] T0 pass@1 0.500" in text  # no markup: brackets survive
    assert "step 1  checkpoint: checkpoints/step-00000001" in text
    assert text.rstrip("\x1b[?25hlK\n\r").rfind("1/10") > text.rfind("checkpoint:")
    assert text.endswith("\x1b[?25h"), "the cursor is shown again"
