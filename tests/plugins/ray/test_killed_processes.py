"""kill -9 of an engine, a rollout worker and a rank in a whole run: idle, at work, and while weights are handed over.

Without a rank the run ends and resumes; without another one it goes on. Either way its records are those of a run in
which nothing dies.
"""

import json
import os
import re
import signal
import time

import pytest
from tests.deadlines import HANG_S

from rlhf_trainer.durable.records import replay

from .conftest import COMPONENTS
from .records import books_of, seconds_until_noted, train_here

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("ray")

STEPS = 5
MORTAL = ["--engine", "mortal", "--backend", "mortal_torch", "--steps", str(STEPS)]
WORKERS = [
    *("--executor", "mortal_turn", "--runtime.ray.rollout_workers", "2"),
    *("--runtime.ray.cpus_per.rollout", "0.5"),
]
IDLE, AT_WORK, SYNCING = "rank.train 2", "engine.generate 2", "engine.update 1"


@pytest.fixture
def mortal(start, folder, tmp_path_factory):
    """Starts a run in which processes die by the given plan."""
    deaths = tmp_path_factory.mktemp("deaths")

    def run(plan, *flags):
        (deaths / "plan").write_text("\n".join(plan))
        environment = {
            "MORTAL_FOLDER": str(deaths),
            "RLHF_PLUGINS": "mortal_components",
            "PYTHONPATH": os.pathsep.join([str(COMPONENTS), os.environ.get("PYTHONPATH", "")]),
        }
        return start(*MORTAL, *flags, **environment)

    run.deaths = deaths
    return run


@pytest.fixture
def undisturbed(folder, monkeypatch):
    """(metrics, ledger) of the run in one process in which nothing dies."""
    monkeypatch.chdir(folder)
    assert train_here("--output", "expected", "--steps", str(STEPS)) == 0
    return books_of(folder / "expected")


def by_pid(pid):
    """How warnings name a process."""
    return rf"\(pid {pid} on"


def deaths_of(mortal):
    """Each process that was killed: its pid, and when."""
    return [json.loads(path.read_text()) for path in sorted(mortal.deaths.glob("killed-*"))]


@pytest.mark.parametrize(
    ("weights", "sleep"),
    [
        ("store", "never"),
        pytest.param("memory", "never", marks=pytest.mark.matrix),
        pytest.param("collective", "never", marks=pytest.mark.matrix),
        # The next engine gets its weights from a rank whose state is in host memory, and sleeps if the others do.
        pytest.param("store", "always", marks=pytest.mark.matrix),
        pytest.param("memory", "always", marks=pytest.mark.matrix),
    ],
)
def test_an_engine_that_is_killed_idle_at_work_or_syncing_changes_nothing(
    mortal, folder, undisturbed, weights, sleep
):
    plan = [f"engine {when}" for when in (IDLE, AT_WORK, SYNCING)]

    run = mortal(plan, "--runtime.ray.weights", weights, "--runtime.sleep", sleep)

    assert run.end() == 0, run.output
    assert books_of(folder / "run") == undisturbed
    died = deaths_of(mortal)
    assert len({death["pid"] for death in died}) == 3
    for death in died:
        assert seconds_until_noted(folder, by_pid(death["pid"]), death["time"]) < HANG_S


@pytest.mark.parametrize("weights", [pytest.param("store", marks=pytest.mark.matrix), "memory"])
def test_a_rollout_worker_that_is_killed_idle_at_work_or_syncing_changes_nothing(
    mortal, folder, undisturbed, weights
):
    plan = [f"worker {when}" for when in (IDLE, AT_WORK, SYNCING)]

    run = mortal(plan, "--runtime.ray.weights", weights, *WORKERS)

    assert run.end() == 0, run.output
    assert books_of(folder / "run") == undisturbed
    died = deaths_of(mortal)
    assert len({death["pid"] for death in died}) == 3
    for death in died:
        assert seconds_until_noted(folder, by_pid(death["pid"]), death["time"]) < HANG_S


@pytest.mark.parametrize(
    ("when", "weights"),
    [
        pytest.param("engine.generate 4", "store", id="idle", marks=pytest.mark.matrix),
        pytest.param("rank.train 2", "store", id="at work"),
        pytest.param("rank.send 2", "store", id="syncing by store", marks=pytest.mark.matrix),
        pytest.param("rank.send 2", "memory", id="by memory"),
        pytest.param("rank.send 2", "collective", id="by collective", marks=pytest.mark.matrix),
    ],
)
def test_a_rank_that_is_killed_ends_the_run_which_resumes(
    mortal, folder, undisturbed, when, weights
):
    flags = ["--runtime.ray.weights", weights, "--checkpoint.every", "1"]

    run = mortal([f"rank {when}"], *flags)

    assert run.end() == 1, run.output
    (death,) = deaths_of(mortal)
    ended = (folder / "run" / "run.log").stat().st_mtime
    assert ended - death["time"] < HANG_S
    told = re.search(rf"policy rank 0 \(pid {death['pid']} on .*", run.output)
    assert told is not None, run.output
    assert "--resume auto" in told[0]

    resumed = mortal([], *flags, "--resume", "auto")

    assert resumed.end() == 0, resumed.output
    assert books_of(folder / "run") == undisturbed


@pytest.mark.parametrize(
    "when",
    [
        pytest.param("engine.generate 4", id="idle"),
        pytest.param("learner.estimate 2", id="at work"),
    ],
)
@pytest.mark.matrix
def test_a_learner_that_is_killed_ends_the_run_which_resumes(mortal, folder, undisturbed, when):
    flags = [*WORKERS, "--estimator", "mortal_baseline", "--checkpoint.every", "1"]

    run = mortal([f"learner {when}"], *flags)

    assert run.end() == 1, run.output
    (death,) = deaths_of(mortal)
    assert (folder / "run" / "run.log").stat().st_mtime - death["time"] < HANG_S
    told = re.search(rf"the learner \(pid {death['pid']} on .*", run.output)
    assert told is not None, run.output
    assert "--resume auto" in told[0]

    resumed = mortal([], *flags, "--resume", "auto")

    assert resumed.end() == 0, resumed.output
    assert books_of(folder / "run") == undisturbed


@pytest.mark.matrix
def test_an_engine_of_vllm_that_is_killed_leaves_none_of_its_own_processes(start, folder):
    """vLLM computes in a child of the process that is killed."""
    pytest.importorskip("vllm")
    run = start("--steps", "40", "--engine", "vllm", "--engine.vllm.threads", "1")
    metrics = folder / "run" / "metrics.jsonl"
    run.until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 1)
    log = (folder / "run" / "run.log").read_text()
    engine = int(re.search(r"engine 0 \(pid (\d+) on .* gets weights by", log)[1])

    died = time.time()
    os.kill(engine, signal.SIGKILL)

    assert run.end() == 0, run.output
    assert seconds_until_noted(folder, by_pid(engine), died) < HANG_S
    assert len(metrics.read_text().splitlines()) == 40
    assert replay(folder / "run" / "ledger.jsonl").unsettled() == []
