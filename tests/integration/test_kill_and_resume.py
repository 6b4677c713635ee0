"""Kill a run with SIGKILL at every step and phase, resume it, and compare with the run that was left alone.

The run has everything that carries state, see ``forked_runs``.
"""

import os
import signal

import pytest
from tests.cases import one_in

from rlhf_core.storage.faults import PHASES
from rlhf_trainer.durable.records import replay
from rlhf_trainer.loop.rl_trainer import RLTrainer

from .forked_runs import (
    CHECKPOINT_EVERY,
    STEPS,
    how_to_resume,
    metrics_without_times,
    train_in_a_fork,
    weights_digest,
    write_workspace,
)

POINTS = [
    (phase, step)
    for step in range(1, STEPS + 1)
    for phase in ("generate", "reward", "model_outputs", "train")
]
POINTS += [("save", step) for step in range(CHECKPOINT_EVERY, STEPS + 1, CHECKPOINT_EVERY)]
POINTS += [("export", STEPS)]
ASLEEP = [("asleep", step) for step in range(1, STEPS + 1)]
"""Points of a run whose engine sleeps; its numbers are those of one whose engine does not."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return write_workspace(tmp_path_factory.mktemp("killed"))


@pytest.fixture(scope="module")
def uninterrupted(workspace):
    status = train_in_a_fork(workspace, "whole")
    assert status == 0, (workspace / "whole.log").read_text()
    return metrics_without_times(workspace / "whole"), weights_digest(workspace / "whole")


def test_the_same_seed_twice_gives_identical_weights_and_metrics(workspace, uninterrupted):
    status = train_in_a_fork(workspace, "again")

    assert status == 0
    assert metrics_without_times(workspace / "again") == uninterrupted[0]
    assert weights_digest(workspace / "again") == uninterrupted[1]


def check_killed_and_resumed(workspace, uninterrupted, phase, step, *flags):
    output = f"killed-{phase}-{step}"
    run = workspace / output

    killed = train_in_a_fork(workspace, output, *flags, fault=f"{phase}:{step}")
    assert os.WIFSIGNALED(killed), (workspace / f"{output}.log").read_text()
    assert os.WTERMSIG(killed) == signal.SIGKILL

    resumed = train_in_a_fork(workspace, output, *flags, "--resume", how_to_resume(run))
    assert resumed == 0, (workspace / f"{output}.log").read_text()

    assert metrics_without_times(run) == uninterrupted[0]
    assert weights_digest(run) == uninterrupted[1]
    assert replay(run / "ledger.jsonl").unsettled() == []


def test_a_killed_run_resumes_to_the_same_numbers(workspace, uninterrupted):
    check_killed_and_resumed(workspace, uninterrupted, "save", 6)


@pytest.mark.slow
@pytest.mark.parametrize("point", one_in(7, POINTS), ids=str)
def test_a_run_killed_at_any_point_resumes_to_the_same_numbers(workspace, uninterrupted, point):
    check_killed_and_resumed(workspace, uninterrupted, *point)


def test_a_run_whose_engine_sleeps_gives_the_same_numbers(workspace, uninterrupted):
    """To the bit, with a critic, a reference, an average, evaluations and checkpoints between the phases."""
    status = train_in_a_fork(workspace, "sleeping", "--runtime.sleep", "always")

    assert status == 0, (workspace / "sleeping.log").read_text()
    assert metrics_without_times(workspace / "sleeping") == uninterrupted[0]
    assert weights_digest(workspace / "sleeping") == uninterrupted[1]


@pytest.mark.slow
@pytest.mark.parametrize("point", one_in(5, ASLEEP), ids=str)
def test_a_run_killed_while_the_engine_sleeps_resumes_to_the_same_numbers(
    workspace, uninterrupted, point
):
    check_killed_and_resumed(workspace, uninterrupted, *point, "--runtime.sleep", "always")


def test_every_phase_is_covered():
    assert {phase for phase, _ in [*POINTS, *ASLEEP]} == set(PHASES)


def test_a_second_run_into_the_folder_is_refused(workspace, uninterrupted):
    status = train_in_a_fork(workspace, "whole")

    assert os.waitstatus_to_exitcode(status) == 2
    assert "--resume auto" in (workspace / "whole.log").read_text()


def test_an_interrupted_run_saves_and_resumes_to_the_same_numbers(workspace, uninterrupted):
    """SIGTERM in the middle: the step is finished, a checkpoint is written, and the exit code says so."""
    output = "interrupted"
    status = train_in_a_fork(workspace, output, prepare=be_terminated_in_step_5)
    assert os.waitstatus_to_exitcode(status) == 130

    assert train_in_a_fork(workspace, output, "--resume", "auto") == 0

    assert metrics_without_times(workspace / output) == uninterrupted[0]
    assert weights_digest(workspace / output) == uninterrupted[1]


def be_terminated_in_step_5():
    whole = RLTrainer.step

    async def step_and_signal(self):
        result = await whole(self)
        if self.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    RLTrainer.step = step_and_signal
