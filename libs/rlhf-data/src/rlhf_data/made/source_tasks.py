"""Tasks of a run whose rows come from a data source."""

from __future__ import annotations

from rlhf_config.run import RunConfig
from rlhf_core.media.reader import ImageReader

from ..chat.renderer import TokenizerRenderer
from .prompts import PromptReader
from .source_rows import SourceRows
from .splits import TRAIN
from .tasks import MadePart, MadeTasks


def source_tasks(
    run: RunConfig,
    rows: SourceRows,
    renderer: TokenizerRenderer,
    images: ImageReader | None = None,
) -> MadeTasks:
    """Return the training tasks of a source's rows. An epoch has ``data.max_samples`` of them, or, if unset,
    ``rollout.batch_size``."""
    part = MadePart(environment="", share=1.0, rows=rows, dataset=TRAIN)
    return MadeTasks(
        [part],
        run.data.max_samples or run.rollout.batch_size,
        prompts=PromptReader(run.data, renderer, images, every=True),
    )
