"""What is missing on a machine is said before a model is loaded."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_core import ConfigError, FingerprintMismatch
from rlhf_core.contracts import RoleSpec
from rlhf_plugin_ray.cluster.node_report import inspect_node, weight_bytes
from rlhf_plugin_ray.config import RayRuntimeConfig
from rlhf_plugin_ray.layout import plan_layout
from rlhf_plugin_ray.processes.process import describe_driver
from rlhf_testing.errors import has_code

pytest.importorskip("ray")
pytestmark = pytest.mark.scale

from rlhf_plugin_ray.cluster import preflight  # noqa: E402  (after importorskip)
from rlhf_plugin_ray.cluster.preflight import Node  # noqa: E402
from rlhf_plugin_ray.processes.supervisor import Supervisor  # noqa: E402

MIB = 2**20


def node(**resources):
    return Node(id="n", address="10.0.0.1", resources=resources)


def test_a_machine_like_the_drivers_lacks_nothing(plugins, model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    report = inspect_node(describe_driver(plugins), (str(model),), "the machine 10.0.0.1")

    assert report.has_folder
    assert report.differing is None
    assert report.missing == ()
    assert report.model_bytes == (model / "model.safetensors").stat().st_size
    assert report.free_memory_bytes > MIB


def test_a_machine_with_other_versions_folders_and_models_tells_them(
    plugins, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    driver = describe_driver(plugins)
    driver = replace(driver, fingerprint={**driver.fingerprint, "torch": "1.0"})

    report = inspect_node(driver, ("gone/model",), "the machine 10.0.0.1")

    assert "torch: here 1.0, the machine 10.0.0.1" in report.differing
    assert report.missing == ("gone/model",)
    elsewhere = replace(driver, folder=tmp_path / "elsewhere")
    assert not inspect_node(elsewhere, (), "the machine 10.0.0.1").has_folder


def test_weights_are_counted_in_one_format(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"12345")
    (tmp_path / "b.safetensors").write_bytes(b"678")
    (tmp_path / "pytorch_model.bin").write_bytes(b"1234567")

    assert weight_bytes(tmp_path) == 8
    assert weight_bytes(tmp_path / "none") == 0


def test_processes_that_fit_on_no_single_machine_are_refused():
    config = RayRuntimeConfig(gpus_per={"engine": 4}, colocate=("policy",), cpus_per={"engine": 2})
    layout = plan_layout(config, ["policy"], has_gpus=True)

    with pytest.raises(
        ConfigError,
        match=r"engine: .*4 GPUs on one machine.*10\.0\.0\.1 has 8 CPU",
        check=has_code("ray/too-few-resources"),
    ):
        preflight.require_bundles_fit(layout, [node(CPU=8, GPU=2), node(CPU=1, GPU=8)])

    preflight.require_bundles_fit(layout, [node(CPU=8, GPU=2), node(CPU=2, GPU=4)])


def test_gpus_that_do_not_divide_are_refused_before_anybody_waits_for_them():
    """Three engines of 5 GPUs are 15 of 16, but a machine of 8 holds one."""
    config = RayRuntimeConfig(engines=3, gpus_per={"engine": 5, "policy": 0}, colocate=())
    layout = plan_layout(config, ["policy"], has_gpus=True)

    with pytest.raises(
        ConfigError,
        match=r"engine: .*5 GPUs on one machine, which 3 sets .* only 2 can.*that divide",
        check=has_code("ray/too-few-resources"),
    ):
        preflight.require_bundles_fit(layout, [node(CPU=8, GPU=8)] * 2)

    preflight.require_bundles_fit(layout, [node(CPU=8, GPU=8)] * 3)


def test_shares_of_a_gpu_add_up():
    config = RayRuntimeConfig(engines=10, gpus_per={"engine": 0.1, "policy": 0}, colocate=())
    layout = plan_layout(config, ["policy"], has_gpus=True)

    preflight.require_bundles_fit(layout, [node(CPU=16, GPU=1)])


def test_what_may_become_slow_is_told_with_the_option_that_helps(plugins, model, monkeypatch):
    monkeypatch.chdir(Path.cwd())
    report = inspect_node(describe_driver(plugins), (str(model),), "here")
    report = replace(report, shared_memory_bytes=64 * MIB, model_bytes=9, free_memory_bytes=10)
    small = node(object_store_memory=100.0 * MIB)

    batch, shared = preflight.warnings_of(small, report, 60 * MIB)

    assert "60 MiB" in batch
    assert "runtime.ray.object_store_mib" in batch
    assert "larger than its /dev/shm of 64 MiB" in shared
    fine = replace(report, shared_memory_bytes=200 * MIB)
    assert preflight.warnings_of(small, fine, 40 * MIB) == []
    (memory,) = preflight.warnings_of(small, replace(fine, model_bytes=11), 40 * MIB)
    assert "memory left" in memory


def test_a_table_names_the_machine_of_each_process(monkeypatch):
    config = RayRuntimeConfig(ranks={"policy": 3}, colocate=("policy+engine",), rollout_workers=2)
    layout = plan_layout(config, ["policy"], has_gpus=False)
    placed = {"policy": {0: "a", 1: "a", 2: "b"}, "rollout": {0: "a", 1: "b"}}
    monkeypatch.setattr(
        preflight, "placement_group_table", lambda name: {"bundles_to_node_id": placed[name]}
    )
    groups = {part: part.names[0] for part in layout.colocations}
    nodes = [Node(id=name, address=f"10.0.0.{name}", resources={}) for name in "ab"]

    table = preflight.describe_placement(layout, groups, nodes)

    assert table.splitlines() == [
        "machine   each has  processes",
        "10.0.0.a  1 CPU     policy 0-1 + engine 0",
        "10.0.0.b  1 CPU     policy 2",
        "10.0.0.a  1 CPU     rollout 0",
        "10.0.0.b  1 CPU     rollout 1",
    ]


@pytest.mark.slow
def test_a_machine_without_the_working_directory_is_named(cluster, plugins, spec, tmp_path):
    driver = replace(describe_driver(plugins), folder=tmp_path / "not there")

    layout = plan_layout(RayRuntimeConfig(), ["policy"], has_gpus=False)
    with pytest.raises(
        ConfigError,
        match=r"the machine [\d.]+ \(.*\) has no folder .*not there",
        check=has_code("ray/files-missing"),
    ):
        asyncio.run(
            preflight.inspect_nodes(
                preflight.alive_nodes(), driver, spec(), layout, Supervisor(), 60.0
            )
        )


@pytest.mark.slow
def test_other_plugins_on_a_machine_are_told_before_any_model_is_looked_at(
    placed, spec, monkeypatch, tmp_path
):
    """The driver has its plugins; the variable that the others load theirs by says something else."""
    monkeypatch.setenv("RLHF_PLUGINS", "ranked_components,no:lora")
    role = RoleSpec(role="reference", model_path=str(tmp_path))

    async def play():
        async with placed(spec(reference=role), preflight_timeout_s=60):
            pass

    with pytest.raises(
        FingerprintMismatch,
        match=r"the machine [\d.]+ sees other plugins",
        check=has_code("plugin/versions-differ"),
    ) as told:
        asyncio.run(play())
    assert "lora:" in str(told.value)


@pytest.mark.slow
def test_what_something_else_holds_is_waited_for_until_the_deadline(placed, spec):
    from ray.util.placement_group import placement_group, remove_placement_group

    async def play():
        async with placed(spec(), start_timeout_s=2.0):
            pass

    taken = placement_group([{"CPU": 2}])
    assert taken.wait(60)
    try:
        with pytest.raises(
            ConfigError,
            match=r"did not grant 1 x \{'CPU': 1\.0\} for policy \+ engine within 2 s",
            check=has_code("ray/too-few-resources"),
        ):
            asyncio.run(play())
    finally:
        remove_placement_group(taken)
