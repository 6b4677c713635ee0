"""Published model shapes, as config.json files and as shapes."""

import json
from pathlib import Path

import pytest

from rlhf_plugin_plan.shapes import ModelShape, shape_of

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())


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
