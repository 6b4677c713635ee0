"""The check of what a training step returns of its own forward pass."""

from dataclasses import replace

import pytest

from rlhf_core import Component
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.conformance.step_scores import check_a_step_returns_what_its_plan_asks_for
from rlhf_testing.conformance.subject import subject


class Older(TorchBackend):
    """Knows nothing of entropies and losses."""

    def train_step(self, batch, plan):
        plan = replace(plan, return_entropies=False, return_losses=False)
        return super().train_step(batch, plan)


class Silent(TorchBackend):
    """Returns nothing."""

    def train_step(self, batch, plan):
        return replace(super().train_step(batch, plan), logprobs=None, entropies=None)


class Late(TorchBackend):
    """Returns the entropies after the update."""

    def train_step(self, batch, plan):
        outcome = super().train_step(batch, plan)
        after = self.statistics(batch.trajectories, ["entropy"])["entropy"]
        return replace(outcome, entropies=after if plan.return_entropies else None)


class Backwards(TorchBackend):
    """Returns the entropies in another order."""

    def train_step(self, batch, plan):
        outcome = super().train_step(batch, plan)
        found = outcome.entropies
        return replace(outcome, entropies=None if found is None else found[::-1].copy())


class Flipped(TorchBackend):
    """Returns the losses with the wrong sign."""

    def train_step(self, batch, plan):
        outcome = super().train_step(batch, plan)
        return replace(outcome, losses=None if outcome.losses is None else -outcome.losses)


class Talking(TorchBackend):
    """Returns what nobody asked for."""

    def train_step(self, batch, plan):
        return super().train_step(batch, replace(plan, return_entropies=True))


def check(kind):
    component = Component(name="other", factory=kind, config=TorchBackendConfig)
    check_a_step_returns_what_its_plan_asks_for(subject(component, device="cpu"))


@pytest.mark.parametrize("kind", [TorchBackend, Older])
def test_a_step_returns_what_its_plan_asks_for(kind):
    check(kind)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Silent, "logprobs of a step were asked for"),
        (Late, "entropies of a step"),
        (Backwards, "entropies of a step"),
        (Flipped, "losses of a step"),
        (Talking, "which its plan does not ask for"),
    ],
)
def test_a_backend_that_returns_something_else_is_caught(kind, message):
    with pytest.raises(AssertionError, match=message):
        check(kind)
