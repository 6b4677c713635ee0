"""The loop around any kind of run, here one that adds its step to a number and has neither rollouts nor engine."""

import errno
import gc
import json
import os
import shutil
import signal
from dataclasses import dataclass

import pytest

from rlhf_config import Layer, OptionTree, RunOptions, Selector, resolve_options
from rlhf_config.common import (
    BackendSelection,
    CheckpointConfig,
    EvalSchedule,
    LogConfig,
    ModelConfig,
    ResumeConfig,
    RuntimeSelection,
)
from rlhf_core import CheckpointError, Config, ConfigError, ResumeError, StorageError
from rlhf_testing.errors import has_code
from rlhf_trainer.loop.driver import drive
from rlhf_trainer.loop.resume import ResumeRules
from rlhf_trainer.loop.run_kind import Export, FinishedStep, RunKind
from rlhf_trainer.loop.state import RunState


class Schedule(EvalSchedule):
    every: int = 2
    at_start: bool = True


class Adding(Config):
    start: int = 0
    steps: int = 4


class AddOptions(RunOptions):
    seed: int = 0
    output: str = "run"
    model: ModelConfig = ModelConfig(path="none")
    adding: Adding = Adding()
    eval: Schedule = Schedule()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig(progress="off", tensorboard=False, curve=False)
    resume: ResumeConfig = ResumeConfig()
    backend: BackendSelection
    runtime: RuntimeSelection


ADD = OptionTree(
    command="add",
    purpose="Adds.",
    example="--adding.start 3",
    model=AddOptions,
    selectors=(
        Selector("backend.name", "rlhf_train_backends"),
        Selector("runtime.name", "rlhf_runtimes"),
    ),
    check=lambda run, selections, labels, plugins: None,
    cautions=lambda run, selections, labels: (),
    models=lambda run: iter(()),
    data=lambda run: iter(()),
)


@dataclass(slots=True, kw_only=True)
class AddState(RunState):
    added: int = 0
    """Sum of all steps so far."""


class Total:
    """A role whose weights are one number."""

    def __init__(self, value):
        self.value = value
        self.changes = 0

    async def save(self, folder):
        folder.mkdir()
        (folder / "total.json").write_text(json.dumps(self.value))

    async def load(self, folder):
        self.value = json.loads((folder / "total.json").read_text())

    async def export(self, folder, *, ema=False):
        await self.save(folder)


class AddCourse:
    """Each step adds its number; ``on_step`` is called before it changes anything, ``halfway`` afterwards."""

    def __init__(self, run, folder, state, on_step, halfway):
        self.state = state
        self.total_steps = run.adding.steps
        self.role = Total(run.adding.start)
        self.saved_roles = {"total": self.role}
        self.records = {}
        self.exports = [Export(role=self.role, folder=folder.model)]
        self._on_step, self._halfway = on_step, halfway

    async def begin(self, point, begun, stack):
        if point is not None:
            await self.role.load(point.path / "total")

    async def step(self):
        step = self.state.step + 1
        self._on_step(step)
        self.role.changes += 1
        self._halfway(step)
        self.state.step = step
        self.state.added += step
        self.role.value += step
        return FinishedStep(metrics={"total": float(self.role.value)}, timing={"step_s": 0.0})

    async def evaluate(self):
        return {"eval/total": float(self.role.value)}


@pytest.fixture
def add(tmp_path, plugins):
    def run(*changes, on_step=lambda step: None, halfway=lambda step: None):
        async def open_course(resolved, plugins, folder, state, stack):
            return AddCourse(resolved.run, folder, state, on_step, halfway)

        kind = RunKind(
            initial_state=lambda run: AddState(),
            resuming=ResumeRules(
                state=AddState,
                binding=("adding.start",),
                records=(),
                check_books=lambda folder, state, records: None,
            ),
            open=open_course,
        )
        base = {
            "output": str(tmp_path / "run"),
            "backend": {"name": "table"},
            "runtime": {"name": "here"},
        }
        layers = [Layer.of(values) for values in (base, *changes)]
        return drive(kind, resolve_options(layers, plugins, ADD), plugins)

    return run


