"""Chat templates as others ship them, each with a tokenizer of characters that has the template's marks as tokens."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_testing.tiny import tiny_tokenizer

FOLDER = Path(__file__).parent / "shipped"

LLAVA_1_5 = (  # writes parts alone: of a text it shows nothing
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.role | upper }}: {% endif %}"
    "{% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in m.content | selectattr('type', 'equalto', 'text') %}"
    "{% if m.role == 'assistant' %}{% generation %}{{ part.text + ' ' }}{% endgeneration %}"
    "{% else %}{{ part.text + ' ' }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)

ENDS = {
    "cohere2": "<|END_OF_TURN_TOKEN|>",
    "deepseek_r1_distill": "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "deepseekv3": "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "gemma": "<end_of_turn>",
    "gemma3": "<end_of_turn>",
    "gemma4_v5": "<turn|>",
    "glm4moe": "<|user|>",
    "gptoss": "<|return|>",
    "lfm2_v2": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "llama3_1": "<|eot_id|>",
    "llava_1_5": "</s>",
    "llava_next": "</s>",
    "mistral_v3": "</s>",
    "mistral_v7": "</s>",
    "mistral_v13": "</s>",
    "nemotron_3_nano": "<|im_end|>",
    "phi3": "<|end|>",
    "qwen2_5": "<|im_end|>",
    "qwen2_5_training": "<|im_end|>",
    "qwen2_5_vl": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3_training": "<|im_end|>",
    "qwen3_5_think": "<|im_end|>",
    "smolvlm": "<end_of_utterance>",
}
"""Name of a template -> the token that ends a turn."""

_MARKS = re.compile(
    r"<\|[^<>|{}'\" ]+\|>|<\|[a-z_]+>|<[a-z_]+\|>|<\uff5c[^<>\uff5c]+\uff5c>"
    r"|<(?:start|end)_of_[a-z]+>|\[/?[A-Z_]+\]|</s>"
)


def source_of(name: str) -> str:
    """The text of a template."""
    return LLAVA_1_5 if name == "llava_1_5" else (FOLDER / f"{name}.jinja").read_text()


def tokenizer_with(template: str, end: str = "<eos>") -> PreTrainedTokenizerBase:
    """A tokenizer of characters with a template, and with the template's marks as special tokens."""
    tokenizer = tiny_tokenizer()
    marks = sorted({end, *_MARKS.findall(template)})
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.eos_token = end
    tokenizer.chat_template = template
    return tokenizer


@cache
def renderer_of(name: str) -> TokenizerRenderer:
    """The renderer of a template."""
    return TokenizerRenderer(tokenizer_with(source_of(name), ENDS[name]))
