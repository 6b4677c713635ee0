"""The reader of each command's rows, without a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlhf_config import ResolvedOptions
from rlhf_core import ConfigError
from rlhf_data import (
    RowLoader,
    check_example_columns,
    load_conversations,
    load_labeled_answers,
    load_pairs,
    load_step_labels,
    load_tokenizer,
    local_tokenizer,
    token_difference,
)
from rlhf_data import check_rows as check_vocabulary

from .imitation.distill_options import DistillOptions
from .options import ExampleOptions
from .preferences.dpo_options import is_single, losses_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LOADERS: Mapping[str, RowLoader[Any]] = {
    "sft": load_conversations,
    "distill": load_conversations,
    "rm": load_pairs,
    "prm": load_step_labels,
}


def preference_loader(resolved: ResolvedOptions[Any]) -> RowLoader[Any]:
    """Return the reader of the rows that the chosen preference loss learns from."""
    return load_labeled_answers if is_single(losses_of(resolved.selections)[0]) else load_pairs


def check_rows(resolved: ResolvedOptions[Any]) -> None:
    """Refuse sets of which every row lacks a column, or of which a row has a label that is none; and what a run finds
    as it reads the tokenizers, where they are on this machine.

    Raises:
        ConfigError: a teacher has another tokenizer.
        DataError: as from ``rlhf_data.check_example_columns``, or the chat template does not read a variable.
    """
    run: ExampleOptions = resolved.run
    loader = (
        _LOADERS[resolved.command] if resolved.command in _LOADERS else preference_loader(resolved)
    )
    check_example_columns(loader, run.data, run.data.train, run.data, run.eval)
    taught = run if isinstance(run, DistillOptions) else None
    if taught is not None and not os.path.isdir(taught.teacher.path or ""):
        taught = None
    if taught or run.data.chat_template_kwargs:
        student = local_tokenizer(run.model, run.data)
        if taught and student is not None:
            require_one_tokenizer(taught, student)


def require_one_tokenizer(run: DistillOptions, student: PreTrainedTokenizerBase) -> None:
    """Refuse a teacher whose tokens mean something else."""
    path, trusted = run.teacher.path, run.model.trust_remote_code
    assert path is not None
    teacher = load_tokenizer(path, trust_remote_code=trusted, has_option=False)
    if (difference := token_difference(student, teacher)) is not None:
        raise ConfigError(
            f"--teacher.path {path}: expected a teacher with the student's tokenizer, since its distribution is over "
            f"tokens; {difference}. Choose a teacher of the same family.",
            code="model/other-tokenizer",
        )
    resize = run.model.resize_embeddings
    check_vocabulary(student, path, "--teacher.path", resize=resize, trust_remote_code=trusted)
