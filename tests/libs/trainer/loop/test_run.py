"""A run from start to end: what observers, records and checkpoints get, in which order, whatever happens on the way."""

import asyncio
import itertools
import json
import signal
import sys
import threading

import pytest

from rlhf_core import ConfigError, PluginError, ResumeError, RolloutError
from rlhf_testing.errors import has_code
from rlhf_trainer.durable.records import replay
from rlhf_trainer.loop.state import LoopState

EVERY_STEP = {"checkpoint": {"every": 1}}
EVALUATED = {"eval": {"fraction": 0.25, "every": 2}}
RESUMED = {"resume": {"checkpoint": "auto"}}


def numbers(lines):
    """Records without times."""
    return [{k: v for k, v in line.items() if k not in ("time_s", "timing")} for line in lines]


def driver(events):
    """What the run itself does around the steps; the samples of an evaluation are left out."""
    inside = ("generate", "reward", "shape", "checksum")
    return [event for event, _ in itertools.groupby(events) if event not in inside]


def is_left(small_run):
    """What a run that ended has left open: its lock, its threads, its signal handlers."""
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("reward ")]
    return threads, signal.getsignal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def nothing_left(small_run):
    before = is_left(small_run)
    yield
    assert is_left(small_run) == before


def test_a_run_evaluates_steps_saves_and_exports_in_this_order(small_run):
    result = small_run(EVALUATED, {"checkpoint": {"every": 2}})

    assert driver(small_run.events) == [
        "runtime starts",
        "run starts at 0 of 3",
        "evaluated 0",
        *("learn", "serve version 1", "rollouts 1", "step 1"),
        *("learn", "serve version 2", "rollouts 2", "step 2"),
        *("evaluated 2", "save", "saved 2"),
        *("learn", "serve version 3", "rollouts 3", "step 3"),
        *("evaluated 3", "save", "saved 3"),
        "export",
        "runtime closes",
        "run ends: finished",
    ]
    assert (result.status, result.steps, result.message) == ("finished", 3, "")
    assert result.model == small_run.folder / "run" / "model"
    assert small_run.results == [result]


def test_the_records_have_each_step_and_each_evaluation_in_their_order(small_run):
    small_run(EVALUATED)

    kinds = [(line["step"], "eval" if "eval" in line else "step") for line in small_run.lines()]
    assert kinds == [(0, "eval"), (1, "step"), (2, "step"), (2, "eval"), (3, "step"), (3, "eval")]
    assert [line["step"] for line in small_run.lines("samples.jsonl")] == [1, 2, 3]
    played = small_run.lines("eval_samples.jsonl")
    assert sorted({line["step"] for line in played}) == [0, 2, 3]
    assert {line["eval"] for line in played} == {"rows/T0"}
    assert {"prompt", "response", "reward", "rewards"} <= played[0].keys()
    assert replay(small_run.folder / "run" / "ledger.jsonl").unsettled() == []


def test_the_first_evaluation_can_be_left_out(small_run):
    small_run(EVALUATED, {"eval": {"at_start": False}})

    assert "evaluated 0" not in small_run.events
    assert "evaluated 2" in small_run.events


def test_without_intervals_the_last_step_is_evaluated_and_saved_once(small_run):
    small_run({"eval": {"fraction": 0.25, "at_start": False}})

    assert [event for event in small_run.events if event.startswith("evaluated")] == ["evaluated 3"]
    assert small_run.events.count("save") == 1
    assert small_run.checkpoints() == [3]


def test_a_last_step_that_is_due_is_saved_once(small_run):
    small_run({"checkpoint": {"every": 3}})

    assert small_run.events.count("save") == 1


def test_a_run_that_exports_nothing_has_no_model(small_run):
    result = small_run({"checkpoint": {"export": False}})

    assert result.model is None
    assert "export" not in small_run.events


def test_a_model_is_exported_whole_or_not_at_all(small_run):
    small_run.diary.fail("export", RolloutError("disk full"))

    with pytest.raises(RolloutError, match="disk full", check=has_code("rollout/failed")):
        small_run()

    assert small_run.results[0].model is None
    assert not (small_run.folder / "run" / "model").exists()


