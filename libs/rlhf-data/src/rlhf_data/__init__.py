"""Data of a run, from files to tasks: sources, row checks, prompts as tokens, mixing, and the chat template.

Rows to learn from without rollouts come from ``load_conversations``, ``load_renderings``, ``load_pairs``,
``load_labeled_answers`` and ``load_step_labels``; the options models beside them are sections of a command's
configuration:

    tokenizer = load_tokenizer(path)
    rows = load_conversations(sets, columns, options, TokenizerRenderer(tokenizer), eos=tokenizer.eos_token_id)
"""

from rlhf_config.checks.held_out import set_names as set_names

from .answered import AnsweredChats as AnsweredChats
from .arrow_rows import WrittenRows as WrittenRows
from .arrow_rows import rows_as_written as rows_as_written
from .chat.renderer import TokenizerRenderer as TokenizerRenderer
from .checked.lacking_examples import check_example_columns as check_example_columns
from .held_out.sides import Side as Side
from .hub import reach_hub as reach_hub
from .hub import reaching_hub as reaching_hub
from .learned.conversations import load_conversations as load_conversations
from .learned.images import used_images as used_images
from .learned.labeled import load_labeled_answers as load_labeled_answers
from .learned.options import ConversationColumns as ConversationColumns
from .learned.options import LabeledColumns as LabeledColumns
from .learned.options import PairColumns as PairColumns
from .learned.options import SequenceOptions as SequenceOptions
from .learned.options import StepLabelColumns as StepLabelColumns
from .learned.pairs import load_pairs as load_pairs
from .learned.renderings.two_renderings import OtherRendering as OtherRendering
from .learned.renderings.two_renderings import load_renderings as load_renderings
from .learned.row_loader import RowLoader as RowLoader
from .learned.sets.example_sets import ExampleSets as ExampleSets
from .learned.sets.example_sets import HeldOutSets as HeldOutSets
from .learned.sets.example_sets import load_example_sets as load_example_sets
from .learned.sets.gathered import LearnedRows as LearnedRows
from .learned.steps import load_step_labels as load_step_labels
from .made.source_rows import draw_rows as draw_rows
from .tokenizer import describe_ends as describe_ends
from .tokenizer import end_of_turn as end_of_turn
from .tokenizer import eos_token_ids as eos_token_ids
from .tokenizer import load_tokenizer as load_tokenizer
from .tokenizer import local_tokenizer as local_tokenizer
from .tokenizer import read_template as read_template
from .tokenizer import save_tokenizer as save_tokenizer
from .vocabulary import check_rows as check_rows
from .vocabulary import check_same_tokens as check_same_tokens
from .vocabulary import model_rows as model_rows
from .vocabulary import note_other_template as note_other_template
from .vocabulary import token_difference as token_difference
from .vocabulary import vocabulary_of as vocabulary_of
