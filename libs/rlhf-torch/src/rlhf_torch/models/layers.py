"""The repeated layers of a model: finding them in any architecture, recomputing and compiling them.

Transformers recomputes a layer only in training mode, which switches dropout on, each architecture in a way of its own:
through modules inside of the layer, or by a function that reads the layer's flag. So the model stays in evaluation
mode, and the layers are recomputed from outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rlhf_core import PluginError

from ..building.compiling import reason_of
from ..building.joined_linears import joining_options
from ..packed.attention import keep_out_of_graphs

log = logging.getLogger(__name__)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Return the layers in order: the outermost list of as many modules as the configuration has layers.

    Raises:
        PluginError: there is no such list.
    """
    count = int(model.config.get_text_config().num_hidden_layers)
    # A model that reads images has layers of another part beside those of the text, perhaps as many of them.
    whole = model.base_model
    text = getattr(whole, "language_model", getattr(whole, "text_model", whole))
    for module in text.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise PluginError(
        f"{type(model).__name__}: expected a list of its {count} layers, found none; its layers can be neither "
        "recomputed nor compiled. Leave gradient_checkpointing and compile off.",
        code="model/no-layers",
    )


def recompute_layers(model: PreTrainedModel) -> None:
    """Keep only the input of each layer for the backward pass, which computes the layer again."""
    for layer in decoder_layers(model):
        # The class is changed, not ``forward``, so that the layer's hooks, by which ZeRO collects weights, run again.
        kind: Any = type(layer)
        layer.__class__ = _recomputed(kind)


@cache
def _recomputed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return the class of a layer that is recomputed, one for each ``kind``: torch compiles a class once for all layers
    of a model, and gives up after eight classes."""
    return type(kind.__name__, (_Recomputed, kind), {"__module__": kind.__module__})


class _Recomputed(nn.Module):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        call = partial(super().__call__, **options)
        if not torch.is_grad_enabled():
            return call(*arguments)
        return checkpoint(call, *arguments, use_reentrant=False)


def compile_layers(
    model: PreTrainedModel, *, joined: bool = False, inside_hooks: bool = False
) -> None:
    """Compile each layer around its attention, which stays eager.

    Where compiling fails (no C compiler, say) a warning is logged once, and all layers run as they are.

    Args:
        joined: whether linear layers of one input become one product where one of them is small: faster for thousands
            of tokens, slower for the few of a decoding step.
        inside_hooks: whether a layer's hooks stay outside of what is compiled, such as those by which ranks collect its
            weights.
    """
    keep_out_of_graphs()
    options: Any = joining_options() if joined else None
    failed: list[str] = []
    for layer in decoder_layers(model):
        if inside_hooks:
            plain: Any = layer.forward
            compiled: Any = torch.compile(plain, dynamic=True, options=options)
            layer.forward = _or_plain(compiled, plain, failed)
        else:
            layer.compile(dynamic=True, options=options)
            plain, compiled = layer._call_impl, layer._compiled_call_impl
            layer._compiled_call_impl = _or_plain(compiled, plain, failed)


def _or_plain(
    compiled: Callable[..., Any], plain: Callable[..., Any], failed: list[str]
) -> Callable[..., Any]:
    """Return a layer's compiled call, which is the plain one from the first failure of any layer on.

    Args:
        failed: of all layers of the model, why they cannot be compiled.
    """

    def call(*arguments: Any, **named: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        if not failed:
            try:
                return compiled(*arguments, **named)
            except TorchDynamoException as error:
                failed.append(reason_of(error))
                log.warning(
                    "the layers are not compiled, so they are slower and need more memory: %s",
                    failed[0],
                )
        return plain(*arguments, **named)

    return call
