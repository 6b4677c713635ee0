"""Renderer between text or messages and tokens, by a tokenizer and its chat template.

The renderer finds the tokens behind the policy's turn in a stand-in conversation: it renders the conversation and cuts
it after the stand-in's answer. So the policy's own tokens are never decoded and tokenized again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

from rlhf_core.batch.task import Message
from rlhf_core.contracts.executor import Answer, ChatContinuation, ControlWordUse
from rlhf_core.errors import DataError
from rlhf_core.media.processor_text import NOTHING, ProcessorText

from .control_words import ControlText, template_text
from .parsing.families import calls_of, thoughts_of
from .parsing.parser import AnswerParser
from .quoting import Quotes, has_words
from .rendering import ChatTemplate
from .template_kwargs import TemplateKwargs, check_kwargs, refuse_words
from .tokenizing import TextTokenizer
from .turn_words import turn_words
from .turns import ChatTurns, first_difference

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

_MAX_OTHERS = 64
"""Renderers that one keeps for other variables of the template."""


class RenderOptions(Protocol):
    """Options of a section ``data`` by which texts and messages become tokens."""

    @property
    def control_words(self) -> ControlWordUse: ...

    @property
    def chat_template_kwargs(self) -> dict[str, Any]: ...


class TokenizerRenderer:
    """``contracts.Renderer`` for any Transformers tokenizer; chat needs a tokenizer with a chat template.

    Args:
        control_words: use of control words in observations, prompts of rows and contents of messages: ``text``, or
            ``tokens`` as the tokenizer reads them.
        template_kwargs: variables for the chat template, such as ``enable_thinking``.
        texts: tokenizer of texts that another renderer has made; None: one of its own, with ``control_words``.
        writing: text of the model's processor around images.

    Raises:
        DataError: the chat template does not read such a variable, or its value has a control word.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        control_words: ControlWordUse = "text",
        template_kwargs: TemplateKwargs | None = None,
        texts: TextTokenizer | None = None,
        writing: ProcessorText = NOTHING,
    ) -> None:
        if template_kwargs:
            special = tokenizer.special_tokens_map
            check_kwargs(template_kwargs, template_text(tokenizer) or None, special)
        self.tokenizer = tokenizer
        self.writing = writing
        self.texts = TextTokenizer(tokenizer, control_words) if texts is None else texts
        """Tokenizer of texts whose control words are known."""
        self.decode = self.texts.decode
        self.decode_batch = self.texts.decode_batch
        self.template_kwargs = dict(template_kwargs or {})
        """Variables for the chat template."""
        if self.texts.are_inert:
            refuse_words(self.template_kwargs, self.texts.words)
        self.template = ChatTemplate(tokenizer, self.template_kwargs)
        """Chat template of the tokenizer."""
        self._others: dict[str, Self] = {}
        """Renderers with further variables, by their JSON."""
        self._has_warned = False
        self._turns = ChatTurns(self._shown, self.template, self.texts)

    @classmethod
    def by(
        cls,
        data: RenderOptions,
        tokenizer: PreTrainedTokenizerBase,
        writing: ProcessorText = NOTHING,
    ) -> Self:
        """Return the renderer that a run's options describe.

        Args:
            writing: text of the model's processor around images.
        """
        return cls(
            tokenizer,
            control_words=data.control_words,
            template_kwargs=data.chat_template_kwargs,
            writing=writing,
        )

    def with_template_kwargs(self, kwargs: TemplateKwargs) -> Self:
        """Return the renderer that gives the chat template these variables too, those of its own name replaced.

        Raises:
            DataError: the chat template does not read one of them, or its value has a control word.
        """
        if not kwargs:
            return self
        key = json.dumps(kwargs, sort_keys=True, default=repr)
        if key not in self._others:
            # What is learned of a template, such as where turns end, is learned for its variables: another object.
            made = type(self)(
                self.tokenizer,
                template_kwargs={**self.template_kwargs, **kwargs},
                texts=self.texts,
                writing=self.writing,
            )
            if len(self._others) >= _MAX_OTHERS:
                self._others.clear()
            self._others[key] = made
        return self._others[key]

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

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of a conversation up to the policy's turn.

        Raises:
            DataError: as from ``chat_text``.
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

        What the template leaves out is not looked for.

        Args:
            tools: JSON schemas of the functions that the policy may call.

        Raises:
            DataError: the tokenizer has no chat template, or the template refuses these messages.
        """
        return self.writing.written(self.template.text(messages, reply=reply, tools=tools))

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

        Raises:
            DataError: the tokenizer has no chat template; the template refuses these messages, or leaves out what one
                of them, or a tool, says.
        """
        chat = self._shown(messages, reply=reply, tools=tools)
        self.template.check(messages, chat.text, reply=reply, tools=tools)
        return chat

    def _shown(
        self,
        messages: Sequence[Message],
        *,
        reply: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ControlText:
        """Return a conversation as ``chat_text`` does, whatever the template leaves out of it."""
        quotes = self.quotes(messages, tools)
        if quotes is None:
            if not (self.texts.are_inert or self._has_warned):
                self._warn_of_rendered(messages)
            return ControlText(text=self.render_text(messages, reply=reply, tools=tools))
        text = self.render_text(
            quotes.messages(messages), reply=reply, tools=quotes.value(tools or ())
        )
        return quotes.restored(text).control_text()

    def _warn_of_rendered(self, messages: Sequence[Message]) -> None:
        """Say of the first messages with marks of turns, which are control tokens, that the template adds its own."""
        marks = self.turn_words.intersection(self.texts.words.names(repr(messages)))
        if marks:
            self._has_warned = True
            log.warning(
                "--data.control_words tokens: a message has %s in its text, as if a chat template had rendered it, and "
                "the run's will render it a second time: %.80r. Leave --data.chat out, or give messages without them",
                " ".join(sorted(marks)),
                messages[-1].get("content"),
            )

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

    def leaves_marks_out(self, template: str | None) -> bool:
        """Return whether plain text in ``data.template`` lacks the control words that the chat template writes around
        messages, as that of a model for conversations does."""
        if not self.texts.are_inert or self.texts.words.names(template or ""):
            return False
        return bool(self.turn_words - self.texts.words.structural)

    @cached_property
    def turn_words(self) -> frozenset[str]:
        """Control words that have no place in an answer: those that the template writes around messages, and the
        tokens that begin and end texts."""
        return turn_words(self.template, self.tokenizer, self.texts.words)

    def render_next(
        self, messages: Sequence[Message], *, ended: bool, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens between the policy's last turn and its next turn: the end of the turn, then ``messages``.

        Args:
            messages: the messages between the two turns.
            ended: the policy wrote an end token itself, so the template's end token is left out.
            tools: JSON schemas of the functions that the policy may call.

        Raises:
            DataError: the tokenizer has no chat template, or the template refuses the messages or hides the answer.
        """
        return self._turns.between((), messages, ended=ended, tools=tools).token_ids

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
        """Return the tokens of the policy's next turn; see ``contracts.Renderer.extend``.

        With ``as_template`` the turn forks where the template shows the conversation in other words than the tokens so
        far; other tokens of the same words, and other blanks, are no fork. To tell this the template shows all of it,
        at a cost that grows with the conversation; without ``as_template`` it shows the end alone where this is proved
        to be enough.

        Raises:
            DataError: as from ``render_next``.
        """
        made = self._turns.between(
            conversation, messages, ended=ended, tools=tools, sampled=token_ids
        )
        kept = ChatContinuation(token_ids=(*token_ids, *made.token_ids), showed_all=made.showed_all)
        if not as_template:
            return kept
        # What comes new was looked for. What the policy wrote is the template's to show: this is what a fork is for.
        again = self.texts.encode([self._shown([*conversation, *messages], tools=tools)])[0]
        texts = self.decode_batch([kept.token_ids, again], skip_special_tokens=False)
        difference = first_difference(*texts)
        if difference is None:
            return kept
        return replace(kept, token_ids=tuple(again), forked=True, reason=difference)

    def parse(
        self,
        token_ids: Sequence[int],
        *,
        prompt_ids: Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        """Return what the policy wrote in one turn; see ``contracts.Renderer.parse``."""
        return self._parser.parse(token_ids, prompt_ids, tools)

    @property
    def end_of_turn(self) -> list[int]:
        """The template's tokens behind an answer, through the one that ends a turn; none if no token is special."""
        return self._turns.end_of_turn

    @property
    def closing(self) -> list[int]:
        """The tokens with which the policy ends a turn: ``end_of_turn``, or, of a template that ends none, the special
        token by which the user's next turn begins; none if there is neither.

        Source: the fine-tuning script of GLM-4, which learns ``<|user|>`` behind the last answer.
        """
        return self._turns.end_of_turn or self._turns.next_opening

    @property
    def end_of_calls(self) -> list[int]:
        """The token with which the policy ends a turn of calls of tools, where it is none of ``closing``; see
        ``ChatTurns.end_of_calls``."""
        return self._turns.end_of_calls

    @cached_property
    def generation_prompt(self) -> str:
        """Text that the template writes at the start of the policy's turn; empty if it cannot be determined."""
        if self.tokenizer.chat_template is None:
            return ""
        probe: tuple[Message, ...] = ({"role": "user", "content": "Hello"},)
        try:
            opened, closed = (self.render_text(probe, reply=reply) for reply in (True, False))
        except DataError:
            return ""
        return opened[len(closed) :] if opened.startswith(closed) else ""

    @cached_property
    def _parser(self) -> AnswerParser:
        words, template = self.texts.words.ids, template_text(self.tokenizer)
        thoughts = thoughts_of(words, template)
        prompt = self.generation_prompt
        return AnswerParser(
            words,
            self.decode,
            thoughts=thoughts,
            calls=calls_of(words, template),
            ends=frozenset(words[word] for word in self.turn_words if word in words),
            opens_thought=thoughts is not None
            and prompt.rfind(thoughts.begin) > prompt.rfind(thoughts.end),
        )
