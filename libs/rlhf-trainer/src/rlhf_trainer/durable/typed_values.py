"""Values of a saved file as the dataclass that describes them: each has its type, or the file is damaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rlhf_core.errors import CheckpointError

SHOWN = 200
"""Most characters of a wrong value in an error."""

ValuesT = TypeVar("ValuesT")


def typed(form: type[ValuesT], values: Mapping[str, Any]) -> ValuesT:
    """Return the values that JSON gave as a dataclass; those that it has no field for are left out.

    Raises:
        CheckpointError: a value is missing or of another type.
    """
    names = form.__dataclass_fields__  # type: ignore[attr-defined]
    own = {name: value for name, value in values.items() if name in names}
    try:
        # As JSON, where a list is a tuple's form too; strict, since 3 is neither "3" nor true.
        return TypeAdapter(form).validate_json(json.dumps(own), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        came = "" if first["type"] == "missing" else f"; got {first['input']!r}"[:SHOWN]
        raise CheckpointError(
            f"{place!r} is damaged: {first['msg']}{came}", code="checkpoint/damaged"
        ) from error
