"""Advice on ``runtime.sleep`` for a run on the GPUs of this machine."""

import pytest

from rlhf_cli.runs import read_run
from rlhf_config.files import writable
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import Accelerator, MemoryPlanner
from rlhf_plugin_plan.advice import COMMAND, advice_on, gpu_here, gpu_of
from rlhf_plugin_plan.machine.hardware import find_gpu


def test_the_command_is_a_memory_planner():
    (entry,) = [
        one
        for one in plugin_loader.load().registries["rlhf_commands"]
        if "plans_memory" in one.component.provides
    ]

    assert entry.load() is COMMAND
    assert isinstance(COMMAND, MemoryPlanner)


@pytest.mark.parametrize(
    ("words", "mib", "name", "memory_gib"),
    [
        ("NVIDIA H200", 143771, "h200", 139.8),
        ("NVIDIA H100 80GB HBM3", 81559, "h100", 79.1),
        ("NVIDIA A100-SXM4-40GB", 40960, "NVIDIA A100-SXM4-40GB", 39.6),
        ("NVIDIA H100 MIG 3g.40gb", 40448, "NVIDIA H100 MIG 3g.40gb", 39.1),
        ("Unheard Of", 16384, "Unheard Of", 15.84),
    ],
)
def test_a_gpu_is_known_by_its_drivers_words(words, mib, name, memory_gib):
    gpu = gpu_of(Accelerator(name=words, memory_gib=mib / 1024))

    assert gpu.name == name
    assert gpu.memory_gib == pytest.approx(memory_gib, abs=0.01)


def test_without_a_driver_there_is_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert gpu_here() is None
    assert gpu_of(Accelerator(name="GPU", memory_gib=None)) is None
    assert COMMAND.sleep_advice({}, plugin_loader.load()) is None


@pytest.fixture
def advice(tmp_path, config_file, config_text, published):
    """Advice for a model in a folder, on a GPU of the table."""

    def of(gpu, *flags):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        config_file("qwen2.5-1.5b").rename(folder / "config.json")
        path = tmp_path / "run.toml"
        path.write_text(config_text.replace("some/model", str(folder)))
        plugins = plugin_loader.load()
        run = read_run(["-c", str(path), "--runtime.sleep", "auto", *flags], plugins)
        return advice_on(find_gpu(gpu), writable(run.spec.config), plugins)

    return of


def test_a_run_that_fits_needs_no_sleep(advice):
    found = advice("h200")

    assert not found.sleeps
    assert "GiB are predicted where nothing sleeps, of 139.8" in found.reason
    assert "take turns" not in found.reason


def test_a_run_that_fits_in_no_other_way_sleeps(advice):
    found = advice("l40s", "--engine.vllm.memory_share", "0.6")

    assert found.sleeps
    # Training alone is what does not fit, so nothing is gained by moving more.
    assert "of 44.4; the engine sleeps while roles compute, with" in found.reason


def test_a_model_that_cannot_be_read_is_an_error(advice):
    with pytest.raises(ConfigError):
        advice("h200", "--model.path", "no/such/model")
