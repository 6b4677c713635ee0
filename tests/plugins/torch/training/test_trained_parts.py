"""What every backend asks of a trained role's components."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import NamedParameters, ParameterGroup, ValueObjective
from rlhf_testing.errors import has_code
from rlhf_torch.training.named_optimizer import NamedOptimizer
from rlhf_torch.training.trained_parts import (
    check_groups,
    parameter_groups,
    peak_lrs,
    require_trainable,
    trained_parts,
)


def test_a_parameter_in_no_group_or_in_two_is_refused():
    named = [("a", nn.Parameter(torch.zeros(2))), ("b", nn.Parameter(torch.zeros(2)))]
    names = dict(named)
    whole = ParameterGroup(name="all", named_parameters=tuple(named))
    first = ParameterGroup(name="first", named_parameters=(named[0],))

    check_groups([whole], names, "mine")
    with pytest.raises(
        PluginError, match=r"^mine: .*1 of 2.*such as b", check=has_code("optimizer/groups")
    ):
        check_groups([first], names, "mine")
    with pytest.raises(PluginError, match="1 in several", check=has_code("optimizer/groups")):
        check_groups([whole, first], names, "mine")


def test_a_parameter_left_out_is_told_with_plugin_and_component():
    named = NamedParameters((("a", nn.Parameter(torch.zeros(2))),))
    none = SimpleNamespace(parameter_groups=lambda named: [])

    with pytest.raises(PluginError, match=r"acme 1\.0", check=has_code("optimizer/groups")):
        parameter_groups(NamedOptimizer(none, "acme:mine (acme 1.0)"), named)


def test_the_peak_of_each_group_is_its_rate_as_it_was_made():
    made = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.5, 0.25)]
    groups = [ParameterGroup(name="all", named_parameters=())] * 2
    optimizer = torch.optim.SGD(made)

    assert peak_lrs(optimizer, groups) == [0.5, 0.25]
    del optimizer.param_groups[1]["lr"]
    with pytest.raises(PluginError, match=r"SGD.*'lr'", check=has_code("optimizer/no-lr")):
        peak_lrs(optimizer, groups)


def test_groups_are_split_by_the_factors_of_their_rates():
    weights = {name: nn.Parameter(torch.zeros(1)) for name in "abc"}
    named = NamedParameters(tuple(weights.items()), rates={"b": 16.0})

    class OneGroup:
        def parameter_groups(self, pairs):
            return [
                ParameterGroup(name="all", named_parameters=tuple(pairs), options={"eps": 1e-6})
            ]

    groups = parameter_groups(OneGroup(), named)

    assert [[name for name, _ in group.named_parameters] for group in groups] == [["a", "c"], ["b"]]
    assert [group.name for group in groups] == ["all", "all"]
    assert [group.options for group in groups] == [
        {"eps": 1e-6},
        {"eps": 1e-6, "rate_factor": 16.0},
    ]
    parts = [[weight for _, weight in group.named_parameters] for group in groups]
    made = [{"params": part, **group.options} for part, group in zip(parts, groups, strict=True)]
    assert peak_lrs(torch.optim.Adam(made, lr=0.25), groups) == [0.25, 4.0]


def test_a_role_without_a_trainable_parameter_is_refused():
    require_trainable("policy", ["weight"])
    with pytest.raises(ConfigError, match="policy", check=has_code("training/nothing-trainable")):
        require_trainable("policy", [])


def test_an_objective_lacks_neither_an_optimizer_nor_its_head(plugins, make_spec, models):
    trained = make_spec(models["qwen3"])

    with pytest.raises(ConfigError, match="policy", check=has_code("plugin/no-optimizer")):
        trained_parts(replace(trained, optimizer=None), plugins)
    with pytest.raises(ConfigError, match="policy", check=has_code("plugin/no-value-head")):
        trained_parts(replace(trained, objective=ValueObjective(value_clip=None)), plugins)
