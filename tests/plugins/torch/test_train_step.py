"""Whole updates: determinism, clipping, schedule, skipped updates, averages, precision."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import ComponentRef, ParameterGroup, ScheduleSpec, ValueObjective
from rlhf_testing.errors import has_code
from rlhf_testing.fakes import WholeModel
from rlhf_testing.tiny import FAMILIES
from rlhf_torch.training.updater import Updater


def weights_of(backend):
    return {name: w.detach().clone() for name, w in backend._model.named_weights()}


def distance(before, after):
    return float(torch.cat([(after[k] - before[k]).flatten().float() for k in before]).norm())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_steps_give_the_same_bits(start, make_spec, make_batch, make_plan, models, family):
    digests = []
    for _ in range(2):
        backend = start(make_spec(models[family], max_tokens_per_micro_batch=40))
        for seed in range(3):
            batch = make_batch(seed=seed)
            backend.train_step(batch, make_plan(batch))
        digests.append(backend.checksum())

    assert digests[0] == digests[1]


def test_the_checksum_sees_a_single_weight(start, make_spec, models):
    backend = start(make_spec(models["qwen3"]))
    before = backend.checksum()

    with torch.no_grad():
        backend.module().model.base_model.layers[1].mlp.down_proj.weight[3, 5] += 1e-6

    assert backend.checksum() != before


def test_the_policy_learns_to_repeat_what_was_good(start, make_spec, make_batch, make_plan, models):
    backend, batch = start(make_spec(models["qwen3"])), make_batch()
    good = np.ones_like(batch.columns["advantages"])
    batch = replace(batch, columns={"advantages": good})
    before = backend.logprobs(batch.trajectories).mean()

    for _ in range(30):
        backend.train_step(batch, make_plan(batch))

    assert backend.logprobs(batch.trajectories).mean() > before + 1.0


def test_the_critic_learns_its_returns(start, make_spec, make_batch, make_plan, models):
    spec = make_spec(models["qwen3"], role="critic", head="value", objective=ValueObjective())
    backend, batch = start(spec), make_batch()
    errors = [
        backend.train_step(batch, make_plan(batch)).metrics["critic/abs_error"].value()
        for _ in range(60)
    ]

    assert errors[-1] < 0.5 * errors[0]


def test_a_gradient_that_is_not_finite_is_not_applied(
    start, make_spec, make_batch, make_plan, models
):
    backend, batch = start(make_spec(models["qwen3"], ema_decay=0.5)), make_batch()
    backend.train_step(batch, make_plan(batch))
    before, digest = weights_of(backend), backend.checksum()
    state = {k: v.clone() for k, v in _optimizer_tensors(backend).items()}
    bad = batch.columns["advantages"].copy()
    bad[3] = np.nan

    metrics = backend.train_step(
        replace(batch, columns=batch.columns | {"advantages": bad}), make_plan(batch)
    ).metrics

    assert metrics["train/skipped_updates"].value() == 1.0
    assert "policy/grad_norm" not in metrics
    assert backend.checksum() == digest
    assert distance(before, backend._updater.ema) > 0  # of the first update, not of this one
    torch.testing.assert_close(_optimizer_tensors(backend), state, atol=0, rtol=0)
    after = backend.train_step(batch, make_plan(batch)).metrics
    assert after["train/skipped_updates"].value() == 0.0
    assert backend.checksum() != digest


def _optimizer_tensors(backend):
    return {
        f"{index}/{key}": value
        for index, state in enumerate(backend._updater.optimizer.state.values())
        for key, value in state.items()
    }


def test_the_gradient_is_clipped_to_its_norm(start, make_spec, make_batch, make_plan, models, refs):
    batch = make_batch()
    spec = make_spec(models["qwen3"], optimizer=refs.sgd, max_grad_norm=1e-3)
    backend = start(spec)
    before = weights_of(backend)

    metrics = backend.train_step(batch, make_plan(batch)).metrics

    assert metrics["policy/grad_norm"].value() > 0.01
    assert distance(before, weights_of(backend)) == pytest.approx(1e-3, rel=1e-3)


def test_the_learning_rate_follows_the_schedule(start, make_spec, make_batch, make_plan, models):
    schedule = ScheduleSpec(factors=(0.5, 1.0, 0.5, 0.0))
    backend, batch = start(make_spec(models["qwen3"], schedule=schedule)), make_batch(2)

    rates = [
        backend.train_step(batch, make_plan(batch)).metrics["policy/lr"].value() for _ in range(4)
    ]

    # the optimizer's peak is 1e-3
    assert rates == pytest.approx([5e-4, 1e-3, 5e-4, 0.0])
    assert backend._updater.optimizer.param_groups[0]["lr"] == 0.0


def test_the_moving_average_is_that_of_the_weights(start, make_spec, make_batch, make_plan, models):
    backend, batch = start(make_spec(models["qwen3"], ema_decay=0.75)), make_batch()
    expected = weights_of(backend)

    for _ in range(3):
        backend.train_step(batch, make_plan(batch))
        expected = {k: 0.75 * expected[k] + 0.25 * w for k, w in weights_of(backend).items()}

    torch.testing.assert_close(backend._updater.ema, expected, atol=1e-6, rtol=1e-5)


def test_small_updates_of_bfloat16_weights_are_not_lost(
    start, make_spec, make_batch, make_plan, models, refs
):
    """A step of 1e-5 is far below a bfloat16 weight's resolution; float32 copies add many of them up."""
    spec = make_spec(models["qwen3"], dtype="bfloat16", optimizer=refs.sgd, max_grad_norm=1e-5)
    backend, batch = start(spec), make_batch()
    before = weights_of(backend)
    copies = {k: m.detach().clone() for k, m in backend._updater.masters.items()}

    for _ in range(4):
        backend.train_step(batch, make_plan(batch))

    masters = {k: m.detach() for k, m in backend._updater.masters.items()}
    assert distance(copies, masters) == pytest.approx(4e-5, rel=0.2)
    assert all(torch.equal(w, masters[k].bfloat16()) for k, w in weights_of(backend).items())
    assert all(w.dtype == torch.bfloat16 for w in before.values())


def test_metrics_are_plain_numbers(start, make_spec, make_batch, make_plan, models):
    batch = make_batch()

    metrics = start(make_spec(models["qwen3"])).train_step(batch, make_plan(batch)).metrics

    assert metrics["train/tokens"].value() == batch.trajectories.num_tokens.sum()
    for metric in metrics.values():
        assert isinstance(metric.total, int | float)
        assert isinstance(metric.count, int | float)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"optimizer": None}, "plugin/no-optimizer"),
        ({"objective": ValueObjective()}, "plugin/no-value-head"),
    ],
)
def test_a_role_that_could_not_be_trained_is_refused(start, make_spec, models, changes, code):
    with pytest.raises(ConfigError, match="the policy", check=has_code(code)):
        start(make_spec(models["qwen3"], **changes))


class Forgetful:
    def __init__(self, keep):
        self.keep = keep

    def parameter_groups(self, named):
        return [ParameterGroup(name="some", named_parameters=tuple(named)[self.keep])]


@pytest.mark.parametrize("keep", [slice(1, None), slice(0, 0)])
def test_an_optimizer_that_forgets_a_parameter_is_refused(start, make_spec, models, keep):
    backend = start(make_spec(models["qwen3"]))

    with pytest.raises(PluginError, match="embed_tokens", check=has_code("optimizer/groups")):
        Updater(backend._model.named_trainable(), make_spec(models["qwen3"]), Forgetful(keep))


def test_a_head_of_its_own_is_not_trained_in_a_critic(
    start, make_spec, tmp_path, make_batch, make_plan
):
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=100,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    backend = start(make_spec(tmp_path, role="critic", head="value", objective=ValueObjective()))
    batch = make_batch()

    backend.train_step(batch, make_plan(batch))

    trained = dict(backend._model.named_trainable())
    assert "lm_head.weight" not in trained
    assert "model.embed_tokens.weight" in trained


class Frozen(WholeModel):
    """Adapter: train the last norm only; serve everything, doubled."""

    def wrap(self, model, seed):
        model.requires_grad_(False)
        model.base_model.norm.weight.requires_grad_(True)
        return model

    def merged_weights(self, model):
        return ((name, tensor * 2) for name, tensor in model.state_dict().items())


def test_an_adapter_decides_what_is_trained_and_served(
    plugins, start, make_spec, make_batch, make_plan, models
):
    from rlhf_core import Component, Registered

    plugins.registries["rlhf_model_adapters"].add(
        Registered(Component(name="frozen", factory=Frozen), "test")
    )
    adapter = ComponentRef(kind="rlhf_model_adapters", name="test:frozen")
    backend, batch = start(make_spec(models["qwen3"], adapter=adapter)), make_batch()
    before = weights_of(backend)

    backend.train_step(batch, make_plan(batch))

    moved = {
        name
        for name, weight in weights_of(backend).items()
        if not torch.equal(weight, before[name])
    }
    assert moved == {"model.norm.weight"}
    assert backend.module().model is backend._lm.model
    served = {name: tensor for bucket in backend.buckets() for name, tensor in bucket.items()}
    torch.testing.assert_close(
        served["model.norm.weight"], 2 * weights_of(backend)["model.norm.weight"]
    )
