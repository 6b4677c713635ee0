"""The probe that decides which parameters an optimizer has to see whole."""

from typing import Any

import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.contracts import ParameterGroup
from rlhf_plugin_algorithms.optimizers import MuonConfig
from rlhf_plugin_algorithms.optimizers.muon import Muon
from rlhf_testing.errors import has_code
from rlhf_torch.cut.flattening import whole_parameters

CPU = torch.device("cpu")
MODEL = {
    "embed_tokens.weight": (12, 4),
    "layers.0.up_proj.weight": (4, 8),
    "layers.0.norm.weight": (4,),
    "layers.1.up_proj.weight": (4, 8),
}


def names_of_whole(optimizer: Any) -> list[str]:
    named = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in MODEL.items()}
    found = whole_parameters(optimizer, optimizer.parameter_groups(named.items()), CPU, "")
    names = {id(parameter): name for name, parameter in named.items()}
    return [names[id(parameter)] for parameter in found]


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
        if parameter.numel() <= 128:
            return gradient
        rows, columns = gradient.shape
        return gradient / (rows + columns)


class KeepsRows(Scaled):
    def move(self, parameter: Any, gradient: Any) -> Any:
        self.state[parameter]["rows"] = gradient.reshape(-1, 8).mean(1)
        return gradient


class KeepsHalf(TrustRatio):
    def move(self, parameter: Any, gradient: Any) -> Any:
        self.state[parameter]["half"] = gradient.bfloat16()
        return super().move(parameter, gradient)


class CountsInGroups(TrustRatio):
    def move(self, parameter: Any, gradient: Any) -> Any:
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
        return super().move(parameter, gradient)


@pytest.mark.parametrize(
    "make",
    [
        lambda groups: torch.optim.AdamW(groups, lr=1e-6),
        lambda groups: torch.optim.SGD(groups, lr=1e-6, momentum=0.9),
        lambda groups: torch.optim.Adamax(groups, lr=1e-6),
    ],
)
def test_an_elementwise_optimizer_may_have_all_flattened(make):
    assert names_of_whole(Of(make)) == []


@pytest.mark.parametrize(
    ("make", "whole"),
    [(TrustRatio, list(MODEL)), (NeedsMatrices, [name for name in MODEL if "norm" not in name])],
)
def test_what_has_to_be_whole_is_found_even_at_a_tiny_learning_rate(make, whole):
    found = names_of_whole(Of(make))

    assert found == [name for name in sorted(MODEL, key=lambda n: "norm" in n) if name in whole]


def test_muon_has_hidden_matrices_whole_and_the_rest_flattened():
    found = names_of_whole(Muon(MuonConfig()))

    assert found == ["layers.0.up_proj.weight", "layers.1.up_proj.weight"]


class OneByOne(Of):
    """A group for each parameter."""

    def parameter_groups(self, named: Any) -> list[ParameterGroup]:
        return [ParameterGroup(name=name, named_parameters=((name, p),)) for name, p in named]


def test_a_group_of_one_parameter_is_cut_all_the_same():
    assert names_of_whole(OneByOne(TrustRatio)) == list(MODEL)
    assert names_of_whole(OneByOne(lambda groups: torch.optim.AdamW(groups, lr=1e-6))) == []


def test_groups_of_other_names_are_whole_if_any_has_to_be():
    """An optimizer with a group for each layer: the probe cannot have made them all."""
    named = [(name, torch.nn.Parameter(torch.ones(4, 4))) for name in ("a", "b")]
    groups = [
        ParameterGroup(name=f"layer {n}", named_parameters=(n_p,)) for n, n_p in enumerate(named)
    ]

    found = whole_parameters(Of(TrustRatio), groups, CPU, "")
    none = whole_parameters(Of(lambda groups: torch.optim.SGD(groups, lr=1e-6)), groups, CPU, "")

    assert [id(p) for p in found] == [id(p) for _, p in named]
    assert none == []


@pytest.mark.parametrize(
    ("make", "reason", "code"),
    [
        (
            KeepsRows,
            r"keeps rows of shape \(\d+,\) in torch.float32 for a parameter of shape",
            "optimizer/needs-whole-parameters",
        ),
        (KeepsHalf, "keeps half of shape .* in torch.bfloat16", "optimizer/needs-whole-parameters"),
        (CountsInGroups, "counts in its parameter groups", "optimizer/counts-in-groups"),
        (
            lambda groups: torch.optim.Adafactor(groups, lr=1e-6),
            "keeps row_var",
            "optimizer/needs-whole-parameters",
        ),
    ],
)
def test_state_that_ranks_cannot_share_is_refused(make, reason, code):
    with pytest.raises(PluginError, match=reason, check=has_code(code)):
        names_of_whole(Of(make))


def test_trying_an_optimizer_leaves_the_random_state_alone():
    before = torch.get_rng_state()

    names_of_whole(Of(lambda groups: torch.optim.AdamW(groups, lr=1e-6)))

    assert torch.equal(torch.get_rng_state(), before)
