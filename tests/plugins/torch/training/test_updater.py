"""Every trainable parameter is trained, whatever the dtypes that stand beside each other in a model."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rlhf_core import PluginError
from rlhf_core.contracts import ValueObjective
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.training import updater

DTYPES = ("float32", "bfloat16", "mixed")
CUTS = {"whole": 16384, "cut": 20}
"""Tokens of a micro-batch: all rows are one, or each row or two."""
NEAR = 0.1
"""Relative distance of gradients: bfloat16 has 8 bits, and its layers add rounding up."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tied and an untied model, each with a value head that is not zero, so that values depend on the layers; and one
    without a value head, where a critic's is zero at first."""
    root, made = tmp_path_factory.mktemp("models"), {}
    made["headless"] = write_tiny_model(root / "headless")
    generator = torch.Generator().manual_seed(5)
    for name in ("tied", "untied"):
        made[name] = write_tiny_model(root / name, tied=name == "tied", initializer_range=0.2)
        head = {"weight": torch.randn(1, 32, generator=generator) / 8, "bias": torch.zeros(1)}
        save_file(head, made[name] / "value_head.safetensors")
    return made


@pytest.fixture
def start_role(start, sgd_spec, folders, refs):
    """Build a policy or a critic whose update is its gradient."""

    def build(role, dtype, tying="tied", cut="whole", **changes):
        spec = sgd_spec(folders[tying], max_tokens=CUTS[cut])
        if role == "critic":
            spec = replace(spec, role="critic", head="value", objective=ValueObjective())
        if dtype == "mixed":
            spec = replace(spec, dtype="bfloat16", adapter=refs.float32_norms)
        else:
            spec = replace(spec, dtype=dtype)
        return start(replace(spec, **changes))

    return build


def with_returns(batch, value):
    """The batch with the same return everywhere."""
    returns = np.full_like(batch.columns["returns"], value)
    return replace(batch, columns={**batch.columns, "returns": returns})


def moves_of(backend, batch, plan, updates=1):
    """How far each trainable parameter moves, in the float32 weights that the optimizer sees."""
    masters = backend._updater.masters
    before = {name: master.detach().clone() for name, master in masters.items()}
    for _ in range(updates):
        backend.train_step(batch, plan)
    return {name: before[name] - master.detach() for name, master in masters.items()}


@pytest.mark.parametrize("tying", ["tied", "untied"])
@pytest.mark.parametrize(
    ("role", "dtype", "cut"), list(product(("policy", "critic"), DTYPES, CUTS))
)
def test_every_trainable_parameter_moves_by_its_gradient(
    start_role, make_batch, make_plan, role, dtype, cut, tying
):
    batch = with_returns(
        make_batch(), 3.0
    )  # far from all values: no gradient is a difference of rounding
    plain = start_role(role, "float32", tying)
    expected = moves_of(plain, batch, make_plan(batch))
    backend = start_role(role, dtype, tying, cut)

    found = moves_of(backend, batch, make_plan(batch))

    assert found.keys() == dict(backend._model.named_trainable()).keys() == expected.keys()
    for name, gradient in expected.items():
        assert float(gradient.norm()) > 0, name
        distance = float((found[name] - gradient).norm() / gradient.norm())
        assert distance < (1e-4 if dtype == "float32" else NEAR), (name, distance)


def test_the_mixed_models_hold_both_dtypes(start_role):
    """Otherwise the tests before this one would compare a dtype with itself."""
    for role in ("policy", "critic"):
        dtypes = {name: w.dtype for name, w in start_role(role, "mixed")._model.named_trainable()}
        assert dtypes["model.norm.weight"] == torch.float32
        assert dtypes["model.embed_tokens.weight"] == torch.bfloat16
    assert dtypes["value_head.weight"] == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_updates_of_a_gradient_are_twice_the_first(start_role, make_batch, make_plan, dtype):
    """Nothing of an update is left for the next one: with a tiny learning rate both have the same gradient."""
    batch = with_returns(make_batch(), 3.0)
    tiny = {"max_grad_norm": 1e-4}
    once = moves_of(start_role("critic", dtype, **tiny), batch, make_plan(batch))

    twice = moves_of(start_role("critic", dtype, **tiny), batch, make_plan(batch), updates=2)

    for name, move in once.items():
        distance = float((twice[name] - 2 * move).norm() / move.norm())
        assert distance < NEAR, (name, distance)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
def test_a_critic_in_half_precision_learns_as_in_float32(
    start_role, make_batch, make_plan, refs, dtype
):
    """Twenty steps of Adam to returns of 1, from values of 0."""
    batch = with_returns(make_batch(), 1.0)
    losses = {}
    for kind in ("float32", dtype):
        backend = start_role("critic", kind, "headless", "cut", optimizer=refs.fast_adam)
        metrics = [backend.train_step(batch, make_plan(batch)).metrics for _ in range(20)]
        losses[kind] = metrics[-1]["critic/loss"].value()
        assert all(step["critic/grad_norm"].value() > 0 for step in metrics)

    assert losses["float32"] < 0.05
    assert losses[dtype] == pytest.approx(losses["float32"], abs=0.02)


