"""Attention as one operation of a graph, for a model that is compiled as a whole.

A compiler must not trace a layout: the lengths of its sequences change with every micro-batch, and it picks kernels by
them. So the graph has an operation of its own, which calls the layout of the current pass, forwards and backwards. The
backward operation computes the attention once more, as gradient checkpointing would. Axes: see ``attention.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from .attention import Layout, as_matmul_inputs, refuse_sinks

_present: dict[int, Layout] = {}
"""The layout of the latest pass of each model, by the number of its ``GraphLayout``."""
_numbers = count()
_WITH_AUTOGRAD = torch._C._dispatch_tls_local_exclude_set()
"""Dispatch keys that torch excludes outside of custom operations; within one it excludes autograd's too."""


class GraphLayout:
    """A layout that stands for that of the current pass.

    A backward pass uses the layout that was set last, so it has to come before the next forward pass.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)

    def set(self, layout: Layout) -> None:
        """Use ``layout`` from now on."""
        _present[self._number] = layout

    def forget(self) -> None:
        """Drop the latest layout, and with it the tensors of its pass."""
        _present.pop(self._number, None)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float,
        sliding_window: int | None,
        softcap: float | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return (1, N, H, D_head) for query (1, H, N, D_head), key and value (1, H_kv, N, D_head)."""
        refuse_sinks(sinks, "Set deep_compile to false.")
        query, key, value = as_matmul_inputs(query, key, value)
        output: Tensor = attention(
            query, key, value, self._number, layer, scaling, sliding_window, softcap
        )
        return output


def _attend(query: Tensor, key: Tensor, value: Tensor, options: tuple[Any, ...]) -> Tensor:
    number, layer, scaling, sliding_window, softcap = options
    # The inputs have the dtype of the matmuls already; in a backward pass autocast is off in any case.
    with torch.autocast(query.device.type, enabled=False):
        return _present[number].attend(
            layer,
            query,
            key,
            value,
            scaling=scaling,
            sliding_window=sliding_window,
            softcap=softcap,
        )


@contextmanager
def _autograd() -> Iterator[None]:
    """Switch autograd on, which torch switches off inside of a custom operation."""
    include = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(include, _WITH_AUTOGRAD):
        yield


@torch.library.custom_op("rlhf::layout_attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    number: int,
    layer: int,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
) -> Tensor:
    """Return the attention by the current layout of a model, contiguous: (1, N, H, D_head)."""
    options = (number, layer, scaling, sliding_window, softcap)
    with torch.no_grad():
        return _attend(query, key, value, options).contiguous()


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


@torch.library.custom_op("rlhf::layout_attention_grads", mutates_args=())
def attention_grads(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    number: int,
    layer: int,
    scaling: float,
    sliding_window: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, given that of the output."""
    options = (number, layer, scaling, sliding_window, softcap)
    with _autograd(), torch.enable_grad():
        leaves = [part.detach().requires_grad_() for part in (query, key, value)]
        output = _attend(leaves[0], leaves[1], leaves[2], options)
        grads = torch.autograd.grad(output, leaves, grad)
    return grads[0].contiguous(), grads[1].contiguous(), grads[2].contiguous()


@attention_grads.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(part.shape, dtype=part.dtype, device=part.device)
        for part in (query, key, value)
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, key, value, *options = inputs
    ctx.save_for_backward(query, key, value)
    ctx.options = options


def _grads(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    grads = attention_grads(grad, *ctx.saved_tensors, *ctx.options)
    return (*grads, None, None, None, None, None)


attention.register_autograd(_grads, setup_context=_keep)
