"""Layers are found in every architecture, and recomputing them neither switches dropout on nor changes a gradient."""

import pytest
import torch
import transformers
from torch import nn
from torch._dynamo.testing import CompileCounter
from transformers import AutoModelForCausalLM

from rlhf_core import PluginError
from rlhf_testing.errors import has_code
from rlhf_torch.models.layers import compile_layers, decoder_layers, recompute_layers

DROPOUT = 0.3
SHAPE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SHAPE, "num_key_value_heads": 2, "intermediate_size": 64}
ATTENTION = {"attention_dropout": DROPOUT}
RESIDUAL = {**ATTENTION, "resid_pdrop": DROPOUT, "embd_pdrop": DROPOUT}
ARCHITECTURES = {
    "OPTConfig": {
        **SHAPE,
        **ATTENTION,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "dropout": DROPOUT,
    },
    "GPT2Config": {
        "vocab_size": 100,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "resid_pdrop": DROPOUT,
        "embd_pdrop": DROPOUT,
        "attn_pdrop": DROPOUT,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "GPTNeoXConfig": {**SHAPE, **ATTENTION, "intermediate_size": 64, "hidden_dropout": DROPOUT},
    "LlamaConfig": {**GROUPED, **ATTENTION},
    "Qwen2Config": {**GROUPED, **ATTENTION},
    "Qwen3Config": {**GROUPED, **ATTENTION, "head_dim": 8},
    "Qwen3MoeConfig": {
        **GROUPED,
        **ATTENTION,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "Gemma2Config": {**GROUPED, **ATTENTION, "head_dim": 8, "query_pre_attn_scalar": 8},
    "Gemma3TextConfig": {**GROUPED, **ATTENTION, "head_dim": 8, "query_pre_attn_scalar": 8},
    "PhiConfig": {**GROUPED, **RESIDUAL},
    "Phi3Config": {**GROUPED, **RESIDUAL},
    "CohereConfig": {**GROUPED, **ATTENTION, "use_qk_norm": True},
    "Starcoder2Config": {
        **GROUPED,
        **ATTENTION,
        "residual_dropout": DROPOUT,
        "embedding_dropout": DROPOUT,
    },
    "GraniteConfig": {**GROUPED, **ATTENTION},
    "Olmo2Config": {**GROUPED, **ATTENTION},
}
"""Families that the backend takes, each with all dropout that it has; of Falcon, Bloom, StableLM and GPT-J it computes
no packed attention."""


@pytest.fixture(params=ARCHITECTURES)
def folder(request, tmp_path):
    """A model whose dropout would show: its weights are far from 0."""
    kind = getattr(transformers, request.param)
    config = kind(**ARCHITECTURES[request.param], initializer_range=0.2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    return tmp_path


def test_training_finds_the_logprobs_of_scoring(start, sgd_spec, make_batch, make_plan, folder):
    batch = make_batch()
    backend = start(sgd_spec(folder), gradient_checkpointing=True)
    scored = backend.logprobs(batch.trajectories)

    outcome = backend.train_step(batch, make_plan(batch, return_logprobs=True))

    torch.testing.assert_close(
        torch.from_numpy(outcome.logprobs), torch.from_numpy(scored), atol=1e-5, rtol=0
    )


def test_recomputing_changes_no_gradient(start, sgd_spec, make_batch, make_plan, folder):
    batch, moved = make_batch(), []
    for recomputes in (False, True):
        backend = start(sgd_spec(folder, max_tokens=40), gradient_checkpointing=recomputes)
        before = {name: w.detach().clone() for name, w in backend._model.named_weights()}
        backend.train_step(batch, make_plan(batch))
        moved.append(
            {name: w.detach() - before[name] for name, w in backend._model.named_weights()}
        )

    torch.testing.assert_close(moved[1], moved[0], atol=1e-6, rtol=1e-5)


def test_every_layer_is_recomputed_once_and_only_for_a_gradient(
    start, sgd_spec, make_batch, make_plan, folder
):
    batch, calls = make_batch(), []
    backend = start(sgd_spec(folder), gradient_checkpointing=True)
    for layer in decoder_layers(backend._model.lm.model):
        next(layer.children()).register_forward_pre_hook(lambda module, _: calls.append(module))

    backend.logprobs(batch.trajectories)
    assert len(calls) == 2
    calls.clear()
    backend.train_step(batch, make_plan(batch))

    assert [calls.count(module) for module in dict.fromkeys(calls)] == [2, 2]
    assert not any(module.training for module in backend._model.modules())


def test_the_hooks_of_a_layer_run_again_when_it_is_recomputed(models):
    """ZeRO at stage 3 collects weights by hooks."""
    model = AutoModelForCausalLM.from_pretrained(models["llama"])
    recompute_layers(model)
    calls = []
    for layer in decoder_layers(model):
        layer.register_forward_pre_hook(lambda *_: calls.append(1))

    model(torch.arange(5)[None]).logits.sum().backward()

    assert len(calls) == 4
    assert {type(layer).__name__ for layer in decoder_layers(model)} == {"LlamaDecoderLayer"}


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch looks at it itself
def test_layers_that_are_recomputed_are_compiled_once_for_all(models, monkeypatch):
    """torch gives up compiling a function after eight classes of its object, and the other layers would stay slow."""
    config = AutoModelForCausalLM.from_pretrained(models["llama"]).config
    config.num_hidden_layers = 12
    model = AutoModelForCausalLM.from_config(config)
    recompute_layers(model)
    counter = CompileCounter()
    compiled = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda layer, **options: compiled(layer, backend=counter, **options)
    )
    compile_layers(model)

    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        model(torch.arange(5)[None], use_cache=False).logits.sum().backward()

    assert 0 < counter.frame_count < 12


def test_a_model_whose_layers_are_not_found_is_refused(models):
    model = AutoModelForCausalLM.from_pretrained(models["llama"])
    model.config.num_hidden_layers = 7

    with pytest.raises(PluginError, match="7 layers", check=has_code("model/no-layers")):
        recompute_layers(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch looks at it itself
def test_layers_that_cannot_be_compiled_run_as_they_are(models, monkeypatch, caplog):
    """A machine without a C compiler, say: the plan compiles layers where nobody has said so."""

    def fails(graph, inputs):
        raise RuntimeError("no compiler is found")

    model = AutoModelForCausalLM.from_pretrained(models["llama"])
    expected = model(torch.arange(5)[None], use_cache=False).logits
    compiled = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda layer, **options: compiled(layer, backend=fails, dynamic=True)
    )
    compile_layers(model)

    for _ in range(2):
        found = model(torch.arange(5)[None], use_cache=False).logits
        torch.testing.assert_close(found, expected, rtol=0, atol=0)

    (warning,) = [record.message for record in caplog.records if "not compiled" in record.message]
    assert "no compiler is found" in warning
