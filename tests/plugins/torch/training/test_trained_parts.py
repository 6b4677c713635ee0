"""What every backend asks of a trained role's components."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import ParameterGroup, ValueObjective
from rlhf_torch.training.trained_parts import (
    check_groups,
    peak_lrs,
    require_trainable,
    trained_parts,
)


def test_a_parameter_in_no_group_or_in_two_is_refused():
    named = [("a", nn.Parameter(torch.zeros(2))), ("b", nn.Parameter(torch.zeros(2)))]
    names = dict(named)
    whole = ParameterGroup(name="all", named_parameters=tuple(named))
    first = ParameterGroup(name="first", named_parameters=(named[0],))

    check_groups([whole], names)
    with pytest.raises(PluginError, match="1 of 2 are in none, such as b"):
        check_groups([first], names)
    with pytest.raises(PluginError, match="1 in several"):
        check_groups([whole, first], names)


def test_the_peak_of_each_group_is_its_rate_as_it_was_made():
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.5, 0.25)]
    optimizer = torch.optim.SGD(groups)

    assert peak_lrs(optimizer) == [0.5, 0.25]
    del optimizer.param_groups[1]["lr"]
    with pytest.raises(PluginError, match="SGD: a parameter group without 'lr'"):
        peak_lrs(optimizer)


def test_a_role_without_a_trainable_parameter_is_refused():
    require_trainable("policy", ["weight"])
    with pytest.raises(ConfigError, match="the policy has no trainable parameter"):
        require_trainable("policy", [])


def test_an_objective_lacks_neither_an_optimizer_nor_its_head(plugins, make_spec, models):
    trained = make_spec(models["qwen3"])

    with pytest.raises(ConfigError, match="the policy is trained but has no optimizer"):
        trained_parts(replace(trained, optimizer=None), plugins)
    with pytest.raises(ConfigError, match="the policy has a value objective but no value head"):
        trained_parts(replace(trained, objective=ValueObjective(value_clip=None)), plugins)
