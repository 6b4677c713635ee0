"""A plugin for the tests: a backend of several ranks, some that fail, a loss and an optimizer.

It is imported by name in every process, as an installed plugin would be.
"""

import os
import socket
import time

import torch
import torch.distributed as dist

from rlhf_core import Component, hookimpl
from rlhf_core.contracts import ParameterGroup, TokenLoss
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend


class Gradient:
    def __init__(self, config): ...

    def __call__(self, inputs):
        return TokenLoss(loss=-inputs.advantages * inputs.policy_logprobs)


class AdamW:
    def __init__(self, config): ...

    def parameter_groups(self, named):
        return [ParameterGroup(name="all", named_parameters=tuple(named))]

    def create(self, groups):
        parameters = [p for group in groups for _, p in group.named_parameters]
        return torch.optim.AdamW(parameters, lr=1e-3)


class SummingBackend(TorchBackend):
    """Adds the ranks' gradients before each update; save and export are the first rank's."""

    def setup(self, spec, plugins):
        self._rank = int(os.environ["RANK"])
        dist.init_process_group("gloo")
        super().setup(spec, plugins)
        if self._updater is not None:
            self._sum_gradients_before(self._updater)

    def _sum_gradients_before(self, updater):
        update = updater.update

        def update_with_sums(lr_factor):
            for master in updater.masters.values():
                if master.grad is None:
                    master.grad = torch.zeros_like(master)
                dist.all_reduce(master.grad)
            return update(lr_factor)

        updater.update = update_with_sums

    def save(self, folder):
        if self._rank == 0:
            super().save(folder)
        dist.barrier()

    def export(self, folder, *, ema=False):
        if self._rank == 0:
            super().export(folder, ema=ema)
        dist.barrier()

    def close(self):
        super().close()
        if dist.is_initialized():
            dist.destroy_process_group()


class StuckBackend(TorchBackend):
    """Never comes back from a pass."""

    def logprobs(self, batch):
        time.sleep(3600)


class RaisingBackend(TorchBackend):
    """Breaks in two ways."""

    def logprobs(self, batch):
        raise MemoryError("no room for the logits")

    def values(self, batch):
        raise ZeroDivisionError(f"{len(batch)} rows")


class CrowdedBackend(SummingBackend):
    """Finds another program on the port where its ranks meet."""

    def setup(self, spec, plugins):
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))):
            super().setup(spec, plugins)


@hookimpl
def rlhf_train_backends():
    return [
        Component(
            name=name, config=TorchBackendConfig, factory=f"ranked_components:{factory}", **more
        )
        for name, factory, more in (
            ("summing", "SummingBackend", {"provides": {"several_ranks"}}),
            ("stuck", "StuckBackend", {}),
            ("raising", "RaisingBackend", {}),
            ("crowded", "CrowdedBackend", {}),
        )
    ]


@hookimpl
def rlhf_policy_losses():
    return [Component(name="gradient", factory="ranked_components:Gradient")]


@hookimpl
def rlhf_optimizers():
    return [Component(name="plain_adamw", factory="ranked_components:AdamW")]
