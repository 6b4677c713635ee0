"""The option for deterministic kernels reaches the model, whose updates obey it (tests/plugins/torch/building)."""

import pytest

from rlhf_core.contracts import RoleSpec
from rlhf_core.plugins import load
from rlhf_plugin_fsdp import backend
from rlhf_plugin_fsdp.config import FsdpConfig


class Loaded(Exception):
    """Ends the setup where the model would be loaded."""


@pytest.mark.parametrize("wanted", [False, True])
def test_the_option_is_that_of_the_model(monkeypatch, wanted):
    asked = []

    def build(spec, options, plugins):
        asked.append(options.deterministic)
        raise Loaded

    monkeypatch.setattr(backend, "build_role_model", build)
    monkeypatch.setattr(backend, "join", lambda device: None)
    role = backend.FsdpBackend(FsdpConfig(device="cpu", deterministic=wanted))
    spec = RoleSpec(role="policy", model_path="any", dtype="float32")

    with pytest.raises(Loaded):
        role.setup(spec, load())

    assert asked == [wanted]
