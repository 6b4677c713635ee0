"""Linear layers of one input become one product, whose parts and gradients are theirs."""

from __future__ import annotations

import copy
import pickle
from contextlib import contextmanager

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_plugin_lora.adapter import PeftAdapter
from rlhf_plugin_lora.lora import LoraOptions
from rlhf_torch.building.joined_linears import (
    LINEAR,
    SMALL,
    VALUE,
    JoinLinears,
    join_linears,
    joining_options,
)
from rlhf_torch.models.layers import compile_layers, decoder_layers, recompute_layers

SHAPE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 1040,  # gate and input of the MLP are large
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Torch itself looks at the gradient of a tensor that has none.
GRAD_OF_OTHERS = pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")


def model_of(model_type, *, adapted=False):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **SHAPE))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    if adapted:
        model = PeftAdapter(LoraOptions(rank=4)).wrap(model, seed=0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter)
    return model.eval()


def pass_of(model):
    """The logits and all gradients."""
    logits = model(torch.arange(4, 11)[None], use_cache=False).logits
    model.zero_grad()
    logits.square().mean().backward()
    gradients = {
        name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
    }
    return logits.detach(), gradients


def num_linears(graph):
    return sum(node.target in LINEAR for node in graph.nodes)


class Counting:
    """A compiler that runs the pass and counts the linear layers before and after it."""

    def __init__(self):
        self.before = self.after = 0

    def __call__(self, module, inputs):
        self.before += num_linears(module.graph)
        JoinLinears()(module.graph)
        module.graph.lint()
        module.recompile()
        self.after += num_linears(module.graph)
        return module.forward


def compiled(model):
    counting = Counting()
    torch._dynamo.reset()
    for layer in decoder_layers(model):
        layer.compile(dynamic=True, backend=counting)
    return counting


@GRAD_OF_OTHERS
@pytest.mark.parametrize(
    ("model_type", "adapted", "before", "after"),
    [
        ("llama", False, 7, 5),
        ("qwen2", False, 7, 5),  # with biases
        ("gemma3_text", False, 7, 5),
        ("phi3", False, 4, 4),  # joined in its files
        # Beside the products of the base are those of the factors: A of q, k and v, and of gate and up, read the same.
        ("llama", True, 21, 16),
    ],
)
def test_a_layer_with_joined_linears_is_the_layer(model_type, adapted, before, after):
    model = model_of(model_type, adapted=adapted)
    wanted = pass_of(model)
    counting = compiled(model)

    found = pass_of(model)

    assert (counting.before, counting.after) == (before, after)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@GRAD_OF_OTHERS
def test_frozen_weights_beside_factors_get_no_gradient():
    model = model_of("llama", adapted=True)
    compiled(model)

    _, gradients = pass_of(model)

    assert {name for name, g in gradients.items() if g is not None} == {
        name for name in gradients if "lora_" in name
    }


@GRAD_OF_OTHERS
def test_layers_that_are_recomputed_are_joined_too():
    model = model_of("llama")
    wanted = pass_of(model)
    recompute_layers(model)
    counting = compiled(model)

    torch.testing.assert_close(pass_of(model), wanted, atol=1e-5, rtol=1e-5)
    assert counting.after < counting.before


@GRAD_OF_OTHERS
def test_products_in_another_dtype_than_the_weights_are_joined_too():
    model = model_of("llama")
    with torch.autocast("cpu", torch.bfloat16):
        wanted = pass_of(model)
        counting = compiled(model)
        found = pass_of(model)

    assert (counting.before, counting.after) == (7, 5)
    # Gradients of the states are rounded to 8 bits of precision once instead of three times.
    torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)
    assert {gradient.dtype for gradient in found[1].values()} == {torch.float32}


class Two(nn.Module):
    """Two linear layers, and what may stand between them."""

    def __init__(self, *, outputs=(3, 4), biases=(True, True), dtypes=(torch.float32,) * 2):
        super().__init__()
        self.first, self.second = (
            nn.Linear(5, size, bias=bias, dtype=dtype)
            for size, bias, dtype in zip(outputs, biases, dtypes, strict=True)
        )

    def between(self, x):
        return x

    def forward(self, x):
        first = F.linear(x, self.first.weight, self.first.bias)
        x = self.between(x)
        return first, F.linear(x, self.second.weight, bias=self.second.bias)


class OtherInput(Two):
    def between(self, x):
        return x + 1


class ChangedInPlace(Two):
    def between(self, x):
        x.add_(1)
        return x


class Assigned(Two):
    def between(self, x):
        x[0] = 1
        return x


class Added(Two):
    def between(self, x):
        x += 1
        return x


class WithoutGradient(Two):
    def forward(self, x):
        first = F.linear(x, self.first.weight, self.first.bias)
        with torch.no_grad():
            return first, F.linear(x, self.second.weight, self.second.bias)


class InBfloat16(Two):
    def forward(self, x):
        first = F.linear(x, self.first.weight, self.first.bias)
        with torch.autocast("cpu", torch.bfloat16):
            return first, F.linear(x, self.second.weight, self.second.bias)


