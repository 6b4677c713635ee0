"""Sets that a run, or the check of one, reads for more than one purpose: each is opened, and its form said, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import BaseModel

from rlhf_config.checks.data_files import split_name
from rlhf_config.common import HeldOutRows
from rlhf_config.prompts import RowSets
from rlhf_config.run import RunConfig

from ..sources import open_source
from .form import RowKind
from .recognizing import FormedSet, formed

ColumnsT = TypeVar("ColumnsT", bound=BaseModel)
PROMPTS = (RowKind.PROMPTS,)


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

    @classmethod
    def of(cls, option: str, entries: Sequence[str], options: RowSets | HeldOutRows) -> Self:
        """Return sets of an option, with the split and the number of rows that stand beside it."""
        return cls(
            option=option, entries=entries, split=options.split, max_samples=options.max_samples
        )


class OpenedSets:
    """Sets of rows, each of which is opened, and its form recognized and said, once.

    Args:
        says: False: something else says the forms.
    """

    def __init__(self, *, says: bool = True) -> None:
        self._says = says
        self._found: dict[tuple[str, str, str | None, Sequence[RowKind]], FormedSet[Any]] = {}

    @classmethod
    def of(cls, run: RunConfig) -> Self:
        """Return the sets of ``data.train`` and ``eval.data``, opened.

        Raises:
            DataError: as from ``open``.
        """
        opened = cls()
        for spec in run.data.train:
            opened.open(run.data, spec, run.data.split, None, "data.train")
        for name, spec in map(split_name, run.eval.data):
            opened.open(run.data, spec, run.eval.split, name, "eval.data")
        return opened

    def open(
        self,
        columns: ColumnsT,
        spec: str,
        split: str,
        name: str | None,
        option: str,
        kinds: tuple[RowKind, ...] = PROMPTS,
    ) -> FormedSet[ColumnsT]:
        """Return a set.

        Args:
            columns: options with the form and the names of columns; of one set always the same.
            name: its own name; None: it is called as ``spec`` says.
            option: option that names it.
            kinds: what the caller can use.

        Raises:
            DataError: it cannot be opened, or its rows are of a form that something else learns from.
        """
        key = (spec, split, name, kinds)
        if key not in self._found:
            source = open_source(spec, split=split, name=name)
            self._found[key] = formed(
                source, columns, kinds, spec=spec, option=option, says=self._says
            )
        return self._found[key]
