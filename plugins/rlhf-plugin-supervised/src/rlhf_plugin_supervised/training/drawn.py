"""Rows of ``data.source``, drawn into a file of the run folder before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlhf_config import ResolvedOptions
from rlhf_core import DataError
from rlhf_data import draw_rows
from rlhf_trainer.runs import RunFolder

from .options import SOURCE_SET, ExampleOptions


def with_drawn_rows(
    resolved: ResolvedOptions[Any], folder: RunFolder, *, is_resumed: bool
) -> ResolvedOptions[Any]:
    """Return a run's options, in which ``data.train`` is the file of the drawn rows if it has a ``data.source``.

    As many rows are drawn as ``data.max_samples`` says, or, if unset, as all updates take.

    Args:
        is_resumed: the run goes on with the rows that it drew at its beginning.

    Raises:
        DataError: the rows cannot be drawn, or those of a resumed run are gone.
    """
    selection = resolved.optional("data.source")
    if selection is None:
        return resolved
    run: ExampleOptions = resolved.run
    if not is_resumed:
        count = run.data.max_samples or (run.train.steps or 1) * run.train.batch_size
        draw_rows(selection.build(), selection.label, count, folder.rows)
    elif not folder.rows.exists():
        raise DataError(
            f"{folder.rows}: expected the rows that the run drew of --data.source when it began; the file is gone. Put "
            "it back, or start over with --resume restart",
            code="data/file-not-found",
        )
    data = run.data.model_copy(update={"train": (f"{SOURCE_SET}={folder.rows}",)})
    return replace(resolved, run=run.model_copy(update={"data": data}))