def test_averages_and_state_of_a_mixed_model_are_complete(
    start_role, make_batch, make_plan, refs, tmp_path
):
    batch = make_batch()
    spec = {"optimizer": refs.adamw, "ema_decay": 0.5}
    straight = start_role("critic", "mixed", **spec)
    moves_of(straight, batch, make_plan(batch))
    straight.save(tmp_path)
    resumed = start_role("critic", "mixed", **spec)
    resumed.load(tmp_path)

    for backend in (straight, resumed):
        moves_of(backend, batch, make_plan(batch))

    for kind in ("masters", "weights", "ema"):
        first, second = (getattr(b._updater, kind) for b in (straight, resumed))
        assert first.keys() == straight._updater.masters.keys()
        torch.testing.assert_close(dict(second), dict(first), atol=0, rtol=0)
    for name, weight in straight._updater.weights.items():
        assert torch.equal(weight, straight._updater.masters[name].to(weight.dtype)), name


def test_gradients_are_the_same_in_however_many_parts_they_become_float32(
    start_role, make_batch, make_plan, monkeypatch
):
    """A part for each tensor, and all tensors in one part."""
    batch, sums = make_batch(), []
    for size in (1, 2**40):
        monkeypatch.setattr(updater, "COPIED_AT_ONCE", size)
        backend = start_role("policy", "bfloat16", cut="cut")
        backend.train_step(batch, make_plan(batch))
        sums.append(backend.checksum())

    assert sums[0] == sums[1]


@pytest.mark.parametrize("share", [1.0, 0.01])
def test_a_reference_beside_bfloat16_weights_moves_in_float32(
    start, make_spec, make_batch, make_plan, models, refs, share
):
    """In bfloat16 a hundredth of the way, of updates that are each smaller than half a step of that type, would be
    lost in rounding."""
    spec = make_spec(models["qwen3"], dtype="bfloat16", optimizer=refs.sgd, reference_sync=share)
    backend, batch = start(spec), make_batch()
    before = [master.detach().clone() for master in backend._updater.masters.values()]

    backend.train_step(batch, make_plan(batch, syncs_reference=True))

    masters = list(backend._updater.masters.values())
    expected = [
        old + share * (new.detach() - old) for old, new in zip(before, masters, strict=True)
    ]
    torch.testing.assert_close(backend._updater.reference, expected, atol=1e-9, rtol=1e-6)
    moved = [float((now - old).abs().max()) for now, old in zip(expected, before, strict=True)]
    assert max(moved) > 0
    if share == 1.0:
        assert all(map(torch.equal, backend._updater.reference, masters))


def test_a_pass_that_fails_leaves_the_policy_as_it_was(
    start, make_spec, make_batch, make_plan, models, monkeypatch
):
    backend, batch = start(make_spec(models["qwen3"], reference_sync=0.5)), make_batch()
    backend.train_step(batch, make_plan(batch, syncs_reference=True))
    digest, expected = backend.checksum(), backend.base_logprobs(batch.trajectories)
    rows = batch.trajectories
    assert not np.array_equal(backend.logprobs(rows), expected)

    def broken(*arguments):
        raise MemoryError("of this pass")

    with monkeypatch.context() as patched:
        patched.setattr(backend, "_score", broken)
        with pytest.raises(MemoryError):
            backend.base_logprobs(rows)

    assert backend.checksum() == digest
    assert np.array_equal(backend.base_logprobs(rows), expected)


def test_an_update_that_is_undone_takes_the_reference_back(
    start, make_spec, make_batch, make_plan, models
):
    backend, batch = start(make_spec(models["qwen3"], reference_sync=0.5)), make_batch()
    rows = batch.trajectories
    backend.train_step(batch, make_plan(batch, syncs_reference=True))
    before, begun = backend.base_logprobs(rows), backend.updates_begun
    backend.train_step(batch, make_plan(batch, syncs_reference=True, undo_bytes=2**30))
    assert not np.array_equal(backend.base_logprobs(rows), before)

    assert backend.undo(begun)

    assert np.array_equal(backend.base_logprobs(rows), before)


def test_a_role_whose_state_is_in_host_memory_has_no_reference(
    start, make_spec, make_batch, models
):
    backend, rows = start(make_spec(models["qwen3"], reference_sync=0.5)), make_batch().trajectories
    before = backend.base_logprobs(rows)
    backend.offload(weights=False)

    with pytest.raises(PluginError, match="expected reload", check=has_code("training/offloaded")):
        backend.base_logprobs(rows)

    backend.reload()
    assert np.array_equal(backend.base_logprobs(rows), before)
