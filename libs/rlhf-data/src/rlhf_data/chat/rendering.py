"""Conversations as text, by a tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from rlhf_core.batch.task import Message
from rlhf_core.errors import DataError

from .control_words import ControlText, TextSpan
from .template.calls import Calls
from .template.contents import Contents
from .template.presence import Presence
from .template.problem import TemplateProblem, shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .template.limits import Rendered

Tools = Sequence[Mapping[str, Any]]


class _Size(NamedTuple):
    """Size of a conversation."""

    messages: int
    characters: int
    """Number of characters of messages and tools, as Python writes them."""

    @classmethod
    def of(cls, messages: Sequence[Message], tools: Tools | None) -> _Size:
        return cls(len(messages), len(repr(messages)) + len(repr(tools)))


class ChatTemplate:
    """Chat template of a tokenizer.

    A template is a program that came with the model: whatever it raises is a problem of the messages, and its work and
    its text have limits (``template.limits``). Once it was stopped, longer conversations are refused without a try.

    Args:
        kwargs: variables for the template beside messages and tools.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._kwargs = dict(kwargs or {})
        self._stopped: dict[_Size, str] = {}

    def text(self, messages: Sequence[Message], *, reply: bool, tools: Tools | None = None) -> str:
        """Return a conversation as text; with ``reply`` the text ends where the policy's turn begins.

        Contents and calls are given to the template in the form that it writes. What it leaves out is not looked for;
        see ``check``.

        Raises:
            DataError: the tokenizer has no chat template.
            TemplateProblem: the template refuses these messages, or a part of a content is of an unknown kind.
        """
        return self.rendered(messages, reply=reply, tools=tools).text

    def rendered(
        self, messages: Sequence[Message], *, reply: bool, tools: Tools | None = None
    ) -> Rendered:
        """Return a conversation as ``text`` does, with its errors, and the places of ``{% generation %}`` blocks."""
        if self._tokenizer.chat_template is None:
            raise DataError(
                "expected a tokenizer with a chat template for chat messages; this one has none. "
                "Use an instruction-tuned model, plain text prompts (and text observations), or --model.tokenizer with "
                "a copy that has one (rlhf template write)",
                code="template/missing",
            )
        return self._run(self.fitted(messages, tools), reply, tools)

    def check(
        self,
        messages: Sequence[Message],
        text: str,
        *,
        reply: bool,
        tools: Tools | None = None,
        first: int = 0,
    ) -> None:
        """Refuse a rendering that leaves out what the messages from index ``first`` on, or the tools, say.

        Raises:
            TemplateProblem: see ``template.presence``.
        """
        self._presence.check(messages, tools or (), text, reply=reply, first=first)

    def fitted(self, messages: Sequence[Message], tools: Tools | None) -> list[dict[str, Any]]:
        """Return messages whose contents and calls have the form that the template writes.

        Raises:
            TemplateProblem: a part of a content is of an unknown kind.
        """
        return self.contents.fitted(self._calls.fitted(messages, tools))

    @cached_property
    def contents(self) -> Contents:
        """Fitter of contents to the template."""
        return Contents(lambda chat: self._run(self._calls.fitted(chat, None), False, None).text)

    @cached_property
    def _calls(self) -> Calls:
        return Calls(lambda chat, tools: self._run(self.contents.fitted(chat), False, tools).text)

    @cached_property
    def _presence(self) -> Presence:
        return Presence(self.text)

    def _run(self, messages: Sequence[Message], reply: bool, tools: Tools | None) -> Rendered:
        if self._stopped:
            self._refuse_longer(_Size.of(messages, tools))
        try:
            return self._made(messages, reply, tools)
        except Exception as error:  # a template is a program, and raises what it will
            raise self._problem(error, messages, reply, tools) from error

    def _refuse_longer(self, size: _Size) -> None:
        """Refuse a conversation no smaller than one at which the template was stopped: each row would take as long."""
        for smaller, said in self._stopped.items():
            if smaller.messages <= size.messages and smaller.characters <= size.characters:
                raise TemplateProblem(said)

    def _made(self, messages: Sequence[Message], reply: bool, tools: Tools | None) -> Rendered:
        from transformers import PreTrainedTokenizerBase

        from .template.limits import BoundedTemplate, Rendered

        tokenizer = self._tokenizer
        chat = [dict(message) for message in messages]
        given = [dict(tool) for tool in tools] if tools else None
        if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
            # A tokenizer with a way of its own to write chats, which may be no template of Jinja.
            text: str = tokenizer.apply_chat_template(
                chat, tools=given, tokenize=False, add_generation_prompt=reply, **self._kwargs
            )
            return Rendered(text, ())
        template = BoundedTemplate(tokenizer.get_chat_template(tools=given))
        variables = {**tokenizer.special_tokens_map, **self._kwargs}
        return template.render(chat, tools=given, reply=reply, words=variables)

    def _problem(
        self, error: Exception, messages: Sequence[Message], reply: bool, tools: Tools | None
    ) -> TemplateProblem:
        from jinja2 import TemplateError

        from .template.limits import TemplateLimit

        said = shortened(error)
        if isinstance(error, TemplateLimit):
            said = f"the chat template is stopped: {said}"
            self._stopped[_Size.of(messages, tools)] = said
            return TemplateProblem(said)
        if not isinstance(error, TemplateError | ValueError | TypeError | KeyError):
            said = f"{type(error).__name__}: {said}"
        where = self._refused_message(error, messages, tools)
        return TemplateProblem(f"{where}the chat template refuses the messages: {said}")

    def _refused_message(
        self, error: Exception, messages: Sequence[Message], tools: Tools | None
    ) -> str:
        """Return the first message with which the template refuses the conversation; empty where it cannot be told."""

        def error_of(count: int) -> str | None:
            try:
                self._made(messages[:count], False, tools)
            except Exception as other:  # as in _run
                return str(other)
            return None

        fine, refused = 0, len(messages)
        while refused - fine > 1:
            middle = (fine + refused) // 2
            if error_of(middle) == str(error):
                refused = middle
            else:
                fine = middle
        # A template may want a message that comes later, which is no fault of those before.
        if not fine or error_of(fine) is not None:
            return ""
        return f"message {refused} ({shortened(messages[refused - 1].get('role'), 40)}): "


def before(chat: ControlText, end: int) -> ControlText:
    """Return the beginning of a text up to a place that is in no control word."""
    active = chat.active and tuple(span for span in chat.active if span.end <= end)
    return ControlText(text=chat.text[:end], active=active, inert=chat.inert)


def after(chat: ControlText, start: int) -> ControlText:
    """Return the rest of a text from a place on that is in no control word."""
    if chat.active is None:
        return ControlText(text=chat.text[start:])
    active = [
        TextSpan(span.start - start, span.end - start)
        for span in chat.active
        if span.start >= start
    ]
    return ControlText(text=chat.text[start:], active=tuple(active), inert=chat.inert)
