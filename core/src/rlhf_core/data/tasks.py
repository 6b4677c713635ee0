"""Tasks of a run, by epoch and index.

The index of a training task is its row's index in the concatenation of all sets, bad and held-out rows included. So the
names of samples do not change when another row is skipped or held out.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..batch.task import Task, Uid
from ..config.run import PromptData, RunConfig
from ..errors import DataError
from ..media.reader import ImageReader
from .chat.control_words import InertWords
from .chat.renderer import TokenizerRenderer
from .forms.form import RowKind
from .forms.recognizing import formed
from .made.players import Players
from .made.prompts import PromptReader
from .made.splits import MakesRows, evaluation_sets, training_parts
from .made.tasks import MadeTasks
from .mixing import epoch_counts, epoch_order, held_out
from .prompts import Prompts, tokenize_prompts
from .row_images import RowImages, media_of, row_with_references
from .rows import BadRow, PromptFormat, bad_row_error, describe_skipped
from .source import Source
from .sources import open_source, split_name

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetPart:
    """Tasks of one source in a task set."""

    source: Source
    """Source of the rows."""
    format: PromptFormat
    """Format of the prompts."""
    prompts: Prompts
    """Prompts of the usable rows, P in number."""
    dataset: str
    """Name by which results are grouped."""
    ids: NDArray[np.int64]
    """Index of each prompt's task (P,), ascending."""
    images: RowImages = field(default_factory=RowImages)
    """Reader of the rows' images."""


class TaskSet:
    """Tasks made of data rows. The set holds the tokens of all prompts and reads a row when its task is made.

    Args:
        parts: parts of the set, with indices that ascend over all parts.
        probabilities: shares of the parts in an epoch; empty: an epoch has all rows of all parts.
        shuffle: whether each epoch has a new order.
        players: environments of the run, one of which plays each task.
    """

    returning = True
    """An index is the same prompt in every epoch."""

    def __init__(
        self,
        parts: Sequence[TaskSetPart],
        *,
        probabilities: Sequence[float] = (),
        shuffle: bool = False,
        players: Players | None = None,
    ) -> None:
        self._parts = parts
        self._players = players or Players()
        self._probabilities = probabilities
        self._shuffle = shuffle
        self._sizes = [len(part.ids) for part in parts]
        self.indices: NDArray[np.int64] = np.concatenate([part.ids for part in parts])
        self._ends = [int(part.ids[-1]) for part in parts]
        self._length = sum(epoch_counts(self._sizes, probabilities))

    def __len__(self) -> int:
        """Return the number of tasks of one epoch."""
        return self._length

    @property
    def skipped(self) -> tuple[BadRow, ...]:
        """Rows that the set leaves out because they cannot be used."""
        return tuple(bad for part in self._parts for bad in part.prompts.bad)

    def order(self, epoch: int, seed: int) -> NDArray[np.int64]:
        """Return the indices of an epoch's tasks in their order, each once."""
        positions = epoch_order(
            self._sizes, self._probabilities, epoch=epoch, seed=seed, shuffle=self._shuffle
        )
        return self.indices[positions]

    def task(self, index: int, epoch: int) -> Task:
        """Return the task with ``uid = (epoch, index, 0, 0)``.

        Raises:
            IndexError: no usable row has this index.
        """
        part = self._parts[min(bisect_left(self._ends, index), len(self._parts) - 1)]
        position = int(np.searchsorted(part.ids, index))
        if position == len(part.ids) or part.ids[position] != index:
            raise IndexError(f"no task has index {index}")
        row = dict(part.source.row(int(part.prompts.rows[position])))
        format = part.format
        prompt = part.images.prompt(row, format.prompt(row))
        return Task(
            uid=Uid(epoch, index),
            prompt_ids=part.prompts.tokens(position),
            messages=prompt if isinstance(prompt, tuple) else (),
            row=row_with_references(
                row, prompt, prompt_key=format.prompt_key, image_key=format.image_key
            ),
            dataset=part.dataset,
            environment=self._players.of(index, row),
            media=media_of(prompt),
        )


