"""Gradients and updates of adapters: those of PEFT's own model, and none that is lost."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import PeftModel
from tests.plugins.lora.conftest import (
    ADAPTERS,
    base_of,
    plain_model,
    trained,
)
from tests.plugins.torch.conftest import FAST_ADAM, make_batch, make_plan, make_trajectories

from rlhf_core.contracts import ValueObjective
from rlhf_plugin_lora.dora import DoraOptions
from rlhf_plugin_lora.lora import LoraOptions
from rlhf_plugin_lora.qlora import QloraOptions
from rlhf_testing.tiny import FAMILIES


def moved(backend, batch):
    """How each trained parameter moves in an update that is its gradient, with the gradient's sign."""
    before = trained(backend)
    backend.train_step(batch, make_plan(batch))
    return {name: before[name] - weight for name, weight in trained(backend).items()}


def peft_gradient(model, batch):
    """Gradient of -sum(A log p) / actions by plain autograd, one unpacked sequence at a time."""
    rows, total = batch.trajectories, 0.0
    for row in range(len(rows)):
        tokens = torch.from_numpy(rows.tokens_of(row).astype(np.int64))
        span = slice(rows.token_offsets[row], rows.token_offsets[row + 1])
        at = torch.from_numpy(np.flatnonzero(rows.action_mask[span]))
        logprobs = model(input_ids=tokens[None]).logits[0, at - 1].log_softmax(-1)
        chosen = logprobs.gather(1, tokens[at, None])[:, 0]
        actions = slice(rows.action_offsets[row], rows.action_offsets[row + 1])
        advantages = torch.from_numpy(batch.columns["advantages"][actions])
        total = total - (advantages * chosen).sum() / int(rows.num_actions.sum())
    total.backward()
    prefix = "base_model.model."
    return {
        name.removeprefix(prefix): weight.grad
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }


@pytest.mark.parametrize("adapter", ["lora", "dora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_peft_and_transformers(
    start, spec_of, plain_sgd, models, tmp_path, family, adapter
):
    backend, batch = start(spec_of(adapter, family, **plain_sgd)), make_batch()
    backend.export(tmp_path)
    peft = PeftModel.from_pretrained(plain_model(models[family]), tmp_path, is_trainable=True)

    actual = moved(backend, batch)

    expected = peft_gradient(peft.eval(), batch)
    assert actual.keys() == expected.keys()
    # The update's own rounding is 1e-7 of a weight of size 0.3. A sum is rounded by the size of its terms, whatever is
    # left of them, and processors add in orders of their own.
    for name, gradient in expected.items():
        atol = 1e-6 + 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(
            actual[name],
            gradient,
            atol=atol,
            rtol=1e-4,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    assert all(float(gradient.abs().max()) > 1e-5 for gradient in expected.values())


PRECISIONS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "mixed": {"dtype": "float32", "compute_dtype": "bfloat16"},
}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_every_trainable_parameter_moves_and_the_base_does_not(
    start, spec_of, family, adapter, precision
):
    settings = dict(PRECISIONS[precision])
    spec = spec_of(adapter, family, dtype=settings.pop("dtype"), optimizer=FAST_ADAM)
    backend, batch = start(spec, fresh=True, **settings), make_batch()
    before, base = trained(backend), base_of(backend)

    # In the first update B is 0, so that A has no gradient.
    for _ in range(2):
        backend.train_step(batch, make_plan(batch))

    still = [name for name, weight in trained(backend).items() if torch.equal(weight, before[name])]
    assert still == []
    torch.testing.assert_close(base_of(backend), base, atol=0, rtol=0)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_base_of_half_precision_is_trained_through_float32_copies(start, spec_of, adapter, train):
    backend = start(spec_of(adapter, dtype="bfloat16"), fresh=True)
    train(backend)

    masters = backend._updater.masters

    assert masters.keys() == trained(backend).keys()
    assert {str(master.dtype) for master in masters.values()} == {"torch.float32"}
    for name, weight in trained(backend).items():
        torch.testing.assert_close(weight, masters[name].to(torch.bfloat16), atol=0, rtol=0)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logprobs_are_those_of_each_sequence_alone(start, spec_of, family, adapter):
    backend, rows = start(spec_of(adapter, family)), make_trajectories()

    together = backend.logprobs(rows)

    alone = [backend.logprobs(rows.select(np.array([row]))) for row in range(len(rows))]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=2e-5)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_gradient_does_not_depend_on_micro_batches_nor_on_recomputing(
    start, spec_of, plain_sgd, adapter
):
    spec, batch = spec_of(adapter, **plain_sgd), make_batch()
    whole = moved(start(spec), batch)

    cut = moved(start(replace(spec, max_tokens_per_micro_batch=40)), batch)
    recomputed = moved(start(spec, gradient_checkpointing=True), batch)

    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(recomputed, whole, atol=0, rtol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_compiled_layers_train_alike(start, spec_of, plain_sgd):
    spec, batch = spec_of(**plain_sgd), make_batch()

    plain, compiled = (moved(start(spec, compile=on), batch) for on in (False, True))

    torch.testing.assert_close(compiled, plain, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_critic_trains_its_head_and_the_adapter(start, spec_of, adapter, tmp_path):
    spec = spec_of(
        adapter, role="critic", head="value", objective=ValueObjective(), optimizer=FAST_ADAM
    )
    backend, batch = start(spec), make_batch()
    before = trained(backend)
    for _ in range(2):
        backend.train_step(batch, make_plan(batch))

    after = trained(backend)

    assert {name for name in after if torch.equal(after[name], before[name])} == set()
    assert {"value_head.weight", "value_head.bias"} <= after.keys()
    assert after["value_head.weight"].dtype == torch.float32
    backend.export(tmp_path)
    assert {"adapter_model.safetensors", "value_head.safetensors"} <= {
        path.name for path in tmp_path.iterdir()
    }


def test_modules_that_are_trained_whole_move_beside_the_factors(start, spec_of):
    options = {"modules_to_save": ["model.norm", "layers.1.mlp.up_proj"], "target": ["q_proj"]}
    backend, batch = start(spec_of(options=options, optimizer=FAST_ADAM), fresh=True), make_batch()
    before, base = trained(backend), base_of(backend)

    for _ in range(2):
        backend.train_step(batch, make_plan(batch))

    after = trained(backend)
    assert len(after) == 2 * 2 + 2
    assert [name for name in after if torch.equal(after[name], before[name])] == []
    torch.testing.assert_close(base_of(backend), base, atol=0, rtol=0)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_dropout_is_on_in_updates_alone_and_follows_the_seed(start, spec_of, plain_sgd, kind):
    spec = spec_of(kind, options={"dropout": 0.5}, **plain_sgd)
    batch, rows = make_batch(), make_trajectories()
    undropped = moved(start(spec_of(kind, **plain_sgd)), batch)
    backend = start(spec)
    scores = backend.logprobs(rows)
    np.testing.assert_array_equal(scores, start(spec_of(kind, **plain_sgd)).logprobs(rows))
    torch.manual_seed(7)
    state = torch.random.get_rng_state()

    dropped = moved(backend, batch)

    assert torch.equal(torch.random.get_rng_state(), state)
    name = "model.layers.0.self_attn.q_proj.lora_B.default.weight"
    assert not torch.allclose(dropped[name], undropped[name], atol=1e-3)
    torch.testing.assert_close(moved(start(spec), batch), dropped, atol=0, rtol=0)
    other = moved(start(replace(spec, seed=1)), batch)
    assert not torch.allclose(other[name], dropped[name], atol=1e-3)
    np.testing.assert_array_equal(backend.logprobs(rows), backend.logprobs(rows))


@pytest.mark.parametrize("options", [LoraOptions, DoraOptions, QloraOptions])
def test_with_dropout_the_old_log_probs_are_not_those_of_an_update(options):
    """Else a correction, and the metrics of mismatch, would take what dropout does for the sampler's fault."""
    assert "old_logprobs" in options(dropout=0.1).needed_by_options()
    assert "old_logprobs" not in options().needed_by_options()


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_dropout_is_another_one_in_each_update_and_the_same_when_layers_are_recomputed(
    start, spec_of, plain_sgd, kind
):
    spec, batch = spec_of(kind, options={"dropout": 0.5}, **plain_sgd), make_batch()
    kept, recomputed = start(spec), start(spec, gradient_checkpointing=True)

    first = moved(kept, batch)

    torch.testing.assert_close(moved(recomputed, batch), first, atol=0, rtol=0)
    with torch.no_grad():  # undo the first update
        for name, weight in kept._model.named_weights():
            if name in first:
                weight.add_(first[name])
    name = "model.layers.0.self_attn.q_proj.lora_B.default.weight"
    assert not torch.allclose(moved(kept, batch)[name], first[name], atol=1e-3)
