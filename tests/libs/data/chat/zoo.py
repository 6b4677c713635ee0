"""Tokenizers and chat templates of the kinds that models have, made here, each a few hundred tokens.

The templates do what those of the models do, in words of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from rlhf_core.contracts import ControlWordUse
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_testing.tiny import tiny_tokenizer

CORPUS = [
    "user\nassistant\n\nsystem tool_response What is this? Sure? And now?\n The answer is 4, I think. "
    * 2,
    '{"name": "add", "arguments": {"a": 12, "b": 30}}\n{"type": "function", "parameters": {}} ' * 2,
    "import os\nfor i in range(10):\n    print(i)\n\n\n true false null é ü 漢字 😀 " * 2,
]

_TOOLS = "{% if tools %}Tools:\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
_CALL_JSON = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = (
    "<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% else %}You are kind.{% endif %}{% if tools %}\n# Tools\n<tools>\n{% for t in tools %}{{ t | tojson }}\n"
    '{% endfor %}</tools>\nCall one with <tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}'
    "<|im_end|>\n{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant{% if m.content %}{{ '\\n' + m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '\\n' }}<tool_call>\n"
    + _CALL_JSON
    + "\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user"
    "{% endif %}\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = (
    "{% if tools %}<|im_start|>system\n" + _TOOLS + "<|im_end|>\n{% endif %}"
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{% set content = m.content or '' %}{% set thought = m.reasoning_content or '' %}"
    "{% if '</think>' in content %}{% set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "<think>\n{{ thought.strip('\\n') }}\n</think>\n\n{{ content.lstrip('\\n') }}{% else %}{{ content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% if content or not loop.first %}\n{% endif %}<tool_call>\n"
    + _CALL_JSON
    + "\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user"
    "{% endif %}\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENED_THOUGHT = (  # the generation prompt begins the thought, which history never has
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% if tools %}<|start_header_id|>system<|end_header_id|>\n\n"
    + _TOOLS
    + "<|eot_id|>{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>'
    "{% else %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (  # tools stand before the last message of the user, so they move with every turn
    "{{ bos_token }}{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if tools and loop.index0 == ns.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% elif m.tool_calls %}[TOOL_CALLS][{% for c in m.tool_calls %}"
    + _CALL_JSON
    + "{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}"
    "{% else %}{{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
REWRITING = (  # the number of messages stands at the beginning, so every turn rewrites the prompt
    "[{{ messages | length }}]{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<\uff5cUser\uff5c>{{ m.content }}"
    "{% elif m.role == 'tool' %}<\uff5ctool▁outputs▁begin\uff5c><\uff5ctool▁output▁begin\uff5c>{{ m.content }}"
    "<\uff5ctool▁output▁end\uff5c><\uff5ctool▁outputs▁end\uff5c>"
    "{% elif m.role == 'assistant' %}<\uff5cAssistant\uff5c>{{ (m.content or '').split('</think>')[-1] }}"
    "{% if m.tool_calls %}<\uff5ctool▁calls▁begin\uff5c>{% for c in m.tool_calls %}<\uff5ctool▁call▁begin\uff5c>"
    "function<\uff5ctool▁sep\uff5c>{{ c.function.name }}\n```json\n{{ c.function.arguments | tojson }}\n```"
    "<\uff5ctool▁call▁end\uff5c>{% endfor %}<\uff5ctool▁calls▁end\uff5c>{% endif %}{{ eos_token }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<\uff5cAssistant\uff5c>{% endif %}"
)

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]

_CHAT_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_MARKS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_DEEPSEEK = tuple(
    f"<\uff5c{name}\uff5c>"
    for name in (
        "User",
        "Assistant",
        *(
            f"tool▁{what}▁{end}"
            for what in ("calls", "call", "outputs", "output")
            for end in ("begin", "end")
        ),
        "tool▁sep",
    )
)


class Kind(NamedTuple):
    """A tokenizer with its template."""

    make: Callable[[], PreTrainedTokenizerFast]
    template: str
    special: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    """Added tokens that are not special."""
    end: str = "<eos>"
    """Token that ends an answer."""
    bos: str = "<bos>"


def _wrapped(tokenizer: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **({"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"} | names),
    )


def byte_level(*, prefix_space: bool = False, regex: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=prefix_space, use_regex=regex
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=450,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _wrapped(tokenizer)


def unigram() -> PreTrainedTokenizerFast:
    """Pieces with a space before the text, as sentencepiece writes them; its control pieces are in the vocabulary."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.UnigramTrainer(
        vocab_size=230,
        special_tokens=["<pad>", "<bos>", "<eos>", "<unk>"],
        unk_token="<unk>",
        initial_alphabet=[chr(code) for code in range(33, 127)] + ["\n"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _wrapped(tokenizer, unk_token="<unk>")


def piece_bpe() -> PreTrainedTokenizerFast:
    """Byte-pair pieces with a space before every text and bytes for what is unknown, as Llama 2 has them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<pad>", "<bos>", "<eos>"],
        initial_alphabet=[chr(code) for code in range(33, 127)] + ["\n"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [line[start : start + 9] for line in CORPUS for start in range(0, 90, 9)], trainer
    )
    described = json.loads(tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    return _wrapped(Tokenizer.from_str(json.dumps(described)), unk_token="<unk>")


def whole_words() -> PreTrainedTokenizerFast:
    """Words between blanks; everything else is unknown. Control words are in the vocabulary too."""
    words = dict.fromkeys(word for line in CORPUS for word in line.split())
    names = ["<pad>", "<bos>", "<eos>", "<unk>", *words, "\n"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(names)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrapped(tokenizer, unk_token="<unk>")


def doubled_start() -> PreTrainedTokenizerFast:
    """Byte-level pairs of a tokenizer that puts a start token before any text, which its template writes too."""
    made = byte_level()
    token = made.convert_tokens_to_ids("<bos>")
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", token)]
    )
    return made


KINDS = {
    "chatml": Kind(byte_level, CHATML, _CHAT_TOKENS, end="<|im_end|>"),
    "hermes": Kind(byte_level, HERMES, _CHAT_TOKENS, _MARKS, end="<|im_end|>"),
    "thinking": Kind(byte_level, THINKING, _CHAT_TOKENS, _MARKS, end="<|im_end|>"),
    "opened thought": Kind(
        lambda: byte_level(regex=False),
        OPENED_THOUGHT,
        _CHAT_TOKENS,
        ("<think>", "</think>"),
        end="<|im_end|>",
    ),
    "llama3": Kind(
        doubled_start,
        LLAMA3,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "<|eom_id|>"),
        end="<|eot_id|>",
    ),
    "mistral": Kind(
        piece_bpe,
        MISTRAL,
        (
            "[INST]",
            "[/INST]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
        ),
    ),
    "unigram": Kind(unigram, ZEPHYR),
    "words": Kind(whole_words, GEMMA, ("<start_of_turn>", "<end_of_turn>"), end="<end_of_turn>"),
    "spaced": Kind(lambda: byte_level(prefix_space=True), ZEPHYR),
    "rewriting": Kind(byte_level, REWRITING, _CHAT_TOKENS, end="<|im_end|>"),
    "deepseek": Kind(byte_level, DEEPSEEK, (), (*_DEEPSEEK, "<think>", "</think>")),
    "characters": Kind(tiny_tokenizer, ZEPHYR),
}


@cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    kind = KINDS[name]
    tokenizer = kind.make()
    tokenizer.add_special_tokens({"additional_special_tokens": list(kind.special)})
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in kind.marks])
    tokenizer.chat_template = kind.template
    return tokenizer


def tools_of(name: str) -> list[dict]:
    """A tool for a template that shows tools; none for another, which is refused them."""
    return TOOLS if "tools" in KINDS[name].template else []


def renderer_of(name: str, control_words: ControlWordUse = "text") -> TokenizerRenderer:
    return TokenizerRenderer(tokenizer_of(name), control_words=control_words)
