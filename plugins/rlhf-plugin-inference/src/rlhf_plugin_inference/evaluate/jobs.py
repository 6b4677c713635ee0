"""The work of an evaluation, in its order: every task of every set, at every temperature."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlhf_config import Selection
from rlhf_core import DataError
from rlhf_core.contracts import Task
from rlhf_core.media import ImageReader
from rlhf_data import TokenizerRenderer
from rlhf_trainer.inference import (
    EPOCH,
    MadePart,
    MadeTasks,
    Players,
    PromptReader,
    TaskMakers,
    WantedSets,
    environment_shares,
    evaluation_sets,
    load_sets,
    samples_at,
)

from .options import EvalOptions
from .remote.texts import MAX_PROMPT_BYTES

KEY = "key"
"""Column of a row that names its task."""
EMPTY_TASKS = 100
"""Number of tasks of an environment that makes none, where no option says."""


class EvaluatedTasks(Protocol):
    """Tasks of one set."""

    def __len__(self) -> int: ...

    def task(self, index: int, epoch: int) -> Task: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalJob:
    """All episodes of one task at one temperature."""

    number: int
    """Place in the work, from 0."""
    set: str
    """Name of the task's set."""
    temperature: float
    temperature_index: int
    samples: int
    """Number of episodes."""
    task: Task
    key: str = field(init=False)
    """Name of the task within its set: its row's key, else its index."""
    digest: str = field(init=False)
    """Digest of the task's row, by which results of other tasks are told apart."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", str(self.task.row.get(KEY, self.task.uid.prompt)))
        object.__setattr__(self, "digest", digest_of(self.task.row))


class Work:
    """All jobs, made one by one.

    Args:
        sets: tasks by the name of their set, in order.
        count: episodes of a task at a temperature above 0.
        draws: environments play, which may draw, so that greedy episodes differ.
    """

    def __init__(
        self,
        sets: Mapping[str, EvaluatedTasks],
        temperatures: Sequence[float],
        *,
        count: int,
        draws: bool,
    ) -> None:
        self._sets = sets
        self._temperatures = temperatures
        self._count = count
        self._draws = draws

    def __len__(self) -> int:
        return sum(map(len, self._sets.values())) * len(self._temperatures)

    def jobs(self) -> Iterator[EvalJob]:
        """Yield the jobs in their order: by set, then temperature, then task."""
        number = 0
        for name, tasks in self._sets.items():
            for index, temperature in enumerate(self._temperatures):
                samples = samples_at(temperature, self._count, draws=self._draws)
                for place in range(len(tasks)):
                    yield EvalJob(
                        number=number,
                        set=name,
                        temperature=temperature,
                        temperature_index=index,
                        samples=samples,
                        task=tasks.task(place, EPOCH),
                    )
                    number += 1


def work_of(
    options: EvalOptions,
    environments: Sequence[Selection],
    makers: TaskMakers,
    renderer: TokenizerRenderer,
    images: ImageReader | None = None,
) -> Work:
    """Return the work that the options describe.

    Args:
        makers: the environments as makers of tasks.
        images: takes images in; None: the model reads text alone.

    Raises:
        DataError: a set cannot be opened or used, or an environment cannot make its tasks.
    """
    data = options.data
    if options.remote.url is not None:
        data = data.model_copy(update={"max_prompt_tokens": MAX_PROMPT_BYTES})
    sets: Mapping[str, EvaluatedTasks]
    if data.train:
        wanted = WantedSets.of("data.train", data.train, data)
        players = Players(environment_shares(environments)) if environments else None
        sets = load_sets(wanted, data, renderer, players, images)
    else:
        names = [one.name for one in environments]
        sets = _made_sets(options, names, makers, PromptReader(data, renderer, images))
    return Work(
        sets, options.eval.temperatures, count=options.eval.n_samples, draws=bool(environments)
    )


def _made_sets(
    options: EvalOptions, names: Sequence[str], makers: TaskMakers, prompts: PromptReader
) -> dict[str, EvaluatedTasks]:
    """Return the tasks of each environment: those that it makes, or as many empty ones as an option says."""
    split, most = options.eval.environment_split, options.eval.max_samples
    made = evaluation_sets(names, makers, split=split, limit=most, prompts=prompts)
    sets: dict[str, EvaluatedTasks] = {}
    for name in names:
        if name in made:
            sets[name] = made[name]
        elif makers.reader(name, split) is None:
            sets[name] = MadeTasks([MadePart(environment=name, share=1.0)], most or EMPTY_TASKS)
        else:
            raise DataError(
                f"environment {name} has no split {split!r}, so there is nothing to evaluate on. Name another one with "
                "--eval.environment_split, or give --data.",
                code="data/unknown-split",
            )
    return sets


def digest_of(row: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a row as JSON with sorted keys."""
    text = json.dumps(row, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
