"""Options that are tables with any names: in a file a table, as a flag ``--OPTION.NAME VALUE`` or the table as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, JsonValue

from .outside.json_reader import BrokenJson, parse_json

_SCALAR = re.compile(r"true|false|-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")


def typed(given: Any) -> Any:
    """Return an object's JSON text as the object, and true, false and numbers that were typed as what they say.

    Tables in the table are read so, too; any other text stays as it is.
    """
    if isinstance(given, str):
        try:
            given = parse_json(given)
        except BrokenJson:
            return given  # the check of types says what was expected
    return _table(given)


def _table(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _table(value) for name, value in given.items()}
    if isinstance(given, str) and _SCALAR.fullmatch(given):
        return parse_json(given)
    return given


TYPED_TABLE = BeforeValidator(typed)
"""For types of fields: ``Annotated[dict[str, int], TYPED_TABLE]``."""
TypedTable = Annotated[dict[str, JsonValue], TYPED_TABLE]
