"""Loggers get the run in its order on threads of their own, and nothing that they do ends, delays or changes it."""

import logging
import threading
import time
from dataclasses import replace

import pytest
from tests.deadlines import HANG_S

from rlhf_core import Component, Config, ConfigError, RolloutError
from rlhf_core.contracts import RolloutSample, RunInfo, RunResult
from rlhf_testing.errors import has_code
from rlhf_trainer.loop import listeners as loop_loggers
from rlhf_trainer.loop.listeners import Loggers, without_credentials
from rlhf_trainer.loop.run import run as run_training

EVALUATED = {"eval": {"fraction": 0.25, "every": 2}}
RESUMED = {"resume": {"checkpoint": "auto"}}
FINISHED = RunResult(status="finished", steps=3, seconds=1.0)
SAMPLE = RolloutSample(uid="0.0.0.0", prompt="a", response="b", reward=1.0, truncated=False)


class Kept:
    """Keeps what it is told, and does what a test wants at one of the calls."""

    def __init__(self, actions=None):
        self.calls = []
        self.threads = set()
        self._actions = actions or {}

    def start(self, run):
        self._note("start", run)

    def log_metrics(self, step, metrics):
        self._note("log_metrics", step, metrics)

    def log_samples(self, step, samples):
        self._note("log_samples", step, samples)

    def finish(self, result):
        self._note("finish", result)

    def _note(self, method, *arguments):
        self.threads.add(threading.current_thread())
        self.calls.append((method, *arguments))
        self._actions.get(method, lambda: None)()


FULL = OSError("no space left on device")


def failing(error=FULL):
    def fail():
        raise error

    return fail


def run_info(tmp_path, config=None):
    return RunInfo(output=tmp_path, config=config or {}, total_steps=3, start_step=0)


def loggers_of(*loggers, samples_every=1, wait_s=HANG_S):
    named = {f"test:{number}": logger for number, logger in enumerate(loggers)}
    return Loggers(named, samples_every=samples_every, wait_s=wait_s)


def whole_run(loggers, tmp_path, steps=(1, 2, 3)):
    loggers.start(run_info(tmp_path))
    for step in steps:
        loggers.log_samples(step, [SAMPLE])
        loggers.log_metrics(step, {"reward/mean": 0.5 * step})
    loggers.finish(FINISHED)
    loggers.wait()


def brief(logger):
    """The calls, without what stands in them."""
    return [
        (method, first) if method.startswith("log") else (method,)
        for method, first, *_ in logger.calls
    ]


@pytest.fixture
def kept(small_run):
    """A logger that runs choose as ``kept``; each run makes a new one."""
    made = []

    def make(config):
        made.append(Kept(small_run.actions))
        return made[-1]

    small_run.actions = {}
    small_run.with_component("rlhf_loggers", Component(name="kept", factory=make))
    return made


TO_KEPT = {"log": {"to": ["kept"], "samples_every": 2, "samples": 1}}


def test_a_run_tells_its_loggers_everything_in_order_on_a_thread_of_their_own(small_run, kept):
    result = small_run(TO_KEPT, EVALUATED)

    (logger,) = kept
    assert brief(logger) == [
        ("start",),
        ("log_metrics", 0),
        ("log_metrics", 1),
        ("log_samples", 2),
        ("log_metrics", 2),
        ("log_metrics", 2),
        ("log_metrics", 3),
        ("log_metrics", 3),
        ("finish",),
    ]
    assert logger.calls[-1] == ("finish", result)
    assert [thread.name for thread in logger.threads] == ["logger small:kept"]
    assert not any(thread.is_alive() for thread in logger.threads)


def test_metrics_are_those_of_metrics_jsonl_with_their_names(small_run, kept):
    small_run(TO_KEPT, EVALUATED)

    told = [(call[1], call[2]) for call in kept[0].calls if call[0] == "log_metrics"]
    written = [
        (
            line["step"],
            line["eval"]
            if "eval" in line
            else line["metrics"] | {f"timing/{k}": v for k, v in line["timing"].items()},
        )
        for line in small_run.lines()
    ]
    assert told == written
    assert any(name.startswith("eval/") for name in told[0][1])
    assert {"reward/mean", "timing/step_s"} <= told[1][1].keys()


