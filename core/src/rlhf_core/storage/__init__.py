"""Files that are written whole or not at all, the folder of a run with the names of its files, and
that of temporary ones."""

from .temporary import TEMPORARY_VARIABLE, temporary_folder
from .writing import (
    FailedWrite,
    failed_writes_named,
    is_full,
    made_whole,
    reason_of,
    write_text_atomically,
    writing,
    written_whole,
)

__all__ = [
    "TEMPORARY_VARIABLE",
    "FailedWrite",
    "failed_writes_named",
    "is_full",
    "made_whole",
    "reason_of",
    "temporary_folder",
    "write_text_atomically",
    "writing",
    "written_whole",
]
