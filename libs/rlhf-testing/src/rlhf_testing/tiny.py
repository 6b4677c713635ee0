"""Tiny language models with random weights and a character tokenizer, written as ordinary Transformers folders.

The loading code of real models reads these folders, and nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

PAD = "<pad>"
BOS = "<bos>"
EOS = "<eos>"
UNK = "<unk>"
ALPHABET = "".join(map(chr, range(32, 127))) + "\n"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

FAMILIES = ("qwen3", "llama", "gemma3", "qwen3_moe", "qwen3_5")
BYTE_LEVEL = frozenset({"qwen3_5", "qwen3_5_moe"})
"""Families whose tokenizers Transformers reads as byte-level BPE."""


def write_tiny_model(
    folder: Path,
    family: str = "qwen3",
    *,
    alphabet: str = ALPHABET,
    hidden_size: int = 32,
    num_layers: int = 2,
    num_heads: int = 4,
    initializer_range: float = 0.02,
    tied: bool = True,
    seed: int = 0,
) -> Path:
    """Write a random causal LM of ``family`` and its tokenizer into ``folder``, and return the folder.

    Args:
        family: one of ``FAMILIES``. ``gemma3`` alternates sliding and full attention, ``qwen3_moe`` has experts,
            ``qwen3_5`` alternates gated linear attention and attention.
        alphabet: characters that the tokenizer knows, one token each.
        initializer_range: standard deviation of the random weights; narrow models learn faster with more than 0.02.
        tied: whether the head's weights are those of the embeddings.
        seed: seed of the weights; the global random state stays as it is.
    """
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = tiny_tokenizer(alphabet, family)
    config = tiny_config(
        family,
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        initializer_range=initializer_range,
        tied=tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer(alphabet: str = ALPHABET, family: str = "qwen3") -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character, special tokens and a plain chat template.

    Args:
        family: Transformers reads the tokenizers of some families as byte-level BPE, whatever their files say; such a
            family gets one, with the same tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, BOS, EOS, UNK]
    if family in BYTE_LEVEL:
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        words = [word for char in alphabet for word, _ in spelled.pre_tokenize_str(char)]
        vocabulary = {token: index for index, token in enumerate([*special, *words])}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokenizer.pre_tokenizer, tokenizer.decoder = spelled, decoders.ByteLevel()
    else:
        vocabulary = {token: index for index, token in enumerate([*special, *alphabet])}
        tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=UNK))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in (PAD, BOS, EOS)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNK
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def linear_attention(hidden_size: int, num_heads: int) -> dict[str, Any]:
    """Return the sizes of gated linear attention in a small model of Qwen3.5: two heads of values for each of keys."""
    size = hidden_size // num_heads
    return {
        "linear_num_value_heads": num_heads,
        "linear_num_key_heads": max(1, num_heads // 2),
        "linear_key_head_dim": size,
        "linear_value_head_dim": size,
    }


def tiny_config(
    family: str,
    *,
    vocab_size: int,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    initializer_range: float = 0.02,
    tied: bool = True,
) -> PretrainedConfig:
    """Return the configuration of a small model of ``family``.

    Raises:
        ValueError: the family is not one of ``FAMILIES``.
    """
    from transformers import AutoConfig

    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}; expected one of {', '.join(FAMILIES)}")
    head_dim = hidden_size // num_heads
    own: dict[str, Any] = {"head_dim": head_dim}
    if family == "gemma3":
        own |= {"sliding_window": 8, "query_pre_attn_scalar": head_dim}
        own["layer_types"] = alternating(num_layers, "sliding_attention")
    elif family == "qwen3_moe":
        own |= {"num_experts": 4, "num_experts_per_tok": 2}
        own["moe_intermediate_size"] = 2 * hidden_size
    elif family == "qwen3_5":
        own |= linear_attention(hidden_size, num_heads)
        own["layer_types"] = alternating(num_layers, "linear_attention")
    entries = text_entries(vocab_size, hidden_size, num_layers, num_heads) | own
    kind = f"{family}_text" if family in ("gemma3", "qwen3_5") else family
    return AutoConfig.for_model(
        kind, **entries, initializer_range=initializer_range, tie_word_embeddings=tied
    )


def text_entries(
    vocab_size: int, hidden_size: int, num_layers: int, num_heads: int
) -> dict[str, Any]:
    """Return the entries that the configurations of all families have."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": max(1, num_heads // 2),
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def alternating(num_layers: int, kind: str) -> list[str]:
    """Return the kinds of layers of which every other one has full attention."""
    return ["full_attention" if layer % 2 else kind for layer in range(num_layers)]
