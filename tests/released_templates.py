"""Chat templates of released models, as TRL ships them, on small tokenizers with their special tokens.

Each is set on a small tokenizer that has the special tokens of the template. Like that of a base model it calls another
token the end of a text than the one by which the template ends a turn, unless the template's own is that token.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from tests.libs.data.chat.template.shipped import FOLDER
from tests.libs.data.learned.families import bpe
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast


class Released(NamedTuple):
    """Special tokens of one template's models."""

    end: str
    """Token that ends a turn."""
    special: tuple[str, ...]
    """Further special tokens that the template writes."""
    bos: str = "<bos>"
    eos: str = "<|endoftext|>"


_CHATML = ("<|im_start|>",)
_LLAMA = ("<|start_header_id|>", "<|end_header_id|>")
_DEEPSEEK = ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>")
_COHERE = (
    "<|START_OF_TURN_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<|SYSTEM_TOKEN|>",
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
)
RELEASED = {
    "qwen2_5": Released("<|im_end|>", _CHATML),
    "qwen3": Released("<|im_end|>", (*_CHATML, "<think>", "</think>")),
    "llama3": Released("<|eot_id|>", _LLAMA, bos="<|begin_of_text|>", eos="<|end_of_text|>"),
    "llama3_2": Released("<|eot_id|>", _LLAMA, bos="<|begin_of_text|>", eos="<|end_of_text|>"),
    "gemma3": Released("<end_of_turn>", ("<start_of_turn>",), eos="<eos>"),
    "phi3": Released("<|end|>", ("<|user|>", "<|assistant|>", "<|system|>")),
    "deepseekv3": Released(
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        _DEEPSEEK,
        bos="<\uff5cbegin\u2581of\u2581sentence\uff5c>",
        eos="<\uff5cend\u2581of\u2581sentence\uff5c>",
    ),
    "cohere": Released("<|END_OF_TURN_TOKEN|>", _COHERE, bos="<BOS_TOKEN>", eos="<EOS_TOKEN>"),
    "cohere2": Released(
        "<|END_OF_TURN_TOKEN|>", _COHERE, bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>"
    ),
    "gptoss": Released(
        "<|return|>", ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>")
    ),
    "lfm2": Released("<|im_end|>", _CHATML, bos="<|startoftext|>"),
}


@cache
def released_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer of a few hundred tokens with a released template and its special tokens."""
    released = RELEASED[name]
    tokenizer = bpe(words=True)
    words = dict.fromkeys((*released.special, released.end))
    tokenizer.add_special_tokens(
        {
            "bos_token": released.bos,
            "eos_token": released.eos,
            "additional_special_tokens": [AddedToken(word, special=True) for word in words],
        }
    )
    tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return tokenizer
