"""An optimizer component that answers something else than parameter groups and a torch optimizer."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rlhf_core import PluginError
from rlhf_core.contracts import ParameterGroup
from rlhf_testing.errors import has_code
from rlhf_torch.training.named_optimizer import NamedOptimizer, class_of
from rlhf_torch.training.trained_parts import trained_parts

LABEL = "acme:mine (rlhf-plugin-acme 1.0)"
NAMED = (("weight", nn.Parameter(torch.zeros(2))),)
GROUPS = [ParameterGroup(name="all", named_parameters=NAMED)]


def optimizer_of(groups, made):
    own = SimpleNamespace(parameter_groups=lambda named: groups, create=lambda groups: made)
    return NamedOptimizer(own, LABEL)


def test_right_answers_come_back_as_they_are():
    made = torch.optim.SGD([weight for _, weight in NAMED])
    optimizer = optimizer_of(GROUPS, made)

    assert optimizer.parameter_groups(NAMED) == GROUPS
    assert optimizer.create(GROUPS) is made


@pytest.mark.parametrize("made", [None, {"lr": 0.1}, torch.optim.SGD])
def test_what_is_no_torch_optimizer_is_refused_with_plugin_and_component(made):
    with pytest.raises(
        PluginError,
        match=r"^acme:mine \(rlhf-plugin-acme 1\.0\): create\(\) returned .*; expected a torch\.optim",
        check=has_code("plugin/wrong-answer"),
    ):
        optimizer_of(GROUPS, made).create(GROUPS)


@pytest.mark.parametrize("groups", [None, [{"params": []}], "all"])
def test_what_are_no_parameter_groups_is_refused_with_plugin_and_component(groups):
    with pytest.raises(
        PluginError,
        match=r"^acme:mine \(rlhf-plugin-acme 1\.0\): parameter_groups\(\) returned .*ParameterGroup",
        check=has_code("plugin/wrong-answer"),
    ):
        optimizer_of(groups, None).parameter_groups(NAMED)


def test_a_trained_role_has_its_optimizer_named(plugins, make_spec, models):
    spec = make_spec(models["qwen3"])

    optimizer = trained_parts(spec, plugins).optimizer

    assert optimizer.label.startswith(spec.optimizer.name)
    assert class_of(optimizer) == class_of(optimizer.optimizer)
