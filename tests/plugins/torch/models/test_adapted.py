"""Roles that are only read, from a PEFT folder: beside a base that another role holds, or merged into their own."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.plugins.torch.conftest import make_batch, make_plan, make_spec, make_trajectories

from rlhf_core import ConfigError, Registered
from rlhf_core.contracts import ComponentRef
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_plugin_lora import rlhf_model_adapters
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.models.modeling import DTYPES

LORA = ComponentRef(kind="rlhf_model_adapters", name="lora:lora", options={"rank": 4})


@pytest.fixture(scope="module")
def with_adapters(plugins):
    for adapter in rlhf_model_adapters():
        plugins.registries["rlhf_model_adapters"].add(Registered(adapter, "lora"))
    return plugins


@pytest.fixture
def beside(with_adapters):
    """Backends of the roles, set up one after the other as one process does it."""

    def build(*specs):
        backends = []
        for spec in specs:
            backend = TorchBackend(TorchBackendConfig(device="cpu"))
            backend.setup_beside(spec, with_adapters, tuple(backends))
            backends.append(backend)
        return backends

    return build


@pytest.fixture
def teach(make_spec_of, beside, tmp_path):
    """Train an adapter, export it, and return its backend and the folder."""

    def build(**changes):
        (backend,) = beside(make_spec_of(adapter=changes.pop("adapter", LORA), **changes))
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for _, weight in backend._model.named_trainable():
                weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
        backend.export(tmp_path / "teacher")
        return backend, tmp_path / "teacher"

    return build


@pytest.fixture
def make_spec_of(models):
    def build(family="qwen3", **changes):
        return make_spec(models[family], **changes)

    return build


def reader(folder, spec):
    """The spec of a role that only reads the folder."""
    return replace(
        spec, role="teacher", model_path=str(folder), objective=None, optimizer=None, adapter=None
    )


def names_of(backend):
    return {name for name, _ in backend._model.lm.model.named_parameters()}


def storages(*backends):
    found = {
        parameter.untyped_storage().data_ptr(): parameter.untyped_storage().nbytes()
        for backend in backends
        for parameter in backend._model.parameters()
    }
    return sum(found.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3", "llama", "gemma3"])
def test_beside_a_held_base_it_costs_its_adapter_alone(teach, beside, make_spec_of, family, dtype):
    taught, folder = teach(family=family, dtype=dtype)
    spec = make_spec_of(family, dtype=dtype, adapter=LORA)

    policy, teacher = beside(spec, reader(folder, spec))

    rows = make_trajectories()
    np.testing.assert_array_equal(teacher.logprobs(rows), taught.logprobs(rows))
    assert np.abs(teacher.logprobs(rows) - policy.logprobs(rows)).max() > 1e-3
    adapter = sum(w.nbytes for _, w in policy._model.named_trainable())
    assert storages(policy, teacher) == storages(policy) + adapter
    assert not any(parameter.requires_grad for parameter in teacher._model.parameters())
    assert {p.dtype for p in teacher._model.parameters()} == {DTYPES[dtype]}


def test_a_teacher_beside_changes_nothing_for_the_policy(teach, beside, make_spec_of):
    _, folder = teach()
    spec = make_spec_of(adapter=LORA)
    (alone,), (policy, teacher) = beside(spec), beside(spec, reader(folder, spec))
    rows = make_trajectories()
    before = teacher.logprobs(rows)

    for backend in (alone, policy):
        for seed in range(3):
            batch = make_batch(seed=seed)
            teacher.logprobs(rows)
            backend.train_step(batch, make_plan(batch))

    np.testing.assert_array_equal(policy.logprobs(rows), alone.logprobs(rows))
    np.testing.assert_array_equal(policy.base_logprobs(rows), alone.base_logprobs(rows))
    np.testing.assert_array_equal(teacher.logprobs(rows), before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_a_held_base_it_is_merged(teach, beside, make_spec_of, dtype):
    """A policy that is trained whole holds no base, so that the teacher is a plain model of its own."""
    taught, folder = teach(dtype=dtype)
    spec = make_spec_of(dtype=dtype)

    policy, teacher = beside(spec, reader(folder, spec))

    assert names_of(teacher) == names_of(policy)
    assert storages(policy, teacher) == 2 * storages(policy)
    assert {p.dtype for p in teacher._model.parameters()} == {DTYPES[dtype]}
    rows = make_trajectories()
    # In bfloat16 a merged weight is rounded once, to 8 bits.
    tolerance = {"float32": 1e-4, "bfloat16": 0.15}[dtype]
    np.testing.assert_allclose(
        teacher.logprobs(rows), taught.logprobs(rows), atol=tolerance, rtol=0
    )


def test_setup_alone_reads_it_too(teach, with_adapters, make_spec_of):
    taught, folder = teach()
    teacher = TorchBackend(TorchBackendConfig(device="cpu"))

    teacher.setup(reader(folder, make_spec_of()), with_adapters)

    rows = make_trajectories()
    np.testing.assert_allclose(teacher.logprobs(rows), taught.logprobs(rows), atol=1e-4, rtol=0)


def test_lengths_of_rows_are_read_too(teach, beside, make_spec_of):
    dora = ComponentRef(kind="rlhf_model_adapters", name="lora:dora", options={"rank": 2})
    taught, folder = teach(adapter=dora)
    spec = make_spec_of(adapter=LORA)

    _, teacher = beside(spec, reader(folder, spec))

    rows = make_trajectories()
    np.testing.assert_array_equal(teacher.logprobs(rows), taught.logprobs(rows))


def change_config(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def drop_a_factor(folder):
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    del tensors[min(name for name in tensors if "lora_B" in name)]
    save_file(tensors, path)


SPOILED = {
    "another rank": (
        lambda f: change_config(f, r=3),
        "with the rank r = 3 of its config",
        "adapter/does-not-fit",
    ),
    "fewer targets": (
        lambda f: change_config(f, target_modules=["model.layers.0.self_attn.q_proj"]),
        "target_modules in adapter_config.json do not name that module",
        "adapter/does-not-fit",
    ),
    "a factor is missing": (
        drop_a_factor,
        "has a factor A and no factor B",
        "adapter/does-not-fit",
    ),
    "no base": (
        lambda f: change_config(f, base_model_name_or_path=None),
        "expected the name of its base",
        "adapter/no-name-of-base",
    ),
    "a base that is gone": (
        lambda f: change_config(f, base_model_name_or_path="/gone/model"),
        "its base /gone/model is not there",
        "adapter/no-base",
    ),
    "no weights": (
        lambda f: (f / "adapter_model.safetensors").unlink(),
        "it is missing",
        "adapter/no-weights",
    ),
}


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("case", SPOILED)
def test_a_folder_that_does_not_fit_is_named(teach, beside, make_spec_of, case, is_shared):
    _, folder = teach()
    spoil, message, code = SPOILED[case]
    if case == "fewer targets" and not is_shared:
        code = "adapter/not-mergeable"  # found as the factors are added to the base's weights
    spoil(folder)
    spec = make_spec_of(adapter=LORA if is_shared else None)

    with pytest.raises(ConfigError, match=message, check=has_code(code)) as caught:
        beside(spec, reader(folder, spec))

    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("is_shared", [True, False])
def test_an_adapter_of_another_base_is_named(teach, beside, make_spec_of, tmp_path, is_shared):
    _, folder = teach()
    other = write_tiny_model(tmp_path / "other", hidden_size=64, num_layers=2, num_heads=4)
    change_config(folder, base_model_name_or_path=str(other))
    spec = make_spec_of(adapter=LORA if is_shared else None, model_path=str(other))

    with pytest.raises(
        ConfigError,
        match=f"does not fit {other}: model.layers.0",
        check=has_code("adapter/does-not-fit"),
    ) as caught:
        beside(spec, reader(folder, spec))

    assert "has the shape (" in str(caught.value)


def test_an_adapter_on_a_base_of_its_own_is_read_from_there(teach, beside, make_spec_of):
    taught, folder = teach(family="llama")
    spec = make_spec_of("qwen3", adapter=LORA)

    policy, teacher = beside(spec, reader(folder, spec))

    rows = make_trajectories()
    np.testing.assert_allclose(teacher.logprobs(rows), taught.logprobs(rows), atol=1e-4, rtol=0)
    assert storages(policy, teacher) == storages(policy) + storages(teacher)


def test_a_role_that_is_trained_needs_a_whole_model(teach, beside, make_spec_of, tmp_path):
    _, folder = teach()
    shutil.copytree(folder, tmp_path / "copy")

    with pytest.raises(ConfigError, check=has_code("model/is-an-adapter")):
        beside(make_spec_of(model_path=str(tmp_path / "copy")))
