"""Which engine ``auto`` comes to, and the reason that is said, for machines that are described."""

import json

import pytest

from rlhf_cli.train import DEFAULTS
from rlhf_config import parse_flags, read_toml, resolve
from rlhf_core.contracts import Accelerator
from rlhf_core.plugins import load
from rlhf_plugin_local.engine.suitability import parameters

H200 = Accelerator(name="NVIDIA H200", memory_gib=140.0)
SMALL = {
    "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
    "intermediate_size": 8960, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
LARGE = {**SMALL, "hidden_size": 3584, "intermediate_size": 18944, "tie_word_embeddings": False}
LORA = ("--actor.adapter", "lora")
ON_GPU = "it was measured as the fastest"


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    def choose(config, gpus, words=(), vllm=True):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        spec = object() if vllm else None
        monkeypatch.setattr("rlhf_plugin_vllm.suitability.find_spec", lambda name: spec)
        typed = ["--model", str(folder), "--data", "rows.jsonl", "--reward", "exact_match", *words]
        layers = [read_toml(DEFAULTS, defaults=True), parse_flags(typed)]
        resolved = resolve(layers, load(""), (H200,) * gpus)
        return resolved.tree["engine"]["name"], " ".join(resolved.choices)

    return choose


@pytest.mark.parametrize(
    ("config", "gpus", "words", "engine", "said"),
    [
        (SMALL, 0, (), "local:embedded", "on CPUs it computes with the model's own weights"),
        (SMALL, 1, (), "local:embedded", ON_GPU),
        (SMALL, 2, (), "local:embedded", ON_GPU),  # the runtime uses one of them
        (LARGE, 1, (), "vllm:vllm", "with 7.6 billion parameters it was not measured"),
        ({}, 1, (), "vllm:vllm", "the model's size is unknown"),
        (SMALL, 1, ("--runtime", "ray"), "vllm:vllm", "processes of its own"),
        (SMALL, 0, ("--runtime", "ray"), "local:embedded", "on CPUs"),
        (SMALL, 1, ("--rollout.max_staleness", "1"), "vllm:vllm", "beside training"),
        (SMALL, 1, ("--backend.torch.device", "cpu"), "local:embedded", "device is cpu"),
        (SMALL, 1, (*LORA, "--model.dtype", "bfloat16"), "vllm:vllm", "with an adapter"),
        (SMALL, 1, (*LORA, "--actor.lora.serve", "merged"), "vllm:vllm", "with an adapter"),
        (SMALL, 1, ("--actor.adapter", "dora"), "vllm:vllm", "with an adapter"),
        (SMALL, 1, LORA, "local:embedded", "not vllm: on a GPU it serves adapters in 16 bits only"),
        (SMALL, 1, ("--backend.torch.compute_dtype", "float32"), "vllm:vllm", "in bfloat16"),
        ({**SMALL, "head_dim": "64"}, 1, (), "vllm:vllm", "or does not say it"),
        ({"text_config": None}, 1, (), "vllm:vllm", "or does not say it"),
        (SMALL, 0, LORA, "local:embedded", "on CPUs"),
        (SMALL, 1, ("--model.vision", "vlm"), "vllm:vllm", "reads images"),
        (SMALL, 1, ("--engine", "vllm"), "vllm:vllm", ""),
        (LARGE, 1, ("--engine", "embedded"), "local:embedded", ""),
    ],
)
def test_the_engine_and_the_reason(chosen, config, gpus, words, engine, said):
    name, line = chosen(config, gpus, words)
    assert name == engine
    assert said in line
    assert (line == "") == ("--engine" in words)


def test_without_vllm_it_is_the_embedded_engine_and_the_line_says_so(chosen):
    assert chosen(LARGE, 1, vllm=False) == (
        "local:embedded",
        "engine embedded: with 7.6 billion parameters it was not measured; not vllm: vLLM is not installed",
    )


def test_parameters_of_a_shape_by_hand():
    # 2 layers of (2 * 8 * 4 * (2 + 1) + 3 * 8 * 16 = 192 + 384), and 10 * 8 numbers of embedding, tied or twice.
    config = {
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 16, "vocab_size": 10, "tie_word_embeddings": True,
    }  # fmt: skip
    assert parameters(config) == 2 * (192 + 384) + 80
    assert parameters({**config, "tie_word_embeddings": False}) == 2 * (192 + 384) + 160
    assert parameters({"text_config": config, "tie_word_embeddings": True}) == 2 * 576 + 80
    assert (
        parameters({**config, "num_experts": 4, "moe_intermediate_size": 2}) == 2 * (192 + 192) + 80
    )
    assert parameters({**config, "hidden_size": None}) is None