def load_task_set(
    run: RunConfig,
    renderer: TokenizerRenderer,
    players: Players | None = None,
    makers: MakesRows | None = None,
    images: ImageReader | None = None,
) -> TaskSet | MadeTasks:
    """Return the training tasks, without the rows that ``eval.fraction`` holds out.

    Without ``data.train`` they are those that the environments make. An epoch of empty or endless tasks has
    ``data.max_samples`` of them, or, if unset, ``rollout.batch_size``.

    Args:
        makers: the environments as makers of tasks; None: their tasks are empty.
        images: reader of images; None: the run's model reads text alone.

    Raises:
        DataError: a set cannot be opened, rows are bad (with ``on_bad_row = fail``), no usable row is left, or an
            environment cannot make its tasks.
    """
    data = run.data
    if not data.train:
        shares = players.shares if players is not None else {}
        return MadeTasks(
            list(training_parts(shares, makers, data.max_samples)),
            data.max_samples or run.rollout.batch_size,
            shuffle=data.shuffle,
            prompts=PromptReader(data, renderer, images),
        )
    reader = _Reader(data, renderer, "data.train", data.train, images)
    start = 0
    for spec in data.train:
        source = open_source(spec, split=data.split)
        used = _limited(len(source), data.max_samples)
        held = held_out(source.name, used, fraction=run.eval.fraction, seed=run.seed)
        reader.add(source, ~held, start, spec=spec)
        start += len(source)
    return TaskSet(
        reader.parts(),
        probabilities=data.probabilities,
        shuffle=data.shuffle,
        players=players,
    )


def load_prompts(
    data: PromptData, renderer: TokenizerRenderer, images: ImageReader | None = None
) -> TaskSet:
    """Return all rows of ``data.train`` as tasks, each once, in their order; ``images`` as in ``load_task_set``.

    Raises:
        DataError: a set cannot be opened or used, as in ``load_task_set``.
    """
    reader, start = _Reader(data, renderer, "data.train", data.train, images), 0
    for spec in data.train:
        source = open_source(spec, split=data.split)
        used = np.ones(_limited(len(source), data.max_samples), dtype=bool)
        reader.add(source, used, start, spec=spec)
        start += len(source)
    return TaskSet(reader.parts())


def load_eval_sets(
    run: RunConfig,
    renderer: TokenizerRenderer,
    players: Players | None = None,
    makers: MakesRows | None = None,
    images: ImageReader | None = None,
) -> Mapping[str, TaskSet | MadeTasks]:
    """Return the evaluation sets by name: the sets of ``eval.data``, and the rows that ``eval.fraction`` holds out.

    Without either, they are the tasks of the split ``eval.environment_split`` of each environment that makes some.
    The indices of a set's tasks count from 0 without gaps, in the order of the rows.

    Args:
        makers: the environments as makers of tasks; None: their tasks are empty.
        images: reader of images; None: the run's model reads text alone.

    Raises:
        DataError: a set cannot be opened or used, as in ``load_task_set``, or two sets share a name.
    """
    if not run.eval.data and not run.eval.fraction:
        return _made_eval_sets(run, renderer, players, makers, images)
    wanted = WantedSets(
        option="eval.data",
        entries=run.eval.data,
        split=run.eval.split,
        max_samples=run.eval.max_samples,
    )
    sets: dict[str, TaskSet | MadeTasks] = {
        **load_sets(wanted, run.data, renderer, players, images)
    }
    if run.eval.fraction:
        sets |= _held_out_sets(run, renderer, players, images)
    return sets


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSets:
    """Sets that an option names."""

    option: str
    """Path of the option, for messages."""
    entries: Sequence[str]
    """Its value: files, folders and hub names, each as it is or as ``NAME=PATH``."""
    split: str
    """Split of folders and hub sets that have several."""
    max_samples: int | None
    """Number of rows that are used of each, the first ones; None: all."""


def load_sets(
    wanted: WantedSets,
    data: PromptData,
    renderer: TokenizerRenderer,
    players: Players | None = None,
    images: ImageReader | None = None,
) -> dict[str, TaskSet]:
    """Return a task set for each entry by name, with indices from 0 without gaps, in the order of the rows.

    Args:
        data: options by which rows become prompts.
        images: reader of images; None: the model reads text alone.

    Raises:
        DataError: a set cannot be opened or used, as in ``load_task_set``, or two sets share a name.
    """
    sets: dict[str, TaskSet] = {}
    for entry in wanted.entries:
        name, spec = split_name(entry)
        source = open_source(spec, split=wanted.split, name=name)
        if source.name in sets:
            raise DataError(
                f"{wanted.option}: two sets are called {source.name!r}; name them with NAME=PATH"
            )
        reader = _Reader(data, renderer, wanted.option, [spec], images)
        used = np.ones(_limited(len(source), wanted.max_samples), dtype=bool)
        reader.add(source, used, spec=spec)
        sets[source.name] = TaskSet(reader.parts(compact=True), players=players)
    return sets


