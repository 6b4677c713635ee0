"""Attention of packed models: a layout, not a mask, decides which tokens attend to which.

The function is registered with Transformers by name, so any model that uses Transformers' attention interface works.
Transformers builds no mask for a name that it has no mask function for; the ``layout`` keyword reaches every layer.

Axes beyond the project's table: ``H_kv`` heads of keys and values, ``D_head`` size of a head.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import AttentionInterface

from rlhf_core import PluginError

NAME = "rlhf_layout"
IN_GRAPH = "rlhf_layout_in_graph"
"""Name for a model whose layers are one graph; ``keep_out_of_graphs`` does not change it."""


@runtime_checkable
class Layout(Protocol):
    """Attention of every layer for the tokens of one forward pass."""

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
        """Return (1, N, H, D_head) for query (1, H, N, D_head), key and value (1, H_kv, N, D_head).

        Args:
            sinks: (H,) score of each head that takes a share of the weights away (GPT-OSS); None: there are none.
        """

    def sequence_lengths(self, at_least: int) -> Tensor:
        """Return the length (N,) of the sequence that each token belongs to, ``at_least`` for shorter ones.

        Only models whose rotary frequencies depend on the length, or whose positions end, ask for it.
        """


def as_matmul_inputs(*parts: Tensor) -> tuple[Tensor, ...]:
    """Return the parts, under autocast in its dtype: norms and rotations have left query and key in float32."""
    device = parts[0].device.type
    if not torch.is_autocast_enabled(device):
        return parts
    return tuple(part.to(torch.get_autocast_dtype(device)) for part in parts)


def refuse_sinks(sinks: Tensor | None, option: str) -> None:
    """Refuse attention sinks in a layout that does not compute them.

    Args:
        option: what to set, so that another layout is used.

    Raises:
        PluginError: there are sinks.
    """
    if sinks is not None:
        raise PluginError(
            f"the model has attention sinks, which are computed for whole sequences of one rank alone. {option}",
            code="model/attention-sinks",
        )


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
    """Return one layer's attention, computed by the layout of this forward pass.

    Raises:
        RuntimeError: the model passes no layout, or a mask of its own, or has dropout in its attention.
    """
    # Each of these would give other numbers than the layout, and no error.
    if layout is None:
        raise RuntimeError(
            f"{type(module).__name__} did not pass the keyword 'layout' to its attention, so sequences that are "
            "packed in one row would see each other. Choose another model."
        )
    if attention_mask is not None:
        raise RuntimeError(
            f"{type(module).__name__} gives its attention a mask of its own, and a packed row is computed without it. "
            "Choose another model."
        )
    if dropout:
        raise RuntimeError(
            "the model has attention dropout, which the sampler lacks; set attention_dropout to 0 in its config.json"
        )
    # The scale is the one that Transformers' own functions take where a model names none.
    layer: int = module.layer_idx  # type: ignore[assignment]
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    output = layout.attend(
        layer,
        query,
        key,
        value,
        scaling=scale,
        sliding_window=sliding_window,
        softcap=softcap,
        **({} if s_aux is None else {"sinks": s_aux}),
    )
    return output, None


AttentionInterface.register(NAME, layout_attention)
AttentionInterface.register(IN_GRAPH, layout_attention)


def keep_out_of_graphs() -> None:
    """Keep attention an eager call between the graphs of a compiled layer.

    The lengths of sequences change with every micro-batch, and the kernels of attention are fused already.
    """
    AttentionInterface.register(NAME, torch.compiler.disable(layout_attention))