RESUMED = {"resume": {"checkpoint": "auto"}}


def lines(tmp_path, run="run"):
    text = (tmp_path / run / "metrics.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return [(one["step"], one.get("metrics", one.get("eval"))) for one in found]


def test_it_steps_evaluates_records_and_exports(add, tmp_path):
    result = add()

    assert (result.status, result.steps, result.model) == ("finished", 4, tmp_path / "run/model")
    assert lines(tmp_path) == [
        (0, {"eval/total": 0.0}),
        (1, {"total": 1.0}),
        (2, {"total": 3.0}),
        (2, {"eval/total": 3.0}),
        (3, {"total": 6.0}),
        (4, {"total": 10.0}),
        (4, {"eval/total": 10.0}),
    ]
    assert json.loads((tmp_path / "run/model/total.json").read_text()) == 10
    assert not (tmp_path / "run/ledger.jsonl").exists()
    assert (tmp_path / "run/samples.jsonl").read_text() == ""


def test_a_run_that_is_stopped_goes_on_as_if_nothing_had_been(add, tmp_path):
    stopped = add(on_step=lambda step: step == 3 and os.kill(os.getpid(), signal.SIGTERM))
    assert (stopped.status, stopped.steps, stopped.model) == ("interrupted", 3, None)

    finished = add(RESUMED)

    assert (finished.status, finished.steps) == ("finished", 4)
    assert lines(tmp_path)[-3:] == [
        (3, {"total": 6.0}),
        (4, {"total": 10.0}),
        (4, {"eval/total": 10.0}),
    ]
    state = json.loads((tmp_path / "run/checkpoints/step-00000004/state.json").read_text())
    assert (state["step"], state["added"]) == (4, 10)
    assert state["records"].keys() == {"metrics.jsonl", "samples.jsonl"}


def test_an_option_that_binds_may_not_change(add):
    add({"checkpoint": {"every": 1}})

    with pytest.raises(
        ConfigError,
        match=r"--adding\.start is 5, but the checkpoint .* made with 0",
        check=has_code("resume/option-changed"),
    ):
        add(RESUMED, {"adding": {"start": 5}})


def test_a_record_that_changed_is_named(add, tmp_path):
    add()
    (tmp_path / "run/metrics.jsonl").write_text("{}\n")

    with pytest.raises(
        ResumeError, match=r"metrics\.jsonl", check=has_code("resume/records-changed")
    ):
        add(RESUMED, {"adding": {"steps": 5}})


def test_the_best_checkpoint_is_kept(add, tmp_path):
    best = {"checkpoint": {"best_metric": "eval/total", "best_mode": "min", "keep": 1}}

    add(best)

    kept = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert kept == ["step-00000002", "step-00000004"]


@pytest.mark.usefixtures("nothing_frozen")
@pytest.mark.parametrize("fails", [False, True])
def test_objects_are_frozen_during_later_steps_and_free_after_the_run(add, monkeypatch, fails):
    monkeypatch.setattr("rlhf_trainer.loop.old_objects.SETTLED_S", 0.0)
    frozen = []

    def on_step(step):
        frozen.append(gc.get_freeze_count() > 0)
        if fails and step == 3:
            raise ValueError("no more")

    if fails:
        with pytest.raises(ValueError, match="no more"):
            add(on_step=on_step)
    else:
        add(on_step=on_step)

    assert frozen == [True] * (3 if fails else 4)
    assert gc.get_freeze_count() == 0


def failing_at(step):
    def fail(now):
        if now == step:
            raise ValueError(f"broken at {step}")

    return fail


def test_a_run_that_fails_saves_its_last_whole_step_and_goes_on_as_if_nothing_had_been(
    add, tmp_path
):
    whole = add({"output": str(tmp_path / "whole")})

    with pytest.raises(ValueError, match="broken at 4"):
        add(on_step=failing_at(4))

    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000003"]
    result = add(RESUMED)
    assert (result.status, result.steps) == (whole.status, whole.steps)
    assert lines(tmp_path) == lines(tmp_path, "whole")
    assert json.loads((tmp_path / "run/model/total.json").read_text()) == 10


def test_the_log_says_why_a_run_failed(add, tmp_path):
    with pytest.raises(ValueError, match="broken at 1"):
        add(on_step=failing_at(1))

    text = (tmp_path / "run/run.log").read_text()
    assert "the run failed: " in text
    assert "ValueError: broken at 1" in text
    assert "Traceback" in text


def test_a_run_whose_evaluation_fails_keeps_the_step_that_was_evaluated(add, tmp_path, monkeypatch):
    evaluate = AddCourse.evaluate

    async def failing(self):
        if self.state.step == 2:
            raise ValueError("nothing to evaluate")
        return await evaluate(self)

    monkeypatch.setattr(AddCourse, "evaluate", failing)
    with pytest.raises(ValueError, match="nothing to evaluate"):
        add()

    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000002"]


def test_a_step_that_failed_with_changed_weights_is_not_saved_as_the_one_before(add, tmp_path):
    with pytest.raises(ValueError, match="broken at 4"):
        add(halfway=failing_at(4))

    assert not (tmp_path / "run/checkpoints").exists()
    log = (tmp_path / "run/run.log").read_text()
    assert (
        "step 4 failed when weights may have changed, so step 3 could not be saved: no checkpoint was due before, and "
        "--resume restart starts over and does 3 steps (0.0 minutes) again. A smaller --checkpoint.every or "
        "--checkpoint.every_minutes loses less"
    ) in log


def test_a_step_that_failed_with_changed_weights_is_undone_by_roles_that_can(
    add, tmp_path, monkeypatch
):
    asked = []

    async def undo(self, changes):
        asked.append(changes)
        return True

    monkeypatch.setattr(Total, "undo", undo, raising=False)
    with pytest.raises(ValueError, match="broken at 4"):
        add(halfway=failing_at(4))

    assert asked == [3]
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000003"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (False, "step 3 could not be saved: no checkpoint was due before"),
        (None, "step 3 could not be saved: no way back\n  no checkpoint was due before"),
    ],
)
def test_a_step_that_is_not_undone_is_not_saved(add, tmp_path, monkeypatch, answer, said):
    async def undo(self, changes):
        if answer is None:
            raise RuntimeError("no way back")
        return answer

    monkeypatch.setattr(Total, "undo", undo, raising=False)
    with pytest.raises(ValueError, match="broken at 4"):
        add(halfway=failing_at(4))

    assert not (tmp_path / "run/checkpoints").exists()
    assert said in (tmp_path / "run/run.log").read_text()


