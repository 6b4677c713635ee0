"""Parameter groups, and what is a matrix: decided by the module that owns a parameter, where the backend says so."""

import torch
from torch import nn

from rlhf_core.contracts import NamedParameters, ParameterGroup, norm_parameters


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


class HeadwiseRMSNorm(nn.Module):
    """A gain of two axes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 8))


class Renamed(nn.LayerNorm):
    """A norm by what it is derived from."""


class NormHead(nn.Linear):
    """A matrix, whose rows are normalized when it is used."""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.q_norm = HeadwiseRMSNorm()
        self.last = Renamed((4, 8))
        self.batch_norm = nn.BatchNorm1d(8)
        self.head = NormHead(8, 5)
        self.experts = nn.Parameter(torch.zeros(3, 8, 8))


def test_the_parameters_of_norms_are_found_by_their_classes():
    assert norm_parameters(Model()) == {
        "q_norm.weight",
        "last.weight",
        "last.bias",
        "batch_norm.weight",
        "batch_norm.bias",
    }


def test_gains_are_no_matrices_and_stacked_experts_are():
    model = Model()
    named = NamedParameters(tuple(model.named_parameters()), norm_parameters(model))

    matrices = [name for name, _ in named.where(named.is_matrix)]

    assert sorted(matrices) == ["embed.weight", "experts", "head.weight"]


def test_of_bare_pairs_only_the_shape_is_known():
    named = NamedParameters.of(Model().named_parameters())

    assert "q_norm.weight" in dict(named.where(named.is_matrix))
    assert NamedParameters.of(named) is named


def test_a_part_knows_what_the_whole_knew():
    model = Model()
    named = NamedParameters(tuple(model.named_parameters()), norm_parameters(model))

    part = named.where(lambda name, _: "norm" in name)

    assert len(part) == 3
    assert part[0] == ("q_norm.weight", model.q_norm.weight)
    assert not part.is_matrix(*part[0])
