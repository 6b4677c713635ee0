"""Folders with quantized weights, trained and served with what a message tells to choose."""

from pathlib import Path

import torch
from tests.quantized_folders import pack
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from rlhf_core.contracts import EngineSpec
from rlhf_testing.tiny import write_tiny_model

from .advised_case import Advised
from .advised_weights import policy


def written(weights):
    """Write a tiny model with weights of a kind."""
    folder = write_tiny_model(Path("plain"), num_layers=1)
    if weights == "fp8":
        pack(folder, "fp8")
    if weights == "four bits":
        settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        packed = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, quantization_config=settings
        )
        folder = Path("packed")
        packed.save_pretrained(folder)
    return folder


def trained(adapter, weights):
    """Build a policy on a model with weights of a kind."""
    policy(written(weights), adapter).close()


def served(engine, serve):
    """Say what vLLM starts with for a packed folder under an adapter."""
    from rlhf_plugin_vllm import arguments

    if engine != "vllm":
        return
    spec = EngineSpec(
        model_path=str(written("fp8")),
        dtype="float32",
        max_length=64,
        max_concurrency=4,
        eos_token_ids=(2,),
        adapter_rank=None if serve == "merged" else 4,
    )
    arguments._for_unpacked(spec)


QUANTIZED_FOLDERS = {
    "rlhf_plugin_vllm/arguments.py:_for_unpacked": [
        Advised(
            call=served,
            wrong={"engine": "vllm", "serve": "adapter"},
            told={
                "Choose --engine embedded": {"engine": "embedded"},
                "--actor.lora.serve merged": {"serve": "merged"},
            },
            given=("--model.serve",),
            needs="vllm",
            slow=True,
        )
    ],
    "rlhf_torch/models/quantized_files.py:refuse_four_bits": [
        Advised(
            call=trained,
            wrong={"adapter": None, "weights": "four bits"},
            told={
                "Choose --actor.adapter qlora, or --critic.adapter qlora of a critic": {
                    "adapter": "qlora"
                },
                "give the model in bfloat16": {"weights": "plain"},
            },
            slow=True,
        )
    ],
    "rlhf_torch/models/quantized_files.py:unpacking": [
        Advised(
            call=trained,
            wrong={"adapter": "qlora", "weights": "fp8"},
            told={
                "Choose --actor.adapter lora": {"adapter": "lora"},
                "give the model in bfloat16": {"weights": "plain"},
            },
            given=("--model.quantize",),
            slow=True,
        )
    ],
}
