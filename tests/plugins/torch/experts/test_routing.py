"""The balancing loss in an update, and the load beside its metrics."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.torch.conftest import gradients
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError
from rlhf_core.contracts import ValueObjective
from rlhf_testing.errors import has_code


def own_gradient(path, batch, rows_of_micro_batches):
    """Gradient of the balancing loss by Transformers' function, each micro-batch weighted by its tokens."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    trajectories, total = batch.trajectories, 0.0
    for rows in rows_of_micro_batches:
        logits = [
            model(
                input_ids=torch.from_numpy(trajectories.tokens_of(row).astype(np.int64))[None],
                output_router_logits=True,
            ).router_logits
            for row in rows
        ]
        together = tuple(torch.cat(layer) for layer in zip(*logits, strict=True))
        module = __import__(type(model).__module__, fromlist=["x"])
        loss = module.load_balancing_loss_func(together, 4, 2)
        total = total + len(together[0]) / int(trajectories.num_tokens.sum()) * loss
    total.backward()
    return {name: p.grad for name, p in model.named_parameters()}, float(total.detach())


def without_advantages(batch):
    return replace(batch, columns={**batch.columns, "advantages": 0 * batch.columns["advantages"]})


def routed(found):
    """Leave out the head, whose gradient is not zero but absent in the slow computation."""
    return {name: value for name, value in found.items() if value is not None}


def test_the_gradient_is_that_of_transformers_loss(
    start, sgd_spec, make_batch, make_plan, unbalanced
):
    batch = without_advantages(make_batch())
    spec = replace(sgd_spec(unbalanced), router_aux_loss=0.5)

    actual, metrics = gradients(start(spec), batch, make_plan(batch))

    rows = [list(range(len(batch.trajectories)))]
    expected, loss = own_gradient(unbalanced, batch, rows)
    assert metrics["policy/moe/balancing_loss"].value() == pytest.approx(loss, rel=1e-5)
    for name, gradient in routed(expected).items():
        torch.testing.assert_close(actual[name], 0.5 * gradient, atol=2e-6, rtol=1e-4, msg=name)


def test_micro_batches_are_weighted_by_their_tokens(
    start, sgd_spec, make_batch, make_plan, unbalanced
):
    batch = without_advantages(make_batch())
    spec = replace(sgd_spec(unbalanced, max_tokens=1), router_aux_loss=0.5)  # each row is one

    actual, metrics = gradients(start(spec), batch, make_plan(batch))

    expected, loss = own_gradient(unbalanced, batch, [[row] for row in range(6)])
    assert metrics["train/micro_batches"].value() == 6
    assert metrics["policy/moe/balancing_loss"].value() == pytest.approx(loss, rel=1e-5)
    for name, gradient in routed(expected).items():
        torch.testing.assert_close(actual[name], 0.5 * gradient, atol=2e-6, rtol=1e-4, msg=name)


def test_recomputed_layers_have_the_same_gradient_and_leave_nothing(
    start, sgd_spec, make_batch, make_plan, unbalanced
):
    batch = make_batch()
    spec = replace(sgd_spec(unbalanced), router_aux_loss=0.5)
    backend = start(spec, gradient_checkpointing=True)

    recomputed, _ = gradients(backend, batch, make_plan(batch))

    kept, _ = gradients(start(spec), batch, make_plan(batch))
    torch.testing.assert_close(recomputed, kept, atol=0, rtol=0)
    left = [
        name
        for name, module in backend._model.named_modules()
        for value in vars(module).values()
        if isinstance(value, torch.Tensor)
    ]
    assert left == []


@pytest.mark.parametrize("is_on", [True, False])
def test_the_configuration_is_obeyed(
    start, sgd_spec, make_batch, make_plan, configured, unbalanced, is_on
):
    batch = make_batch()
    path = configured(output_router_logits=is_on, router_aux_loss_coef=0.25)
    wanted = replace(sgd_spec(unbalanced), router_aux_loss=0.25 if is_on else 0.0)

    actual, metrics = gradients(start(sgd_spec(path)), batch, make_plan(batch))

    expected, _ = gradients(start(wanted), batch, make_plan(batch))
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)
    assert ("policy/moe/balancing_loss" in metrics) == is_on


def test_the_option_goes_before_the_configuration(
    start, sgd_spec, make_batch, make_plan, configured, unbalanced
):
    batch = make_batch()
    path = configured(output_router_logits=True, router_aux_loss_coef=0.25)

    actual, _ = gradients(
        start(replace(sgd_spec(path), router_aux_loss=0.0)), batch, make_plan(batch)
    )

    expected, _ = gradients(start(sgd_spec(unbalanced)), batch, make_plan(batch))
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)


