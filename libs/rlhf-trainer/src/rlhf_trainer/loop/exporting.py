"""The models that a finished run writes."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.long_work import log_if_long
from rlhf_core.storage.faults import fault_point
from rlhf_core.storage.writing import made_whole

from .run_kind import Export


async def export_models(exports: Sequence[Export], step: int) -> None:
    """Write the models of a run's last step.

    Raises:
        StorageError: a model could not be written; nothing of it is left, and an earlier one under its name is.
    """
    for export in exports:
        advice = "The last checkpoint has the model: --resume auto exports it"
        with made_whole(export.folder, advice=advice) as temporary:
            with log_if_long(f"writing the model to {export.folder}"):
                await export.role.export(temporary, ema=export.ema)
            fault_point("export", step)
