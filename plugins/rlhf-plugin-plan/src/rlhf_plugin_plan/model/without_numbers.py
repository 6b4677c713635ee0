"""A Transformers model without numbers, and what autograd would keep of a pass through it.

Tensors of torch's ``FakeTensorMode`` have shapes, types and storages, and no memory: a model of any size is made in
seconds, and its own code says which arrays a pass keeps. Attention is a stand-in that keeps what the backends' does;
in a vision tower it keeps a mask too, as a kernel for masks does.

Torch is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from .precision import Precision

if TYPE_CHECKING:
    from torch import Tensor, nn

ATTENTION = "rlhf_plan"
"""Name of the stand-in among Transformers' functions of attention."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Bytes that a forward pass keeps for its backward pass. Layers go by their number."""

    layers: list[int]
    """Arrays that are first kept within a layer."""
    inputs: list[int]
    """Arrays that come into a layer and that no layer before got: what is kept of a recomputed layer."""
    outside: int
    """Arrays that are first kept outside of layers."""


@dataclass(slots=True)
class Attention:
    """Widths of the attention of one layer, in numbers of a token."""

    queries: int = 0
    """Width of the queries of all heads."""
    keys: int = 0
    """Width of keys and values of all heads that no layer before made."""
    values: int = 0
    """Width of the values of all heads, keys' heads counted."""
    holds_scores: bool = False
    """Whether scores of some queries are in memory, since no kernel computes such attention."""


@dataclass(slots=True)
class _Watch:
    """Arrays and widths that a pass has shown so far."""

    layer: int = -1
    kept: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    entered: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    attention: dict[int, Attention] = field(default_factory=dict)
    keys: dict[int, Tensor] = field(default_factory=dict)


_watches: list[_Watch] = []
"""The pass that goes on, if any: Transformers hands nothing of it to a function of attention."""
_operations: list[list[int]] = []
"""Lists that get the operations of each attention, as long as something counts them."""


@contextmanager
def without_numbers(precision: Precision) -> Iterator[None]:
    """Return a context in which new tensors have no numbers and are on a CPU, which has autocast. Dropout computes as
    on a GPU: its mask takes one byte an element."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import TorchFunctionMode

    class Product(torch.autograd.Function):
        """Keeps a factor where the other has a gradient: rows, and the stacks of their experts, of every type."""

        @staticmethod
        def forward(ctx: Any, rows: Tensor, stacks: Tensor) -> Tensor:
            of_rows, of_stacks = ctx.needs_input_grad
            ctx.save_for_backward(rows if of_stacks else None, stacks if of_rows else None)
            return rows.new_empty(rows.shape[0], stacks.shape[-1])

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise AssertionError("only what the forward pass keeps is counted")

    class OfGpus(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            # Its form without numbers knows bfloat16 alone.
            if getattr(func, "__name__", "").endswith("grouped_mm"):
                return Product.apply(*args[:2])  # type: ignore[no-untyped-call]
            if func is torch.nn.functional.dropout:
                return _dropout(*args, **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    casts = torch.autocast("cpu", torch.bfloat16, enabled=precision.casts, cache_enabled=False)
    with FakeTensorMode(allow_non_fake_inputs=True), casts, OfGpus():
        yield


@contextmanager
def numbers_of_inputs() -> Iterator[None]:
    """Return a context within ``without_numbers`` in which what follows from inputs with numbers has numbers too: a
    tower asks for those of an image's size, and a tensor without numbers cannot answer."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class OfInputs(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            options = kwargs or {}
            if not any(isinstance(part, FakeTensor) for part in tree_leaves((args, options))):
                with unset_fake_temporarily():
                    return func(*args, **options)
            if func is torch.ops.aten.index.Tensor:
                args = (args[0], _as_places(args[1]))
            return func(*args, **options)

    with OfInputs():  # type: ignore[no-untyped-call]
        yield


def _as_places(indices: Any) -> list[Any]:
    """Return indices in which a mask with numbers is the places that it chooses, whose number is then known."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

    found: list[Any] = []
    for index in indices:
        if index is None or index.dtype != torch.bool or isinstance(index, FakeTensor):
            found.append(index)
            continue
        with unset_fake_temporarily():
            found.extend(index.nonzero(as_tuple=True))
    return found


@contextmanager
def attention_operations() -> Iterator[list[int]]:
    """Return a context that lists the operations of each attention within it, which no counter of torch's sees."""
    found: list[int] = []
    _operations.append(found)
    try:
        yield found
    finally:
        _operations.remove(found)


