"""The checks of routes to experts, of engines and of backends."""

from dataclasses import replace

import pytest

from rlhf_core import Component
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.conformance.routes import (
    check_given_routes_are_followed,
    check_routes_are_those_of_the_model,
)
from rlhf_testing.conformance.subject import subject


class Deaf(TorchBackend):
    """Chooses experts by itself."""

    def setup(self, spec, plugins):
        super().setup(replace(spec, replays_routes=False), plugins)


class Late(EmbeddedEngine):
    """Tells the experts of the token before."""

    async def generate(self, request):
        found = await super().generate(request)
        return [replace(row, expert_routes=row.expert_routes[[0, *range(8)]]) for row in found]


@pytest.mark.parametrize("decode", ["stepwise", "resident"])
def test_the_embedded_engine_tells_what_the_routers_choose(decode):
    engine = Component(name="engine", factory=EmbeddedEngine, config=EmbeddedEngineConfig)

    check_routes_are_those_of_the_model(subject(engine, decode=decode))


def test_the_torch_backend_follows():
    backend = Component(name="backend", factory=TorchBackend, config=TorchBackendConfig)

    check_given_routes_are_followed(subject(backend, device="cpu"))


def test_an_engine_that_tells_others_is_caught():
    late = Component(name="late", factory=Late, config=EmbeddedEngineConfig)

    with pytest.raises(AssertionError, match="experts"):
        check_routes_are_those_of_the_model(subject(late))


def test_a_backend_that_does_not_follow_is_caught():
    deaf = Component(name="deaf", factory=Deaf, config=TorchBackendConfig)

    with pytest.raises(AssertionError, match="with replays_routes True"):
        check_given_routes_are_followed(subject(deaf, device="cpu"))