def test_after_a_step_that_cannot_be_saved_a_resume_falls_back_as_far_as_the_error_says(
    add, tmp_path
):
    with pytest.raises(ValueError, match="broken at 4"):
        add({"checkpoint": {"every": 2}}, halfway=failing_at(4))

    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000002"]
    log = (tmp_path / "run/run.log").read_text()
    assert "--resume auto continues from step 2 and does 1 step (0.0 minutes) again" in log
    add(RESUMED, {"checkpoint": {"every": 2}})
    assert lines(tmp_path)[-2:] == [(4, {"total": 10.0}), (4, {"eval/total": 10.0})]


def test_a_failure_is_the_first_error_even_if_saving_fails_too(add, tmp_path, monkeypatch):
    async def no_room(self, folder):
        raise OSError("No space left on device")

    monkeypatch.setattr(Total, "save", no_room)
    with pytest.raises(ValueError, match="broken at 4"):
        add(on_step=failing_at(4))

    assert "step 3 could not be saved" in (tmp_path / "run/run.log").read_text()


def test_a_role_that_is_lost_and_cannot_be_saved_says_how_far_back_that_throws_the_run(
    add, tmp_path, monkeypatch
):
    def lose(step):
        async def no_rank(self, folder):
            raise RuntimeError("rank 1 is gone")

        if step == 4:
            monkeypatch.setattr(Total, "save", no_rank)
            raise ValueError("lost at 4")

    with pytest.raises(ValueError, match="lost at 4"):
        add({"checkpoint": {"every": 2}}, on_step=lose)

    assert (
        "step 3 could not be saved: rank 1 is gone\n  --resume auto continues from step 2 and does 1 step (0.0 "
        "minutes) again. A smaller --checkpoint.every or --checkpoint.every_minutes loses less"
    ) in (tmp_path / "run/run.log").read_text()


