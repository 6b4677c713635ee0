"""Attention as an operation of a graph, and layers in one graph, compute what they do without."""

import pytest
import torch
from transformers import AttentionInterface

from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.packed.attention import NAME, keep_out_of_graphs, layout_attention
from rlhf_torch.packed.graph_attention import GraphLayout, attention
from rlhf_torch.packed.packing import PackedLayout

CPU = torch.device("cpu")
HEADS, KV_HEADS, WIDTH = 4, 2, 8


def random_parts(num_tokens, seed=0):
    draw = torch.Generator().manual_seed(seed)
    shapes = [(1, heads, num_tokens, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return [torch.randn(shape, generator=draw).requires_grad_() for shape in shapes]


def results(layout, parts, options):
    output = layout.attend(0, *parts, scaling=0.3, **options)
    weights = torch.arange(output.numel()).view_as(output).cos()
    return [output, *torch.autograd.grad((output * weights).sum(), parts)]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_output_and_gradients_are_those_of_the_present_layout(window, softcap):
    options = {"sliding_window": window, "softcap": softcap}
    graph = GraphLayout()

    for offsets in ([0, 5, 8, 15], [0, 4, 8]):
        layout, parts = PackedLayout(offsets, CPU), random_parts(offsets[-1])
        graph.set(layout)

        torch.testing.assert_close(
            results(graph, parts, options), results(layout, parts, options), atol=0, rtol=0
        )


def test_each_model_has_its_own_layout():
    first, second = GraphLayout(), GraphLayout()
    first.set(PackedLayout([0, 3, 6], CPU))
    second.set(PackedLayout([0, 6], CPU))
    parts = random_parts(6)
    options = {"sliding_window": None, "softcap": None}

    apart, together = results(first, parts, options)[0], results(second, parts, options)[0]

    torch.testing.assert_close(apart[:, :3], together[:, :3])
    assert not torch.allclose(apart[:, 3:], together[:, 3:])


def test_under_autocast_it_computes_in_the_type_of_the_matmuls():
    layout, parts = PackedLayout([0, 3, 6], CPU), random_parts(6)
    graph = GraphLayout()
    graph.set(layout)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = (
            results(one, parts, {"sliding_window": None, "softcap": None})
            for one in (graph, layout)
        )

    assert found[0].dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, atol=0, rtol=0)


def test_torch_finds_the_operation_well_made():
    graph = GraphLayout()
    graph.set(PackedLayout([0, 3, 6], CPU))

    torch.library.opcheck(attention, (*random_parts(6), graph._number, 0, 0.3, None, None))


@pytest.fixture
def lm(tmp_path):
    return load_causal_lm(str(write_tiny_model(tmp_path / "model", "gemma3")), dtype="float32")


@pytest.mark.slow
# Inductor itself uses what torch has deprecated.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_one_graph_serves_any_number_of_tokens_with_and_without_a_gradient(lm):
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def passes():
        for lengths in ([5, 7, 9], [2], [12, 12]):
            offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
            layout = PackedLayout(offsets, CPU)
            tokens = torch.arange(offsets[-1]) % 30 + 4
            hidden = lm.hidden(tokens, layout.positions(), layout)
            lm.zero_grad()
            hidden.square().sum().backward()
            with torch.no_grad():
                again = lm.hidden(tokens, layout.positions(), layout)
            assert not again.requires_grad
            torch.testing.assert_close(again, hidden.detach())
            yield [hidden.detach(), *(p.grad.clone() for p in lm.parameters())]

    wanted = list(passes())
    keep_out_of_graphs()  # as another model of the process would
    try:
        lm.compile_layers(backend=counting)
        found = list(passes())
    finally:
        AttentionInterface.register(NAME, layout_attention)

    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
    assert len(graphs) == 1


def test_layers_that_break_a_graph_are_an_error(lm):
    """Parts of a model would share code that holds the numbers of one of their parameters."""
    layer = lm.model.base_model.layers[1]
    layer.register_forward_pre_hook(lambda *_: torch._dynamo.graph_break())
    lm.compile_layers(backend="eager")
    layout = PackedLayout([0, 4], CPU)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        lm.hidden(torch.arange(4) + 4, layout.positions(), layout)
