"""The right answer of a sample, from its data row."""

from __future__ import annotations

import difflib
from typing import Any

from rlhf_core import RewardError
from rlhf_core.contracts import RewardRequest


def label_of(request: RewardRequest, key: str) -> Any:
    """Return column ``key`` of the sample's row.

    Raises:
        RewardError: the row has no such column, or the column is empty (None); the message lists the columns.
    """
    if (label := request.row.get(key)) is not None:
        return label
    if key in request.row:
        raise RewardError(
            f"column {key!r} of this row is empty; expected the right answer",
            code="reward/unusable-label",
        )
    near = difflib.get_close_matches(key, request.row, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    columns = ", ".join(request.row) or "none"
    raise RewardError(
        f"this row has no column {key!r}, from which label_key takes the right answer.{hint} Columns: {columns}",
        code="data/missing-column",
    )
