"""Needs of a row of each kind, whatever the model: columns of their types, and answers that say something."""

from __future__ import annotations

from rlhf_core.batch.task import Message

from ..forms.form import RowKind
from ..learned.labeled import label_of
from ..learned.messages import answer_of, answers_in, conversation_of, text_of, value_of
from ..learned.options import (
    ConversationColumns,
    LabeledColumns,
    PairColumns,
    PromptColumns,
    StepLabelColumns,
)
from ..learned.pairs import answer_texts, are_texts, margin_of, pair_conversations, shared_messages
from ..learned.steps import labels_of, steps_of
from ..learned.weights import check_judged, learned_messages, without_weights
from ..row_images import RowImages
from ..rows import Prompt, PromptFormat, RowProblem, with_system_prompt
from ..source import Row


class AnyColumns(ConversationColumns, PairColumns, LabeledColumns, StepLabelColumns):
    """Columns of rows of any kind."""

    @classmethod
    def of(cls, columns: PromptColumns) -> AnyColumns:
        """Return the columns that options of one kind of rows name; the others are as by default."""
        shared = type(columns).model_fields.keys() & cls.model_fields.keys()
        # Not validated: a text of steps goes together with options that a text to imitate has no place for.
        return cls.model_construct(**{name: getattr(columns, name) for name in shared})


def read_structure(
    row: Row, kind: RowKind, columns: AnyColumns, format: PromptFormat, images: RowImages
) -> Prompt:
    """Return the text or the messages of a row that is as its kind has to be: its prompt, or what is learned of.

    Columns are read in the order in which a run reads them, so that both name the same one of several that are missing.

    Args:
        format: format of the prompts, with the column that ``columns`` names.

    Raises:
        RowProblem: something is missing, or cannot be used.
    """
    if kind is RowKind.PAIRS:
        margin_of(row, columns.margin_key)
    match kind:
        case RowKind.TEXTS:
            return text_of(row, columns.text_key or "text", "text_key")
        case RowKind.CONVERSATIONS:
            messages = _conversation(row, columns, images)
            learned_messages(messages, roles=columns.roles)
            return messages
        case RowKind.JUDGED:
            label_of(row, columns.label_key)
            if columns.messages_key is not None:
                messages = _conversation(row, columns, images)
                check_judged(messages, answers_in(messages)[-1:])
                return messages
            answer_of(row, columns.response_key, "response_key")
        case RowKind.RESPONSES:
            prompt = format.prompt(row)
            answer_of(row, columns.response_key, "response_key")
            return images.prompt(row, prompt)
        case RowKind.PAIRS if not are_texts(row, columns):
            both = pair_conversations(row, columns, images)
            shared = shared_messages(*map(without_weights, both))
            for one in both:
                check_judged(one, answers_in(one, start=shared))
            return both[0][:shared]
        case RowKind.PAIRS:
            answer_texts(row, columns)
        case RowKind.STEPS:
            labels = labels_of(row, columns.labels_key)
            if columns.text_key is not None:
                return images.prompt(row, text_of(row, columns.text_key, "text_key"))
            steps = steps_of(row, columns.steps_key)
            if len(steps) != len(labels):
                raise RowProblem(
                    "step counts",
                    f"expected a label for each of the {len(steps)} steps; column {columns.labels_key!r} has "
                    f"{len(labels)}",
                )
    return images.prompt(row, format.prompt(row))


def _conversation(row: Row, columns: AnyColumns, images: RowImages) -> tuple[Message, ...]:
    key = columns.messages_key or "messages"
    given = conversation_of(value_of(row, key, "messages_key"), key, parts=images.sees)
    return images.chat(row, with_system_prompt(given, columns.system_prompt))
