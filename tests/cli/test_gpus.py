"""The flag ``--gpus``: what it stands for, what overrides it, and what it refuses."""

from pathlib import Path

import pytest

from rlhf_cli import gpus, train
from rlhf_cli.training import layers_of, split_arguments
from rlhf_config import resolve
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import ENGINE, Accelerator
from rlhf_testing.errors import has_code

RUN = ("--model", "some/model", "--data", "prompts.jsonl", "--reward", "exact_match")


@pytest.fixture
def machine(monkeypatch):
    """A machine with GPUs of these sizes, in GiB."""

    def has(*sizes):
        found = tuple(Accelerator(name="card", memory_gib=size) for size in sizes)
        monkeypatch.setattr(gpus, "visible_accelerators", lambda: found)
        return found

    return has


def resolved(*words, accelerators=()):
    layers = layers_of(split_arguments([*RUN, *words]), train.DEFAULTS)
    return resolve(layers, plugin_loader.load(), accelerators)


@pytest.mark.parametrize("words", [("--gpus", "4"), ("--gpus=4",), ("--gpus", "all")])
def test_several_gpus_have_a_rank_of_each_role_and_an_engine_each(machine, words):
    found = machine(80.0, 80.0, 80.0, 80.0)

    run = resolved(*words, accelerators=found)

    assert run.one("runtime.name").name == "ray"
    assert run.one("backend.name").name == "deepspeed"
    layout = run.one("runtime.name").options.layout(["policy", "reference"], has_gpus=True)
    assert dict(layout.counts) == {"policy": 4, "reference": 4, ENGINE: 4}
    assert sum(part.num_bundles * part.gpus for part in layout.colocations) == 4


def test_every_option_overrides_what_the_flag_stands_for(machine):
    found = machine(80.0, 80.0)

    run = resolved(
        *("--gpus", "2", "--runtime.ray.engines", "1", "--runtime.ray.ranks.reference", "1"),
        accelerators=found,
    )

    layout = run.one("runtime.name").options.layout(["policy", "reference"], has_gpus=True)
    assert dict(layout.counts) == {"policy": 2, "reference": 1, ENGINE: 1}


@pytest.mark.parametrize("asked", ["1", "all"])
def test_one_gpu_is_as_without_the_flag(machine, asked):
    found = machine(24.0)

    run = resolved("--gpus", asked, accelerators=found)

    assert run.one("runtime.name").name == "local"
    assert run.tree == resolved(accelerators=found).tree


@pytest.mark.parametrize(
    ("asked", "sizes", "message", "code"),
    [
        (
            "4",
            (80.0, 80.0),
            r"--gpus 4: expected GPUs of this machine, which has 2 visible\. Set --gpus 2",
            "gpu/too-few",
        ),
        ("2", (), r"which has none\. Leave --gpus out", "gpu/too-few"),
        ("all", (), "which has none", "gpu/too-few"),
        (
            "2",
            (80.0, 24.0),
            "expected GPUs of equal memory.*card 80 GiB, card 24 GiB",
            "gpu/unequal-memory",
        ),
        ("four", (80.0,), "expected a positive number or all", "usage/number-of-gpus"),
        ("0", (80.0,), "expected a positive number or all", "usage/number-of-gpus"),
    ],
)
def test_what_the_machine_has_not_is_refused_before_anything_is_loaded(
    machine, asked, sizes, message, code
):
    machine(*sizes)

    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        resolved("--gpus", asked)


@pytest.mark.parametrize(("switch", "shows"), [("--check", "is valid"), ("--dry-run", "ray")])
def test_a_check_takes_gpus_that_another_machine_has_and_says_so(
    machine, switch, shows, tmp_path, monkeypatch, capsys
):
    """The commands that ``rlhf plan`` prints for a cluster are checked on a laptop."""
    machine()
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')

    def execute(*words):
        return train.COMMAND([*RUN, "--gpus", "4", "--engine", "vllm", *words])

    assert execute(switch) == 0
    printed = capsys.readouterr()
    assert "not ready to run here: --gpus 4: this machine has none" in printed.err
    assert shows in printed.out
    with pytest.raises(ConfigError, check=has_code("config/out-of-range")):
        execute(switch, "--train.batch_size", "0")
    with pytest.raises(ConfigError, check=has_code("gpu/too-few")):
        execute()


def test_the_flag_needs_a_value():
    with pytest.raises(ConfigError, check=has_code("usage/number-of-gpus")):
        split_arguments(["--gpus", "--steps", "3"])


def test_a_run_that_leaves_gpus_idle_says_so(machine):
    machine(80.0, 80.0, 80.0, 80.0)
    assert gpus.idle_gpus(resolved()) == (
        "--runtime local trains on one of 4 visible GPUs; --gpus all trains on all of them."
    )
    assert gpus.idle_gpus(resolved("--gpus", "all")) is None, "the runtime itself says it"

    machine(80.0)
    assert gpus.idle_gpus(resolved()) is None
