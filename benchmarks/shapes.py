"""Published model shapes with random weights and a tokenizer of their own: speed is measured without a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 151936
TINY = "tiny"
"""Of our own, a few million parameters: for a machine without a GPU."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Qwen2.5 model, as its ``config.json`` has them."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool = True


SHAPES = {
    "0.5b": Shape(896, 4864, 24, 14, 2),
    "1.5b": Shape(1536, 8960, 28, 12, 2),
    "3b": Shape(2048, 11008, 36, 16, 2),
    "7b": Shape(3584, 18944, 28, 28, 4, tied=False),
    "32b": Shape(5120, 27648, 64, 40, 8, tied=False),
}


def write_model(name: str, folder: Path, *, four_bits: bool = False) -> None:
    """Write config, tokenizer and seeded bfloat16 weights into ``folder``; made on the GPU if there is one.

    Each byte of a text is one token. The shape ``TINY`` has float32 weights and a tokenizer of its own.

    Args:
        four_bits: linear layers but the head are in bitsandbytes' 4 bits, as checkpoints for QLoRA are published. The
            other form of the shape ``32b`` has 61 GiB.
    """
    if name == TINY:
        from rlhf_core.testing.tiny import write_tiny_model

        write_tiny_model(folder, hidden_size=256, num_layers=8)
        return
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    shape = SHAPES[name]
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=shape.tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    with torch.device("meta" if four_bits else _device()):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if four_bits:
        _fill_in_four_bits(model)
    model.save_pretrained(folder)
    _write_tokenizer(folder)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _fill_in_four_bits(model: Any) -> None:
    """Give a model without storage random weights, of which one at a time is ever whole."""
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit
    from torch.nn import Parameter
    from transformers import BitsAndBytesConfig
    from transformers.quantizers import AutoHfQuantizer

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    quantizer = AutoHfQuantizer.from_config(config, pre_quantized=False)
    quantizer.preprocess_model(model, device_map=None)
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            weight = torch.empty(parameter.shape, dtype=torch.bfloat16, device=_device())
            if weight.ndim == 1:
                weight.fill_(0.0 if name == "bias" else 1.0)
            else:
                weight.normal_(0.0, model.config.initializer_range)
            if isinstance(module, Linear4bit) and name == "weight":
                packed = Params4bit(weight, requires_grad=False, quant_type="nf4", module=module)
                module.weight = packed.to(_device())
            else:
                setattr(module, name, Parameter(weight, requires_grad=False))
    # ``from_pretrained`` would have set these.
    model.hf_quantizer, model.is_loaded_in_4bit = quantizer, True
    model.config.quantization_config = config


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>", "<unk>"]
    tokens = special + sorted(pre_tokenizers.ByteLevel.alphabet())
    # As many tokens as the model has, so that whatever it samples can be decoded.
    tokens += [f"<unused{number}>" for number in range(len(tokens), VOCABULARY)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=True))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
