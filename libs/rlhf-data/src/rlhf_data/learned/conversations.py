"""Rows to imitate: a prompt with its response, a conversation, or plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlhf_config.prompts import PromptForm
from rlhf_core.errors import DataError

from ..chat.control_words import ControlText
from ..chat.renderer import TokenizerRenderer
from ..forms.form import RowKind
from ..prompts import check_plain, plain_prompt, renderer_of_row
from ..row_images import RowImages
from ..rows import PromptFormat, RowProblem, with_system_prompt
from ..source import Row
from .chat_spans import ChatSpans
from .learned_text import LearnedText, plain_text
from .messages import (
    ASSISTANT,
    answer_of,
    answers_in,
    check_chat,
    conversation_of,
    text_of,
    tools_of,
    value_of,
)
from .options import ConversationColumns, LabeledColumns, SequenceOptions
from .row_loader import RowLoader
from .sequences import LearnedSequence, cut_to, max_tokens_of, pieces_of
from .tokens import LearnedTokens
from .weights import check_judged, check_prompt, learned_messages

_MAX_CHATS = 64
"""Finders of spans that are kept, each for other variables of the chat template."""

IMITATED = (RowKind.CONVERSATIONS, RowKind.RESPONSES, RowKind.TEXTS)
"""Kinds of rows whose answers are imitated."""


class AnswerTexts:
    """Maker of the texts of answers to a prompt, which is plain text or a chat.

    Args:
        own_words: control words that are control tokens in every answer that is plain text.
    """

    def __init__(
        self, columns: PromptForm, renderer: TokenizerRenderer, own_words: Sequence[str] = ()
    ) -> None:
        self.format = PromptFormat.of(columns)
        self.renderer = renderer
        self._own_words = frozenset(own_words)
        self._chats: dict[TokenizerRenderer, ChatSpans] = {}

    def chats(self, row: Row) -> ChatSpans:
        """Return the finder of learned spans, by the chat template with the row's variables for it.

        It is made when a chat needs it, since plain text needs no chat template.

        Raises:
            DataError: the tokenizer has no chat template.
            RowProblem: the template does not read the row's variables.
        """
        renderer = renderer_of_row(row, self.renderer)
        if renderer not in self._chats:
            if len(self._chats) >= _MAX_CHATS:
                self._chats.clear()
            self._chats[renderer] = ChatSpans(renderer)
        return self._chats[renderer]

    def answer(
        self, row: Row, answer: str, tools_key: str | None, images: RowImages
    ) -> LearnedText:
        """Return prompt and answer, of which the answer is learned.

        Raises:
            RowProblem: the row has no usable prompt or image, or has tools for a prompt that is no chat.
        """
        prompt, tools = images.prompt(row, self.format.prompt(row)), tools_of(row, tools_key)
        if isinstance(prompt, str):
            if tools is not None:
                raise RowProblem(
                    "no place for tools",
                    "the prompt is plain text, which has no place for tools. Add --data.chat",
                )
            check_plain(row, self.renderer)
            return plain_text(self._joined(row, prompt, answer), len(prompt))
        check_chat(prompt, parts=images.sees)
        messages = (*prompt, {"role": ASSISTANT, "content": answer})
        return self.chats(row).find(messages, (len(prompt),), tools)

    def _joined(self, row: Row, prompt: str, answer: str) -> ControlText:
        renderer = self.renderer
        try:
            text = plain_prompt(row, prompt, self.format, renderer)
        except DataError as error:
            raise RowProblem("control words", str(error)) from error
        return renderer.texts.joined(text, self.policy_text(answer))

    def policy_text(self, text: str) -> ControlText:
        """Return a plain text that the policy has to write, in which words that have no place in answers are text."""
        return self.renderer.answer_text(text, self._own_words)


class Conversations:
    """``RowForm`` of prompts with responses, and of whole conversations."""

    def __init__(
        self,
        columns: ConversationColumns | LabeledColumns,
        options: SequenceOptions,
        renderer: TokenizerRenderer,
    ) -> None:
        self._columns = columns
        self._options = options
        self._answers = AnswerTexts(columns, renderer)
        self._is_judged = isinstance(columns, LabeledColumns)
        self._only_last = not isinstance(columns, ConversationColumns) or columns.learn == "last"
        self._roles = columns.roles if isinstance(columns, ConversationColumns) else (ASSISTANT,)
        self.max_tokens = max_tokens_of(options)

    @property
    def columns(self) -> tuple[str, ...]:
        names, tools = self._columns, self._columns.tools_key
        found = (
            (*self._answers.format.columns, names.response_key)
            if names.messages_key is None
            else (names.messages_key,)
        )
        return found if tools is None else (*found, tools)

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of those that ask; a whole conversation is one question."""
        key = self._columns.messages_key
        return self._answers.format.columns if key is None else (key,)

    def texts(self, row: Row, images: RowImages) -> Sequence[LearnedText]:
        key, tools_key = self._columns.messages_key, self._columns.tools_key
        if key is None:
            if self._roles != (ASSISTANT,):
                raise RowProblem(
                    "roles",
                    f"--data.roles is {' '.join(self._roles)}, but of a row with a prompt and a response the response "
                    "alone is learned; put the whole conversation into a column 'messages', or leave the option out",
                )
            if not self._is_judged and not isinstance(
                prompt := self._answers.format.prompt(row), str
            ):
                check_prompt(prompt)
            answer = answer_of(row, self._columns.response_key, "response_key")
            return [self._answers.answer(row, answer, tools_key, images)]
        given = conversation_of(value_of(row, key, "messages_key"), key, parts=images.sees)
        messages = images.chat(row, with_system_prompt(given, self._columns.system_prompt))
        if self._is_judged:
            learned = answers_in(messages)[-1:]
            check_judged(messages, learned)
        else:
            learned = learned_messages(messages, only_last=self._only_last, roles=self._roles)
        return [self._answers.chats(row).find(messages, learned, tools_of(row, tools_key))]

    def sequences(self, row: Row, tokens: Sequence[LearnedTokens]) -> Iterable[LearnedSequence]:
        return [cut_to(tokens[0], self._options)]


class TextPieces:
    """``RowForm`` of plain texts for continued pre-training: all tokens but the first are learned."""

    def __init__(self, key: str, options: SequenceOptions, renderer: TokenizerRenderer) -> None:
        self._key = key
        self._options = options
        self._renderer = renderer
        self.columns: tuple[str, ...] = (key,)
        self.asked = self.columns
        self.max_tokens: int | None = None

    def texts(self, row: Row, images: RowImages) -> Sequence[LearnedText]:
        text = text_of(row, self._key, "text_key")
        check_plain(row, self._renderer)
        images.prompt(row, text)  # refuses images, which have no place in a plain text
        return [plain_text(self._renderer.texts.text(text))]

    def sequences(self, row: Row, tokens: Sequence[LearnedTokens]) -> Iterable[LearnedSequence]:
        return pieces_of(tokens[0].token_ids, self._options.max_length)


def _form_of(
    columns: ConversationColumns, options: SequenceOptions, renderer: TokenizerRenderer
) -> TextPieces | Conversations:
    if columns.text_key is not None:
        return TextPieces(columns.text_key, options, renderer)
    return Conversations(columns, options, renderer)


load_conversations = RowLoader(_form_of, IMITATED)
"""Reads rows as sequences whose action mask marks what the assistant says.

A sequence is the rendering of the whole conversation, tokenized once. Each learned turn is a turn of the sequence, from
behind the generation prompt to the token that ends the turn. Plain text is cut into pieces.
"""
