"""Options that a resumed run may change without a word: evaluations, checkpoints, records, loggers and observers follow
the new value from the checkpoint on."""

import logging
from collections import Counter

import pytest

from rlhf_core import Component
from rlhf_core.contracts import EndRun, Observer
from rlhf_trainer.loop.evaluation import EPOCH as OF_EVALUATIONS
from rlhf_trainer.loop.resume import FREE
from rlhf_trainer.loop.training import BINDING

from .options_at_resume import BASE, BegunRuns, at, options
from .recorded_run import RecordedRun

FREELY = {path for path, _ in options() if path.startswith(FREE) and not path.startswith(BINDING)}
STEPS = at("train.steps", 5)
PASSED = "eval/held_out/T0/pass@1"
CASES = {
    "eval.data": (["other.jsonl"], "passed", {"eval/other/T0/pass@1": 1.0}),
    "eval.max_samples": (1, "answers", 1),
    "eval.every": (2, "evaluated", [4, 5]),
    "eval.n_samples": (3, "answers", 3 * 12),
    "eval.temperatures": ([0.5], "temperatures", {0.5}),
    "eval.top_p": (0.5, "sampling", {(0.5, 0, 0.0, 8)}),
    "eval.top_k": (3, "sampling", {(1.0, 3, 0.0, 8)}),
    "eval.min_p": (0.25, "sampling", {(1.0, 0, 0.25, 8)}),
    "eval.max_new_tokens": (5, "sampling", {(1.0, 0, 0.0, 5)}),
    "eval.metrics": (["longest"], "measured", True),
    "eval.pass_threshold": (1000.0, "passed", {PASSED: 0.0}),
    "checkpoint.every": (2, "saved", [4, 5]),
    "checkpoint.at_end": (False, "saved", [4]),
    "checkpoint.keep": (1, "checkpoints", [5]),
    "checkpoint.best_metric": (None, "checkpoints", [5]),
    "checkpoint.export": (True, "exported", True),
    "checkpoint.undo_gib": (0.0, "undo bytes", {0}),
    "log.samples": (3, "samples", {3: 3, 4: 3, 5: 3}),
    "log.tensorboard": (True, "tensorboard", True),
    "log.to": (["heard"], "logged", [3, 4, 5]),
    "observers.use": (["ending"], "steps", [3]),
}
"""Option -> another value, the name of what follows it (``outcome``), and what that then is."""
BESIDE = {
    "eval.n_samples": at("eval.temperatures", [1.0]),
    "checkpoint.at_end": {"checkpoint": {"every": 2, "best_metric": None}},
    # By default the fourth step's is the best, as no later one is better, and stays beside the last.
    "checkpoint.best_metric": {"eval": {"every": 2}, "checkpoint": {"keep": 1}},
}
"""Options without which another one shows nothing in so short a run."""
ELSEWHERE = {
    # The folder that every test here changes.
    "output",
    # Whether, how and from where a run is resumed: test_resume.py and test_damaged_run_folder.py.
    "resume.checkpoint",
    "resume.strict",
    "resume.damaged_records",
    "resume.past_end",
    # Of sets that have several splits, and of environments.
    "eval.split",
    "eval.environment_split",
    # Of the engine, which is started with it:
    # test_evaluations_with_sampling_of_their_own.py.
    "eval.max_length",
    # Of the first step, which a resumed run does not do.
    "eval.at_start",
    # A clock, a direction in which all is equal here, and a full disk.
    "checkpoint.every_minutes",
    "checkpoint.best_mode",
    "checkpoint.on_write_error",
    # How a run is shown, and details of loggers.
    "log.progress",
    "log.summary",
    "log.curve",
    "log.samples_every",
    "log.images",
    "log.wait_s",
}
"""Options that other tests have: nothing that reads them has a place in a checkpoint."""


class Heard:
    """A logger that keeps the steps of its metrics."""

    def __init__(self):
        self.steps = []

    def start(self, run): ...

    def log_metrics(self, step, metrics):
        self.steps += [step] if "reward/mean" in metrics else []

    def log_samples(self, step, samples): ...

    def finish(self, result): ...


class Ending(Observer):
    """Ends a run after its first step."""

    def step_end(self, step, metrics):
        return EndRun(reason="enough")


def longest(episodes):
    """A metric of evaluations."""
    return {"longest": float(episodes.num_actions.max())}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return BegunRuns(tmp_path_factory.mktemp("begun"))


@pytest.fixture
def resumed(begun, monkeypatch):
    """Goes on from the second step of a run with further options, to the fifth; returns its ``outcome``."""
    monkeypatch.chdir(begun.folder)
    resuming = begun.resuming()

    def run(output, *layers):
        small, heard = RecordedRun(begun.folder), Heard()
        small.with_component("rlhf_loggers", Component(name="heard", factory=lambda _: heard))
        small.with_component(
            "rlhf_eval_metrics", Component(name="longest", factory=lambda _: longest)
        )
        small.with_component("rlhf_observers", Component(name="ending", factory=lambda _: Ending()))
        small(BASE, resuming, STEPS, *layers, output=output)
        return outcome(small, output) | {"logged": heard.steps}

    return run


def outcome(small, output):
    """What a resumed run did and left behind, by the names of ``CASES``."""
    folder, lines = small.folder / output, small.lines(output=output)
    evals = [line for line in lines if "eval" in line]
    last = evals[-1]["eval"]
    requests = [content for name, content in small.diary.calls if name == "request"]
    asked = [each for each in requests if each["uid"][0] == OF_EVALUATIONS]
    plans = [content[-1] for name, content in small.diary.calls if name == "policy.train_step"]
    saved = [event for event in small.events if event.startswith("saved ")]
    return {
        "steps": [line["step"] for line in lines if "metrics" in line],
        "evaluated": [line["step"] for line in evals],
        "passed": {name: value for name, value in last.items() if name.endswith("pass@1")},
        "measured": any("longest" in name for name in last),
        "answers": sum(len(each["seeds"]) for each in asked),
        "temperatures": {each["sampling"]["temperature"] for each in asked},
        "sampling": {
            (sampling["top_p"], sampling["top_k"], sampling["min_p"], sampling["max_new_tokens"])
            for sampling in (each["sampling"] for each in asked)
        },
        "saved": [int(event.removeprefix("saved ")) for event in saved],
        "checkpoints": small.checkpoints(output),
        "exported": (folder / "model").is_dir(),
        "undo bytes": {plan["undo_bytes"] for plan in plans},
        "samples": Counter(line["step"] for line in small.lines("samples.jsonl", output)),
        "tensorboard": any("tensorboard" in path.name for path in folder.iterdir()),
    }


def test_every_free_option_has_a_case_or_a_reason():
    assert CASES.keys() | ELSEWHERE == FREELY
    assert not CASES.keys() & ELSEWHERE


@pytest.mark.parametrize("path", CASES)
def test_a_resumed_run_follows_a_free_option_without_a_warning(resumed, path, caplog):
    value, name, expected = CASES[path]
    beside = BESIDE.get(path, {})
    before = resumed(f"without-{path}", beside)
    caplog.clear()

    after = resumed(f"with-{path}", beside, at(path, value))

    assert after[name] == expected != before[name]
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert not [text for text in warnings if path in text]
