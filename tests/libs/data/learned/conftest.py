"""What the tests of rows to learn from share: the loaders with a tokenizer of characters and Qwen3's template."""

from collections.abc import Callable

import pytest
from tests.libs.data.learned.families import renderer_of

from rlhf_data import (
    ConversationColumns,
    LabeledColumns,
    LearnedRows,
    PairColumns,
    SequenceOptions,
    StepLabelColumns,
    load_conversations,
    load_labeled_answers,
    load_pairs,
    load_step_labels,
)

LOADERS = {
    ConversationColumns: load_conversations,
    LabeledColumns: load_labeled_answers,
    PairColumns: load_pairs,
    StepLabelColumns: load_step_labels,
}


@pytest.fixture
def load(write_rows) -> Callable[..., LearnedRows]:
    """``load(columns, rows, max_length=..)``: rows through a file and the loader of these columns."""

    def run(columns, rows: list, *, family: str = "qwen2", kind: str = "characters", **options):
        renderer = renderer_of(family, kind)
        return LOADERS[type(columns)](
            [write_rows(rows)],
            columns,
            SequenceOptions(**options),
            renderer,
            eos=renderer.tokenizer.eos_token_id,
        )

    return run


@pytest.fixture
def shown() -> Callable[..., list[str]]:
    """``shown(rows, row)``: a sequence as text, with its learned turns in brackets."""

    def run(rows: LearnedRows, row: int, *, family: str = "qwen2", kind: str = "characters") -> str:
        tokenizer = renderer_of(family, kind).tokenizer
        columns = rows.columns
        start, end = columns.token_offsets[row : row + 2]
        ids, mask = columns.token_ids[start:end].tolist(), columns.action_mask[start:end].tolist()
        text, learned = "", False
        for token, is_learned in zip(ids, mask, strict=True):
            text += "" if is_learned == learned else "[" if is_learned else "]"
            text += tokenizer.decode([token])
            learned = is_learned
        return text + "]" * learned

    return run
