"""Tasks of reasoning-gym: a question, one answer, and the generator's own score from 0 to 1.

``tasks`` gives the questions by index, made when they are asked for. The entry from which an answer is scored is made
again from its index, so nothing but the index is in the row.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from rlhf_core import ConfigError
from rlhf_core.contracts import Action, Observation, StepResult, Task

from .config import ReasoningGymConfig

SPLITS = ("train", "eval")


class ReasoningGymBridge:
    """One question.

    Raises:
        ConfigError: reasoning-gym has no such generator, or refuses its arguments.
    """

    def __init__(self, config: ReasoningGymConfig) -> None:
        self._config = config
        self._tag = re.compile(rf"<{config.tag}>(.*?)</{config.tag}>", flags=re.DOTALL)
        self._entry: Mapping[str, Any] = {}
        self._scored: Any = None

    def tasks(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return the questions of a split, ``train`` or ``eval``.

        Raises:
            KeyError: there is no such split.
        """
        if split not in SPLITS:
            raise KeyError(split)
        return Questions(self._generator(split), split)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Ask the task's question, or one by the seed."""
        split, index = task.row.get("split", "train"), task.row.get("index")
        self._scored = self._generator(str(split))
        self._entry = self._scored[int(index) if index is not None else seed % len(self._scored)]
        how = (
            f"Write your answer as <{self._config.tag}>...</{self._config.tag}>."
            if self._config.tag
            else ""
        )
        text = "\n".join(filter(None, (self._config.prefix, self._entry["question"], how)))
        return Observation(messages=({"role": "user", "content": text},))

    async def step(self, action: Action) -> StepResult:
        """Score the answer, and end the episode."""
        text = action.text if action.content is None else action.content
        found = self._tag.findall(text[-20_000:]) if self._config.tag else [text]
        answer = found[-1].strip() if found else None
        score, raised = 0.0, False
        try:
            score = float(self._scored.score_answer(answer=answer, entry=self._entry))
        except Exception:
            # Some scorers raise at text that they cannot read: prime_factorization at words. It is wrong, and counted.
            raised = True
        metrics = {
            "answered": float(answer is not None),
            "right": float(score >= 1.0),
            "scorer_raised": float(raised),
        }
        return StepResult(rewards={"score": score}, done=True, metrics=metrics)

    async def close(self) -> None:
        """Do nothing, since an episode holds nothing."""

    def _generator(self, split: str) -> Any:
        config = self._config
        size = config.size if split == "train" else config.eval_size
        try:
            return reasoning_gym.create_dataset(
                config.dataset,
                size=size,
                seed=config.seed + SPLITS.index(split),
                **_typed(config.dataset, config.kwargs),
            )
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(
                f"expected a generator of reasoning-gym in dataset, and its arguments in kwargs; "
                f"{config.dataset!r} gave {type(error).__name__}: {error}"
            ) from error


class Questions(Sequence[Mapping[str, Any]]):
    """The tasks of a split as rows."""

    def __init__(self, generator: Any, split: str) -> None:
        self._generator = generator
        self._split = split

    def __len__(self) -> int:
        return len(self._generator)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return {"key": f"{self._split}-{index}", "split": self._split, "index": index}


def _typed(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with words of a command line as the numbers that the generator's defaults are."""
    known = inspect.signature(DATASETS[name][1]).parameters if name in DATASETS else {}
    typed = dict(arguments)
    for key, value in arguments.items():
        default = known[key].default if key in known else None
        if isinstance(value, str) and isinstance(default, int | float):
            typed[key] = value == "true" if isinstance(default, bool) else type(default)(value)
    return typed
