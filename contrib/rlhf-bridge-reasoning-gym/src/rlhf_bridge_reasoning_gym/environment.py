"""Tasks of reasoning-gym: a question, one answer, and the generator's own score from 0 to 1.

``tasks`` gives the questions by index, made when they are asked for. The entry from which an answer is scored is made
again from its index, so nothing but the index is in the row.

A hash of its text decides whether a question is evaluation's, and a question of the other split is drawn anew. Other
seeds would not do: reasoning-gym draws question i from ``seed + i``, so two seeds nearby share their questions, and a
generator that knows few questions repeats them under any seed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import reasoning_gym
from reasoning_gym.factory import DATASETS

from rlhf_core import ConfigError
from rlhf_core.contracts import Action, Observation, StepResult, Task

from .config import ReasoningGymConfig

SPLITS = ("train", "eval")
EVALUATED = 8
"""Number of questions of a generator of which one is evaluation's."""
MAX_DRAWS = 1000
"""Number of draws for a question; of a generator without end (7/8)^1000 of all evaluation tasks would need more."""


class Drawn(NamedTuple):
    """A question, and the generator that scores answers to it."""

    generator: Any
    entry: Mapping[str, Any]


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
        config = self._config
        self._generator(split)  # refuses options that it cannot use
        return Questions(config.size if split == "train" else config.eval_size, split)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Ask the task's question, or one by the seed."""
        split, index = task.row.get("split", "train"), task.row.get("index")
        number = int(index) if index is not None else seed % self._config.size
        self._scored, self._entry = self._drawn(str(split), number)
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

    def _drawn(self, split: str, index: int) -> Drawn:
        """Return the first question of the split among those that are drawn for an index."""
        for draw in range(MAX_DRAWS):
            generator = self._generator(split, draw)
            entry = generator[index]
            if is_evaluated(str(entry["question"])) == (split == "eval"):
                return Drawn(generator, entry)
        raise ConfigError(
            f"{self._config.dataset}: expected questions for training and others for evaluation; the generator knows "
            f"so few that none of {MAX_DRAWS} draws was one of {split!r}. Choose arguments in kwargs that make more "
            "questions, or another generator.",
            code="environment/not-loadable",
        )

    def _generator(self, split: str, draw: int = 0) -> Any:
        config = self._config
        size = config.size if split == "train" else config.eval_size
        # Each index has seeds of its own: question i of a seed is question 0 of seed + i.
        seed = (config.seed + draw * size) % 2**31
        try:
            return _made(config.dataset, size, seed, json.dumps(config.kwargs, sort_keys=True))
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(
                f"expected a generator of reasoning-gym in dataset, and its arguments in kwargs; "
                f"{config.dataset!r} gave {type(error).__name__}: {error}",
                code="environment/not-loadable",
            ) from error


@lru_cache(maxsize=256)
def _made(name: str, size: int, seed: int, arguments: str) -> Any:
    """Return a generator; some read a dictionary when they are made, and each episode asks for several."""
    given = _typed(name, json.loads(arguments))
    return reasoning_gym.create_dataset(name, size=size, seed=seed, **given)


def is_evaluated(question: str) -> bool:
    """Return whether a question belongs to evaluation; one in ``EVALUATED`` does, whatever the options."""
    digest = hashlib.blake2b(question.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % EVALUATED == 0


class Questions(Sequence[Mapping[str, Any]]):
    """The tasks of a split as rows."""

    def __init__(self, size: int, split: str) -> None:
        self._size = size
        self._split = split

    def __len__(self) -> int:
        return self._size

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
