"""Checks of observers (``contracts.Observer``). They tell of short runs that improve, stand still and get worse."""

from __future__ import annotations

import copy
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from math import inf, nan, sin
from pathlib import Path
from typing import Any

from rlhf_core.observer import EndRun, Observer, RolloutSample, RunInfo, RunResult

from ...subject import Subject, as_saved, checks_in

_STEPS = 240
_EVENTS = ("run_start", "rollout_end", "step_end", "eval_end", "checkpoint_saved", "run_end")


def _metrics(step: int) -> dict[str, float]:
    """Return a step's metrics: a reward that rises for 40 steps, stands still, and falls from step 180 on."""
    rise = min(step, 40) / 40 - max(0, step - 180) / 60
    return {
        "reward/mean": rise + 0.01 * sin(step),
        "policy/entropy": nan if step % 7 == 0 else 2.0 - rise,
        "kl/ref": inf if step % 11 == 0 else rise,
        "timing/step_s": 1.5,
    }


def _evaluation(step: int) -> dict[str, float]:
    reward = _metrics(step)["reward/mean"]
    return {
        "eval/held_out/T0/reward": reward,
        "eval/held_out/T0/pass@1": nan if step % 3 else reward,
    }


def _sample(step: int) -> RolloutSample:
    return RolloutSample(
        uid=f"0.{step}.0.0", prompt="1+1=", response="2\n", reward=1.0, truncated=step % 2 == 0
    )


@contextmanager
def _told(subject: Subject, start_step: int = 0, state: Any = None) -> Iterator[Observer]:
    """Return a context with an observer that has heard the start of a run."""
    observer: Observer = subject.make()
    if state is not None:
        observer.load_state_dict(state)
    with tempfile.TemporaryDirectory(prefix="checked-") as folder:
        config: Mapping[str, Any] = {"seed": 42, "output": folder}
        observer.run_start(
            RunInfo(output=Path(folder), config=config, total_steps=_STEPS, start_step=start_step)
        )
        yield observer


def _tell(observer: Observer, step: int) -> list[Any]:
    """Tell of a step, and return what each event was answered with."""
    answers: list[Any] = [observer.rollout_end(step, [_sample(step)], _metrics(step))]  # type: ignore[func-returns-value]
    answers.append(observer.step_end(step, _metrics(step)))
    if step % 5 == 0:
        answers.append(observer.eval_end(step, _evaluation(step)))
    return answers


def _ends(observer: Observer, steps: Sequence[int]) -> list[int]:
    """Return the steps at which the observer would end the run; the run goes on all the same."""
    return [step for step in steps if any(_tell(observer, step))]


def _result(status: Any, steps: int = 2, message: str = "") -> RunResult:
    return RunResult(status=status, steps=steps, seconds=1.5, message=message)


def check_it_hears_something(subject: Subject) -> None:
    """It is an ``Observer`` with a method for at least one event, and none that is called nearly as an event is."""
    observer = subject.make()
    assert isinstance(observer, Observer), f"{type(observer).__name__} is no Observer"
    heard = [
        name for name in _EVENTS if getattr(type(observer), name) is not getattr(Observer, name)
    ]
    assert heard, f"it has none of the methods {', '.join(_EVENTS)}"
    for name in vars(type(observer)):
        meant = get_close_matches(name.removeprefix("on_"), _EVENTS, n=1, cutoff=0.8)
        assert name in _EVENTS or not meant, f"nothing calls its method {name}; is it {meant[0]}?"


def check_runs_share_nothing(subject: Subject) -> None:
    """An observer of another run in the same process does not know of the first."""
    # Before the checks that tell of runs: what all runs share would have an end of its own by then.
    assert subject.make() is not subject.make(), "one object is the observer of all runs"
    with _told(subject) as first:
        before = _ends(first, range(1, _STEPS + 1))
        with _told(subject) as second:
            after = _ends(second, range(1, _STEPS + 1))
    assert after == before, f"a second run ends at {after[:3]}, the first at {before[:3]}"