class Computed(Two):
    def forward(self, x):
        first = F.linear(x, self.first.weight, self.first.bias)
        return first, F.linear(x, self.second.weight * 2, self.second.bias)


def frozen(module, *names):
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def traced(module, x):
    """The graph of a module that torch's tracer gives to a compiler, as a function of the same arguments."""
    graphs = []

    def keep(graph, inputs):
        graphs.append((graph, inputs))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(module, backend=keep, fullgraph=True)(x.clone())
    ((graph, inputs),) = graphs
    return graph, inputs


@GRAD_OF_OTHERS
@pytest.mark.parametrize("module", [Two(), Two(biases=(False, False)), Two(outputs=(1, 2 * SMALL))])
def test_layers_of_one_input_are_joined(module):
    x = torch.randn(2, 6, 5)
    wanted = module(x)
    graph, inputs = traced(module, x)

    assert join_linears(graph.graph) == 1

    graph.graph.lint()
    graph.recompile()
    assert num_linears(graph.graph) == 1
    found = graph(*inputs)
    torch.testing.assert_close(tuple(found), wanted)
    sizes = [part.untyped_storage().nbytes() for part in found]
    assert sizes == [4 * part.numel() for part in found], "no part keeps the whole product"


@GRAD_OF_OTHERS
@pytest.mark.parametrize(
    "module",
    [
        OtherInput(),
        ChangedInPlace(),
        Assigned(),
        Added(),
        WithoutGradient(),
        InBfloat16(),
        Computed(),
        Two(biases=(True, False)),
        Two(outputs=(SMALL + 1, SMALL + 1)),
        frozen(Two(), "first.weight", "first.bias"),
        frozen(Two(), "first.bias"),
    ],
    ids=lambda module: type(module).__name__,
)
def test_other_layers_stay(module):
    graph, _ = traced(module, torch.randn(6, 5))
    assert num_linears(graph.graph) == 2

    assert join_linears(graph.graph) == 0
    assert num_linears(graph.graph) == 2


def written_by_hand(*weights, known=True):
    """A graph of products of one input, each of whose weights comes right before its product."""
    root = nn.Module()
    graph = fx.Graph()
    x = graph.placeholder("x")
    results = []
    for index, weight in enumerate(weights):
        root.register_parameter(f"weight_{index}", nn.Parameter(weight))
        parameter = graph.get_attr(f"weight_{index}")
        results.append(graph.call_function(F.linear, (x, parameter)))
        if known:
            x.meta[VALUE] = torch.empty(6, 5)
            parameter.meta[VALUE] = weight
            results[-1].meta[VALUE] = torch.empty(6, len(weight))
    graph.output(tuple(results))
    return fx.GraphModule(root, graph)


def test_weights_are_read_before_the_first_product():
    weights, x = [torch.randn(size, 5) for size in (2, 3, 4)], torch.randn(6, 5)
    module = written_by_hand(*weights)

    assert join_linears(module.graph) == 1

    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(x), tuple(x @ weight.T for weight in weights))


@pytest.mark.parametrize(
    "module",
    [
        written_by_hand(torch.randn(2, 5), torch.randn(3, 5), known=False),
        written_by_hand(torch.randn(2, 5), torch.randn(3, 5, dtype=torch.float64)),
        written_by_hand(torch.randn(0), torch.randn(0)),  # as ZeRO leaves them
    ],
    ids=["unknown", "dtypes", "partitioned"],
)
def test_weights_that_are_unknown_or_unlike_stay(module):
    assert join_linears(module.graph) == 0


def test_the_pass_is_known_again():
    """By the compiler's cache on disk, and where torch compares options to find compiled code."""
    assert JoinLinears().uuid() == pickle.loads(pickle.dumps(JoinLinears())).uuid()
    assert joining_options() is joining_options()


@pytest.mark.slow
# Inductor itself uses what torch has deprecated.
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
def test_compiled_layers_are_joined_keep_no_more_and_are_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = model_of("qwen2")
    wanted, products, kept = pass_of(model), {}, {}
    counters = torch._dynamo.utils.counters
    for joined in (False, True, True):
        torch._dynamo.reset()
        counters.clear()
        fresh = copy.deepcopy(model)
        compile_layers(fresh, joined=joined)

        with kept_bytes() as sizes:
            found = pass_of(fresh)

        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        kept[joined] = sum(sizes.values())
        products[joined] = counters["inductor"]["extern_calls"]
    # Two layers less, each with a product for the results and two for the gradients.
    assert products[False] - products[True] == 2 * 3
    assert kept[True] <= kept[False]
    assert counters["inductor"]["fxgraph_cache_hit"] > 0
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert counters["aot_autograd"]["autograd_cache_bypass"] == 0


@contextmanager
def kept_bytes():
    """Collect the bytes that are kept for the backward pass, by the address of their memory."""
    sizes = {}

    def pack(tensor):
        memory = tensor.untyped_storage()
        sizes[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes
