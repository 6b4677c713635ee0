"""Check of the rows of ``rlhf eval``, without a model."""

from __future__ import annotations

from rlhf_config import ResolvedOptions
from rlhf_trainer.inference import WantedSets, check_prompts

from ..serving.model_folder import found_model
from .options import EvalOptions


def check_rows(resolved: ResolvedOptions[EvalOptions]) -> None:
    """Refuse a set of which every row lacks a column.

    Raises:
        DataError: as from ``check_prompts``.
    """
    options = resolved.run
    data = options.data

    def tokenizer() -> str | None:
        if options.remote.url is not None:
            return None  # bytes are its tokens
        model = found_model(options.model)
        return model.tokenizer or model.path

    for entry in data.train:
        check_prompts(WantedSets.of("data.train", [entry], data), data, tokenizer)
