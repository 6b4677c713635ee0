"""Tasks that no data set has, as a run reads them: parts of training tasks and evaluation sets of the splits of
environments, and tasks of a data source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from rlhf_config.run import RunConfig
from rlhf_core.errors import DataError
from rlhf_core.media.reader import ImageReader

from ..chat.renderer import TokenizerRenderer
from ..source import Row
from .prompts import PromptReader
from .rows import MadeRows, made_rows
from .source_rows import SourceRows
from .tasks import MadePart, MadeTasks

TRAIN = "train"
MAX_EVALUATED = 10_000
"""Largest number of tasks of an evaluation split that has no length, where no option limits it."""


class MakesRows(Protocol):
    """The environments of a run, as makers of rows."""

    def reader(self, environment: str, split: str) -> Callable[[], Iterable[Row]] | None:
        """Return a function that gives the rows of a split from the start; None: the environment makes no tasks. It
        raises KeyError if there is no such split."""


def training_parts(
    shares: Mapping[str, float], makers: MakesRows | None, limit: int | None
) -> Iterator[MadePart]:
    """Yield the parts of a run's training tasks.

    Args:
        shares: share of each environment by name; none: the tasks are of no environment.
        limit: number of rows to use of each environment, from the first; None: all.

    Raises:
        DataError: an environment makes tasks, but its split ``train`` is not there, empty, or cannot be made.
    """
    if not shares:
        yield MadePart(environment="", share=1.0)
    for name, share in shares.items():
        rows = None
        if makers is not None and (read := makers.reader(name, TRAIN)) is not None:
            try:
                rows = made_rows(read, _where(name, TRAIN), limit)
            except KeyError as error:
                raise DataError(
                    f"environment {name} has no split {TRAIN!r}, so there is nothing to train on (its tasks raised "
                    f"KeyError: {error}). Give --data, or an environment with such a split.",
                    code="data/no-training-split",
                ) from error
        yield MadePart(environment=name, share=share, rows=rows)


def evaluation_sets(
    names: Iterable[str],
    makers: MakesRows,
    *,
    split: str,
    limit: int | None,
    prompts: PromptReader | None = None,
) -> dict[str, MadeTasks]:
    """Return the tasks of a split by environment, of those environments that have it.

    Args:
        limit: number of rows to use of each, from the first; None: all.

    Raises:
        DataError: a split is empty, has no end, or cannot be made.
    """
    sets = {}
    for name in names:
        rows = _evaluated(makers, name, split, limit)
        if rows is not None:
            part = MadePart(environment=name, share=1.0, rows=rows)
            sets[name] = MadeTasks([part], 1, prompts=prompts)
    return sets


def _evaluated(makers: MakesRows, name: str, split: str, limit: int | None) -> MadeRows | None:
    read = makers.reader(name, split)
    if read is None:
        return None
    try:
        rows = made_rows(read, _where(name, split), limit)
    except KeyError:
        return None  # The contract's way to say that there is no such split.
    if rows.size is None:
        rows = made_rows(read, _where(name, split), MAX_EVALUATED + 1)
        if rows.size is not None and rows.size > MAX_EVALUATED:
            raise DataError(
                f"{_where(name, split)}: expected at most {MAX_EVALUATED} tasks to evaluate on, got more, or a "
                "stream without end. Set --eval.max_samples",
                code="data/too-many-tasks",
            )
    return rows


def source_tasks(
    run: RunConfig, rows: SourceRows, renderer: TokenizerRenderer, images: ImageReader | None = None
) -> MadeTasks:
    """Return the training tasks of a source's rows. An epoch has ``data.max_samples`` of them, or, if unset,
    ``rollout.batch_size``."""
    part = MadePart(environment="", share=1.0, rows=rows, dataset=TRAIN)
    return MadeTasks(
        [part],
        run.data.max_samples or run.rollout.batch_size,
        prompts=PromptReader(run.data, renderer, images, every=True),
    )


def _where(name: str, split: str) -> str:
    return f"tasks of environment {name}, split {split!r}"
