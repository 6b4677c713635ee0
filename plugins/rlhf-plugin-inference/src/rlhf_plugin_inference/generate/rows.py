"""Check of the rows of ``rlhf generate``, without a model."""

from __future__ import annotations

from rlhf_config import ResolvedOptions
from rlhf_trainer.inference import WantedSets, check_prompts

from .options import GenerateOptions


def check_rows(resolved: ResolvedOptions[GenerateOptions]) -> None:
    """Refuse sets of which every row lacks a column.

    Raises:
        DataError: as from ``check_prompts``.
    """
    data, model = resolved.run.data, resolved.run.model
    wanted = WantedSets.of("data.train", data.train, data)
    check_prompts(wanted, data, lambda: model.tokenizer or model.path)
