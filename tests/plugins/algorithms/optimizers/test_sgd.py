"""Gradient descent."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from rlhf_plugin_algorithms.optimizers import SgdConfig
from rlhf_plugin_algorithms.optimizers.sgd import Sgd


def one_parameter(value, **options):
    parameter = nn.Parameter(torch.full((1, 1), value, dtype=torch.float64))
    sgd = Sgd(SgdConfig(**options))
    return parameter, sgd.create(sgd.parameter_groups([("weight", parameter)]))


def step(parameter, optimizer, gradient):
    parameter.grad = torch.full((1, 1), gradient, dtype=torch.float64)
    optimizer.step()
    return parameter.item()


def test_without_momentum_a_step_is_the_gradient_and_keeps_nothing():
    parameter, optimizer = one_parameter(2.0, lr=0.1, weight_decay=0.5)

    # 2 - 0.1 * (3 + 0.5 * 2) = 1.6
    assert step(parameter, optimizer, 3.0) == pytest.approx(1.6)
    assert not any(optimizer.state[parameter].values())


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_equals_a_slow_loop(nesterov):
    lr, momentum = 0.1, 0.8
    parameter, optimizer = one_parameter(1.0, lr=lr, momentum=momentum, nesterov=nesterov)

    expected, speed = 1.0, 0.0
    for gradient in [0.5, -1.0, 2.0, 0.1]:
        speed = momentum * speed + gradient
        expected -= lr * (gradient + momentum * speed if nesterov else speed)
        assert step(parameter, optimizer, gradient) == pytest.approx(expected, rel=1e-12)


def test_only_parameters_with_two_axes_decay(SmallModel):
    model, sgd = SmallModel(), Sgd(SgdConfig(weight_decay=0.1))

    groups = {group.name: group for group in sgd.parameter_groups(model.named_parameters())}

    assert groups["decay"].options == {"weight_decay": 0.1}
    assert groups["no_decay"].options == {"weight_decay": 0.0}
    assert {name for name, _ in groups["no_decay"].named_parameters} == {
        "q_proj.bias",
        "norm.weight",
        "norm.bias",
        "value_head.bias",
    }


def test_a_quadratic_falls(SmallModel):
    model, sgd = SmallModel(), Sgd(SgdConfig(lr=0.01, momentum=0.5))

    losses = model.learn(sgd.create(sgd.parameter_groups(model.named_parameters())), 50)

    assert losses[-1] < 1e-2 * losses[0]
    assert losses[-1] < losses[25] < losses[0]


@pytest.mark.parametrize(
    "wrong", [{"lr": 0.0}, {"momentum": 1.0}, {"nesterov": True}, {"weight_decay": -0.1}]
)
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        SgdConfig(**wrong)
