"""Each architecture of Transformers is computed as its own eager attention does it, or is refused with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import EngineSpec, GenerationRequest, SamplingParams, Uid
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.errors import has_code
from rlhf_testing.tiny_text_families import COMMON
from rlhf_testing.tiny_text_families import TEXT_FAMILIES as ACCEPTED
from rlhf_torch.heads.action_head import action_scores
from rlhf_torch.models import verification
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.packed.packing import PackedLayout

OWN_ATTENTION = "computes its attention in code of its own"
NOT_ASKED = "asked for the packed sequences"
TWICE = "attention more than once for a token"
OWN_MASK = "a mask of its own"
MAMBA: Mapping[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1}
"""Mamba 2: a convolution, which is computed by sequence, and a state behind it, which is not."""
REFUSED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bamba": (NOT_ASKED, {**MAMBA, "attn_layer_indices": [1]}),
    "bloom": (OWN_ATTENTION, {}),  # ALiBi
    "diffllama": (TWICE, {}),
    "doge": (OWN_MASK, {}),
    "falcon": (OWN_ATTENTION, {"num_kv_heads": 2, "alibi": False}),
    "gpt_neo": (OWN_ATTENTION, {"num_layers": 2, "attention_types": [[["global", "local"], 1]]}),
    "gptj": (OWN_ATTENTION, {"rotary_dim": 8}),
    "granitemoehybrid": (NOT_ASKED, {**MAMBA, "layer_types": ["mamba", "attention"]}),
    "jamba": (NOT_ASKED, {"attn_layer_period": 2, "attn_layer_offset": 1}),
    "llama4_text": (
        "chunked_attention",
        {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 64},
    ),
    "mpt": (OWN_ATTENTION, {}),
    "stablelm": (OWN_ATTENTION, {}),
}
"""What the message has to name, and the options."""
CODES = {
    OWN_ATTENTION: "model/own-attention",
    NOT_ASKED: "model/layers-not-asked",
    TWICE: "model/attends-twice",
    OWN_MASK: "model/unknown-family",
    "chunked_attention": "model/unknown-layers",
}


LENGTHS = (40, 5, 23)
ROWS = [(torch.arange(length) * 7919 + 3 * length) % 96 + 4 for length in LENGTHS]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Write a model, with random weights that are large enough for attention to matter; return its folder."""
    root = tmp_path_factory.mktemp("architectures")

    def folder(model_type: str, options: Mapping[str, Any]) -> Path:
        if not (root / model_type).exists():
            config = AutoConfig.for_model(model_type, **{**COMMON, **options})
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.save_pretrained(root / model_type)
        return root / model_type

    return folder


def packed_logprobs(lm: CausalLM) -> torch.Tensor:
    """(N, V) of all rows in one."""
    offsets = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    layout = PackedLayout(offsets, lm.device)
    with torch.no_grad():
        return lm.logits(lm.hidden(torch.cat(ROWS), layout.positions(), layout)).log_softmax(-1)


def own_logprobs(folder: Path, dtype: str) -> torch.Tensor:
    """(N, V) of each row alone, by the model as Transformers has it; in float64 experts are a loop, too."""
    plain = {"experts_implementation": "eager"} if dtype == "float64" else {}
    own = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="eager", **plain
    ).eval()
    with torch.no_grad():
        logits = torch.cat([own(input_ids=row[None], use_cache=False).logits[0] for row in ROWS])
    return (logits if dtype == "float64" else logits.float()).log_softmax(-1)


@pytest.mark.parametrize("model_type", ACCEPTED)
def test_packed_logprobs_are_those_of_each_sequence_alone(folder_of, model_type):
    folder = folder_of(model_type, ACCEPTED[model_type])

    actual = packed_logprobs(load_causal_lm(str(folder), dtype="float32"))

    own, exact = own_logprobs(folder, "float32"), own_logprobs(folder, "float64")
    ours, theirs = (actual - exact).abs(), (own - exact).abs()
    # Sums in another order, of logits of size 1 to 10. Whose worst token is farther from float64 is the luck of a
    # processor's order, up to three times on those without AVX-512; on average both are as near to it.
    torch.testing.assert_close(actual, own, atol=max(1e-5, 3 * theirs.max().item()), rtol=0.0)
    assert ours.mean() <= max(1e-6, 1.5 * theirs.mean())


@pytest.mark.parametrize("model_type", ACCEPTED)
def test_bfloat16_is_as_near_to_the_models_own_as_that_is_to_float32(folder_of, model_type):
    folder = folder_of(model_type, ACCEPTED[model_type])
    exact, own = own_logprobs(folder, "float32"), own_logprobs(folder, "bfloat16")

    actual = packed_logprobs(load_causal_lm(str(folder), dtype="bfloat16"))

    # On average: where an expert is chosen by a narrow margin, rounding chooses another one.
    assert float((actual - own).abs().mean()) <= 1.5 * float((own - exact).abs().mean())


