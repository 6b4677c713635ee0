"""Patterns whose braces are filled with the values of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

import regex

from rlhf_core import RewardError
from rlhf_core.contracts import value_at


def filled(pattern: str, row: Mapping[str, Any]) -> str:
    """Return the pattern with each ``{column}`` replaced by the row's value, or ``{column.entry}`` by that of an object
    in one, escaped; ``{{`` and ``}}`` become braces.

    Raises:
        RewardError: a name in braces is no column or an empty one, or the braces do not pair.
    """
    try:
        return _Filler().vformat(pattern, (), row)
    except KeyError as error:
        raise RewardError(
            f"the pattern names {error.args[0]!r} in braces, which is no column; columns: {', '.join(row) or 'none'}. "
            "A literal brace is written twice",
            code="reward/pattern-of-no-column",
        ) from None
    except (ValueError, IndexError, AttributeError) as error:
        raise RewardError(
            f"the braces of {pattern!r} cannot be filled: {error}. A literal brace is written twice",
            code="reward/braces-of-pattern",
        ) from None


class _Filler(Formatter):
    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            value = value_at(kwargs, field_name)
        except KeyError:
            texts = {key: str(value) for key, value in kwargs.items()}
            value, _ = super().get_field(field_name, args, texts)
        if value is None or value != value:  # NaN, as tables have it where a row has no value
            raise RewardError(
                f"column {field_name!r} of this row is empty, and the pattern reads it",
                code="reward/empty-label",
            )
        if isinstance(value, float) and value % 1 == 0:
            # A table has whole numbers as floats where a row of the column has none.
            return regex.escape(f"{value:.0f}") + r"(?:\.0)?", field_name
        return regex.escape(str(value)), field_name
