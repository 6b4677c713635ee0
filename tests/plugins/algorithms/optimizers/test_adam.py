"""AdamW and its parameter groups."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from rlhf_core import ConfigError
from rlhf_core.contracts import ParameterGroup
from rlhf_plugin_algorithms.optimizers import AdamConfig
from rlhf_plugin_algorithms.optimizers.adam import Adam
from rlhf_testing.errors import has_code


class Model(nn.Module):
    """An embedding tied to its head, a projection with bias, a norm, and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.proj = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.frozen = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)


def one_parameter(value: float, **options: float) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    parameter = nn.Parameter(torch.full((1, 1), value, dtype=torch.float64))
    adam = Adam(AdamConfig(**options))
    return parameter, adam.create(adam.parameter_groups([("weight", parameter)]))


def test_the_first_update_by_hand():
    parameter, optimizer = one_parameter(2.0, lr=0.1, weight_decay=0.5)
    parameter.grad = torch.full((1, 1), -3.0, dtype=torch.float64)

    optimizer.step()

    # Decay: 2 * (1 - 0.1 * 0.5) = 1.9. Bias-corrected moments are g and g^2, so the step is 0.1 * 3 / 3: 1.9 + 0.1.
    assert parameter.item() == pytest.approx(2.0, abs=1e-8)


def test_several_updates_equal_a_slow_loop():
    lr, beta1, beta2, eps, decay = 0.01, 0.8, 0.9, 1e-3, 0.1
    parameter, optimizer = one_parameter(
        1.0, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay
    )

    expected, first, second = 1.0, 0.0, 0.0
    for step, gradient in enumerate([0.5, -1.0, 2.0, 0.1], start=1):
        parameter.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        optimizer.step()
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        root = math.sqrt(second / (1 - beta2**step))
        expected = expected * (1 - lr * decay) - lr * first / (1 - beta1**step) / (root + eps)
        assert parameter.item() == pytest.approx(expected, rel=1e-9)


def test_matrices_decay_and_biases_and_norms_do_not():
    groups = Adam(AdamConfig(weight_decay=0.1)).parameter_groups(Model().named_parameters())

    names = {group.name: [name for name, _ in group.named_parameters] for group in groups}
    assert names == {
        "decay": ["embed.weight", "proj.weight"],
        "no_decay": ["proj.bias", "norm.weight", "norm.bias"],
    }
    assert {group.name: group.options for group in groups} == {
        "decay": {"weight_decay": 0.1},
        "no_decay": {"weight_decay": 0.0},
    }


def test_only_the_decay_group_shrinks():
    model = Model()
    adam = Adam(AdamConfig(lr=0.1, weight_decay=0.5))
    optimizer = adam.create(adam.parameter_groups(model.named_parameters()))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    optimizer.step()

    for name, parameter in model.named_parameters():
        factor = 0.95 if name in ("embed.weight", "proj.weight") else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor)


def test_a_parameter_with_two_names_is_taken_once():
    model = Model()

    groups = Adam(AdamConfig()).parameter_groups(model.named_parameters(remove_duplicate=False))

    taken = [name for group in groups for name, _ in group.named_parameters]
    assert "embed.weight" in taken
    assert "head.weight" not in taken


def test_a_model_without_trainable_parameters_is_refused():
    with pytest.raises(ConfigError, check=has_code("training/nothing-trainable")):
        Adam(AdamConfig()).parameter_groups(
            nn.Linear(2, 2).requires_grad_(False).named_parameters()
        )


def test_a_group_without_parameters_is_left_out():
    groups = Adam(AdamConfig()).parameter_groups(nn.Linear(2, 2, bias=False).named_parameters())

    assert [group.name for group in groups] == ["decay"]


def test_every_torch_group_carries_the_learning_rate_and_its_own_options():
    adam = Adam(AdamConfig(lr=0.25, betas=(0.5, 0.6), eps=1e-5, weight_decay=0.125))
    own = ParameterGroup(
        name="own",
        named_parameters=(("x", nn.Parameter(torch.zeros(1))),),
        options={"lr": 0.5, "weight_decay": 0.0},
    )
    groups = [*adam.parameter_groups(Model().named_parameters()), own]

    optimizer = adam.create(groups)

    assert isinstance(optimizer, torch.optim.AdamW)
    kept = [
        {key: group[key] for key in ("name", "lr", "betas", "eps", "weight_decay")}
        for group in optimizer.param_groups
    ]
    common = {"betas": (0.5, 0.6), "eps": 1e-5}
    assert kept == [
        {"name": "decay", "lr": 0.25, "weight_decay": 0.125, **common},
        {"name": "no_decay", "lr": 0.25, "weight_decay": 0.0, **common},
        {"name": "own", "lr": 0.5, "weight_decay": 0.0, **common},
    ]


def test_it_is_fused_where_torch_can_and_falls_back_where_not():
    adam = Adam(AdamConfig())

    def fused(device: str) -> object:
        model = nn.Linear(2, 2, device=device)
        return adam.create(adam.parameter_groups(model.named_parameters())).defaults["fused"]

    assert fused("cpu") is True
    assert fused("meta") is False


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": 0.0},
        {"lr": float("nan")},
        {"betas": (0.9, 1.0)},
        {"betas": (0.9,)},
        {"eps": 0.0},
        {"weight_decay": -0.1},
        {"momentum": 0.9},
    ],
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        AdamConfig(**wrong)
