"""Data of a run, from files to tasks: sources, row checks, prompts as tokens, mixing, and the chat template.

Rows to learn from without rollouts come from ``load_conversations``, ``load_renderings``, ``load_pairs``,
``load_labeled_answers`` and ``load_step_labels``; the options models beside them are sections of a command's
configuration:

    tokenizer = load_tokenizer(path)
    rows = load_conversations(sets, columns, options, TokenizerRenderer(tokenizer), eos=tokenizer.eos_token_id)
"""

from rlhf_config.checks.held_out import set_names

from .answered import AnsweredChats
from .arrow_rows import WrittenRows, rows_as_written
from .chat.renderer import TokenizerRenderer
from .checked.lacking_examples import check_example_columns
from .held_out.sides import Side
from .hub import reach_hub, reaching_hub
from .learned.conversations import load_conversations
from .learned.images import used_images
from .learned.labeled import load_labeled_answers
from .learned.options import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    SequenceOptions,
    StepLabelColumns,
)
from .learned.pairs import load_pairs
from .learned.renderings.two_renderings import OtherRendering, load_renderings
from .learned.row_loader import RowLoader
from .learned.sets.example_sets import ExampleSets, HeldOutSets, load_example_sets
from .learned.sets.gathered import LearnedRows
from .learned.steps import load_step_labels
from .made.drawn_rows import draw_rows
from .tokenizer import describe_ends, end_of_turn, eos_token_ids, load_tokenizer
from .vocabulary import (
    check_rows,
    check_same_tokens,
    model_rows,
    note_other_template,
    token_difference,
    vocabulary_of,
)

__all__ = [
    "AnsweredChats",
    "ConversationColumns",
    "ExampleSets",
    "HeldOutSets",
    "LabeledColumns",
    "LearnedRows",
    "OtherRendering",
    "PairColumns",
    "RowLoader",
    "SequenceOptions",
    "Side",
    "StepLabelColumns",
    "TokenizerRenderer",
    "WrittenRows",
    "check_example_columns",
    "check_rows",
    "check_same_tokens",
    "describe_ends",
    "draw_rows",
    "end_of_turn",
    "eos_token_ids",
    "load_conversations",
    "load_example_sets",
    "load_labeled_answers",
    "load_pairs",
    "load_renderings",
    "load_step_labels",
    "load_tokenizer",
    "model_rows",
    "note_other_template",
    "reach_hub",
    "reaching_hub",
    "rows_as_written",
    "set_names",
    "token_difference",
    "used_images",
    "vocabulary_of",
]
