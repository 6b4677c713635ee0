"""Decision of what follows a checkpoint that could not be written."""

from __future__ import annotations

from rlhf_config.common import CheckpointConfig
from rlhf_core.errors import CheckpointError
from rlhf_core.storage.writing import reason_of


def may_skip(error: CheckpointError, options: CheckpointConfig) -> bool:
    """Return whether the run goes on: a write failed, and ``checkpoint.on_write_error`` says so."""
    cause = error.__cause__
    failed_write = cause is not None and reason_of(cause) is not None
    return failed_write and options.on_write_error == "skip"
