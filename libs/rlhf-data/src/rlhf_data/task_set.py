"""Tasks made of data rows, by epoch and index: their prompts are in memory, and a row is read when its task is made."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlhf_core.batch.task import Task, Uid
from rlhf_core.media.reference import MediaRef

from .held_out.sides import Hashes, number_of, whole_row_hash
from .made.players import Players
from .mixing import epoch_counts, epoch_order
from .prompts import Prompts
from .row_images import RowImages, media_of
from .rows import BadRow, Prompt, PromptFormat
from .source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetPart:
    """Tasks of one source in a task set."""

    source: Source
    format: PromptFormat
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
        self._players = players if players is not None and players.shares else None
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
            DataError: the row's image is gone, or was changed.
        """
        part = self._parts[min(bisect_left(self._ends, index), len(self._parts) - 1)]
        position = int(np.searchsorted(part.ids, index))
        if position == len(part.ids) or part.ids[position] != index:
            raise IndexError(f"no task has index {index}")
        place = int(part.prompts.rows[position])
        row = dict(part.source.row(place))
        sees = part.images.loader is not None
        # A plain text has been tokenized, and nobody asks for it again.
        prompt: Prompt = part.format.prompt(row) if sees or part.prompts.has_chats else ""
        media: tuple[MediaRef, ...] = ()
        # Where nobody reads images, a text has none, and a chat must have none.
        if sees or isinstance(prompt, tuple):
            prompt = part.images.prompt_again(row, prompt, part.source.where(place))
            media = media_of(prompt)
            row = part.images.plain_row(row, prompt, part.format.prompt_key)
        return Task(
            uid=Uid(epoch, index),
            prompt_ids=part.prompts.tokens(position),
            messages=prompt if isinstance(prompt, tuple) else (),
            row=row,
            dataset=part.dataset,
            environment="" if self._players is None else self._players.of(index, row),
            media=media,
        )

    def read_hashes(self, *, with_rows: bool) -> Hashes:
        """Return a hash (tasks,) of what the policy reads of each task: tokens and images of its prompt.

        Args:
            with_rows: an environment reads the row, and shows the policy some of it; so its columns count, but the key.
        """
        found = (part_hash for part in self._parts for part_hash in _hashes_of(part, with_rows))
        return np.fromiter(found, dtype=np.uint64, count=len(self.indices))


def _hashes_of(part: TaskSetPart, with_rows: bool) -> Iterator[int]:
    images = part.images.measuring(reads=True)
    for position, index in enumerate(part.prompts.rows.tolist()):
        start, end = part.prompts.offsets[position : position + 2]
        content = part.prompts.token_ids[start:end].tobytes()
        if images.sees or with_rows:
            row = part.source.row(index)
            where = part.source.where(index)
            prompt = images.prompt_again(row, part.format.prompt(row), where)
            content += "".join(image.sha256 for image in media_of(prompt)).encode()
            if with_rows:
                content += whole_row_hash(row).to_bytes(8, "big")
        yield number_of(content)
