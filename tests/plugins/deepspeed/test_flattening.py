"""The probe that decides whether ZeRO may flatten an optimizer's parameters."""

from typing import Any

import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.contracts import ParameterGroup
from rlhf_plugin_deepspeed.flattening import check_elementwise

CPU = torch.device("cpu")


class Of:
    """An optimizer component around a torch optimizer; one group for matrices, one for the rest."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def parameter_groups(self, named: Any) -> list[ParameterGroup]:
        named = list(named)
        return [
            ParameterGroup(name=name, named_parameters=tuple(p for p in named if test(p[1].dim())))
            for name, test in (("matrices", lambda d: d >= 2), ("others", lambda d: d < 2))
        ]

    def create(self, groups: Any) -> torch.optim.Optimizer:
        return self._make([{"params": [p for _, p in g.named_parameters]} for g in groups])


class Scaled(torch.optim.Optimizer):
    """A subclass says what each parameter moves by."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 1e-6})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * self.move(parameter, parameter.grad)

    def move(self, parameter: Any, gradient: Any) -> Any:
        raise NotImplementedError


class TrustRatio(Scaled):
    def move(self, parameter: Any, gradient: Any) -> Any:
        return gradient * parameter.norm() / gradient.norm()


class NeedsMatrices(Scaled):
    def move(self, parameter: Any, gradient: Any) -> Any:
        if parameter.numel() == 64:
            return gradient
        rows, columns = gradient.shape
        return gradient / (rows + columns)


class KeepsRows(Scaled):
    def move(self, parameter: Any, gradient: Any) -> Any:
        self.state[parameter]["rows"] = gradient.reshape(-1, 8).mean(1)
        return gradient


@pytest.mark.parametrize(
    "make",
    [
        lambda groups: torch.optim.AdamW(groups, lr=1e-6),
        lambda groups: torch.optim.SGD(groups, lr=1e-6, momentum=0.9),
        lambda groups: torch.optim.Adamax(groups, lr=1e-6),
    ],
)
def test_an_elementwise_optimizer_passes(make):
    check_elementwise(Of(make), CPU)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (TrustRatio, "moves flattened parameters differently"),
        (NeedsMatrices, "cannot update a flattened parameter"),
        (KeepsRows, "keeps rows of shape"),
        (lambda groups: torch.optim.Adafactor(groups, lr=1e-6), "differently|keeps"),
    ],
)
def test_an_optimizer_of_whole_parameters_is_refused_even_at_a_tiny_learning_rate(make, reason):
    with pytest.raises(PluginError, match=reason):
        check_elementwise(Of(make), CPU)


def test_trying_an_optimizer_leaves_the_random_state_alone():
    before = torch.get_rng_state()

    check_elementwise(Of(lambda groups: torch.optim.AdamW(groups, lr=1e-6)), CPU)

    assert torch.equal(torch.get_rng_state(), before)
