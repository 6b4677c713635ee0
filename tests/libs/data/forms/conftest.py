"""What the tests of forms share: rows as people write them, and the reading of a set."""

from collections.abc import Callable

import pytest

from rlhf_config.run import PromptData
from rlhf_data import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    StepLabelColumns,
)
from rlhf_data.forms.form import RowKind
from rlhf_data.forms.recognizing import FormedSet, formed
from rlhf_data.sources import open_source

KINDS = {
    ConversationColumns: (RowKind.CONVERSATIONS, RowKind.RESPONSES, RowKind.TEXTS),
    PairColumns: (RowKind.PAIRS,),
    LabeledColumns: (RowKind.JUDGED,),
    StepLabelColumns: (RowKind.STEPS,),
    PromptData: (RowKind.PROMPTS,),
}


@pytest.fixture
def read(write_rows) -> Callable[..., FormedSet]:
    """``read(columns, rows)``: the set of these rows, as a command with these columns opens it."""

    def run(columns, rows: list) -> FormedSet:
        path = write_rows(rows)
        return formed(open_source(path), columns, KINDS[type(columns)], spec="rows.jsonl")

    return run
