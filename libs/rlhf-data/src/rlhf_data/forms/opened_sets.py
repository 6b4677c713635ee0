"""Sets of prompts that a run reads for more than one purpose: each is opened, and its form said, once."""

from __future__ import annotations

from typing import Self

from rlhf_config.checks.data_files import split_name
from rlhf_config.run import PromptData, RunConfig

from ..sources import open_source
from .form import RowKind
from .recognizing import FormedSet, formed


class OpenedSets:
    """The sets of a run's prompts, each of which is opened, and its form recognized and said, once.

    Args:
        says: False: something else says the forms.
    """

    def __init__(self, *, says: bool = True) -> None:
        self._says = says
        self._found: dict[tuple[str, str, str | None], FormedSet[PromptData]] = {}

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
        self, data: PromptData, spec: str, split: str, name: str | None, option: str
    ) -> FormedSet[PromptData]:
        """Return a set of prompts.

        Args:
            name: its own name; None: it is called as ``spec`` says.
            option: option that names it.

        Raises:
            DataError: it cannot be opened, or its rows are of a form that something else learns from.
        """
        key = (spec, split, name)
        if key not in self._found:
            source = open_source(spec, split=split, name=name)
            self._found[key] = formed(
                source, data, (RowKind.PROMPTS,), spec=spec, option=option, says=self._says
            )
        return self._found[key]
