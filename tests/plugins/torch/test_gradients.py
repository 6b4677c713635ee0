"""The gradient of one step: what it is, and what it must not depend on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core import PluginError
from rlhf_core.contracts import ValueObjective
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES

from .conftest import gradients

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")


KL_FORMULAS = {
    "k1": lambda log_ratio: log_ratio,
    "k2": lambda log_ratio: log_ratio.square() / 2,
    "k3": lambda log_ratio: (-log_ratio).exp() - 1 + log_ratio,
}


def reinforce_gradient(path, batch, aggregation, *, kl=None, kl_coef=0.0, entropy_coef=0.0):
    """Gradient of sum of w_t (-A_t log p_t + ...), one unpacked sequence at a time, by plain autograd."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    rows = batch.trajectories
    total = 0.0
    for row in range(len(rows)):
        tokens = torch.from_numpy(rows.tokens_of(row).astype(np.int64))
        span = slice(rows.token_offsets[row], rows.token_offsets[row + 1])
        at = torch.from_numpy(np.flatnonzero(rows.action_mask[span]))
        logprobs = model(input_ids=tokens[None]).logits[0, at - 1].log_softmax(-1)
        chosen = logprobs.gather(1, tokens[at, None])[:, 0]
        actions = slice(rows.action_offsets[row], rows.action_offsets[row + 1])
        loss = -torch.from_numpy(batch.columns["advantages"][actions]) * chosen
        if kl is not None:
            reference = torch.from_numpy(batch.columns["ref_logprobs"][actions])
            loss = loss + kl_coef * KL_FORMULAS[kl](chosen - reference)
        loss = loss + entropy_coef * (logprobs.exp() * logprobs).sum(-1)
        weight = {
            "token-mean": 1 / int(rows.num_actions.sum()),
            "seq-mean-token-mean": 1 / (len(rows) * len(at)),
            "seq-mean-token-sum-norm": 1 / (len(rows) * 20),
        }[aggregation]
        total = total + weight * loss.sum()
    total.backward()
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_on_policy_gradient_is_reinforces(start, sgd_spec, make_batch, make_plan, models, family):
    batch = make_batch()

    actual, _ = gradients(start(sgd_spec(models[family])), batch, make_plan(batch))

    expected = reinforce_gradient(models[family], batch, "token-mean")
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_weighs_tokens_as_it_says(
    start, sgd_spec, make_batch, make_plan, models, aggregation
):
    batch = make_batch()

    actual, _ = gradients(
        start(sgd_spec(models["qwen3"], aggregation=aggregation)), batch, make_plan(batch)
    )

    expected = reinforce_gradient(models["qwen3"], batch, aggregation)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("max_tokens", [16, 45])
def test_the_gradient_does_not_depend_on_the_micro_batches(
    start, sgd_spec, make_batch, make_plan, models, refs, aggregation, max_tokens
):
    batch = make_batch()
    options = {"aggregation": aggregation, "kl_estimator": refs.k3, "entropy_bonus": True}
    plan = make_plan(batch, kl_coef=0.5, entropy_coef=0.1)
    whole, whole_metrics = gradients(start(sgd_spec(models["qwen3"], **options)), batch, plan)
    spec = sgd_spec(models["qwen3"], max_tokens=max_tokens, **options)

    cut, cut_metrics = gradients(start(spec), batch, plan)

    assert cut_metrics["train/micro_batches"].value() > 1
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-5)
    for name in ("loss/policy", "loss/kl", "loss/entropy", "policy/entropy", "kl/ref"):
        assert cut_metrics[name].value() == pytest.approx(whole_metrics[name].value(), rel=1e-5)


def test_the_gradient_does_not_depend_on_the_chunks_of_the_head(
    start, sgd_spec, make_batch, make_plan, models
):
    batch = make_batch()
    spec = sgd_spec(models["llama"], entropy_bonus=True)
    plan = make_plan(batch, entropy_coef=0.1)

    whole, _ = gradients(start(spec, logits_chunk=10_000), batch, plan)
    cut, _ = gradients(start(spec, logits_chunk=7), batch, plan)

    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-5)


def test_recomputing_layers_changes_no_gradient(start, sgd_spec, make_batch, make_plan, models):
    batch = make_batch()
    spec = sgd_spec(models["qwen3"])

    kept, _ = gradients(start(spec), batch, make_plan(batch))
    recomputed, _ = gradients(start(spec, gradient_checkpointing=True), batch, make_plan(batch))

    torch.testing.assert_close(recomputed, kept, atol=0, rtol=0)


def test_recomputing_really_happens(start, sgd_spec, make_batch, make_plan, models):
    backend = start(sgd_spec(models["qwen3"]), gradient_checkpointing=True)
    calls = []
    layer = backend.module().model.base_model.layers[0].mlp
    layer.register_forward_pre_hook(lambda *_: calls.append(1))
    batch = make_batch()

    backend.train_step(batch, make_plan(batch))

    assert len(calls) == 2


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_kl_and_entropy_terms_are_added_with_their_signs(
    start, sgd_spec, make_batch, make_plan, models, refs, kl
):
    batch = make_batch()
    spec = sgd_spec(models["qwen3"], kl_estimator=getattr(refs, kl), entropy_bonus=True)

    actual, metrics = gradients(start(spec), batch, make_plan(batch, kl_coef=0.7, entropy_coef=0.3))

    expected = reinforce_gradient(
        models["qwen3"], batch, "token-mean", kl=kl, kl_coef=0.7, entropy_coef=0.3
    )
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)
    # tiny random models are close to uniform over 100 tokens: log 100 = 4.605
    assert metrics["policy/entropy"].value() == pytest.approx(4.605, abs=0.1)