def full_disk(monkeypatch, *, from_write):
    """Fail all writes from the n-th on, and count them."""
    fsync, written = os.fsync, []

    def full(descriptor):
        written.append(descriptor)
        if len(written) >= from_write:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    return written


def test_a_disk_that_is_full_from_any_write_on_ends_the_run_by_name_and_nothing_is_lost(
    add, tmp_path, monkeypatch
):
    every = {"checkpoint": {"every": 2, "at_end": True}}
    with monkeypatch.context() as patched:
        written = full_disk(patched, from_write=10**6)
        add(every, {"output": str(tmp_path / "whole")})
    assert len(written) > 20

    for number in range(1, len(written) + 1):
        folder = tmp_path / f"full-{number}"
        output = {"output": str(folder)}
        with monkeypatch.context() as patched:
            full_disk(patched, from_write=number)
            with pytest.raises(
                (StorageError, CheckpointError), match="could not be written: No space left"
            ):
                add(every, output)
        assert not [path for path in folder.rglob("*") if path.suffix in {".tmp", ".part"}]
        saved = (folder / "checkpoints").exists() and list((folder / "checkpoints").iterdir())

        add(every, output, RESUMED if saved else {"resume": {"checkpoint": "restart"}})

        assert lines(tmp_path, folder.name) == lines(tmp_path, "whole")
        assert json.loads((folder / "model/total.json").read_text()) == 10


def test_a_checkpoint_that_cannot_be_written_may_be_left_out(add, tmp_path, monkeypatch):
    """The disk is full at step 2 alone, which was the best one: the next that is better is."""
    save = Total.save

    async def no_room_once(self, folder):
        if "step-00000002" in str(folder):
            raise OSError(errno.ENOSPC, "No space left on device")
        await save(self, folder)

    monkeypatch.setattr(Total, "save", no_room_once)
    keep = {"every": 2, "best_metric": "eval/total", "best_mode": "min", "on_write_error": "skip"}

    result = add({"checkpoint": keep})

    assert (result.status, result.steps) == ("finished", 4)
    state = json.loads((tmp_path / "run/checkpoints/step-00000004/state.json").read_text())
    assert [(best["step"], best["value"]) for best in state["bests"]] == [(4, 10.0)]
    log = (tmp_path / "run/run.log").read_text()
    assert "the checkpoint of step 2 in" in log
    assert "The run goes on (--checkpoint.on_write_error skip)" in log


def test_records_without_a_checkpoint_are_not_replaced_unless_that_is_asked_for(add, tmp_path):
    with pytest.raises(ValueError, match="broken"):
        add(halfway=failing_at(3))
    before = lines(tmp_path)

    with pytest.raises(
        ResumeError, match=r"2 steps.*--resume restart", check=has_code("resume/no-checkpoint")
    ):
        add(RESUMED)
    assert lines(tmp_path) == before

    result = add({"resume": {"checkpoint": "restart"}})
    assert (result.status, result.steps) == ("finished", 4)
    assert lines(tmp_path, "run/earlier-1") == before
    assert [step for step, _ in lines(tmp_path)] == [0, 1, 2, 2, 3, 4, 4]


def test_a_run_that_did_no_step_begins_without_a_question(add, tmp_path):
    with pytest.raises(ValueError, match="broken"):
        add(on_step=failing_at(1))

    assert add(RESUMED).steps == 4


def test_checkpoints_are_written_by_time_where_no_number_of_steps_is_given(add, tmp_path):
    def saved(**options):
        add({"checkpoint": {"at_end": False, "keep": 9, **options}})
        found = sorted(path.name[-1] for path in (tmp_path / "run/checkpoints").glob("step-*"))
        shutil.rmtree(tmp_path / "run")
        return found

    assert saved() == []
    assert saved(every_minutes=1e-9) == ["1", "2", "3", "4"]
    assert saved(every=3, every_minutes=1e-9) == ["3"]
    assert saved(every_minutes=0.0) == []
