"""Renderer between text or messages and tokens, by a tokenizer and its chat template.

The renderer finds the tokens behind the policy's turn in a stand-in conversation: it renders the conversation and cuts
it after the stand-in's answer. So the policy's own tokens are never decoded and tokenized again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...batch.task import Message
from ...contracts.executor import Answer, ChatContinuation
from ...errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STAND_IN = "Zx7Qv9"
"""Answer that no template contains or changes, and whose ends merge with no text of a template into one token."""

_OPENING: tuple[Message, ...] = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": _STAND_IN},
)


class TokenizerRenderer:
    """``contracts.Renderer`` for any Transformers tokenizer; chat needs a tokenizer with a chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids) | {
            token for token, added in tokenizer.added_tokens_decoder.items() if added.special
        }
        self._prefix = _leading_special_tokens(tokenizer)
        self._decodes_plainly = _decodes_plainly(tokenizer)
        self._end_of_turn: list[int] | None = None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without special tokens."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(
            list(texts),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return ids

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of plain-text prompts.

        Each starts with the special tokens that this tokenizer puts before any text (a BOS token, or none), unless the
        text has them already.
        """
        prefix = self._prefix
        return [
            ids if ids[: len(prefix)] == prefix else prefix + ids
            for ids in self.encode_batch(texts)
        ]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the tokens, with no spaces removed."""
        text: str = self.tokenizer.decode(
            token_ids,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text

    def decode_batch(
        self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        """Return the text of each sequence, as ``decode`` gives it; the ``tokenizers`` library uses all cores."""
        if not self._decodes_plainly:
            return [self.decode(one, skip_special_tokens=skip_special_tokens) for one in sequences]
        backend = self.tokenizer.backend_tokenizer
        texts: list[str] = backend.decode_batch(
            list(sequences), skip_special_tokens=skip_special_tokens
        )
        return texts

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of a conversation up to the policy's turn.

        Raises:
            DataError: the tokenizer has no chat template, or the template refuses these messages.
        """
        return self.encode(self.render_text(messages, tools=tools))

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
        from jinja2 import TemplateError

        if self.tokenizer.chat_template is None:
            raise DataError(
                "expected a tokenizer with a chat template for chat messages; this one has none. "
                "Use an instruction-tuned model, or plain text prompts (and text observations)."
            )
        try:
            text: str = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                tokenize=False,
                add_generation_prompt=reply,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise DataError(f"the chat template refuses the messages: {error}") from error
        return text

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
        if self._end_of_turn is None:
            self._end_of_turn = self._find_end_of_turn()
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

    def _find_end_of_turn(self) -> list[int]:
        """Return the template's tokens behind an answer, through the first special one; none if no token is special."""
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
        text = self.render_text(messages, reply=reply, tools=tools)
        if text.count(_STAND_IN) != 1:
            raise DataError(
                "expected a chat template that shows an assistant's answer once and as it is; this one showed it "
                f"{text.count(_STAND_IN)} times. Use text observations with this model."
            )
        cut = text.index(_STAND_IN) + len(_STAND_IN)
        if not self.tokenizer.is_fast:
            return self.encode(text[cut:])
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        pairs = list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))
        if any(start < cut < end for _, (start, end) in pairs):
            # One token holds the end of the answer and the text behind it, so the text is cut instead of the tokens.
            return self.encode(text[cut:])
        return [token for token, (start, _) in pairs if start >= cut]


def _decodes_plainly(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether ``decode`` is that of the ``tokenizers`` library.

    This is not so for a tokenizer written in Python, nor for a class that changes the result of decoding.
    """
    from transformers import PreTrainedTokenizerFast

    return isinstance(tokenizer, PreTrainedTokenizerFast) and all(
        getattr(type(tokenizer), name) is getattr(PreTrainedTokenizerFast, name)
        for name in ("decode", "_decode")
    )


def _leading_special_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the special tokens that the tokenizer puts before any text."""
    plain: list[int] = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
    whole: list[int] = tokenizer("a", add_special_tokens=True, verbose=False)["input_ids"]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start]
    return []
