"""Tasks of a run, by epoch and index.

The index of a training task is its row's index in the concatenation of all sets, bad and held-out rows included. So the
names of samples do not change when another row is skipped or held out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_config.checks.data_files import split_name
from rlhf_config.run import PromptData, RunConfig
from rlhf_core.errors import DataError
from rlhf_core.media.reader import ImageReader

from .chat.control_words import InertWords
from .chat.renderer import TokenizerRenderer
from .forms.beside import warn_of_tools
from .forms.formed_source import FormedSource
from .forms.opened_sets import OpenedSets, WantedSets
from .held_out.sides import Side, hashes_of, refuse_trained_rows
from .listing import listing_command
from .made.players import Players
from .made.prompts import PromptReader
from .made.splits import MakesRows, evaluation_sets, training_parts
from .made.tasks import MadeTasks
from .prompts import Prompts, tokenize_prompts
from .row_images import RowImages, SeenRows, check_seen
from .rows import PromptFormat, bad_row_error, describe_skipped
from .source import Source
from .task_set import TaskSet, TaskSetPart
from .turn_order import TurnOrder

log = logging.getLogger(__name__)

PLAIN_TEXT = "%s: plain text gets no chat template; if the model is for chats, add --data.chat"


def load_task_set(
    run: RunConfig,
    renderer: TokenizerRenderer,
    players: Players | None = None,
    makers: MakesRows | None = None,
    images: ImageReader | None = None,
    opened: OpenedSets | None = None,
) -> TaskSet | MadeTasks:
    """Return the training tasks, without the rows that ``eval.fraction`` holds out.

    Without ``data.train`` they are those that the environments make. An epoch of empty or endless tasks has
    ``data.max_samples`` of them, or, if unset, ``rollout.batch_size``.

    Args:
        makers: the environments as makers of tasks; None: their tasks are empty.
        images: reader of images; None: the run's model reads text alone.
        opened: sets that are open already.

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
    reader = _Reader(data, renderer, "data.train", data.train, images, opened, players)
    side = Side(fraction=run.eval.fraction)
    start = 0
    for spec in data.train:
        found = reader.open(spec, data.split)
        reader.add(found, _rows_of(run, found, side), start)
        start += len(found.source)
    return TaskSet(
        reader.parts(), probabilities=data.probabilities, shuffle=data.shuffle, players=players
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
        opened = reader.open(spec, data.split)
        used = np.ones(_limited(len(opened.source), data.max_samples), dtype=bool)
        reader.add(opened, used, start)
        start += len(opened.source)
    return TaskSet(reader.parts())


def load_eval_sets(
    run: RunConfig,
    renderer: TokenizerRenderer,
    players: Players | None = None,
    makers: MakesRows | None = None,
    images: ImageReader | None = None,
    opened: OpenedSets | None = None,
) -> Mapping[str, TaskSet | MadeTasks]:
    """Return the evaluation sets by name: the sets of ``eval.data``, and the rows that ``eval.fraction`` holds out.

    Without either, they are the tasks of the split ``eval.environment_split`` of each environment that makes some.
    The indices of a set's tasks count from 0 without gaps, in the order of the rows.

    Args:
        makers: the environments as makers of tasks; None: their tasks are empty.
        images: reader of images; None: the run's model reads text alone.
        opened: sets that are open already.

    Raises:
        DataError: a set cannot be opened or used, as in ``load_task_set``, or two sets share a name.
    """
    if not run.eval.holds_rows_out:
        return _made_eval_sets(run, renderer, players, makers, images)
    wanted = WantedSets.of("eval.data", run.eval.data, run.eval)
    sets: dict[str, TaskSet | MadeTasks] = {
        **load_sets(wanted, run.data, renderer, players, images, opened)
    }
    if run.eval.fraction:
        sets |= _held_out_sets(run, renderer, players, images, opened)
    return sets


def load_sets(
    wanted: WantedSets,
    data: PromptData,
    renderer: TokenizerRenderer,
    players: Players | None = None,
    images: ImageReader | None = None,
    opened: OpenedSets | None = None,
) -> dict[str, TaskSet]:
    """Return a task set for each entry by name, with indices from 0 without gaps, in the order of the rows.

    Args:
        data: options by which rows become prompts.
        images: reader of images; None: the model reads text alone.
        opened: sets that are open already.

    Raises:
        DataError: a set cannot be opened or used, as in ``load_task_set``, or two sets share a name.
    """
    sets: dict[str, TaskSet] = {}
    for entry in wanted.entries:
        name, spec = split_name(entry)
        reader = _Reader(data, renderer, wanted.option, [spec], images, opened, players)
        found = reader.open(spec, wanted.split, name)
        called = found.source.name
        if called in sets:
            raise DataError(
                f"{wanted.option}: two sets are called {called!r}; name them with NAME=PATH",
                code="data/repeated-name",
            )
        used = np.ones(_limited(len(found.source), wanted.max_samples), dtype=bool)
        reader.add(found, used)
        sets[called] = TaskSet(reader.parts(compact=True), players=players)
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
    opened: OpenedSets | None,
) -> dict[str, TaskSet]:
    readers: dict[str, _Reader] = {}
    side = Side(fraction=run.eval.fraction, is_evaluated=True, max_rows=run.eval.max_samples)
    data = run.data
    for spec in data.train:
        reader = _Reader(data, renderer, "eval.fraction", data.train, images, opened, players)
        found = reader.open(spec, data.split)
        held = _rows_of(run, found, side)
        if held.any():
            readers.setdefault(found.source.name, reader).add(found, held)
    if not readers:
        raise DataError(f"eval.fraction: {side.lacks}", code="data/no-held-out")
    return {
        name: TaskSet(reader.parts(compact=True), players=players)
        for name, reader in readers.items()
    }