def check_a_whole_run_is_heard(subject: Subject) -> None:
    """Steps with and without metrics, and numbers that are not finite, are no error, whatever the run's end."""
    for status in ("finished", "interrupted", "failed"):
        with _told(subject) as observer:
            observer.eval_end(0, _evaluation(0))
            for step in range(1, 30):
                _tell(observer, step)
            observer.step_end(30, {})
            observer.eval_end(30, {})
            observer.checkpoint_saved(30, Path("checkpoints/step-00000030"))
            observer.run_end(_result(status, 30, "" if status == "finished" else "stopped"))


def check_a_run_that_never_starts_is_heard(subject: Subject) -> None:
    """A run that fails while it is built ends without a start."""
    subject.make().run_end(_result("failed", 0, "the model cannot be loaded"))


def check_answers_are_ends_with_reasons(subject: Subject) -> None:
    """``step_end`` and ``eval_end`` answer None or ``EndRun`` with a reason; other events are not answered."""
    with _told(subject) as observer:
        for step in range(1, _STEPS + 1):
            first, *others = _tell(observer, step)
            assert first is None, f"rollout_end answered {first!r}"
            for answer in others:
                assert answer is None or isinstance(answer, EndRun), (
                    f"step {step}: {answer!r}; expected None or EndRun(reason=...)"
                )
                assert answer is None or answer.reason.strip(), f"step {step}: an empty reason"
    with tempfile.TemporaryDirectory(prefix="checked-") as folder:
        observer, path = subject.make(), Path(folder)
        run = RunInfo(output=path, config={"output": folder}, total_steps=_STEPS, start_step=0)
        for event, words in (
            ("run_start", (run,)),
            ("checkpoint_saved", (1, path)),
            ("run_end", (_result("finished"),)),
        ):
            answer = getattr(observer, event)(*words)
            assert answer is None, f"{event} answered {answer!r}, which nothing reads"


def check_a_resumed_run_goes_on(subject: Subject) -> None:
    """With the state of any checkpoint, as JSON, another instance ends the run where the first one would."""
    with _told(subject) as observer:
        expected = _ends(observer, range(1, _STEPS + 1))
    for cut in (1, 39, 41, 100, 139, 181):
        with _told(subject) as first:
            before = _ends(first, range(1, cut + 1))
            state = as_saved(subject.label, first.state_dict())
        with _told(subject, start_step=cut, state=state) as second:
            found = before + _ends(second, range(cut + 1, _STEPS + 1))
        assert found == expected, (
            f"resumed after step {cut} it ends the run at {found[:3]}, without a resume at {expected[:3]}"
        )


def check_saving_changes_nothing(subject: Subject) -> None:
    """Checkpoints at other steps do not change what the observer asks for."""
    with _told(subject) as observer:
        expected = _ends(observer, range(1, _STEPS + 1))
    found = []
    with _told(subject) as observer:
        for step in range(1, _STEPS + 1):
            found += _ends(observer, [step])
            observer.state_dict()
            observer.checkpoint_saved(step, Path(f"checkpoints/step-{step:08d}"))
    assert found == expected, f"ends at {found[:3]} with checkpoints, {expected[:3]} without"


def check_making_one_starts_nothing(subject: Subject) -> None:
    """The factory starts no thread: ``--check`` calls it too."""
    subject.make()  # importing a library may start what serves all of its users
    before = threading.active_count()
    kept = [subject.make() for _ in range(3)]
    after = threading.active_count()
    assert after <= before, f"{after - before} threads more after making {len(kept)} observers"


def check_inputs_stay_as_they_are(subject: Subject) -> None:
    """Metrics and samples are not changed: other observers get the same objects."""
    metrics, evaluation, samples = _metrics(5), _evaluation(5), [_sample(5)]
    before = repr(copy.deepcopy((metrics, evaluation, samples)))
    with _told(subject) as observer:
        observer.rollout_end(5, samples, metrics)
        observer.step_end(5, metrics)
        observer.eval_end(5, evaluation)
    assert repr((metrics, evaluation, samples)) == before, f"they became {metrics}, {evaluation}"


CHECKS = checks_in(__name__)
