import torch
from torch import nn

from rlhf_core.contracts import ParameterGroup


def group(options, **shapes):
    named = tuple(
        (name.replace("__", "."), nn.Parameter(torch.zeros(shape)))
        for name, shape in shapes.items()
    )
    return ParameterGroup(name="decay", named_parameters=named, options=options)


def test_a_group_is_described_by_size_options_and_names():
    described = group({"weight_decay": 0.1, "lr": 0.01}, embed__weight=(1000, 2), head=(3,))

    assert described.describe() == (
        "decay (2 parameters, 2,003 numbers; weight_decay=0.1, lr=0.01): embed.weight, head"
    )


def test_layers_of_a_stack_are_told_as_one():
    described = group({}, layers__0__up=(2, 2), layers__1__up=(2, 2), layers__1__down2=(2,))

    assert described.describe() == (
        "decay (3 parameters, 10 numbers): layers.*.up (2), layers.*.down2"
    )