def test_on_policy_the_ratio_is_exactly_one(start, make_spec, make_batch, make_plan, models):
    batch = make_batch()
    backend = start(make_spec(models["qwen3"]))

    metrics = backend.train_step(batch, make_plan(batch)).metrics

    seen = backend._objective.components.loss.component.seen
    assert torch.equal(seen.policy_logprobs, seen.old_logprobs)
    assert not seen.old_logprobs.requires_grad
    assert metrics["policy/approx_kl"].value() == 0.0


def test_off_policy_the_given_old_logprobs_are_used(
    start, make_spec, make_batch, make_plan, models
):
    batch = make_batch()
    backend = start(make_spec(models["qwen3"]))

    metrics = backend.train_step(batch, make_plan(batch, on_policy=False)).metrics

    seen = backend._objective.components.loss.component.seen
    old = torch.from_numpy(batch.columns["old_logprobs"])
    torch.testing.assert_close(seen.old_logprobs[seen.action_mask], old)
    log_ratio = seen.policy_logprobs.detach()[seen.action_mask] - old
    expected = float((log_ratio.exp() - 1 - log_ratio).mean())
    assert metrics["policy/approx_kl"].value() == pytest.approx(expected, rel=1e-5)


def test_a_missing_column_is_named(start, make_spec, make_batch, make_plan, models):
    batch = make_batch()
    columns = {name: batch.columns[name] for name in ("advantages", "returns")}

    with pytest.raises(
        PluginError,
        match="'old_logprobs'; the batch has advantages, returns",
        check=has_code("plugin/missing-column"),
    ):
        start(make_spec(models["qwen3"])).train_step(
            replace(batch, columns=columns), make_plan(batch, on_policy=False)
        )


@pytest.mark.parametrize(("loss", "factor"), [("loss", 0.5), ("own_weights", 1.0)])
def test_correction_weights_and_drops_are_applied_once(
    start, sgd_spec, make_batch, make_plan, models, refs, loss, factor
):
    """The test correction gives every token the weight 0.5 and drops the first action of each row."""
    batch = make_batch()
    spec = sgd_spec(models["qwen3"], correction=refs.half, loss=getattr(refs, loss))

    actual, _ = gradients(start(spec), batch, make_plan(batch))

    advantages = batch.columns["advantages"].copy() * factor
    advantages[batch.trajectories.action_offsets[:-1]] = 0.0
    same = replace(batch, columns=batch.columns | {"advantages": advantages.astype(np.float32)})
    expected = reinforce_gradient(models["qwen3"], same, "token-mean")
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


def test_rows_of_prompt_and_environment_text_get_no_loss(
    start, sgd_spec, make_batch, make_plan, models
):
    """Tokens that are never an action are never a target: with advantages of 0 nothing moves."""
    batch = make_batch()
    zeros = np.zeros_like(batch.columns["advantages"])
    still = replace(batch, columns=batch.columns | {"advantages": zeros})

    actual, _ = gradients(start(sgd_spec(models["qwen3"])), still, make_plan(batch))

    assert max(float(moved.abs().max()) for moved in actual.values()) == 0.0


@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("max_tokens", [16, 10_000])
def test_the_critics_gradient_is_that_of_its_squared_error(
    start, make_spec, make_batch, make_plan, models, refs, clip, max_tokens
):
    spec = make_spec(
        models["qwen3"],
        role="critic",
        head="value",
        objective=ValueObjective(value_clip=clip),
        optimizer=refs.sgd,
        max_grad_norm=None,
        max_tokens_per_micro_batch=max_tokens,
    )
    backend, batch = start(spec), make_batch()
    head = backend._model.value_head
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    values = backend.values(batch.trajectories)
    old, returns = batch.columns["values"], batch.columns["returns"]

    actual, metrics = gradients(backend, batch, make_plan(batch))

    clipped = values if clip is None else old + np.clip(values - old, -clip, clip)
    errors = np.maximum((values - returns) ** 2, (clipped - returns) ** 2) / 2
    assert metrics["critic/loss"].value() == pytest.approx(errors.mean(), rel=1e-5)
    # d loss / d bias = mean of (v - g) wherever the unclipped error is the larger one
    counts = (values - returns) ** 2 >= (clipped - returns) ** 2
    inside = np.ones_like(counts) if clip is None else np.abs(values - old) < clip
    slope = np.where(counts, values - returns, np.where(inside, clipped - returns, 0.0)).mean()
    assert float(actual["value_head.bias"]) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_bfloat16_autocast_points_the_same_way(start, sgd_spec, make_batch, make_plan, models):
    batch = make_batch()
    spec = sgd_spec(models["qwen3"])

    exact, _ = gradients(start(spec, compute_dtype="float32"), batch, make_plan(batch))
    rounded, _ = gradients(start(spec, compute_dtype="bfloat16"), batch, make_plan(batch))

    flat = [torch.cat([grad.flatten() for grad in grads.values()]) for grads in (exact, rounded)]
    assert float(torch.cosine_similarity(*flat, dim=0)) > 0.999
    assert float(flat[1].norm() / flat[0].norm()) == pytest.approx(1.0, abs=0.01)
