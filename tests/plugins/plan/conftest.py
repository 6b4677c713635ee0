"""Published model shapes, as config.json files and as shapes."""

import json
from pathlib import Path

import pytest

from rlhf_plugin_plan.command import main as plan
from rlhf_plugin_plan.model.adapters import AdaptedModels
from rlhf_plugin_plan.model.shapes import ModelShape, shape_of

CONFIG = """
[model]
path = "some/model"
dtype = "bfloat16"

[data]
train = ["somebody/rows"]
max_prompt_tokens = 256

[reward]
use = ["exact_match"]

[rollout]
batch_size = 32
n_samples_per_prompt = 8
max_new_tokens = 1024

[engine]
name = "vllm"

[engine.vllm]
memory_share = 0.3

[train]
max_tokens_per_micro_batch = 8192

[runtime]
sleep = "never"
"""

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())


@pytest.fixture(autouse=True, scope="session")
def _adapters_are_counted_once():
    """A report of a run that does not fit puts several adapters into the model, each for a second. Reports of other
    tests about a model of the same entries take what was counted; the counts have tests of their own."""
    count, found = AdaptedModels._count, {}

    def once(self, spec, config, precision):
        file = config / "config.json" if config.is_dir() else config
        made = self._plugins.get(spec.adapter.kind, spec.adapter.name).component.factory
        key = repr((spec.role, spec.adapter, made, spec.vision, precision, file.read_text()))
        if key not in found:
            found[key] = count(self, spec, config, precision)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdaptedModels, "_count", once)
        yield


@pytest.fixture
def published():
    """By name: the published number of parameters, and the config.json."""
    return PUBLISHED


@pytest.fixture
def shape():
    """A published shape by its name."""

    def make(name):
        return shape_of(PUBLISHED[name]["config"], name)

    return make


@pytest.fixture
def config_file(tmp_path):
    """A config.json of a published shape, changed at will."""

    def write(name, **changes):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(PUBLISHED[name]["config"] | changes))
        return path

    return write


@pytest.fixture
def pencil():
    """Small enough for pencil and paper: D 2, one layer, one head of 2, F 3, V 5, tied."""
    return ModelShape(
        hidden=2, layers=1, heads=1, kv_heads=1, head_dim=2, ffn=3, vocab=5, tied=True
    )


@pytest.fixture
def run(tmp_path, config_file, capsys):
    """Plan with more flags; returns the exit code and the JSON."""
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)

    def call(*flags, model="qwen2.5-1.5b", **changes):
        file = config_file(model, **changes)
        code = plan(["-c", str(path), "--model-config", str(file), "--json", *flags])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def config_text():
    """A configuration of one GPU, as TOML."""
    return CONFIG
