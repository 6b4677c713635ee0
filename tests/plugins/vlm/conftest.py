from pathlib import Path

import pytest
from tests.plugins.vlm.vlm_material import EVERY_FAMILY, Stage, policy_spec

from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.plugins import Plugins, load
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.tiny_vision import write_tiny_vision_model


@pytest.fixture(scope="session")
def all_plugins() -> Plugins:
    return load()


@pytest.fixture(scope="session", params=EVERY_FAMILY)
def family(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def model_path(tmp_path_factory, family) -> Path:
    return write_tiny_vision_model(
        tmp_path_factory.mktemp("models") / family, family, initializer_range=0.1
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory, model_path, all_plugins) -> Stage:
    media = tmp_path_factory.mktemp("run") / "media"
    return Stage(model_path, media, all_plugins, policy_spec(model_path, media))


@pytest.fixture(scope="module")
def backend(stage) -> TorchBackend:
    """The policy; it is never trained. Tests that train build their own."""
    return stage.backend()


@pytest.fixture(scope="module")
def batch(stage, backend) -> TrajectoryColumns:
    """Episodes of several turns, with up to four images each."""
    return stage.play(backend)