def kept_bytes(model: Any, call: Callable[[], Any]) -> int:
    """Return the bytes that autograd keeps of a call, each storage once, without the model's own."""
    import torch

    own = {storage(p) for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        kept.setdefault(storage(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = call()
    del output
    return sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in own)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    import torch

    del inplace
    return torch.native_dropout(x, p, True)[0] if training and p else x


def text_of(model: Any) -> nn.Module:
    """Return the part of a model that computes hidden states from tokens."""
    base: nn.Module = model.base_model
    names = (name for name in ("language_model", "text_model") if hasattr(base, name))
    found: nn.Module = getattr(base, next(names, ""), base)
    return found


def layers_of(model: Any) -> tuple[str, nn.ModuleList]:
    """Return the name within the text model, and the layers.

    Raises:
        LookupError: no list of modules has as many as the configuration has layers.
    """
    from torch import nn

    number = model.config.get_text_config().num_hidden_layers
    for name, module in text_of(model).named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == number:
            return name, module
    raise LookupError(f"{type(model).__name__} has no list of {number} layers")


def passed(
    model: Any, layers: nn.ModuleList, tokens: int, fixed: frozenset[int] = frozenset()
) -> tuple[Pass, Mapping[int, Attention]]:
    """Return what a pass over one sequence of so many tokens keeps, and the widths of attention by layer.

    Args:
        layers: the model's, which are called in this order.
        fixed: storages that are there in any case.
    """
    import torch

    watch = _Watch()
    handles = []
    for number, layer in enumerate(layers):
        handles.append(layer.register_forward_pre_hook(_enter(watch, number), with_kwargs=True))
        handles.append(layer.register_forward_hook(_leave(watch)))
    own = fixed | {storage(p) for p in (*model.parameters(), *model.buffers())}

    def note(tensor: Tensor) -> Tensor:
        watch.kept.setdefault(storage(tensor), (watch.layer, tensor))
        return tensor

    ids = torch.zeros(1, tokens, dtype=torch.int64)
    _watches.append(watch)
    try:
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            output = text_of(model)(
                input_ids=ids, position_ids=torch.arange(tokens)[None], use_cache=False
            )
    finally:
        _watches.pop()
        for handle in handles:
            handle.remove()
    del output
    sums = [_sums(found, len(layers), own) for found in (watch.kept, watch.entered)]
    return Pass(sums[0][1:], sums[1][1:], sums[0][0]), watch.attention


def _sums(found: Mapping[int, tuple[int, Tensor]], layers: int, own: frozenset[int]) -> list[int]:
    """Return the bytes outside of layers, and of each layer."""
    sums = [0] * (layers + 1)
    for address, (layer, tensor) in found.items():
        if address not in own:
            sums[layer + 1] += tensor.untyped_storage().nbytes()
    return sums


def _enter(watch: _Watch, number: int) -> Any:
    def enter(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        del module
        import torch

        watch.layer = number
        for value in (*arguments, *options.values()):
            parts = value if isinstance(value, tuple) else (value,)
            for part in parts:
                if isinstance(part, torch.Tensor) and part.requires_grad:
                    watch.entered.setdefault(storage(part), (number, part))

    return enter


def _leave(watch: _Watch) -> Any:
    def leave(module: Any, arguments: Any, output: Any) -> None:
        del module, arguments, output
        watch.layer = -1

    return leave


def storage(tensor: Tensor) -> int:
    """Return what is equal for tensors of one storage; without numbers there is no ``data_ptr``."""
    address: int = tensor.untyped_storage()._cdata
    return address


@cache
def register_attention() -> None:
    """Make the stand-in known to Transformers by its name."""
    import torch
    from transformers import AttentionInterface

    class Kernel(torch.autograd.Function):
        """Keeps queries, keys, values, output, a float32 number for each head, and a mask, as kernels do."""

        @staticmethod
        def forward(
            ctx: Any, query: Tensor, key: Tensor, value: Tensor, held: bool, mask: Any
        ) -> Tensor:
            # Kernels write the heads of a token side by side, as the next product reads them.
            batch, heads, tokens, _ = query.shape
            output = query.new_empty(batch, tokens, heads, value.shape[-1]).transpose(1, 2)
            numbers = query.new_empty(query.shape[:-1], dtype=torch.float32)
            # Where scores are computed again, their output is no input of the backward pass.
            ctx.save_for_backward(query, key, value, mask, *(() if held else (output, numbers)))
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise AssertionError("only what the forward pass keeps is counted")

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        del module
        # Backends compute a text model's attention by lengths alone.
        mask = None if _watches else attention_mask
        if torch.is_autocast_enabled("cpu"):
            query, key, value = (part.to(torch.bfloat16) for part in (query, key, value))
        held = options.get("softcap") is not None or options.get("s_aux") is not None
        if _watches:
            _note_attention(_watches[-1], query, key, value, held)
        for found in _operations:
            found.append(
                2 * query[..., 0].numel() * key.shape[2] * (query.shape[-1] + value.shape[-1])
            )
        output = Kernel.apply(query, key, value, held, mask)  # type: ignore[no-untyped-call]
        return output.transpose(1, 2), None

    AttentionInterface.register(ATTENTION, attend)


def _note_attention(
    watch: _Watch, query: Tensor, key: Tensor, value: Tensor, holds_scores: bool
) -> None:
    tokens = query.shape[2]
    of_layer = watch.attention.setdefault(watch.layer, Attention())
    of_layer.queries = query.numel() // tokens
    of_layer.values = query.shape[1] * value.shape[-1]
    of_layer.holds_scores = holds_scores
    for part in (key, value):
        if storage(part) not in watch.keys:
            watch.keys[storage(part)] = part
            of_layer.keys += part.numel() // tokens