@pytest.mark.parametrize("model_type", ACCEPTED)
def test_the_engine_gives_the_logprobs_of_the_trainers_head(folder_of, model_type):
    folder = folder_of(model_type, ACCEPTED[model_type])
    lm = load_causal_lm(str(folder), dtype="float32")
    prompt = tuple(ROWS[0].tolist())

    (completion,) = asyncio.run(generate(lm, folder, prompt))

    tokens = torch.tensor([*prompt, *completion.token_ids])
    layout = PackedLayout([0, len(tokens)], lm.device)
    with torch.no_grad():
        hidden = lm.hidden(tokens, layout.positions(), layout)[len(prompt) - 1 : -1]
        scores = action_scores(lm, hidden, tokens[len(prompt) :], temperature=0.7, chunk=5)
    torch.testing.assert_close(
        torch.tensor(completion.logprobs), scores.logprobs, atol=1e-4, rtol=0.0
    )


async def generate(lm: CausalLM, folder: Path, prompt: tuple[int, ...], max_length: int = 64):
    engine = EmbeddedEngine(EmbeddedEngineConfig())
    await engine.start(
        EngineSpec(
            model_path=str(folder),
            dtype="float32",
            max_length=max_length,
            max_concurrency=4,
            eos_token_ids=(),
        ),
        Source(lm),
    )
    sampling = SamplingParams(max_new_tokens=16, temperature=0.7)
    return await engine.generate(
        GenerationRequest(uid=Uid(0, 0), prompt_ids=prompt, seeds=(1,), sampling=sampling)
    )


class Source:
    """A training backend whose model the engine shares."""

    def __init__(self, lm: CausalLM) -> None:
        self._lm = lm

    def module(self) -> torch.nn.Module:
        return self._lm


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", REFUSED)
def test_what_cannot_be_computed_is_refused_with_the_reason(folder_of, model_type, dtype):
    reason, options = REFUSED[model_type]

    with pytest.raises(PluginError, match=reason, check=has_code(CODES[reason])):
        load_causal_lm(str(folder_of(model_type, options)), dtype=dtype)


DEEP: Mapping[str, Any] = {**COMMON, "num_hidden_layers": 64, "initializer_range": 0.5}
"""64 layers of random weights: in bfloat16 rounding alone moves logits by more than a tenth of the largest."""


def test_a_deep_model_is_not_refused_for_its_rounding(tmp_path):
    folder = deep_model(tmp_path)
    lm = load_causal_lm(str(folder), dtype="bfloat16")
    rows = [verification._probe_tokens(length, lm) for length in (12, 7)]
    with torch.inference_mode():
        own = torch.cat([verification._own_logits(lm, row) for row in rows])
        packed = verification._packed_logits(lm, rows, [])[1]
    assert float((packed - own).abs().max() / own.abs().max()) > 0.1


def test_a_deep_model_whose_sequences_see_each_other_is_refused(tmp_path, monkeypatch):
    folder = deep_model(tmp_path)

    def attend(witness, layer, query, key, value, **options):
        witness.windows[layer] = options["sliding_window"]
        whole = PackedLayout([0, int(witness.layout.lengths.sum())], witness.layout.device)
        return whole.attend(layer, query, key, value, **options)

    monkeypatch.setattr(verification._Witness, "attend", attend)
    with pytest.raises(PluginError, check=has_code("model/packing-differs")):
        load_causal_lm(str(folder), dtype="bfloat16")


def deep_model(folder: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **DEEP)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", ["gpt2", "opt"])
def test_sequences_beyond_learned_positions_are_refused(folder_of, model_type):
    folder = folder_of(model_type, ACCEPTED[model_type])
    lm = load_causal_lm(str(folder), dtype="float32")
    positions = COMMON["max_position_embeddings"]
    tokens = torch.full((positions + 1,), 5)

    def hidden(length: int) -> torch.Tensor:
        layout = PackedLayout([0, length], lm.device)
        with torch.no_grad():
            return lm.hidden(tokens[:length], layout.positions(), layout)

    assert hidden(positions).isfinite().all()
    with pytest.raises(ConfigError, match="256 tokens", check=has_code("model/too-few-positions")):
        hidden(positions + 1)
    with pytest.raises(ConfigError, check=has_code("model/too-few-positions")):
        asyncio.run(generate(lm, folder, (5,), max_length=positions + 1))


def test_computed_positions_have_no_end(folder_of):
    lm = load_causal_lm(str(folder_of("llama", {})), dtype="float32")

    assert lm.most_positions is None