def _made_eval_sets(
    run: RunConfig,
    renderer: TokenizerRenderer,
    players: Players | None,
    makers: MakesRows | None,
    images: ImageReader | None,
) -> dict[str, MadeTasks]:
    if makers is None or players is None or run.eval.environment_split is None:
        return {}
    return evaluation_sets(
        players.shares,
        makers,
        split=run.eval.environment_split,
        limit=run.eval.max_samples,
        prompts=PromptReader(run.data, renderer, images),
    )


def _held_out_sets(
    run: RunConfig,
    renderer: TokenizerRenderer,
    players: Players | None,
    images: ImageReader | None,
) -> dict[str, TaskSet]:
    readers: dict[str, _Reader] = {}
    for spec in run.data.train:
        source = open_source(spec, split=run.data.split)
        used = _limited(len(source), run.data.max_samples)
        held = held_out(source.name, used, fraction=run.eval.fraction, seed=run.seed)
        if run.eval.max_samples is not None:
            held &= np.cumsum(held) <= run.eval.max_samples
        if held.any():
            reader = readers.setdefault(
                source.name,
                _Reader(run.data, renderer, "eval.fraction", run.data.train, images),
            )
            reader.add(source, held, spec=spec)
    if not readers:
        raise DataError(
            "eval.fraction: expected sets of at least 2 rows, to hold some out; got sets of 1 row. "
            "Give held-out rows with --eval.data."
        )
    return {
        name: TaskSet(reader.parts(compact=True), players=players)
        for name, reader in readers.items()
    }


class _Read(NamedTuple):
    """A source whose prompts were read."""

    source: Source
    prompts: Prompts
    start: int
    """Index of its first row in the set."""
    images: RowImages
    format: PromptFormat


class _Reader:
    """Reader of the sources of one task set, which reports the bad rows of all sources in one message."""

    def __init__(
        self,
        data: PromptData,
        renderer: TokenizerRenderer,
        option: str,
        specs: Sequence[str],
        images: ImageReader | None = None,
    ) -> None:
        self._data = data
        self._renderer = renderer
        self._option = option
        self._specs = specs
        self._images = images
        self._read: list[_Read] = []
        self._total = 0

    def add(
        self, source: Source, wanted: NDArray[np.bool_], start: int = 0, *, spec: str = ""
    ) -> None:
        """Tokenize the wanted rows of a source, ``spec``, whose first row has index ``start``."""
        images = RowImages.of(self._images, spec)
        found = formed(source, self._data, (RowKind.PROMPTS,), spec=spec, option=self._option)
        format = replace(PromptFormat.of(found.columns), image_key=images.key)
        prompts = tokenize_prompts(
            found.source, wanted, format, self._renderer, self._data.max_prompt_tokens, images
        )
        self._read.append(_Read(found.source, prompts, start, images, format))
        self._total += int(wanted.sum())

    def parts(self, *, compact: bool = False) -> list[TaskSetPart]:
        """Return one part for each source; ``compact`` numbers the tasks from 0 without gaps.

        Raises:
            DataError: rows are bad (with ``on_bad_row = fail``), or a source has no usable row left.
        """
        bad = [row for read in self._read for row in read.prompts.bad]
        if bad and (self._data.on_bad_row == "fail" or len(bad) == self._total):
            raise bad_row_error(bad, self._total, self._option, self._specs)
        if bad:
            log.warning("%s", describe_skipped(bad, self._total, self._option))
        inert = reduce(InertWords.joined, (read.prompts.inert for read in self._read), InertWords())
        if inert.rows:
            log.warning("%s", inert.describe(self._total, self._option))
        parts, count = list[TaskSetPart](), 0
        for source, prompts, start, images, format in self._read:
            if not len(prompts):
                raise DataError(
                    f"{self._option}: no row of {source.where(0).rpartition(':')[0]} is left to use"
                )
            ids = np.arange(count, count + len(prompts)) if compact else prompts.rows + start
            count += len(prompts)
            parts.append(
                TaskSetPart(
                    source=source,
                    format=format,
                    prompts=prompts,
                    dataset=source.name,
                    ids=ids.astype(np.int64),
                    images=images,
                )
            )
        return parts


def _limited(size: int, limit: int | None) -> int:
    return size if limit is None else min(size, limit)
