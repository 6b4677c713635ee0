"""Rows of a data source, drawn into a file, for commands that go over their rows more than once, in an order of a seed.

No more than one row is in memory, and what was drawn is what a resumed run reads, whatever the source gives by then.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from rlhf_core.contracts.data.source import DataSource
from rlhf_core.errors import DataError
from rlhf_core.storage.writing import written_whole

from .source_rows import SourceRows

log = logging.getLogger(__name__)


def draw_rows(source: DataSource, who: str, count: int, path: Path) -> int:
    """Write the first rows of a source as JSON Lines, a row of the source on each line, and return their number.

    Args:
        who: words for messages: option, name, distribution and version.
        count: largest number of rows; fewer where the source ends before.
        path: the file, which is there once all rows are in it.

    Raises:
        DataError: a row cannot be read, or has a value that JSON does not carry; or there is none.
        PluginError: the source's code failed.
        StorageError: the file could not be written.
    """
    rows, drawn = SourceRows(source, who), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        for row in rows.until_end(count):
            try:
                file.write(json.dumps(row).encode() + b"\n")
            except (TypeError, ValueError, RecursionError) as error:
                raise DataError(
                    f"{rows.where(drawn)}: expected values that JSON carries in a row of {who}; {error}",
                    code="data/not-json",
                ) from error
            drawn += 1
        if not drawn:
            raise DataError(f"{who}: expected at least one row, got none", code="data/no-rows")
    log.info("data.source: the first %d rows of %s are in %s", drawn, who, path)
    return drawn
