"""The check of backends on a mixture of experts."""

from dataclasses import replace

import pytest

from rlhf_core import Component
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.conformance.mixtures import check_a_balancing_loss_is_added
from rlhf_testing.conformance.subject import subject


class Deaf(TorchBackend):
    """Takes any factor for none."""

    def setup(self, spec, plugins):
        super().setup(replace(spec, router_aux_loss=0.0), plugins)


def test_a_backend_that_ignores_the_balancing_loss_is_caught():
    deaf = Component(name="deaf", factory=Deaf, config=TorchBackendConfig)

    with pytest.raises(AssertionError, match="after a step with router_aux_loss"):
        check_a_balancing_loss_is_added(subject(deaf, device="cpu"))