def _rows_of(run: RunConfig, opened: _Opened, side: Side) -> NDArray[np.bool_]:
    """Return a mask of the used rows of a source, True at those of a side."""
    source = opened.source
    used = _limited(len(source), run.data.max_samples)
    # An environment shows the policy what stands in the row, also where all rows have one prompt.
    asked = None
    if not run.env.use:
        asked = (*opened.format.columns, *opened.images.columns)
    return side.wanted(lambda: hashes_of(source, used, asked), used)


def check_held_out(run: RunConfig, tasks: object, sets: Mapping[str, object]) -> None:
    """Say how many rows of each held-out set the run trains on. Tasks that environments make are compared by
    ``rlhf env check``, and rows of ``data.source`` are not known yet.

    Raises:
        DataError: the run trains on all rows of a set.
    """
    held = {name: one for name, one in sets.items() if isinstance(one, TaskSet)}
    if not held or not isinstance(tasks, TaskSet):
        return
    with_rows = bool(run.env.use)
    refuse_trained_rows(
        tasks.read_hashes(with_rows=with_rows),
        {name: one.read_hashes(with_rows=with_rows) for name, one in held.items()},
        "eval.data" if run.eval.data else "eval.fraction",
    )


class _Opened(NamedTuple):
    """A source in the form of its rows."""

    source: Source
    format: PromptFormat
    images: RowImages


class _Read(NamedTuple):
    """A source whose prompts were read."""

    opened: _Opened
    prompts: Prompts
    start: int
    """Index of its first row in the set."""


class _Reader:
    """Reader of the sources of one task set, which reports the bad rows of all sources in one message.

    Args:
        is_played: an environment plays the rows, and may offer the tools that they have.
    """

    def __init__(
        self,
        data: PromptData,
        renderer: TokenizerRenderer,
        option: str,
        specs: Sequence[str],
        images: ImageReader | None = None,
        opened: OpenedSets | None = None,
        players: Players | None = None,
    ) -> None:
        self._data, self._renderer = data, renderer
        self._option, self._specs = option, specs
        self._images, self._opened = images, opened or OpenedSets()
        self._is_played = players is not None and bool(players.shares)
        """Whether an environment plays the rows, and may offer the tools that they have."""
        self._read: list[_Read] = []
        self._total = 0

    def open(self, spec: str, split: str, name: str | None = None) -> _Opened:
        """Open a source, ``spec``, and find the form of its rows, as ``OpenedSets.open`` does."""
        found = self._opened.open(self._data, spec, split, name, self._option)
        if not self._is_played and found.form is not None:
            warn_of_tools(found.source, self._option)
        images = RowImages.of(self._images, spec)
        return _Opened(found.source, PromptFormat.of(found.columns), images)

    def add(self, opened: _Opened, wanted: NDArray[np.bool_], start: int = 0) -> None:
        """Tokenize the wanted rows of a source whose first row has index ``start``."""
        source, format, images = opened
        prompts = tokenize_prompts(
            source, wanted, format, self._renderer, self._data.max_prompt_tokens, images
        )
        self._read.append(_Read(opened, prompts, start))
        self._total += int(wanted.sum())

    def parts(self, *, compact: bool = False) -> list[TaskSetPart]:
        """Return one part for each source; ``compact`` numbers the tasks from 0 without gaps."""
        bad = [row for read in self._read for row in read.prompts.bad]
        if bad and (self._data.on_bad_row == "fail" or len(bad) == self._total):
            model = getattr(self._renderer.tokenizer, "name_or_path", "") or None
            command = listing_command(self._data, self._specs, model)
            raise bad_row_error(bad, self._total, self._option, command)
        if bad:
            log.warning("%s", describe_skipped(bad, self._total, self._option))
        inert = reduce(InertWords.joined, (read.prompts.inert for read in self._read), InertWords())
        trains_on_text = self._option == "data.train" and not (
            self._is_played or all(read.prompts.has_chats for read in self._read)
        )
        if inert.rows:
            log.warning("%s", inert.describe(self._total, self._option))
        elif trains_on_text and self._renderer.leaves_marks_out(self._data.template):
            log.info(PLAIN_TEXT, self._option)
        order = reduce(TurnOrder.joined, (read.prompts.order for read in self._read), TurnOrder())
        if order.rows:
            log.warning("%s", order.describe(self._total, self._option))
        seen = [SeenRows(read.opened.source, read.prompts.num_images) for read in self._read]
        check_seen(self._images, self._option, seen)
        parts, count = list[TaskSetPart](), 0
        for (source, format, images), prompts, start in self._read:
            if not len(prompts):
                raise DataError(
                    f"{self._option}: no row of {source.where(0).rpartition(':')[0]} is left to use",
                    code="data/none-left",
                )
            ids = np.arange(count, count + len(prompts)) if compact else prompts.rows + start
            count += len(prompts)
            parts.append(
                TaskSetPart(
                    source=source.as_read if isinstance(source, FormedSource) else source,
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
