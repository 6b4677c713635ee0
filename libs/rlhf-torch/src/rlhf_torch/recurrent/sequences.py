"""Recurrent layers of packed rows: which sequence each token belongs to reaches the functions that carry a state.

A layer of gated linear attention mixes tokens in two places: a causal convolution of a few tokens, and the gated delta
rule, whose state goes from token to token. Everything else in it looks at one token. Transformers computes the two by
functions of the family's own file, and this package puts others in their place there, which ask the layout of the
forward pass where its sequences begin. The layer's own code runs unchanged; without a layout so do the functions.

Axes beyond the project's table: ``C`` channels of a convolution, ``W`` its taps, ``H`` heads of values, ``K`` and ``V``
sizes of a key and of a value.

Source: Yang et al. 2024, "Gated Delta Networks", arXiv:2412.06464.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rlhf_core import PluginError

from .kernels import Function, packed_kernel

CONVOLUTION = "causal_conv1d_fn"
CHUNKED = "torch_chunk_gated_delta_rule"
STEPWISE = "torch_recurrent_gated_delta_rule"
"""Names of the functions in the file of every family of Transformers that has them."""
KEYWORD = "seq_idx"
"""Keyword of Transformers that reaches both functions: it stands for the sequence of each token."""
_ORIGINAL = "_rlhf_original"


class Convolution(NamedTuple):
    """A causal convolution as a family computes it."""

    function: Function
    """(b, C, T) to (b, C, T), for rows that are one sequence each."""
    taps: int
    """W"""


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The gated delta rule as a family computes it: S_t = exp(g_t) S_{t-1} (1 - beta_t k_t k_t^T) + beta_t v_t k_t^T,
    and o_t = S_t q_t."""

    chunked: Function
    """For many tokens of each sequence, by plain torch."""
    stepwise: Function
    """For one token of each sequence."""
    numerics: Mapping[str, Any] = field(default_factory=dict)
    """Options that change its numbers, which every form gets."""

    def packed(self, parts: Parts) -> Function | None:
        """Return the form that takes a row of sequences and their beginnings, ``cu_seqlens``; None: there is none."""
        value = parts.value
        kernel = packed_kernel(self.chunked, value.device, parts.key.shape[-1], value.shape[-1])
        return None if kernel is None else partial(kernel, **self.numerics)

    def rows(self, parts: Parts, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return outputs (b, T, H, V) and states (b, H, K, V) of rows that are one sequence each.

        Args:
            states: (b, H, K, V) before each row; None: rows are whole sequences, from their beginning.
        """
        if states is None:
            return self._both(self.chunked, parts)
        return self._both(self.chunked, parts, initial_state=states)

    def step(self, parts: Parts, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs (b, 1, H, V) and the states (b, H, K, V) behind one token of each sequence."""
        return self._both(self.stepwise, parts, initial_state=states)

    def _both(self, function: Function, parts: Parts, **options: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, g, beta = parts
        outputs, states = function(
            query, key, value, g=g, beta=beta, output_final_state=True, **self.numerics, **options
        )
        return outputs, states


class Sequences(Protocol):
    """The sequences of a forward pass, as recurrent layers see them."""

    def convolve(self, layer: int, convolution: Convolution, inputs: Tensor) -> Tensor:
        """Return the convolution (1, C, N) of inputs (1, C, N), each sequence from its own beginning."""

    def delta_rule(self, layer: int, rule: DeltaRule, parts: Parts) -> Tensor:
        """Return the outputs (1, N, H, V), each sequence from its own beginning."""


class Parts(NamedTuple):
    """Inputs of the delta rule at each token."""

    query: Tensor
    """(b, T, H, K)"""
    key: Tensor
    """(b, T, H, K)"""
    value: Tensor
    """(b, T, H, V)"""
    g: Tensor
    """(b, T, H) logarithm of the decay, at most 0."""
    beta: Tensor
    """(b, T, H) strength of the update."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Parts:
        """Return all parts, changed."""
        return Parts(*(change(part) for part in self))


class LayerSequences(NamedTuple):
    """Argument of one layer's functions, by ``KEYWORD``."""

    layer: int
    sequences: Sequences


def recurrent_layers(config: Any) -> list[int]:
    """Return the layers that carry a state, by the kinds that a text configuration gives."""
    kinds = getattr(config, "layer_types", None) or ()
    return [layer for layer, kind in enumerate(kinds) if kind in RECURRENT_KINDS]


RECURRENT_KINDS = frozenset({"linear_attention", "conv"})
"""Kinds of layers, as ``layer_types`` of a configuration has them, that are computed here."""


def follow_sequences(layers: list[nn.Module], numbers: list[int]) -> None:
    """Have recurrent layers compute each sequence of a packed row from its own beginning.

    Args:
        layers: of the whole model, in order.
        numbers: those that are recurrent.
    """
    for number in numbers:
        _replace_functions(layers[number])
        layers[number].register_forward_pre_hook(partial(_hand_on, number), with_kwargs=True)


def _hand_on(
    number: int, _: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Give a layer's functions the sequences of the pass; a pass without a layout stays as it is."""
    layout = options.get("layout")
    if layout is None:
        return None
    return arguments, {**options, KEYWORD: LayerSequences(number, sequences_of(layout))}


def sequences_of(layout: Any) -> Sequences:
    """Return the sequences of a layout.

    Raises:
        PluginError: the layout cuts sequences, or has what they share once; neither can carry a state yet.
    """
    found: Sequences | None = getattr(layout, "sequences", None)
    if found is None:
        raise PluginError(
            f"{type(layout).__name__} gives recurrent layers no sequences: their state goes from token to token. Set "
            "share_prompts and deep_compile to false and sequence_parallel to 1 in the backend's options",
            code="model/carries-state",
        )
    return found


def _replace_functions(layer: nn.Module) -> None:
    """Put the functions of this file in the place of those of a layer's family, once in each family."""
    for module in layer.modules():
        home = sys.modules[type(module).__module__]
        convolution, chunked, stepwise = (
            _by_device(getattr(home, name, None)) for name in (CONVOLUTION, CHUNKED, STEPWISE)
        )
        if convolution is None or hasattr(getattr(home, CONVOLUTION), _ORIGINAL):
            continue
        setattr(home, CONVOLUTION, _by_sequence(convolution, _convolution))
        if chunked is not None:
            rule = DeltaRule(inspect.unwrap(getattr(home, CHUNKED)), stepwise or chunked)
            setattr(home, CHUNKED, _by_sequence(chunked, partial(_delta_rule, rule)))


def _by_device(function: Function | None) -> Function | None:
    """Return a family's function as a CPU can compute it too: where a package of GPU kernels is installed, Transformers
    calls it on every device."""
    if function is None:
        return None
    plain = inspect.unwrap(function)

    @wraps(function)
    def call(first: Tensor, *arguments: Any, **options: Any) -> Any:
        chosen = plain if first.device.type == "cpu" else function
        return chosen(first, *arguments, **options)

    return call


def _by_sequence(original: Function, replacement: Function) -> Function:
    """Return a function that is the replacement where it gets a layer's sequences, and the original elsewhere."""

    @wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        at = options.get(KEYWORD)
        if not isinstance(at, LayerSequences):
            return original(*arguments, **options)
        return replacement(at, original, *arguments, **options)

    setattr(call, _ORIGINAL, original)
    return call


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _convolution(
    at: LayerSequences,
    original: Function,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """Return the convolution (1, C, N) as Transformers' function has it, sequence by sequence."""

    def function(rows: Tensor) -> Tensor:
        convolved: Tensor = original(rows, weight, bias, activation=activation)
        return convolved

    return at.sequences.convolve(at.layer, Convolution(function, weight.shape[-1]), hidden_states)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _delta_rule(
    rule: DeltaRule,
    at: LayerSequences,
    _: Function,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the outputs (1, N, H, V) as Transformers' function has them, sequence by sequence, and no state."""
    numerics = {name: options[name] for name in _NUMERICS if name in options}
    parts = Parts(query, key, value, g, beta)
    return at.sequences.delta_rule(at.layer, replace(rule, numerics=numerics), parts), None


_NUMERICS = ("use_qk_l2norm_in_kernel", "chunk_size")
"""Options of the delta rule that change its numbers."""
