"""Chat templates of eight families of models, each with a rendering written by hand that says which text is learned.

The templates do what those of the models do, in words of their own. ``Family.parts`` knows nothing of Jinja: it is the
reference to which spans found in a template's rendering are compared, character by character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlhf_core.contracts import ControlWordUse
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_testing.tiny import tiny_tokenizer

Part = tuple[str, bool]
"""Text, and whether it is learned."""


@dataclass(frozen=True)
class Family:
    template: str
    special: tuple[str, ...]
    parts: Callable[[Sequence[dict]], Iterator[Part]]
    bos: str = "<bos>"
    eos: str = "<eos>"
    swallows: tuple[str, ...] = ()
    """Special tokens that swallow the blanks behind them."""
    system: bool = True
    """Whether the template knows system messages."""


QWEN2 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen2(messages):
    if messages[0]["role"] != "system":
        yield "<|im_start|>system\nYou are kind.<|im_end|>\n", False
    for m in messages:
        learned = m["role"] == "assistant"
        yield f"<|im_start|>{m['role']}\n", False
        yield m["content"] + "<|im_end|>", learned
        yield "\n", False


LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def llama3(messages):
    yield "<|begin_of_text|>", False
    for m in messages:
        yield f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n", False
        yield m["content"].strip() + "<|eot_id|>", m["role"] == "assistant"


GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def gemma(messages):
    yield "<bos>", False
    for m in messages:
        learned = m["role"] == "assistant"
        yield f"<start_of_turn>{'model' if learned else m['role']}\n", False
        yield m["content"].strip() + "<end_of_turn>", learned
        yield "\n", False


MISTRAL = (
    "{{ bos_token }}{% set ns = namespace(system='') %}"
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}"
    "{% elif m.role == 'user' %}[INST] {{ ns.system + m.content }} [/INST]{% set ns.system = '' %}"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)


def mistral(messages):
    yield "<s>", False
    system = ""
    for m in messages:
        if m["role"] == "system":
            system = m["content"] + "\n\n"
        elif m["role"] == "user":
            yield f"[INST] {system}{m['content']} [/INST]", False
            system = ""
        else:
            yield f" {m['content'].strip()}</s>", True


PHI3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)


def phi3(messages):
    for m in messages:
        yield f"<|{m['role']}|>\n", False
        yield m["content"] + "<|end|>", m["role"] == "assistant"
        yield "\n", False
    yield "<|endoftext|>", False


ZEPHYR = (
    "{% for m in messages %}\n{{ '<|' + m.role + '|>\n' + m.content + eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)


def zephyr(messages):
    for m in messages:
        yield f"<|{m['role']}|>\n", False
        yield m["content"] + "</s>", m["role"] == "assistant"
        yield "\n", False


DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}{{ '<\uff5cUser\uff5c>' + m.content }}"
    "{% else %}<\uff5cAssistant\uff5c>{{ m.content.split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<\uff5cAssistant\uff5c><think>\n{% endif %}"
)


def deepseek(messages):
    yield "<\uff5cbegin▁of▁sentence\uff5c>", False
    for m in messages:
        if m["role"] == "system":
            yield m["content"], False
        elif m["role"] == "user":
            yield "<\uff5cUser\uff5c>" + m["content"], False
        else:
            yield "<\uff5cAssistant\uff5c>", False
            yield m["content"] + "<\uff5cend▁of▁sentence\uff5c>", True


QWEN3 = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set content = m.content if m.content is string else '' %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ content }}\n</tool_response><|im_end|>\n"
    "{% elif m.role != 'assistant' %}<|im_start|>{{ m.role + '\n' + content }}<|im_end|>\n"
    "{% else %}{% set thought = '' %}"
    "{% if m.reasoning_content is string %}{% set thought = m.reasoning_content %}"
    "{% elif '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "<think>\n{{ thought.strip('\n') }}\n</think>\n\n{{ content.lstrip('\n') }}{% else %}{{ content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}{% if content or not loop.first %}{{ '\n' }}{% endif %}"
    "<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def qwen3(messages):
    """Rows without thoughts and tools."""
    for index, m in enumerate(messages):
        yield f"<|im_start|>{m['role']}\n", False
        if m["role"] != "assistant":
            yield m["content"] + "<|im_end|>", False
        elif index == len(messages) - 1:
            yield "<think>\n\n</think>\n\n" + m["content"].lstrip("\n") + "<|im_end|>", True
        else:
            yield m["content"] + "<|im_end|>", True
        yield "\n", False


_CHATML = ("<|im_start|>", "<|im_end|>")
FAMILIES = {
    "qwen2": Family(QWEN2, _CHATML, qwen2),
    "llama3": Family(
        LLAMA3,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        llama3,
        bos="<|begin_of_text|>",
    ),
    "gemma": Family(GEMMA, ("<start_of_turn>", "<end_of_turn>"), gemma, system=False),
    "mistral": Family(MISTRAL, (), mistral, bos="<s>", eos="</s>"),
    "phi3": Family(
        PHI3,
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        phi3,
        eos="<|endoftext|>",
        swallows=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    ),
    "zephyr": Family(ZEPHYR, (), zephyr, bos="<s>", eos="</s>"),
    "deepseek": Family(
        DEEPSEEK,
        ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"),
        deepseek,
        bos="<\uff5cbegin▁of▁sentence\uff5c>",
        eos="<\uff5cend▁of▁sentence\uff5c>",
    ),
    "qwen3": Family(QWEN3, (*_CHATML, "<think>", "</think>"), qwen3),
}

CORPUS = (
    "assistant\nHello\nassistant\nHello [/INST] Hello [/INST] Hello |>\nHello |>\nHi\n\n\nHi  Hi "
    "user\nWhat is 2 + 2? system\nYou are kind.\n\nIt is 4.\n"
) * 4


@cache
def tokenizer_of(name: str, kind: str = "bpe") -> PreTrainedTokenizerFast:
    """A tokenizer with the template and the special tokens of a family.

    ``bpe`` cuts text into no words, so that its merges cross the seams between a template's text and a content;
    ``words`` cuts as the tokenizers of most models do; ``characters`` knows ASCII alone, a token for each.
    """
    family = FAMILIES[name]
    tokenizer = tiny_tokenizer() if kind == "characters" else bpe(words=kind == "words")
    added = [
        AddedToken(text, rstrip=text in family.swallows, special=True) for text in family.special
    ]
    tokenizer.add_special_tokens(
        {"bos_token": family.bos, "eos_token": family.eos, "additional_special_tokens": added}
    )
    tokenizer.chat_template = family.template
    return tokenizer


def renderer_of(
    name: str, kind: str = "bpe", control_words: ControlWordUse = "tokens"
) -> TokenizerRenderer:
    """The renderer of a family; control words in contents are tokens, as these tests' references have them."""
    return TokenizerRenderer(tokenizer_of(name, kind), control_words=control_words)


def bpe(*, words: bool) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes and some merges, without special tokens but for padding."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        [CORPUS[start : start + 40] for start in range(0, 800, 7)], trainer
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


def reference(name: str, kind: str, messages: Sequence[dict]) -> tuple[str, list[int], np.ndarray]:
    """Text, token ids and mask of a conversation whose assistant turns are all learned, character by character."""
    parts = list(FAMILIES[name].parts(messages))
    text = "".join(part for part, _ in parts)
    learned = [flag for part, flag in parts for _ in part]
    tokenizer = tokenizer_of(name, kind)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = []
    for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if token in tokenizer.added_tokens_decoder:
            mask.append(learned[start])
        else:
            mask.append(any(learned[character] for character in range(start, end)))
    return text, encoded["input_ids"], np.array(mask)