def test_samples_are_those_of_samples_jsonl(small_run, kept):
    small_run(TO_KEPT)

    ((_, step, samples),) = [call for call in kept[0].calls if call[0] == "log_samples"]
    written = [line for line in small_run.lines("samples.jsonl") if line["step"] == step]
    assert step == 2
    assert [(s.uid, s.reward) for s in samples] == [(w["uid"], w["reward"]) for w in written]


def test_a_choice_that_was_printed_before_the_run_is_no_note_of_it(small_run, kept):
    """Displays print the notes, and who started the run has printed the choices."""
    with small_run.configured(TO_KEPT) as (resolved, plugins):
        run_training(replace(resolved, choices=("engine small: it is the only one",)), plugins)

    notes = kept[0].calls[0][1].notes
    assert notes
    assert "engine small: it is the only one" not in notes
    assert "engine small: it is the only one" in (small_run.folder / "run" / "run.log").read_text()


def test_a_resumed_run_starts_its_logger_at_the_step_of_the_checkpoint(small_run, kept):
    small_run(TO_KEPT, {"checkpoint": {"every": 1}})

    small_run(TO_KEPT, RESUMED, {"train": {"steps": 5}})

    start = kept[1].calls[0][1]
    assert (start.start_step, start.total_steps) == (3, 5)
    assert brief(kept[1])[1] == ("log_samples", 4)


@pytest.mark.parametrize("method", ["start", "log_metrics", "log_samples", "finish"])
def test_a_logger_that_fails_is_switched_off_and_the_run_goes_on(small_run, kept, caplog, method):
    small_run.actions[method] = failing()

    assert small_run(TO_KEPT).status == "finished"

    assert kept[0].calls[-1][0] == method
    said = f"logger small:kept failed in {method} and is switched off for the rest of this run"
    assert [r.message for r in caplog.records if r.levelno == logging.ERROR] == [said]
    log = (small_run.folder / "run" / "run.log").read_text()
    assert said in log
    assert "OSError: no space left on device" in log


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_that_would_end_a_program_ends_the_logger_alone(tmp_path, caplog, error):
    logger = Kept({"start": failing(error)})

    whole_run(loggers_of(logger), tmp_path)

    assert brief(logger) == [("start",)]
    assert "logger test:0 failed in start and is switched off" in caplog.text


def test_a_logger_that_fails_leaves_the_others_alone(tmp_path):
    broken, whole = Kept({"start": failing()}), Kept()

    whole_run(loggers_of(broken, whole), tmp_path)

    assert brief(broken) == [("start",)]
    assert len(whole.calls) == 8


def test_a_logger_that_hangs_does_not_hang_the_run(small_run, kept, caplog):
    release = threading.Event()
    small_run.actions["log_metrics"] = lambda: release.wait(HANG_S)

    started = time.monotonic()
    result = small_run(TO_KEPT, {"log": {"wait_s": 0.1}})
    took = time.monotonic() - started

    assert result.status == "finished"
    assert took < HANG_S / 2
    assert "logger small:kept is still sending 0.1 s after the end of the run" in caplog.text
    assert all(thread.daemon for thread in kept[0].threads)
    release.set()
    for thread in kept[0].threads:
        thread.join(HANG_S)
    assert brief(kept[0])[-1] == ("log_metrics", 1)  # what waited is dropped


def test_the_end_of_the_run_waits_for_a_logger_that_is_still_sending(tmp_path):
    slow = Kept({"log_metrics": lambda: time.sleep(0.05)})

    whole_run(loggers_of(slow), tmp_path)

    assert brief(slow)[-1] == ("finish",)


