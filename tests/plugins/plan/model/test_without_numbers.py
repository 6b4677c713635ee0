"""What a pass without numbers shows, on layers small enough for pencil and paper."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from rlhf_plugin_plan.model.precision import Precision
from rlhf_plugin_plan.model.without_numbers import (
    layers_of,
    passed,
    storage,
    text_of,
    without_numbers,
)

BFLOAT16 = Precision(parameters="bfloat16", compute="bfloat16")
AUTOCAST = Precision(parameters="float32", compute="bfloat16")


class Text(nn.Module):
    """Embeddings of 8 numbers, and two products of 8 with 8."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(
            nn.Linear(8, 8, bias=False, dtype=torch.bfloat16) for _ in range(2)
        )

    def forward(self, input_ids, position_ids, use_cache):
        hidden = self.table(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.text = Text()
        self.config = SimpleNamespace(
            get_text_config=lambda: SimpleNamespace(num_hidden_layers=layers)
        )

    @property
    def base_model(self):
        return self.text


def test_a_product_keeps_its_input_and_the_table_its_ids():
    with without_numbers(BFLOAT16):
        model = Model()
        name, layers = layers_of(model)
        found, attention = passed(model, layers, 3)

    assert name == "layers"
    assert found.layers == [3 * 8 * 2, 3 * 8 * 2]
    assert found.inputs == [3 * 8 * 2, 3 * 8 * 2]
    assert found.outside == 3 * 8
    assert attention == {}


def test_autocast_keeps_casts():
    with without_numbers(AUTOCAST):
        x = torch.zeros(4, 8, requires_grad=True)
        output = nn.Linear(8, 2, bias=False)(x)

    assert output.dtype == torch.bfloat16


def test_dropout_keeps_a_byte_of_each_element():
    kept = []
    with without_numbers(BFLOAT16):
        x = torch.zeros(4, 8, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            torch.nn.functional.dropout(x, 0.5)

    assert [tensor.dtype for tensor in kept] == [torch.bool]


def test_products_of_experts_have_a_form_in_float32():
    with without_numbers(AUTOCAST):
        rows, stacks = torch.zeros(6, 8), torch.zeros(3, 8, 16)
        ends = torch.zeros(3, dtype=torch.int32)
        product = torch.nn.functional.grouped_mm(rows, stacks, offs=ends)

    assert product.shape == (6, 16)


def test_a_model_with_another_number_of_layers_is_refused():
    with pytest.raises(LookupError, match="Model has no list of 3 layers"):
        layers_of(Model(layers=3))


def test_the_text_model_of_a_model_that_sees_is_found():
    base = SimpleNamespace(language_model="text")

    assert text_of(SimpleNamespace(base_model=base)) == "text"
    assert text_of(SimpleNamespace(base_model=SimpleNamespace(text_model="text"))) == "text"


def test_views_are_of_one_storage():
    tensor = torch.zeros(4)

    assert storage(tensor) == storage(tensor[1:])
    assert storage(tensor) != storage(torch.zeros(4))
