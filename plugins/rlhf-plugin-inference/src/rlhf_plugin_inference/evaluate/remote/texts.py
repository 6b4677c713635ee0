"""A renderer without a model: bytes are its tokens, and a chat is its contents one below the other."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_core.contracts import Message
from rlhf_data import TokenizerRenderer

MAX_PROMPT_BYTES = 2**22
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] or '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_renderer() -> TokenizerRenderer:
    """Return a renderer by which data sets are read when no tokenizer is there."""
    # Imported here: Transformers is heavy.
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TokenizerRenderer(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=_TEMPLATE)
    )


def as_text(messages: Sequence[Message]) -> str:
    """Return a conversation as text: the content alone of a single message, else each message with its role."""
    if len(messages) == 1:
        return content_of(messages[0])
    return "\n".join(f"{message.get('role')}: {content_of(message)}" for message in messages)


def content_of(message: Message) -> str:
    """Return the text of a message; of one with parts, that of its text parts."""
    content = message.get("content")
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [part if isinstance(part, str) else part.get("text", "") for part in content]
    return "".join(parts)
