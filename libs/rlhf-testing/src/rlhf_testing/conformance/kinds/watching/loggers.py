"""Checks of loggers (``contracts.Logger``). They log short runs to where the logger sends a run with its options."""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, nan
from pathlib import Path
from typing import Any

from rlhf_config.sections import options_of
from rlhf_core.contracts.logger import Logger
from rlhf_core.observer import RolloutSample, RunInfo, RunResult

from ...subject import Subject, checks_in

_CONFIG: Mapping[str, Any] = {
    "seed": 42,
    "output": "runs/checked",
    "model": {"path": "org/model", "tokenizer": None},
    "data": {"train": ["rows.jsonl"], "weights": {}},
    "log": {"to": ["checked"], "samples": 4, "samples_every": 1, "images": 4, "wait_s": 60.0},
}

_STEP: Mapping[str, float] = {
    "reward/mean": 0.5,
    "loss/policy": -0.0,
    "train/skipped_updates": 0,
    "policy/entropy": nan,
    "kl/ref": inf,
    "critic/loss": -inf,
    "timing/step_s": 1e-300,
}
_EVALUATION: Mapping[str, float] = {
    "eval/my set_2024-01/T0.6/pass@16": 0.25,
    "eval/math/T0/reward": 1e300,
}
_TEXTS = ("", "two\nlines\tand \x00", '“☃” 🙂 \\ "%s" {x} $y', "<b>&amp;</b>", "x" * 50_000)

_SECRETS = frozenset({"key", "token", "password", "secret", "credentials"})


def _samples() -> list[RolloutSample]:
    return [
        RolloutSample(
            uid=f"0.{n}.0.0", prompt=text, response=text[::-1], reward=-0.5, truncated=n % 2 == 0
        )
        for n, text in enumerate(_TEXTS)
    ]


def _info(folder: Path, start_step: int = 0) -> RunInfo:
    config = copy.deepcopy(dict(_CONFIG))
    return RunInfo(output=folder, config=config, total_steps=4, start_step=start_step)


def _result(status: Any = "finished", steps: int = 2, message: str = "") -> RunResult:
    return RunResult(status=status, steps=steps, seconds=1.5, message=message)


@contextmanager
def _run_folder() -> Iterator[Path]:
    # A service may still write into the folder when ``finish`` has returned.
    with tempfile.TemporaryDirectory(prefix="checked-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _log_steps(logger: Logger, steps: Sequence[int]) -> None:
    for step in steps:
        logger.log_samples(step, _samples())
        logger.log_metrics(step, dict(_STEP))
        logger.log_metrics(step, dict(_EVALUATION))


def check_a_whole_run_is_taken(subject: Subject) -> None:
    """Several sets of metrics at one step, numbers that are not finite, and samples of any text are no error."""
    with _run_folder() as folder:
        logger: Logger = subject.make()
        logger.start(_info(folder))
        logger.log_metrics(0, dict(_EVALUATION))
        _log_steps(logger, (1, 2))
        logger.log_metrics(3, {})
        logger.log_samples(3, [])
        logger.finish(_result())


def check_every_end_is_taken(subject: Subject) -> None:
    """A run may end at any step, in each of the three ways, with a message or without one."""
    for result in (
        _result(steps=0),
        _result("interrupted", 1, "stopped by SIGTERM; continue with --resume auto"),
        _result("failed", 1, "x" * 2000),
    ):
        with _run_folder() as folder:
            logger: Logger = subject.make()
            logger.start(_info(folder))
            _log_steps(logger, range(1, result.steps + 1))
            logger.finish(result)


def check_an_ended_run_goes_on(subject: Subject) -> None:
    """Another instance goes on in the folder of a run that has ended, at a step that was logged already."""
    with _run_folder() as folder:
        for start_step, steps in ((0, (1, 2, 3)), (1, (2, 3, 4))):
            logger: Logger = subject.make()
            logger.start(_info(folder, start_step))
            _log_steps(logger, steps)
            logger.finish(_result("interrupted", steps[-1]))


def check_making_one_starts_nothing(subject: Subject) -> None:
    """The factory starts no thread: ``--check`` calls it too, and a run that fails early never starts its loggers."""
    subject.make()  # importing a library may start what serves all of its users
    before = threading.active_count()
    kept = [subject.make() for _ in range(3)]
    after = threading.active_count()
    assert after <= before, f"{after - before} threads more after making {len(kept)} loggers"


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """Configuration, metrics and samples are not changed: other loggers get the same objects."""
    with _run_folder() as folder:
        info, metrics, samples = _info(folder), dict(_STEP), _samples()
        logger: Logger = subject.make()
        logger.start(info)
        logger.log_samples(1, samples)
        logger.log_metrics(1, metrics)
        logger.finish(_result())
    assert info.config == _CONFIG, f"the configuration became {info.config}"
    assert repr(metrics) == repr(dict(_STEP)), f"the metrics became {metrics}"
    assert samples == _samples(), "the samples are others now"


def check_no_option_holds_a_secret(subject: Subject) -> None:
    """No option is a key, a token or a password: options are recorded, and logged as a part of the configuration."""
    found = [
        path
        for path in options_of(type(subject.config))
        if _SECRETS & set(path.rpartition(".")[2].lower().split("_")) and not path.endswith("_env")
    ]
    assert not found, f"{', '.join(found)}: read it from the environment instead"


CHECKS = checks_in(__name__)
