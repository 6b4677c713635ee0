"""Files that a run writes beside its records: exported models, and checkpoints that may fail."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_config.common import CheckpointConfig
from rlhf_core.errors import CheckpointError
from rlhf_core.storage.faults import fault_point
from rlhf_core.storage.writing import made_whole, reason_of

from .course import Export


async def export_models(exports: Sequence[Export], step: int) -> None:
    """Write the models of a run's last step.

    Raises:
        StorageError: a model could not be written; nothing of it is left, and an earlier one under its name is.
    """
    for export in exports:
        advice = "The last checkpoint has the model: --resume auto exports it"
        with made_whole(export.folder, advice=advice) as temporary:
            await export.role.export(temporary, ema=export.ema)
            fault_point("export", step)


def may_skip(error: CheckpointError, options: CheckpointConfig) -> bool:
    """Return whether the run goes on: a write failed, and ``checkpoint.on_write_error`` says so."""
    cause = error.__cause__
    failed_write = cause is not None and reason_of(cause) is not None
    return failed_write and options.on_write_error == "skip"
