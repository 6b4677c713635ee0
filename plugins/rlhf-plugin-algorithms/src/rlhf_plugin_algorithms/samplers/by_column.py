"""Prompt sampler that goes through the prompts in the order of a column, such as from easy to hard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import Field

from rlhf_core import Component, Config, ConfigError, DataError
from rlhf_core.capabilities import RETURNING_PROMPTS
from rlhf_core.contracts import DrawRequest, PromptResult, PromptSet, value_at
from rlhf_core.lazy import NDArray, np


class ByColumnConfig(Config):
    key: str = Field(
        min_length=1,
        description="column with a number, such as a level; COLUMN.ENTRY names an entry of a column with objects",
    )
    descending: bool = Field(
        False, description="begin with the largest numbers; false: with the smallest"
    )

    def columns_needed(self) -> Mapping[str, str | None]:
        """The column of the numbers."""
        return {self.key: "key"}


class ByColumn:
    """Prompt sampler whose epochs have their prompts in the order of a column's numbers.

    Prompts with the same number come in the order that the epoch has without a sampler: a new one in each epoch, or
    that of the rows with ``data.shuffle = false``.
    """

    def __init__(self, config: ByColumnConfig) -> None:
        self.config = config
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def begin(self, prompts: PromptSet) -> None:
        """Read the column of all prompts.

        Raises:
            ConfigError: the prompts are made without end, so there is no order.
            DataError: a row has no such column, or no finite number in it.
        """
        if not prompts.returning:
            raise ConfigError(
                "--data.sampler by_column: expected prompts that can all be put in order; tasks of this run have no "
                "end. Give rows with --data.train; of an environment's tasks, --data.max_samples 1000 uses the first "
                "ones.",
                code="data/endless-tasks",
            )
        self._prompts = prompts
        sign = -1.0 if self.config.descending else 1.0
        self._numbers = {
            index: sign * self._number(prompts.row(index), index)
            for index in prompts.indices.tolist()
        }

    def draw(self, request: DrawRequest) -> list[int]:
        return [self._at(request.taken + number) for number in range(request.count)]

    def note(self, results: Sequence[PromptResult]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}  # the n-th draw is a function of n

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def _number(self, row: Mapping[str, Any], index: int) -> float:
        try:
            value = value_at(row, self.config.key)
            found = f"got {value!r}"
            if isinstance(value, str):  # cells of CSV are text
                with suppress(ValueError):
                    value = float(value)
        except KeyError:
            value, found = None, f"it has {', '.join(row)}"
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise DataError(
                f"--data.by_column.key {self.config.key}: expected a finite number in this column of the row of prompt "
                f"{index}; {found}. Correct the rows, or name another column with --data.by_column.key",
                code="data/not-a-number",
            )
        return float(value)

    def _at(self, number: int) -> int:
        epoch, position = divmod(number, len(self._prompts))
        if self._order is None or self._order[0] != epoch:
            order = self._prompts.order(epoch)
            numbers = [self._numbers[index] for index in order.tolist()]
            self._order = epoch, order[np.argsort(numbers, kind="stable")]
        return int(self._order[1][position])


COMPONENT = Component(
    name="by_column",
    factory=ByColumn,
    config=ByColumnConfig,
    summary="prompts in the order of a column's numbers, such as from easy to hard",
    needs=frozenset({RETURNING_PROMPTS}),
)
