"""Observers, which watch a run and may end it, and the data that they and the observer hooks get of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .batch.sample_tokens import SampleTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run at its start, given to ``run_start``."""

    output: Path
    """The run folder: ``config.toml``, ``metrics.jsonl``, ``ledger.jsonl``, ``run.log``, ``checkpoints/``, ``model/``,
    and more."""
    config: Mapping[str, Any]
    """The resolved configuration, as nested plain values."""
    total_steps: int
    """Number of steps that the run is to have."""
    start_step: int
    """Number of steps already done; more than 0 after a resume."""
    command: str = "train"
    """Name of the command that started the run, as in ``rlhf train``."""
    notes: tuple[str, ...] = ()
    """Messages of level INFO while the run was built, such as the optimizers' parameter groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSample:
    """One sample as text, given to ``rollout_end``."""

    uid: str
    """``epoch.prompt.sample.segment``."""
    prompt: str
    """Text before the first answer."""
    response: str
    """Answers, and environment text after the first one."""
    reward: float
    """Reward of the episode, with those of its turns."""
    truncated: bool
    """True: the last answer hit a token limit."""
    images: tuple[Path, ...] = ()
    """Files of its images, in their order, in the run folder."""
    tokens: SampleTokens | None = None
    """Its tokens with their columns; None unless an observer of the run provides ``hears_tokens``."""

    @classmethod
    def recorded(cls, sample: Mapping[str, Any], folder: Path) -> RolloutSample:
        """Return a sample of ``samples.jsonl`` of the run in ``folder``."""
        names = ("uid", "prompt", "response", "reward", "truncated")
        images = tuple(folder / image["file"] for image in sample.get("images", ()))
        tokens = sample.get("tokens")
        return cls(**{name: sample[name] for name in names}, images=images, tokens=tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run at its end, given to ``run_end``."""

    status: Literal["finished", "interrupted", "failed"]
    """``interrupted``: it was stopped before its end, and a resume goes on."""
    steps: int
    """Number of steps that are done, those before a resume included."""
    seconds: float
    """Duration of this process's part, from the first look at the run folder."""
    message: str = ""
    """Reason for an end before the last step, in one line; empty for a run that did its last step. A finished run has
    one if an observer ended it: ``ended by early_stop (rlhf-plugin-loggers 0.1.0): ...``."""
    model: Path | None = None
    """Folder of the exported model; None if there is none."""
    checkpoint: Path | None = None
    """Folder of the newest checkpoint, from which ``--resume auto`` goes on; None if there is none."""
    best: Path | None = None
    """Folder of the checkpoint of the best evaluation; None if the run keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    """An observer's wish that the run ends with this step, as if it were the last one."""

    reason: str
    """Why, in one line: recorded, shown and returned with the run's result."""


class Observer:
    """Base of observers, with methods that do nothing. The factory is called in the driver as ``factory(config)``.

    Methods are called in the driver's process, which waits for each, in the order of ``observers.use`` and after the
    observer hooks of the same event. The factory starts nothing and contacts nobody, since ``--check`` calls it too.

    ``step_end`` and ``eval_end`` may return ``EndRun``. The step is then the run's last one: the weights are evaluated,
    saved and exported, and the run is finished. The first observer that asks is recorded. A wish at the last step of
    the run changes nothing.

    An exception, a result of another type and a state that is no JSON are logged with plugin and version, and switch
    the observer off for the rest of the run, which goes on.
    """

    def run_start(self, run: RunInfo) -> None:
        """Hear, once, that everything is built and the next step is ``run.start_step + 1``; the state is loaded."""

    def rollout_end(
        self, step: int, samples: Sequence[RolloutSample], metrics: Mapping[str, float]
    ) -> None:
        """Hear a few of a step's rollouts, or rows of examples, after its updates and before ``step_end``."""

    def step_end(self, step: int, metrics: Mapping[str, float]) -> EndRun | None:
        """Hear everything that ``metrics.jsonl`` records of a step, read-only; values may be NaN or infinite."""
        return None

    def eval_end(self, step: int, metrics: Mapping[str, float]) -> EndRun | None:
        """Hear ``eval/<set>/T<temperature>/<metric>`` of an evaluation after a step, of step 0 before the first."""
        return None

    def checkpoint_saved(self, step: int, path: Path) -> None:
        """Hear that a checkpoint is complete and durable."""

    def run_end(self, result: RunResult) -> None:
        """Hear how the run ended, once, also when it failed before ``run_start``."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later answers depend on, as JSON without NaN. Each checkpoint has it, as it is after
        the step's ``step_end`` and ``eval_end``."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state_dict`` of a checkpoint, before ``run_start``. Options may have changed since."""
