"""Weights that do not fit into a GPU are told before any model is loaded."""

import json
from types import SimpleNamespace

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_ray.cluster import node_report
from rlhf_plugin_ray.cluster.gpu_memory import gpu_needs, gpu_warnings, require_gpus_fit
from rlhf_plugin_ray.cluster.node_report import GpuReport, find_gpus, gpus_of
from rlhf_plugin_ray.config import RayRuntimeConfig
from rlhf_plugin_ray.layout import plan_layout
from rlhf_testing.errors import has_code

KIB, MIB, GIB = 2**10, 2**20, 2**30
FILES = 100 * KIB


@pytest.fixture
def needs(tmp_path):
    """What policy and engine of a model of 100 KiB in bfloat16 need of each GPU, for a layout, by set."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(FILES))

    def make(*, saved="bfloat16", dtype="bfloat16", **options):
        (tmp_path / "model" / "config.json").write_text(json.dumps({"dtype": saved}))
        role = SimpleNamespace(model_path="model", dtype=dtype)
        spec = SimpleNamespace(roles={"policy": role}, engine_spec=role)
        layout = plan_layout(RayRuntimeConfig(**options), ["policy"], has_gpus=True)
        return gpu_needs(layout, spec, tmp_path)

    return make


def sums(needs):
    return {"+".join(part.names): dict(need.by_name) for part, need in needs.items()}


def test_what_shares_a_gpu_is_added_up(needs):
    assert sums(needs()) == {"policy+engine": {"policy": FILES, "engine": FILES}}
    assert sums(needs(colocate=())) == {"policy": {"policy": FILES}, "engine": {"engine": FILES}}


def test_ranks_may_share_the_weights_and_so_may_the_gpus_of_an_engine(needs):
    found = needs(ranks={"policy": 4}, colocate=(), gpus_per={"engine": 2})

    assert sums(found) == {"policy": {"policy": FILES // 4}, "engine": {"engine": FILES // 2}}


def test_several_engines_on_one_gpu_all_count(needs):
    # Two bundles of half a GPU each are on one; the policy has one rank only.
    found = needs(engines=2, gpus_per={"policy": 0.5, "engine": 0.5})

    assert sums(found) == {"policy+engine": {"policy": FILES, "engine": 2 * FILES}}


def test_weights_take_what_their_type_takes_in_memory(needs):
    assert sums(needs(dtype="float32", colocate=()))["policy"] == {"policy": 2 * FILES}
    assert sums(needs(saved="float32", colocate=()))["policy"] == {"policy": FILES // 2}


def test_what_has_no_gpu_needs_none(needs):
    assert sums(needs(colocate=(), gpus_per={"policy": 0})) == {"engine": {"engine": FILES}}


def test_an_engine_that_no_gpu_can_hold_is_refused_with_both_sizes(needs):
    small, large = (GpuReport(total_bytes=size * KIB, free_bytes=0) for size in (60, 101))

    with pytest.raises(ConfigError, check=has_code("gpu/memory-too-small")):
        require_gpus_fit(needs(), {"a": [small], "b": [small]})

    require_gpus_fit(needs(), {"a": [small], "b": [large]})  # it may be placed on the large one
    require_gpus_fit(needs(), {"a": []})  # nobody told


def test_what_may_not_fit_beside_what_is_there_is_warned_of(needs):
    free = [
        GpuReport(total_bytes=GIB, free_bytes=GIB),
        GpuReport(total_bytes=GIB, free_bytes=150 * KIB),
    ]

    (warning,) = gpu_warnings(needs(), "10.0.0.1", free)

    assert "policy 0.0 GiB + engine 0.0 GiB take 0.0 GiB of one GPU" in warning
    assert "one of 10.0.0.1 has 0.0 of 1.0 GiB left" in warning
    assert "runtime.ray.colocate" in warning
    assert gpu_warnings(needs(), "10.0.0.1", free[:1]) == []
    assert gpu_warnings(needs(), "10.0.0.1", []) == []
    assert gpu_warnings(needs(colocate=()), "10.0.0.1", free) == []


def test_the_drivers_table_is_read_and_what_is_no_number_is_left_out():
    told = "81559, 80990\n81559, 12\n[N/A], [N/A]\n\n"

    assert gpus_of(told) == (
        GpuReport(total_bytes=81559 * MIB, free_bytes=80990 * MIB),
        GpuReport(total_bytes=81559 * MIB, free_bytes=12 * MIB),
    )


@pytest.mark.parametrize("command", [("no-such-program",), ("false",), ("sleep", "60")])
def test_a_machine_whose_driver_does_not_answer_has_no_gpus_to_compare(monkeypatch, command):
    monkeypatch.setattr(node_report, "GPU_QUERY", command)
    monkeypatch.setattr(node_report, "GPU_QUERY_S", 0.2)

    assert find_gpus() == ()
