"""The layers of a model compiled as one graph, for compilers that have to see all layers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .attention import IN_GRAPH, Layout
from .graph_attention import GraphLayout


class WholeGraph:
    """A model without its output head, compiled without a graph break, for any number of tokens.

    Args:
        model: the model without its head.
        options: arguments of ``torch.compile``.
    """

    def __init__(self, model: PreTrainedModel, options: dict[str, Any]) -> None:
        model.set_attn_implementation(IN_GRAPH)
        self.then: Callable[[], None] | None = None
        """Called after the layers of each pass."""
        self._layout = GraphLayout()
        # With a break, layers would share the code of their forward methods, and a backend that puts a parameter's
        # number into the code would use the first layer's for all.
        self._compiled = torch.compile(model, fullgraph=True, **options)

    def __call__(self, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
        """Return the last hidden states (N, D) of one packed row of tokens (N,).

        A backward pass has to come before the next call, since it uses the layout of the last one.
        """
        self._layout.set(layout)
        inputs = input_ids[None], position_ids[None]
        for part in inputs:
            # Only the tokens are dynamic: weights that are cut over ranks have no shape of their own meanwhile.
            torch._dynamo.mark_dynamic(part, 1)
        # Autograd is always on: without it torch would compile a second graph.
        with torch.enable_grad():
            output = self._compiled(  # type: ignore[no-untyped-call]
                input_ids=inputs[0], position_ids=inputs[1], use_cache=False, layout=self._layout
            )
        if self.then is not None:
            self.then()
        hidden: Tensor = output.last_hidden_state.squeeze(0)
        return hidden if torch.is_grad_enabled() else hidden.detach()

    def close(self) -> None:
        """Drop the layout of the last pass."""
        self._layout.forget()