def test_a_shared_prompt_counts_in_each_of_its_rows(
    start, sgd_spec, make_plan, unbalanced, shared_batch
):
    spec = replace(sgd_spec(unbalanced), router_aux_loss=0.5)

    shared, metrics = gradients(start(spec), shared_batch, make_plan(shared_batch))
    whole, others = gradients(
        start(spec, share_prompts=False), shared_batch, make_plan(shared_batch)
    )

    torch.testing.assert_close(shared, whole, atol=1e-6, rtol=1e-4)
    for name in ("balancing_loss", "max_load", "load_entropy"):
        assert metrics[f"policy/moe/{name}"].value() == pytest.approx(
            others[f"policy/moe/{name}"].value(), rel=1e-5
        )


def test_a_critic_is_balanced_too(start, sgd_spec, make_batch, make_plan, unbalanced):
    batch = make_batch()
    critic = replace(sgd_spec(unbalanced), role="critic", head="value", objective=ValueObjective())

    plain, _ = gradients(start(critic), batch, make_plan(batch))
    balanced, metrics = gradients(
        start(replace(critic, router_aux_loss=0.5)), batch, make_plan(batch)
    )

    assert metrics["critic/moe/balancing_loss"].value() > 2.0
    router = "model.layers.0.mlp.gate.weight"
    assert (balanced[router] - plain[router]).abs().max() > 1e-3


def test_supervised_rows_count(start, sgd_spec, make_batch, make_plan, unbalanced, refs):
    """Rows that a term imitates are tokens of the update as others are."""
    from rlhf_core.contracts import LossTerm, Normalizers

    batch = without_advantages(make_batch(4))
    more = make_batch(6).trajectories.select(np.array([4, 5]))
    terms = (LossTerm(loss=refs.loss, weight=0.0, aggregation="token-mean", rows="supervised"),)
    spec = replace(sgd_spec(unbalanced, max_tokens=1, terms=terms), router_aux_loss=0.5)
    totals = Normalizers(num_actions=int(more.num_actions.sum()), num_sequences=2, max_actions=20)
    plan = make_plan(batch, supervised_normalizers=totals)

    _, metrics = gradients(start(spec), replace(batch, supervised=more), plan)

    _, loss = own_gradient(unbalanced, make_batch(6), [[row] for row in range(6)])
    assert metrics["policy/moe/balancing_loss"].value() == pytest.approx(loss, rel=1e-5)


def test_the_load_is_counted_over_all_micro_batches(
    start, sgd_spec, make_batch, make_plan, unbalanced
):
    batch = make_batch()
    model = AutoModelForCausalLM.from_pretrained(unbalanced, dtype=torch.float32).eval()
    counts = np.zeros((2, 4))
    for row in range(6):
        tokens = torch.from_numpy(batch.trajectories.tokens_of(row).astype(np.int64))[None]
        for layer, logits in enumerate(
            model(input_ids=tokens, output_router_logits=True).router_logits
        ):
            chosen = logits.topk(2, dim=-1).indices.reshape(-1)
            counts[layer] += np.bincount(chosen.numpy(), minlength=4)
    shares = counts / counts.sum(1, keepdims=True)
    entropies = -(shares * np.log(shares.clip(1e-30))).sum(1) / np.log(4)

    for max_tokens in (1, 16384):
        _, metrics = gradients(
            start(sgd_spec(unbalanced, max_tokens=max_tokens)), batch, make_plan(batch)
        )
        found = {
            name.removeprefix("policy/moe/"): metric.value()
            for name, metric in metrics.items()
            if "/moe/" in name
        }
        assert found == pytest.approx(
            {
                "max_load": 2 * shares.max(),
                "load_entropy": entropies.min(),
                **{f"max_load/{layer}": 2 * shares[layer].max() for layer in (0, 1)},
                **{f"load_entropy/{layer}": entropies[layer] for layer in (0, 1)},
            },
            rel=1e-6,
        )


def test_a_factor_for_a_model_without_experts_is_refused(start, sgd_spec, models):
    with pytest.raises(
        ConfigError, match=r"router_aux_loss 0\.1", check=has_code("model/no-experts")
    ):
        start(replace(sgd_spec(models["qwen3"]), router_aux_loss=0.1))


def test_a_model_without_experts_has_no_load(start, sgd_spec, make_batch, make_plan, models):
    batch = make_batch()

    _, metrics = gradients(start(sgd_spec(models["qwen3"])), batch, make_plan(batch))

    assert not [name for name in metrics if "moe" in name]


def test_a_role_that_is_not_trained_records_nothing(start, sgd_spec, unbalanced):
    backend = start(replace(sgd_spec(unbalanced), objective=None, optimizer=None))

    assert backend._model.routing is None


def test_the_factor_is_said_at_the_start(start, sgd_spec, unbalanced, caplog):
    caplog.set_level(logging.INFO)

    start(replace(sgd_spec(unbalanced), router_aux_loss=0.125))

    assert "the factor of its balancing loss is 0.125" in caplog.text