def test_a_logger_that_falls_too_far_behind_is_switched_off(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(loop_loggers, "MAX_WAITING", 3)
    release = threading.Event()
    slow = Kept({"start": lambda: release.wait(HANG_S)})
    loggers = loggers_of(slow)

    loggers.start(run_info(tmp_path))
    while not slow.calls:
        time.sleep(0.01)
    for step in range(1, 6):
        loggers.log_metrics(step, {})
    release.set()
    loggers.finish(FINISHED)
    loggers.wait()

    assert [r.message for r in caplog.records] == [
        "logger test:0 is 3 calls behind and is switched off for the rest of this run"
    ]
    assert brief(slow) == [("start",)]


def test_a_run_that_failed_says_so_to_its_loggers(small_run, kept):
    small_run.diary.fail("learn", RolloutError("engine died\nwith details"), time=2)

    with pytest.raises(RolloutError):
        small_run(TO_KEPT)

    method, result = kept[0].calls[-1]
    assert (method, result.status, result.message) == ("finish", "failed", "engine died")


def test_an_interrupted_run_says_so_to_its_loggers(small_run, kept):
    small_run.diary.interrupt("learn", time=2)

    small_run(TO_KEPT)

    assert kept[0].calls[-1][1].status == "interrupted"


def test_a_run_that_never_started_starts_no_logger(small_run, kept):
    small_run.diary.fail("runtime starts", RolloutError("no GPU"))

    with pytest.raises(RolloutError, match="no GPU", check=has_code("rollout/failed")):
        small_run(TO_KEPT)

    assert kept[0].calls == []


def test_a_logger_that_cannot_be_built_ends_the_run_before_anything_else(small_run):
    small_run.with_component(
        "rlhf_loggers",
        Component(name="keyless", factory=lambda config: failing(ConfigError("set KEY"))()),
    )

    with pytest.raises(ConfigError, match="set KEY", check=has_code("config/invalid")):
        small_run({"log": {"to": ["keyless"]}})

    assert small_run.events == []


@pytest.mark.parametrize(
    ("every", "steps"), [(0, []), (1, [1, 2, 3, 4, 5, 6]), (3, [3, 6]), (10, [])]
)
def test_samples_come_every_so_many_steps(tmp_path, every, steps):
    logger = Kept()

    whole_run(loggers_of(logger, samples_every=every), tmp_path, steps=range(1, 7))

    assert [call[1] for call in logger.calls if call[0] == "log_samples"] == steps


def test_a_step_without_samples_has_no_table(tmp_path):
    logger = Kept()
    loggers = loggers_of(logger)

    loggers.start(run_info(tmp_path))
    loggers.log_samples(1, [])
    loggers.finish(FINISHED)
    loggers.wait()

    assert brief(logger) == [("start",), ("finish",)]


def test_the_runs_own_configuration_is_out_of_a_loggers_reach(tmp_path):
    logger = Kept()
    config = {"model": {"path": "m"}}
    loggers = loggers_of(logger)

    loggers.start(run_info(tmp_path, config))
    loggers.finish(FINISHED)
    loggers.wait()
    logger.calls[0][1].config["model"].clear()

    assert config == {"model": {"path": "m"}}


def test_metrics_are_those_of_the_moment_of_the_call(tmp_path):
    release = threading.Event()
    logger = Kept({"start": lambda: release.wait(HANG_S)})
    loggers = loggers_of(logger)
    metrics = {"reward/mean": 1.0}

    loggers.start(run_info(tmp_path))
    loggers.log_metrics(1, metrics)
    metrics["reward/mean"] = 2.0
    release.set()
    loggers.finish(FINISHED)
    loggers.wait()

    assert logger.calls[1] == ("log_metrics", 1, {"reward/mean": 1.0})


def test_users_and_passwords_of_urls_are_not_logged(tmp_path):
    logger = Kept()
    loggers = loggers_of(logger)
    config = {
        "reward": {"http": {"urls": ["https://me:pass@host:8000/score", "http://plain/x@y"]}},
        "data": {"train": ("s3://key@bucket/rows", "a@b")},
        "seed": 3,
        "none": None,
    }

    loggers.start(run_info(tmp_path, config))
    loggers.finish(FINISHED)
    loggers.wait()

    assert logger.calls[0][1].config == {
        "reward": {"http": {"urls": ["https://***@host:8000/score", "http://plain/x@y"]}},
        "data": {"train": ["s3://***@bucket/rows", "a@b"]},
        "seed": 3,
        "none": None,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("://u:p@h", "://***@h"),
        *((value, value) for value in ("plain", "http://h/a b@c", 1, 1.5, True, None)),
    ],
)
def test_a_value_without_credentials_stays(text, expected):
    assert without_credentials(text) == expected


def test_a_run_without_loggers_has_no_threads(small_run):
    small_run()

    assert [t.name for t in threading.enumerate() if t.name.startswith("logger ")] == []


class Places(Config):
    """Options of a logger, in a section of its own."""

    place: str = "here"


def test_a_logger_has_options_in_a_section_beside_its_selector(small_run):
    places = []
    small_run.with_component(
        "rlhf_loggers",
        Component(
            name="elsewhere",
            factory=lambda config: places.append(config.place) or Kept(),
            config=Places,
        ),
    )

    small_run({"log": {"to": ["elsewhere"], "elsewhere": {"place": "there"}}})

    assert places == ["there"]
