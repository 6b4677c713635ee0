"""Renderer between text or messages and tokens, by a tokenizer and its chat template.

The renderer finds the tokens behind the policy's turn in a stand-in conversation: it renders the conversation and cuts
it after the stand-in's answer. So the policy's own tokens are never decoded and tokenized again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...batch.task import Message
from ...contracts.executor import Answer, ChatContinuation, ControlWordUse
from ...errors import DataError
from .control_words import ControlText
from .quoting import Quotes, has_words
from .rendering import after, render_text
from .tokenizing import TextTokenizer
from .turn_words import turn_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STAND_IN = "Zx7Qv9"
"""Answer that no template contains or changes, and whose ends merge with no text of a template into one token."""

_OPENING: tuple[Message, ...] = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": _STAND_IN},
)


class TokenizerRenderer:
    """``contracts.Renderer`` for any Transformers tokenizer; chat needs a tokenizer with a chat template.

    Args:
        control_words: use of control words in observations, prompts of rows and contents of messages: ``text``, or
            ``tokens`` as the tokenizer reads them.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, control_words: ControlWordUse = "text"
    ) -> None:
        self.tokenizer = tokenizer
        self.texts = TextTokenizer(tokenizer, control_words)
        """Tokenizer of texts whose control words are known."""
        self._special = frozenset(tokenizer.all_special_ids) | {
            token for token, added in tokenizer.added_tokens_decoder.items() if added.special
        }

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens; control words in it are ordinary text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, as ``encode`` does."""
        return self.texts.encode([self.texts.text(text) for text in texts])

    def encode_prompts(self, texts: Sequence[ControlText]) -> list[list[int]]:
        """Return the tokens of plain-text prompts.

        Each starts with the special tokens that this tokenizer puts before any text (a BOS token, or none), unless the
        text has them already.
        """
        prefix = self.texts.prefix
        return [
            ids if ids[: len(prefix)] == prefix else prefix + ids
            for ids in self.texts.encode(texts)
        ]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the tokens, with no spaces removed."""
        return self.texts.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def decode_batch(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each sequence, as ``decode`` gives it; the ``tokenizers`` library uses all cores."""
        return self.texts.decode_batch(sequences, skip_special_tokens=skip_special_tokens)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of a conversation up to the policy's turn.

        Raises:
            DataError: the tokenizer has no chat template, or the template refuses these messages.
        """
        return self.texts.encode([self.chat_text(messages, tools=tools)])[0]

    def render_text(
        self,
        messages: Sequence[Message],
        *,
        reply: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return a conversation as text; with ``reply`` the text ends where the policy's turn begins.

        Args:
            tools: JSON schemas of the functions that the policy may call.

        Raises:
            DataError: the tokenizer has no chat template, or the template refuses these messages.
        """
        return render_text(self.tokenizer, messages, reply=reply, tools=tools)

    def chat_text(
        self,
        messages: Sequence[Message],
        *,
        reply: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ControlText:
        """Return a conversation as ``render_text`` does, with the places of its control tokens.

        In contents, names and tools control words are ordinary text; so are, in an answer, those that have no place in
        answers (such as ``<|im_end|>``, unlike ``<think>``).
        """
        quotes = self.quotes(messages, tools)
        if quotes is None:
            return ControlText(text=self.render_text(messages, reply=reply, tools=tools))
        text = self.render_text(
            quotes.messages(messages), reply=reply, tools=quotes.value(tools or ())
        )
        return quotes.restored(text).control_text()

    def quotes(self, *values: object) -> Quotes | None:
        """Return what replaces the control words in some messages, tools or rows; None where nothing has to be."""
        if self.texts.are_inert and has_words(values, self.texts.words):
            return Quotes(self.texts.words, self.turn_words)
        return None

    def answer_text(self, text: str, own_words: Collection[str] = ()) -> ControlText:
        """Return a text of the policy, in which only the words are ordinary text that have no place in answers.

        Args:
            own_words: further words that are control tokens.
        """
        if not self.texts.are_inert:
            return ControlText(text=text)
        inert = self.turn_words.difference(own_words)
        words = self.texts.words
        return self.texts.text(
            text, [span for span in words.find(text) if text[slice(*span)] not in inert]
        )

    @cached_property
    def turn_words(self) -> frozenset[str]:
        """Control words that have no place in an answer: those that the template writes around messages, and the
        tokens that begin and end texts."""
        return turn_words(self.tokenizer, self.texts.words)

    def render_next(
        self,
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the tokens between the policy's last turn and its next turn: the end of the turn, then ``messages``.

        Args:
            messages: the messages between the two turns.
            ended: the policy wrote an end token itself, so the template's end token is left out.
            tools: JSON schemas of the functions that the policy may call.

        Raises:
            DataError: the tokenizer has no chat template, or the template refuses the messages or hides the answer.
        """
        following = self._after_stand_in((*_OPENING, *messages), reply=True, tools=tools)
        if not ended:
            return following
        end = self._end_of_turn
        return following[len(end) :] if following[: len(end)] == end else following

    def extend(
        self,
        conversation: Sequence[Message],
        token_ids: Sequence[int],
        messages: Sequence[Message],
        *,
        ended: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        as_template: bool = False,
    ) -> ChatContinuation:
        """Return the tokens so far and those of ``render_next``."""
        following = self.render_next(messages, ended=ended, tools=tools)
        return ChatContinuation(token_ids=(*map(int, token_ids), *following))

    def parse(self, token_ids: Sequence[int], *, prompt_ids: Sequence[int] | None = None) -> Answer:
        """Return what the policy wrote in one turn."""
        return Answer(text=self.decode(token_ids))

    @cached_property
    def _end_of_turn(self) -> list[int]:
        """The template's tokens behind an answer, through the first special one; none if no token is special."""
        closing = self._after_stand_in(_OPENING, reply=False)
        for index, token in enumerate(closing):
            if token in self._special:
                return closing[: index + 1]
        return []

    def _after_stand_in(
        self,
        messages: Sequence[Message],
        *,
        reply: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> list[int]:
        """Return the tokens behind the stand-in's answer, tokenized together with the text before them."""
        chat = self.chat_text(messages, reply=reply, tools=tools)
        if chat.text.count(_STAND_IN) != 1:
            raise DataError(
                "expected a chat template that shows an assistant's answer once and as it is; this one showed it "
                f"{chat.text.count(_STAND_IN)} times. Use text observations with this model."
            )
        cut = chat.text.index(_STAND_IN) + len(_STAND_IN)
        if not self.tokenizer.is_fast:
            return self.texts.encode([after(chat, cut)])[0]
        (located,) = self.texts.locate([chat])
        if any(start < cut < end for start, end in located.spans):
            # One token holds the end of the answer and the text behind it, so the text is cut instead of the tokens.
            return self.texts.encode([after(chat, cut)])[0]
        pairs = zip(located.token_ids, located.spans, strict=True)
        return [token for token, (start, _) in pairs if start >= cut]
