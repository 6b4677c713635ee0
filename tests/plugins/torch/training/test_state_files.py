"""Saving and loading: what goes on does so to the bit, and what does not fit is refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlhf_core import CheckpointError
from rlhf_core.contracts import ScheduleSpec, ValueObjective
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES
from rlhf_torch.training.state_files import require_finite

SCHEDULE = ScheduleSpec(factors=(1 / 3, 2 / 3, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07, 0.0))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_run_goes_on_to_the_bit(
    start, steps, make_spec, models, tmp_path, family, dtype
):
    spec = make_spec(models[family], dtype=dtype, schedule=SCHEDULE, ema_decay=0.9)
    straight = start(spec)
    steps(straight, range(3))
    straight.save(tmp_path / "saved")
    expected = steps(straight, range(3, 6))

    resumed = start(spec)
    resumed.load(tmp_path / "saved")
    actual = steps(resumed, range(3, 6))

    assert actual == expected
    assert resumed.checksum() == straight.checksum()
    torch.testing.assert_close(resumed._updater.ema, straight._updater.ema, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_no_numbers_are_not_saved(tmp_path, dtype, bad):
    weights = {"no.elements": torch.ones(0, 3, dtype=dtype), "fine": torch.ones(2, dtype=dtype)}
    require_finite(weights, tmp_path / "policy")

    weights["mlp.up"] = torch.tensor([[1.0, bad], [bad, 2.0]], dtype=dtype)
    with pytest.raises(
        CheckpointError,
        match=r"^2 of the 4 weights mlp\.up of the policy are NaN or infinite",
        check=has_code("checkpoint/not-finite"),
    ):
        require_finite(weights, tmp_path / "policy")


def test_loading_undoes_later_steps(start, steps, make_spec, models, tmp_path):
    backend = start(make_spec(models["qwen3"]))
    steps(backend, range(2))
    backend.save(tmp_path)
    digest, expected = backend.checksum(), steps(backend, [7, 8])

    backend.load(tmp_path)

    assert backend.checksum() == digest
    assert steps(backend, [7, 8]) == expected


def test_a_critic_is_restored_with_its_head(start, steps, make_spec, make_batch, models, tmp_path):
    spec = make_spec(models["llama"], role="critic", head="value", objective=ValueObjective())
    straight = start(spec)
    steps(straight, range(2))
    straight.save(tmp_path)
    trajectories = make_batch().trajectories

    resumed = start(spec)
    resumed.load(tmp_path)

    np.testing.assert_array_equal(resumed.values(trajectories), straight.values(trajectories))
    assert np.abs(resumed.values(trajectories)).max() > 0


def test_state_is_safetensors_and_json(start, steps, make_spec, models, tmp_path):
    backend = start(make_spec(models["qwen3"]))
    steps(backend, range(2))
    backend.save(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert "model.norm.weight::exp_avg_sq" in load_file(tmp_path / "optimizer.safetensors")
    assert json.loads((tmp_path / "state.json").read_text())["updates"] == 2


def test_a_missing_file_is_named(start, make_spec, make_batch, make_plan, models, tmp_path):
    backend = start(make_spec(models["qwen3"]))
    backend.save(tmp_path)
    (tmp_path / "optimizer.safetensors").unlink()

    with pytest.raises(
        CheckpointError, match=r"optimizer\.safetensors", check=has_code("checkpoint/unreadable")
    ):
        backend.load(tmp_path)


def test_a_damaged_file_is_named(start, make_spec, models, tmp_path):
    backend = start(make_spec(models["qwen3"]))
    backend.save(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])

    with pytest.raises(
        CheckpointError, match=r"model\.safetensors", check=has_code("checkpoint/unreadable")
    ):
        backend.load(tmp_path)


def test_the_state_of_another_model_is_refused(start, make_spec, models, tmp_path):
    start(make_spec(models["qwen3"])).save(tmp_path)

    with pytest.raises(CheckpointError, check=has_code("checkpoint/other-tensors")):
        start(make_spec(models["qwen3_moe"])).load(tmp_path)


def test_the_state_of_another_role_is_refused(start, make_spec, models, tmp_path):
    start(make_spec(models["qwen3"], objective=None)).save(tmp_path)

    with pytest.raises(CheckpointError, check=has_code("checkpoint/other-role")):
        start(make_spec(models["qwen3"])).load(tmp_path)


def test_an_average_of_weights_begins_where_a_run_without_one_goes_on_with_one(
    start, steps, make_spec, models, tmp_path
):
    before = start(make_spec(models["qwen3"]))
    steps(before, range(2))
    before.save(tmp_path)

    resumed = start(make_spec(models["qwen3"], ema_decay=0.9))
    resumed.load(tmp_path)

    torch.testing.assert_close(resumed._updater.ema, dict(resumed._updater.masters), atol=0, rtol=0)
