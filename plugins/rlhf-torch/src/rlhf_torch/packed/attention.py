"""The attention of embedded models: who attends to whom is decided by a layout, not by a mask.

Registered with Transformers under one name, so that any model that uses its attention interface works. Transformers
builds no mask for a name that it has no mask function for; the ``layout`` keyword reaches every layer.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "rlhf_layout"
IN_GRAPH = "rlhf_layout_in_graph"
"""The name for a model whose layers are one graph, whatever ``keep_out_of_graphs`` does for others of the process."""


class Layout(Protocol):
    """Computes one layer's attention for the tokens of one forward pass."""

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
    ) -> Tensor:
        """Return (1, N, H, K) for query (1, H, N, K), key and value (1, H_kv, N, K)."""
        ...

    def sequence_lengths(self, at_least: int) -> Tensor:
        """Return how many tokens the sequence of each token has (N,), ``at_least`` for shorter ones. Only asked for
        where a model depends on it."""
        ...


def layout_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Hand one layer's attention to the layout of this forward pass."""
    if layout is None:
        raise RuntimeError(
            f"{type(module).__name__} did not pass the keyword 'layout' to its attention: the embedded backend "
            "cannot run this architecture"
        )
    if s_aux is not None:
        raise RuntimeError(
            f"{type(module).__name__} has attention sinks, which the embedded backend does not compute"
        )
    if dropout:
        raise RuntimeError(
            "attention dropout is not supported in reinforcement learning; set attention_dropout to 0"
        )
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    output = layout.attend(
        layer, query, key, value, scaling=scale, sliding_window=sliding_window, softcap=softcap
    )
    return output, None


AttentionInterface.register(NAME, layout_attention)
AttentionInterface.register(IN_GRAPH, layout_attention)


def keep_out_of_graphs() -> None:
    """Leave attention an eager call between the graphs of a compiled layer.

    The lengths of its sequences change with every micro-batch, and its kernels are as fused as they can be.
    """
    AttentionInterface.register(NAME, torch.compiler.disable(layout_attention))
