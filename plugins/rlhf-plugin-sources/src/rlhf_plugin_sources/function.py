"""Data source that is a function of a user's: rows that are drawn, or read from wherever the function reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from pydantic import Field

from rlhf_core import Component, Config, PluginError
from rlhf_core.capabilities import WRAPS_CODE
from rlhf_core.code_reference import parse


class FunctionSourceConfig(Config):
    path: str = Field(min_length=1, description="file and name of the function, as FILE.py:NAME")

    def check_outside(self) -> None:
        parse(self.path).definition()


class FunctionSource:
    """Data source that calls ``function(start)``, which gives the rows from that number on.

    A function without parameters gives all rows, of which those before ``start`` are left out.
    """

    def __init__(
        self, config: FunctionSourceConfig, *, code: Callable[..., Any] | None = None
    ) -> None:
        self.config = config
        self._function = parse(config.path).load() if code is None else code
        if not callable(self._function):
            raise PluginError(
                f"{config.path} is a {type(self._function).__name__}; expected a function that gives rows",
                code="data/source-no-function",
            )
        self._takes_start = bool(inspect.signature(self._function).parameters)

    def rows(self, start: int) -> Iterator[Mapping[str, Any]]:
        """Yield the rows from ``start`` on."""
        if self._takes_start:
            return iter(self._rows_of(self._function(start)))
        return islice(self._rows_of(self._function()), start, None)

    def where(self, number: int) -> str:
        return f"{self.config.path}:row {number + 1}"

    def _rows_of(self, found: Any) -> Iterable[Mapping[str, Any]]:
        from rlhf_data import rows_as_written

        if not isinstance(found, Iterable) or isinstance(found, Mapping | str | bytes):
            raise PluginError(
                f"{self.config.path} gave a {type(found).__name__}; expected rows: yield them, or return a list",
                code="data/source-without-rows",
            )
        rows: Iterable[Mapping[str, Any]] = rows_as_written(found)
        return rows


COMPONENT = Component(
    name="function",
    factory=FunctionSource,
    config=FunctionSourceConfig,
    summary="rows of a function in a file of yours, as FILE.py:NAME",
    provides=frozenset({WRAPS_CODE}),
)
