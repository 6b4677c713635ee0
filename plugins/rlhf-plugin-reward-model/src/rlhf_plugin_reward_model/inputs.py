"""Token ids for a reward model, from a sample's tokens, its text, or its row's chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_core import ConfigError, DataError, RewardError
from rlhf_core.contracts import RewardRequest
from rlhf_core.media import ProcessorText, image_parts
from rlhf_data import AnsweredChats, TokenizerRenderer

from .ends import SequenceEnd


class ScoredInputs:
    """Maker of the token ids that one reward model scores.

    Args:
        tokenizer: the model's.
        end: what ends its sequences.
        writing: text of the model's processor around images; None: the model reads text alone.
        template_kwargs: variables for the model's chat template.

    Raises:
        ConfigError: the model's chat template does not read such a variable.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end: SequenceEnd,
        writing: ProcessorText | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._end = end
        try:
            self._renderer = (
                TokenizerRenderer(tokenizer, template_kwargs=template_kwargs)
                if writing is None
                else TokenizerRenderer(tokenizer, template_kwargs=template_kwargs, writing=writing)
            )
        except DataError as error:
            raise ConfigError(
                f"the reward model's {error}", code="reward-model/other-tokens"
            ) from error

    def sampled(self, token_ids: Sequence[int], prompt: str) -> Sequence[int]:
        """Return a sample's own tokens, with the end at which the model scores.

        Args:
            prompt: text of the policy's prompt.

        Raises:
            RewardError: the reward model's tokenizer decodes the prompt's tokens to another text than the policy's.
        """
        read = _decoded(token_ids, self._tokenizer)
        if not read.startswith(prompt):
            raise RewardError(
                f"with the reward model's tokenizer the sampled tokens read {_short(read)}; the policy's prompt is "
                f"{_short(prompt)}. They have different tokenizers, so score text: input = text or chat",
                code="reward-model/other-tokens",
            )
        return self._end.ended(token_ids)

    def text(self, text: str) -> Sequence[int]:
        """Return the tokens of a text that shows its special tokens, with exactly one end token.

        Padding and end tokens at both ends of the text are removed first, so that they make no difference.
        """
        words = self._end.words
        text = self._end.without(text)
        while words and text.startswith(words):
            text = next(text.removeprefix(word) for word in words if text.startswith(word))
        ids, end = _encoded(text, self._tokenizer), self._end.text_end
        return ids if end is None else [*ids, end]

    def chat(self, request: RewardRequest, messages_key: str) -> Sequence[int]:
        """Return the tokens of the row's prompt and the response, as one conversation in the model's chat template.

        Images of the prompt are left out: the model reads text alone.

        Args:
            messages_key: column of the row with the prompt, as text or as chat messages.

        Raises:
            RewardError: the column has no prompt, the tokenizer has no template, or the template refuses the messages
                or leaves out what one of them says.
        """
        prompt = map(_without_images, chat_messages(request, messages_key))
        return self.conversation([*prompt, {"role": "assistant", "content": request.response}])

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Return the tokens of a conversation in the model's chat template, through the end of the last turn where the
        score is read there.

        Raises:
            RewardError: the tokenizer has no template, or the template refuses the messages or leaves out what one of
                them says.
        """
        conversation = [*map(dict, messages)]
        if not self._end.at_end:
            try:
                shown = self._renderer.chat_text(conversation, reply=False)
            except DataError as error:
                raise RewardError(
                    f"the conversation in the reward model's own chat template: {error} Use input = text, or name "
                    "another tokenizer with tokenizer",
                    code="reward-model/conversation",
                ) from error
            return self._renderer.texts.encode([shown])[0]
        try:
            ids = self._answered.tokens(conversation)
        except DataError as error:
            raise RewardError(
                f"the end of the conversation's last turn, where the reward model scores, cannot be told: {error}",
                code="reward-model/other-tokens",
            ) from error
        return self._end.ended(ids)

    @cached_property
    def _answered(self) -> AnsweredChats:
        return AnsweredChats(self._renderer)


def chat_messages(request: RewardRequest, messages_key: str) -> list[Mapping[str, Any]]:
    """Return the prompt in a column of the row as chat messages.

    Raises:
        RewardError: the column has no prompt.
    """
    prompt = request.row.get(messages_key)
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if not isinstance(prompt, list) or not all(isinstance(entry, Mapping) for entry in prompt):
        raise RewardError(
            f"column {messages_key!r} of the row holds {_short(repr(prompt))}; expected text or chat messages. "
            f"messages_key names the column with the prompt; there are: {', '.join(request.row) or 'none'}",
            code="data/wrong-type",
        )
    return prompt


def _without_images(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose content, if it has images among its parts, is the text of the others."""
    if not any(image_parts([message])):
        return dict(message)
    parts = message["content"]
    texts = [part if isinstance(part, str) else part.get("text") or "" for part in parts]
    return {**message, "content": "".join(texts)}


def _encoded(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return ids


def _decoded(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        text: Any = tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
    except (OverflowError, TypeError, KeyError, IndexError) as error:
        raise RewardError(
            f"the reward model's tokenizer cannot read the policy's tokens ({error}); score text: "
            "input = text or chat",
            code="reward-model/other-tokens",
        ) from error
    return str(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "...")