def test_the_averaged_copy_is_exported_beside_the_model(small_run):
    small_run({"actor": {"ema": 0.5}})

    assert small_run.events.count("export") == 2
    assert (small_run.folder / "run" / "model_ema" / "updates.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_stop_request_finishes_the_step_saves_it_and_ends_without_a_model(small_run, number):
    small_run.diary.interrupt("learn", time=2, number=number)

    result = small_run()

    assert driver(small_run.events)[-6:] == [
        *("rollouts 2", "step 2", "save", "saved 2"),
        "runtime closes",
        "run ends: interrupted",
    ]
    assert (result.status, result.steps, result.model) == ("interrupted", 2, None)
    assert result.message == f"stopped by {number.name}; continue with --resume auto"


@pytest.mark.parametrize("event", ["runtime starts", "run starts at 0 of 3", "evaluated 0"])
def test_a_stop_request_before_the_first_step_is_met_after_it(small_run, event):
    """There is no checkpoint of step 0 to continue from."""
    small_run.diary.interrupt(event)

    result = small_run(EVALUATED)

    assert (result.status, result.steps) == ("interrupted", 1)
    assert small_run.checkpoints() == [1]


def test_a_stop_request_in_the_last_step_is_met_by_the_end(small_run):
    small_run.diary.interrupt("learn", time=3)

    result = small_run()

    assert result.status == "finished"
    assert result.model is not None


def test_a_stop_request_while_a_step_is_saved_ends_the_run_there(small_run):
    small_run.diary.interrupt("save")

    result = small_run(EVERY_STEP)

    assert (result.status, result.steps) == ("interrupted", 1)
    assert small_run.checkpoints() == [1]


def test_a_second_stop_request_ends_the_run_at_once_and_closes_everything(small_run):
    small_run.diary.interrupt("learn", time=2)
    small_run.diary.interrupt("serve version 2")

    with pytest.raises(KeyboardInterrupt):
        small_run(EVERY_STEP)

    assert small_run.events[-2:] == ["runtime closes", "run ends: failed"]
    assert small_run.results[0].message == "stopped at once by SIGTERM"
    assert small_run.checkpoints() == [1]


def test_an_interrupted_run_goes_on_to_the_same_records(small_run):
    small_run(EVALUATED, output="whole")
    small_run.diary.interrupt("learn", time=5)
    interrupted = small_run(EVALUATED)
    resumed = small_run(EVALUATED, RESUMED)

    assert (interrupted.steps, resumed.steps, resumed.status) == (2, 3, "finished")
    assert numbers(small_run.lines()) == numbers(small_run.lines(output="whole"))
    for name in ("samples.jsonl", "eval_samples.jsonl"):
        assert small_run.lines(name) == small_run.lines(name, output="whole")
    assert remembered(small_run) == remembered(small_run, output="whole")


def remembered(small_run, output="run", step=3):
    """The loop's own state in a checkpoint, without its seconds."""
    path = small_run.folder / output / "checkpoints" / f"step-{step:08d}" / "state.json"
    state = json.loads(path.read_text())
    return {
        k: v for k, v in state.items() if k in LoopState.__dataclass_fields__ and k != "seconds"
    }


STAGES = [
    ("generate", 5),
    ("shape", 3),
    ("learn", 3),
    ("serve version 3", 1),
    ("checksum", 3),
    ("save", 3),
]


@pytest.mark.parametrize(("event", "time"), STAGES)
def test_a_run_that_fails_closes_everything_says_so_and_can_go_on(small_run, event, time):
    small_run(EVERY_STEP, output="whole")
    count = small_run.events.count(event)
    small_run.diary.fail(event, RolloutError("engine died\nwith details"), time=count + time)
    small_run.events.clear()

    with pytest.raises(RolloutError, match="engine died", check=has_code("rollout/failed")):
        small_run(EVERY_STEP)

    assert small_run.events[-2:] == ["runtime closes", "run ends: failed"]
    failed = small_run.results[-1]
    assert (failed.status, failed.message) == ("failed", "engine died")
    assert small_run.checkpoints() == [1, 2]

    small_run.events.clear()
    result = small_run(EVERY_STEP, RESUMED)

    assert result.status == "finished"
    assert driver(small_run.events)[:5] == [
        "runtime starts",
        "load",
        "serve version 2",
        "shaper continues from 2",
        "run starts at 2 of 3",
    ]
    assert small_run.runtime.engine.sources[0] == "weights after 2"
    assert small_run.checkpoints() == [2, 3]
    assert numbers(small_run.lines()) == numbers(small_run.lines(output="whole"))
    assert replay(small_run.folder / "run" / "ledger.jsonl").unsettled() == []


def test_a_run_that_failed_before_its_first_checkpoint_begins_anew_if_that_is_asked_for(small_run):
    """It fails while weights change, so its steps cannot be saved; they are not replaced without a word."""
    small_run(output="whole")
    small_run.diary.fail("learn", RolloutError("engine died"), time=5)
    with pytest.raises(RolloutError):
        small_run()
    failed = small_run.lines()

    with pytest.raises(
        ResumeError, match="--resume restart", check=has_code("resume/no-checkpoint")
    ):
        small_run(RESUMED)
    result = small_run({"resume": {"checkpoint": "restart"}})

    assert result.status == "finished"
    assert "load" not in small_run.events
    assert numbers(small_run.lines(output="run/earlier-1")) == numbers(failed)
    assert numbers(small_run.lines()) == numbers(small_run.lines(output="whole"))
    assert replay(small_run.folder / "run" / "ledger.jsonl").unsettled() == []


def test_a_runtime_that_cannot_start_is_a_failed_run_without_a_start(small_run):
    small_run.diary.fail("runtime starts", RolloutError("no GPU"))

    with pytest.raises(RolloutError, match="no GPU", check=has_code("rollout/failed")):
        small_run()

    assert small_run.events == ["runtime starts", "runtime closes", "run ends: failed"]


def test_an_error_without_a_message_is_named_by_its_kind(small_run):
    small_run.diary.fail("learn", AssertionError())

    with pytest.raises(AssertionError):
        small_run()

    # The fakes of a small run are components of one plugin, in one module.
    assert small_run.results[0].message == "AssertionError (in plugin small (small))"


@pytest.mark.parametrize("awaited", [True, False])
def test_code_that_calls_exit_fails_the_run_and_not_the_process(small_run, awaited):
    """``sys.exit(0)`` of an estimator, say, or of a task that it began: the run has not succeeded."""

    async def exits():
        sys.exit(0)

    small_run.diary.on(
        "learn", sys.exit if awaited else lambda: asyncio.ensure_future(exits()), time=2
    )

    with pytest.raises(
        PluginError, match="code of the run raised SystemExit", check=has_code("run/exited")
    ):
        small_run(EVERY_STEP)

    (result,) = small_run.results
    assert (result.status, result.steps) == ("failed", 1)
    assert "SystemExit" in result.message
    assert small_run.events[-2:] == ["runtime closes", "run ends: failed"]
    assert small_run(EVERY_STEP, RESUMED).status == "finished"


def test_a_runtime_that_cannot_be_closed_makes_a_finished_run_a_failed_one(small_run):
    small_run.diary.fail("runtime closes", RolloutError("a rank hangs"))

    with pytest.raises(RolloutError, match="a rank hangs", check=has_code("rollout/failed")):
        small_run()

    assert [result.status for result in small_run.results] == ["failed"]
    assert small_run.results[0].model is not None


def test_an_observer_that_raises_is_switched_off_and_the_run_goes_on(small_run, caplog):
    small_run.diary.fail("step 1", ValueError("no disk for plots"))

    assert small_run().status == "finished"

    assert "step 2" not in small_run.events
    assert "plugin small failed in rlhf_step_end and is switched off" in caplog.text


def test_a_finished_run_that_is_resumed_makes_no_step_and_exports_again(small_run):
    small_run()
    before = small_run.lines()
    small_run.events.clear()

    result = small_run(RESUMED)

    assert (result.status, result.steps) == ("finished", 3)
    assert driver(small_run.events) == [
        "runtime starts",
        "load",
        "serve version 3",
        "shaper continues from 3",
        "run starts at 3 of 3",
        "export",
        "runtime closes",
        "run ends: finished",
    ]
    assert small_run.lines() == before


def test_a_finished_run_goes_on_with_more_steps(small_run):
    small_run({"train": {"steps": 5}}, output="whole")
    small_run()

    result = small_run(RESUMED, {"train": {"steps": 5}})

    assert result.steps == 5
    assert numbers(small_run.lines()) == numbers(small_run.lines(output="whole"))


def test_what_was_in_flight_is_played_again_after_a_resume(small_run):
    """With generation ahead, a checkpoint knows groups that have begun."""
    ahead = {"rollout": {"max_staleness": 1}, "train": {"steps": 4}}
    small_run.diary.interrupt("learn", time=2)
    small_run(ahead)
    state = json.loads((small_run.folder / "run/checkpoints/step-00000002/state.json").read_text())

    small_run(ahead, RESUMED)

    first = small_run.runtime.learner.requests[0].batch
    taken = {(uid.epoch, uid.prompt) for uid in first.uids()}
    assert taken == {tuple(key) for key in state["in_flight"]}
    assert replay(small_run.folder / "run" / "ledger.jsonl").unsettled() == []


def test_a_second_run_in_the_folder_is_refused_before_anything_is_built(small_run):
    small_run()
    small_run.events.clear()

    with pytest.raises(ConfigError, match="--resume auto", check=has_code("output/run-exists")):
        small_run()

    assert small_run.events == []


BEST = {
    "eval": {"fraction": 0.25, "every": 1},
    "checkpoint": {"best_metric": "eval/rows/T0/reward", "keep": 1},
}


@pytest.mark.parametrize(("mode", "best"), [("max", 2), ("min", 1)])
def test_the_best_checkpoint_is_saved_when_it_is_found_and_kept(small_run, mode, best):
    """Mean lengths of 4, 6 and 6 (equal is no better), before them one of step 0, which is no checkpoint."""
    lengths = iter([9, 4, 6, 6])
    found = {}

    def prepare(runtime):
        complete = runtime.engine._complete
        scripts = {}

        def scripted(request, index):
            if request.sampling.temperature == 0:
                version = runtime.engine.version
                found.setdefault(version, None)
                if version not in scripts:
                    scripts[version] = "a" * (next(lengths) - 1)
                runtime.engine._script = lambda request, index: scripts[version]
            else:
                runtime.engine._script = None
            return complete(request, index)

        runtime.engine._complete = scripted

    changes = {"rollout": {"max_new_tokens": 12}, "checkpoint": {"best_mode": mode}}
    small_run(BEST, changes, prepare=prepare)

    assert small_run.checkpoints() == sorted({best, 3})
    state = json.loads((small_run.folder / "run/checkpoints/step-00000003/state.json").read_text())
    assert [one["step"] for one in state["bests"]] == [best]


def test_a_best_metric_that_no_evaluation_gives_is_refused_before_the_first_step(small_run):
    """At the end of the run, the error would have cost the whole training."""
    wrong = {"eval": {"fraction": 0.25}, "checkpoint": {"best_metric": "eval/rows/T1/reward"}}

    with pytest.raises(ConfigError) as caught:
        small_run(wrong, {"eval": {"at_start": False}})

    assert "checkpoint.best_metric eval/rows/T1/reward" in str(caught.value)
    assert "eval/rows/T0/reward" in str(caught.value)
    assert "learn" not in small_run.events


def test_an_evaluation_that_scored_nothing_has_no_best_and_the_run_goes_on(small_run, caplog):
    lost = {"reward": {"letters": {"on_error": "drop"}}}

    def prepare(runtime):
        generate = runtime.engine.generate

        async def noting(request):
            greedy = request.sampling.temperature == 0
            small_run.scores_fail = greedy and runtime.engine.version == 2
            return await generate(request)

        runtime.engine.generate = noting

    def fail():
        if getattr(small_run, "scores_fail", False):
            raise ValueError("the server is away")

    for time in range(1, 100):
        small_run.diary.on("reward", fail, time=time)

    result = small_run(BEST, lost, prepare=prepare)

    assert result.status == "finished"
    evaluated = {line["step"]: line["eval"] for line in small_run.lines() if "eval" in line}
    # A quarter of the rows is to be held out, and a hash decides: of these it is one.
    assert evaluated[2] == {"eval/rows/T0/dropped_prompts": 1.0}
    assert "eval/rows/T0/reward was not evaluated at step 2" in caplog.text
