"""Linear layers of one input as one matrix product, in the graphs that torch compiles.

Query, key and value read the same states. Key and value alone have too few outputs to fill a GPU, and the backward pass
writes three gradients of the states and adds them up. One product with the weights one below the other does neither.
The parameters stay as they are: the graph joins them in each pass, which costs little beside a product over thousands
of tokens. It costs much beside a product over a few, so that steps of decoding are not for this pass.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

SMALL = 1024
"""Outputs up to which a layer gains from another's company: larger ones, such as the gate and the input of an MLP, are
efficient alone, and copying their weights would cost more than one gradient less gains."""

VALUE = "example_value"
"""Key under which torch's tracer keeps a stand-in of a node's result: its shape, dtype and need of a gradient."""

UPDATES = (
    operator.setitem,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
    operator.iand,
    operator.ior,
    operator.ixor,
)

LINEAR = (torch.nn.functional.linear, torch._C._nn.linear)


def join_linears(graph: fx.Graph) -> int:
    """Rewrite the linear layers of one input as one product and its parts; return the number of joined groups.

    Frozen and trained weights are never joined, since a frozen weight would get a gradient. Layers of one input without
    a small one among them stay as they are.

    Args:
        graph: of torch's functions, before gradients are derived, whose nodes have their results in ``meta``.
    """
    groups = [group for group in _groups(graph) if _gains(group)]
    for group in groups:
        _join(group)
    return len(groups)


class JoinLinears(CustomGraphPass):
    """Pass ``pre_grad_custom_pass`` of torch's compiler, which knows its graphs again in a cache by ``uuid``."""

    def __call__(self, graph: fx.Graph) -> None:
        join_linears(graph)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


@cache
def joining_options() -> Mapping[str, Any]:
    """Return the options of ``torch.compile`` for joined layers: one object for all layers, since torch compares them
    where it looks for code that it has compiled already."""
    return {"pre_grad_custom_pass": JoinLinears()}


class _Linear(NamedTuple):
    node: fx.Node
    states: fx.Node
    weight: fx.Node
    bias: fx.Node | None

    @property
    def outputs(self) -> int:
        return int(self.weight.meta[VALUE].shape[0])

    def likeness(self) -> Hashable:
        """Traits that are equal in layers that can be joined."""
        return self.states, _kind(self.weight), self.bias and _kind(self.bias)


def _groups(graph: fx.Graph) -> list[list[_Linear]]:
    """Return the layers that can be joined, in the order of the graph."""
    found: dict[Hashable, list[_Linear]] = defaultdict(list)
    stretch = 0
    for node in graph.nodes:
        if _changes_what_follows(node):
            stretch += 1
        elif linear := _linear(node):
            found[stretch, linear.likeness()].append(linear)
    return list(found.values())


def _gains(group: Sequence[_Linear]) -> bool:
    return len(group) > 1 and min(linear.outputs for linear in group) <= SMALL


def _changes_what_follows(node: fx.Node) -> bool:
    """Whether a layer before the node may give something else after it: by a change in place, or a mode as autocast."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return False
    in_place = str(getattr(node.target, "__name__", node.target)).endswith("_")
    return in_place or node.target in UPDATES or "out" in node.kwargs or node.is_impure()


def _linear(node: fx.Node) -> _Linear | None:
    """Return the node as a linear layer of parameters; None: it is something else."""
    if node.op != "call_function" or node.target not in LINEAR:
        return None
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False))
    named: dict[str, Any] = {"bias": None, **given, **node.kwargs}
    states, weight, bias = named["input"], named["weight"], named["bias"]
    if VALUE not in node.meta or not _is_parameter(weight, 2):
        return None
    if bias is not None and not _is_parameter(bias, 1):
        return None
    return _Linear(node, states, weight, bias)


def _is_parameter(node: Any, dimensions: int) -> bool:
    """Whether the node is a whole tensor that is there before the graph starts. ZeRO's parts have another shape."""
    if not isinstance(node, fx.Node) or node.op not in ("placeholder", "get_attr"):
        return False
    value = node.meta.get(VALUE)
    return (
        isinstance(value, Tensor)
        and value.dim() == dimensions
        and not is_traceable_wrapper_subclass(value)
    )


def _kind(node: fx.Node) -> Hashable:
    value: Tensor = node.meta[VALUE]
    return value.dtype, value.device, value.requires_grad


def _join(group: Sequence[_Linear]) -> None:
    """Replace the layers of a group by one, at the place of the first."""
    first = group[0].node
    graph = first.graph
    for linear in group:
        for parameter in (linear.weight, linear.bias):
            if parameter is not None and first < parameter:
                first.prepend(parameter)
    sizes = [linear.outputs for linear in group]
    with graph.inserting_before(first):
        weight = _call(graph, torch.cat, [linear.weight for linear in group], 0)
        bias = None
        if group[0].bias is not None:
            bias = _call(graph, torch.cat, [linear.bias for linear in group], 0)
        product = _call(graph, torch._C._nn.linear, group[0].states, weight, bias)
        parts = _call(graph, torch.split, product, sizes, -1)
        for index, linear in enumerate(group):
            part = _call(graph, operator.getitem, parts, index)
            # A copy, since a part that is kept for the backward pass would keep the whole product.
            own = _call(graph, torch.clone, part, memory_format=torch.contiguous_format)
            own.meta = {**linear.node.meta}
            linear.node.replace_all_uses_with(own)
    for linear in group:
        graph.erase_node(linear.node)


def _call(graph: fx.Graph, function: Any, *arguments: Any, **options: Any) -> fx.Node:
    """Return a new node with its result, without which torch would not keep the graph in its cache."""
    node = graph.call_function(function, arguments, options)
    # With gradients a recomputed layer would keep more tensors in the pass that compiles it than in the next, an error.
    # Torch 2.11 multiplies tensors of symbolic sizes on a CPU only by what it has in Python.
    with torch.no_grad(), enable_python_dispatcher():
        node.meta[VALUE] = function(*_values(arguments), **options)
    return node


def _values(argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        return argument.meta[VALUE]
    if isinstance(argument, (list, tuple)):
        return type(argument)(map(_values, argument))
    return argument
