"""Roles of one process on one copy of the base: what they hold in memory, and that nothing of one reaches another."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.plugins.lora.conftest import ADAPTERS, base_of, stir, trained
from tests.plugins.torch.conftest import FLOAT32_NORMS, make_batch, make_plan, make_trajectories

from rlhf_core import Component, PluginError, Registered
from rlhf_core.contracts import ComponentRef, RuntimeSpec, SharesBase, ValueObjective
from rlhf_plugin_local import rlhf_train_backends
from rlhf_plugin_local.config import LocalRuntimeConfig, TorchBackendConfig
from rlhf_plugin_local.runtime import LocalRuntime
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES
from rlhf_torch.models.loading import load_model
from rlhf_torch.models.shared_base import SharedBase

CRITIC = {"role": "critic", "head": "value", "objective": ValueObjective(), "seed": 7}
MOST = {"rank": 4, "dropout": 0.2, "modules_to_save": ["model.norm"]}


def beside(plugins, *specs, **options):
    """Backends of the roles, set up one after the other as one process does it, with factors that matter."""
    backends = []
    for spec in specs:
        backend = TorchBackend(TorchBackendConfig(device="cpu", **options))
        assert isinstance(backend, SharesBase)
        backend.setup_beside(spec, plugins, tuple(backends))
        backends.append(backend)
    for backend in backends:
        stir(backend)
    return backends


def held_bytes(*backends):
    """Bytes of all different storages of the parameters of all roles, what quantized ones keep beside them included."""
    storages = {}
    for backend in backends:
        for parameter in backend._model.parameters():
            scales = getattr(parameter, "quant_state", None)
            for tensor in (parameter, *([scales.absmax] if scales is not None else [])):
                storage = tensor.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def steps(policy, critic, count=3):
    """Alternate what a run asks of the two roles, and return all that comes back."""
    found = []
    for seed in range(count):
        batch = make_batch(seed=seed)
        rows = batch.trajectories
        found += [policy.logprobs(rows), policy.base_logprobs(rows), critic.values(rows)]
        for backend in (critic, policy):
            plan = make_plan(batch)
            if backend is critic:
                columns = {"returns": batch.columns["advantages"], "values": found[-1]}
                data = type(batch)(trajectories=rows, columns=columns)
            else:
                data = batch
            metrics = backend.train_step(data, plan).metrics
            found.append(np.array([metrics[name].value() for name in sorted(metrics)]))
    return found


def same(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_adapters_hold_one_base(plugins, start, spec_of, adapter, dtype):
    specs = spec_of(adapter, dtype=dtype), spec_of(adapter, dtype=dtype, options=MOST, **CRITIC)
    separate = [start(spec) for spec in specs]

    policy, critic = beside(plugins, *specs)

    base_bytes = held_bytes(separate[0]) - sum(w.nbytes for w in trained(separate[0]).values())
    own = [sum(w.nbytes for w in trained(backend).values()) for backend in (policy, critic)]
    assert min(own) > 0
    assert held_bytes(policy, critic) == base_bytes + sum(own)
    assert held_bytes(*separate) == 2 * base_bytes + sum(own)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_results_are_those_of_separate_bases_to_the_bit(
    plugins, start, spec_of, tmp_path, family, adapter
):
    specs = (
        spec_of(adapter, family, options={"dropout": 0.1}),
        spec_of("lora", family, options=MOST, **CRITIC),
    )
    separate, shared = [start(spec) for spec in specs], beside(plugins, *specs)

    same(steps(*shared), steps(*separate))

    assert shared[0].checksum() == separate[0].checksum()
    for one, other in zip(shared, separate, strict=True):
        torch.testing.assert_close(trained(one), trained(other), atol=0, rtol=0)
        for name, backend in (("one", one), ("other", other)):
            backend.save(tmp_path / name / "state")
            backend.export(tmp_path / name / "model")
        files = [path for path in sorted((tmp_path / "one").rglob("*")) if path.is_file()]
        assert len(files) >= 6
        for path in files:
            twin = tmp_path / "other" / path.relative_to(tmp_path / "one")
            assert path.read_bytes() == twin.read_bytes(), path.name


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_in_half_precision_too(plugins, start, spec_of, adapter):
    specs = [
        spec_of(adapter, dtype="bfloat16", options=options, **role)
        for options, role in (({}, {}), (MOST, CRITIC))
    ]
    same(steps(*beside(plugins, *specs)), steps(*map(start, specs)))


@pytest.mark.parametrize(
    "options", [{"gradient_checkpointing": True}, {"compute_dtype": "bfloat16"}]
)
def test_with_options_of_the_backend_too(plugins, start, spec_of, options):
    specs = spec_of(options=MOST), spec_of(options=MOST, **CRITIC)
    separate = [start(spec, **options) for spec in specs]

    same(steps(*beside(plugins, *specs, **options)), steps(*separate))


def test_training_one_role_leaves_the_other(plugins, spec_of):
    policy, critic = beside(plugins, spec_of(), spec_of(options=MOST, **CRITIC))
    rows, batch = make_trajectories(), make_batch()
    values, logprobs, base = critic.values(rows), policy.logprobs(rows), base_of(policy)
    weights = trained(critic)

    policy.train_step(batch, make_plan(batch))

    np.testing.assert_array_equal(critic.values(rows), values)
    torch.testing.assert_close(trained(critic), weights, atol=0, rtol=0)
    assert np.abs(policy.logprobs(rows) - logprobs).max() > 0
    torch.testing.assert_close(base_of(policy), base, atol=0, rtol=0)


def test_roles_that_are_only_read_share_what_an_adapter_leaves(plugins, start, spec_of):
    """A teacher or a reference of the base's own path costs nothing."""
    policy, reference = beside(plugins, spec_of(), spec_of(None, objective=None, role="reference"))

    assert held_bytes(policy, reference) == held_bytes(policy)
    rows = make_trajectories()
    np.testing.assert_array_equal(reference.logprobs(rows), policy.base_logprobs(rows))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"adapter": None}, {}),
        ({}, {"adapter": None}),
        ({}, {"dtype": "bfloat16"}),
        ({}, {"family": "llama"}),
        ({}, {"adapter": "qlora"}),
        ({"adapter": "qlora"}, {"adapter": "qlora", "options": {"double_quantization": False}}),
    ],
)
def test_bases_that_differ_are_held_apart(plugins, spec_of, first, second):
    policy, critic = beside(plugins, spec_of(**first), spec_of(**second, **CRITIC))

    pointers = [{p.data_ptr() for p in backend._model.parameters()} for backend in (policy, critic)]
    assert pointers[0].isdisjoint(pointers[1])


def test_a_folder_under_two_names_is_one_base(plugins, spec_of, models, tmp_path, monkeypatch):
    monkeypatch.chdir(models["qwen3"].parent)
    policy, critic = beside(plugins, spec_of(), spec_of(model_path="./qwen3/", **CRITIC))

    assert held_bytes(policy, critic) < 1.5 * held_bytes(policy)


def test_an_adapter_that_changes_its_base_is_refused_beside_another(plugins, spec_of):
    spec = replace(spec_of(dtype="bfloat16", **CRITIC), adapter=FLOAT32_NORMS)

    with pytest.raises(PluginError, check=has_code("adapter/changes-base")):
        beside(plugins, spec_of(dtype="bfloat16"), spec)


def test_a_base_that_an_adapter_changed_is_not_shared(plugins, spec_of):
    first = replace(spec_of(dtype="bfloat16"), adapter=FLOAT32_NORMS)

    policy, critic = beside(plugins, first, spec_of(dtype="bfloat16", **CRITIC))

    assert {p.data_ptr() for p in policy._model.parameters()}.isdisjoint(
        p.data_ptr() for p in critic._model.parameters()
    )


def test_a_module_with_a_function_of_its_own_cannot_be_copied(models):
    base = SharedBase(None, load_model(str(models["qwen3"]), dtype="float32").model)
    assert base.can_be_copied()
    base._model.called_with = lambda hidden: base._model.lm_head(hidden)

    assert not base.can_be_copied()


def test_the_local_runtime_builds_roles_on_one_base(plugins, spec_of):
    (torch_backend,) = rlhf_train_backends()
    registry = plugins.registries["rlhf_train_backends"]
    registry.add(Registered(torch_backend, "local"))
    registry.add(Registered(Component(name="plain", factory=Plain), "test"))

    def started(name):
        runtime = LocalRuntime(LocalRuntimeConfig(threads=1))
        spec = RuntimeSpec(
            roles={"policy": spec_of(), "critic": spec_of(**CRITIC)},
            backend=ComponentRef(kind="rlhf_train_backends", name=name),
        )
        asyncio.run(runtime.start(spec, plugins))
        return runtime

    runtime = started("local:torch")
    policy, critic = runtime._backends.values()
    assert held_bytes(policy, critic) < 1.5 * held_bytes(policy)
    asyncio.run(runtime.close())

    assert [backend.calls for backend in started("test:plain")._backends.values()] == [
        ["setup"]
    ] * 2


class Plain:
    """A backend that shares nothing."""

    def __init__(self, config):
        self.calls = []

    def setup(self, spec, plugins):
        self.calls.append("setup")

    def train_step(self, batch, plan):
        self.calls.append("train_step")

    def close(self):
        self.calls.append("close")
