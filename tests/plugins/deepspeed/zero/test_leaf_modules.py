"""Which modules are found to be blocks of experts."""

import pytest
from torch import nn

from rlhf_core import ConfigError
from rlhf_plugin_deepspeed.zero.leaf_modules import (
    expert_blocks,
    mark_leaf_modules,
    refuse_expert_blocks,
)
from rlhf_testing.errors import has_code


class Block(nn.Module):
    def __init__(self, num_experts, num_routes):
        super().__init__()
        self.router = nn.Linear(8, num_routes, bias=False)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(num_experts))


class Decoder(nn.Module):
    """Layers in a list are no experts: nothing beside them chooses among them."""

    def __init__(self, *blocks):
        super().__init__()
        self.embeddings = nn.Embedding(100, 8)
        self.layers = nn.ModuleList(blocks)


def test_a_block_has_as_many_modules_as_its_router_has_rows():
    experts, others = Block(4, 4), Block(4, 3)

    assert expert_blocks(Decoder(experts, others)) == [experts]
    assert expert_blocks(Decoder(nn.Linear(8, 8), nn.Linear(8, 8))) == []


def test_blocks_and_named_classes_are_marked():
    pytest.importorskip("deepspeed")
    from deepspeed.utils import get_z3_leaf_modules

    block = Block(4, 4)
    model = Decoder(block, nn.Sequential(nn.Linear(8, 8)))

    mark_leaf_modules(model, ["Sequential"])

    assert get_z3_leaf_modules(model) == [block, model.layers[1]]


def test_a_class_that_is_not_there_is_named():
    pytest.importorskip("deepspeed")

    with pytest.raises(
        ConfigError,
        match="Expert; it has Block, Decoder",
        check=has_code("deepspeed/unknown-module"),
    ):
        mark_leaf_modules(Decoder(Block(2, 2)), ["Expert"])


def test_a_block_is_refused_by_its_name():
    with pytest.raises(
        ConfigError,
        match=r"zero_stage 2.*layers\.0 \(Block\)",
        check=has_code("deepspeed/separate-experts"),
    ):
        refuse_expert_blocks(Decoder(Block(2, 2)), 2)
