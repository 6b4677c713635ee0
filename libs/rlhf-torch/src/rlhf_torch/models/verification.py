"""The check that packing computes an architecture rightly, made once, at load, with a few tokens.

Layers that carry state along the sequence, attention that ignores its layout, and heads that scale logits in a way that
is unknown here would silently train on wrong numbers. A comparison with the model's own forward pass refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core import ConfigError, PluginError

from ..packed import attention
from ..packed.packing import PackedLayout
from ..recurrent.sequences import RECURRENT_KINDS, Convolution, DeltaRule, Parts
from .layers import decoder_layers
from .long_positions import RotaryTables, compare_tables, lengths_named
from .modeling import CausalLM

KNOWN_LAYERS = RECURRENT_KINDS | {"full_attention", "sliding_attention"}
LONGEST_PROBE = 64
TAIL = 2
"""Number of tokens of each long sequence that are in the probe."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest allowed difference of logits, relative to the largest logit; wrong attention differs by the order of 1."""
MOST_ROUNDING = 0.5
"""Largest difference that rounding alone may explain: that of wrong attention is twice as large and more."""


class _Witness:
    """The layout of the probe, which also records which layers ask it, and the window of each.

    Args:
        offsets: positions at which the parts of the row begin, and the end.
        lengths: length of the sequence whose last tokens each part is.
    """

    def __init__(
        self, offsets: Sequence[int], lengths: Sequence[int], device: torch.device
    ) -> None:
        self.layout = PackedLayout(offsets, device)
        self.lengths = torch.tensor(lengths)
        self.windows: dict[int, int | None] = {}
        self.twice: set[int] = set()
        """Layers that asked more than once."""
        self.carried: dict[str, set[int]] = {"convolution": set(), "rule": set()}
        """Recurrent layers that asked for the sequences, by what they computed."""
        self.sequences = self

    def positions(self) -> Tensor:
        """Return the position (N,) of each token in its sequence; a part holds the last tokens of its sequence."""
        missing = self.lengths - self.layout.lengths
        skipped = missing.repeat_interleave(self.layout.lengths).to(self.layout.device)
        return self.layout.positions() + skipped

    def sequence_lengths(self, at_least: int) -> Tensor:
        return self.lengths.clamp(min=at_least).repeat_interleave(self.layout.lengths)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, **options: Any
    ) -> Tensor:
        if layer in self.windows:
            self.twice.add(layer)
        self.windows[layer] = options["sliding_window"]
        return self.layout.attend(layer, query, key, value, **options)

    def convolve(self, layer: int, convolution: Convolution, inputs: Tensor) -> Tensor:
        self.carried["convolution"].add(layer)
        return self.layout.sequences.convolve(layer, convolution, inputs)

    def delta_rule(self, layer: int, rule: DeltaRule, parts: Parts) -> Tensor:
        self.carried["rule"].add(layer)
        return self.layout.sequences.delta_rule(layer, rule, parts)


@torch.inference_mode()
def verify(lm: CausalLM) -> None:
    """Compare the packed logits of two short sequences with the model's own, each alone under its eager attention.

    After these two the row has the ends of sequences that are longer than any length that the config names.

    Raises:
        ConfigError: the model's own logits are not finite.
        PluginError: the logits differ, or a layer is of a kind that is not computed here.
    """
    config = lm.model.config.get_text_config()
    family = type(lm.model).__name__
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := sorted(kinds - KNOWN_LAYERS):
        raise PluginError(
            f"{family} has layers of kind {', '.join(unknown)}; the torch backend and the embedded engine compute "
            f"{' and '.join(sorted(KNOWN_LAYERS))}. Choose another model, or another engine and backend.",
            code="model/unknown-layers",
        )
    tables = RotaryTables(lm.model)
    rows = [_probe_tokens(length, lm) for length in (_probe_length(config), 7)]
    # Learned positions end at a length and do not change beyond it, so only rotary ones are probed with long sequences.
    long = lengths_named(config) if tables else []
    # First of all: after a longer sequence the frequencies may have changed.
    with tables.recorded() as own_tables, _explained(lm, family):
        first = _own_logits(lm, rows[0])
    with tables.recorded() as packed_tables, _explained(lm, family):
        witness, actual = _packed_logits(lm, rows, long)
    if not witness.windows:
        raise PluginError(own_attention(family), code="model/own-attention")
    _check_windows(witness, config, family)
    compare_tables(own_tables, packed_tables, len(rows[0]), family)
    expected = torch.cat([first, _own_logits(lm, rows[1])])
    _refuse_not_finite(lm, expected, family)
    difference = _difference(actual, expected)
    allowed = TOLERANCE[lm.compute_dtype]
    if difference > allowed:
        # Rounding of each layer adds up: 64 layers of random weights in bfloat16 move the largest logits by 0.13.
        allowed = max(allowed, min(2 * _rounding(lm, rows, expected), MOST_ROUNDING))
    if not difference <= allowed:
        raise PluginError(
            f"{family}: logits of packed sequences differ from the model's own by {difference:.2g} of the largest "
            f"logit (allowed: {allowed:g}), so this architecture would be trained wrongly by the torch backend. "
            "Choose another model, or another engine and backend.",
            code="model/packing-differs",
        )
    lm.most_positions = _most_positions(lm)


@torch.inference_mode()
def _most_positions(lm: CausalLM) -> int | None:
    """Return the number of tokens for which a model on a CPU has learned positions, if its table ends where its config
    says; None: it computes positions. On a GPU a look behind the end of a table would end the process."""
    named = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)
    if not named or lm.device.type != "cpu" or RotaryTables(lm.model):
        return None
    try:
        lm.hidden(_probe_tokens(1, lm), torch.tensor([named]), PackedLayout([0, 1], lm.device))
    except IndexError:
        return int(named)
    return None


def _refuse_not_finite(lm: CausalLM, expected: Tensor, family: str) -> None:
    """Refuse a model whose own numbers are damaged, which no packing explains."""
    if bool(expected.isfinite().all()):
        return
    named = (name for name, each in lm.model.named_parameters() if not each.isfinite().all())
    found = next(named, None)
    where = f"its parameter {found} has such numbers" if found else "its parameters are finite"
    raise ConfigError(
        f"{family}: by the model's own code too, some logits of a few tokens are not finite; {where}. Expected weights "
        "that give numbers; after a run that diverged, or in damaged files, they give none. Get the files once more, "
        "or choose an earlier model.",
        code="model/not-finite",
    )


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest expected number."""
    scale = expected.abs().max().clamp_min(1e-6)
    return float((actual - expected).abs().max() / scale)


def _rounding(lm: CausalLM, rows: Sequence[Tensor], expected: Tensor) -> float:
    """Return the difference of the model's own logits where the output of each layer is rounded once more: each number
    moves by half a unit, up or down, as it does where another kernel adds up the same numbers in another order."""
    try:
        layers = decoder_layers(lm.model)
    except PluginError:
        return 0.0
    relative = torch.finfo(lm.compute_dtype).eps / 2
    draw = torch.Generator().manual_seed(0)

    def move(layer: nn.Module, inputs: Any, output: Any) -> Any:
        hidden: Tensor = output[0] if isinstance(output, tuple) else output
        signs = torch.randint(0, 2, hidden.shape, generator=draw).to(hidden.device) * 2.0 - 1.0
        moved = (hidden.float() * (1.0 + relative * signs)).to(hidden.dtype)
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    hooks = [layer.register_forward_hook(move) for layer in layers]
    try:
        return _difference(torch.cat([_own_logits(lm, row) for row in rows]), expected)
    finally:
        for hook in hooks:
            hook.remove()


def _packed_logits(
    lm: CausalLM, rows: Sequence[Tensor], long: Sequence[int]
) -> tuple[_Witness, Tensor]:
    """Return the logits of ``rows``, packed into one row with the last tokens of sequences of the lengths ``long``."""
    parts = [*rows, *(rows[0][:TAIL] for _ in long)]
    offsets = [0, *accumulate(map(len, parts))]
    witness = _Witness(offsets, [*map(len, rows), *long], lm.device)
    hidden = lm.hidden(torch.cat(parts), witness.positions(), witness)
    return witness, lm.logit_form.apply(lm.products(hidden[: offsets[len(rows)]]))


@contextmanager
def _explained(lm: CausalLM, family: str) -> Iterator[None]:
    """Return a context that explains why a forward pass fails."""
    try:
        yield
    except (RuntimeError, TypeError, AttributeError, IndexError) as error:
        if not lm.model._supports_attention_backend:
            raise PluginError(own_attention(family), code="model/own-attention") from error
        raise PluginError(
            f"{family} cannot be run by the torch backend: {error}", code="model/unknown-family"
        ) from error


def own_attention(model: str) -> str:
    """Return the error text for a model whose attention cannot be replaced, such as GPT-J, MPT or BLOOM (ALiBi)."""
    return (
        f"{model} computes its attention in code of its own instead of through Transformers' attention interface, so "
        "sequences that are packed in one row would see each other. The torch backend and the embedded engine cannot "
        "run it; choose another model."
    )


def _probe_length(config: Any) -> int:
    """Return a length beyond the sliding window where that is cheap, so that a wrong window shows."""
    window = getattr(config, "sliding_window", None) or 0
    return window + 5 if window + 5 <= LONGEST_PROBE else 12


def _probe_tokens(length: int, lm: CausalLM) -> Tensor:
    # A token that stands for an image may be read as another one where no image is.
    known = lm.sampled_ids.cpu()
    return known[(torch.arange(length) * 7919 + 13) % len(known)].to(lm.device)


def _own_logits(lm: CausalLM, row: Tensor) -> Tensor:
    """Return the logits (T, V) of one sequence, by the model's own forward pass and attention."""
    # Only "eager" does everything that a family does to its scores: "sdpa" ignores Gemma 2's soft cap.
    lm.use_attention("eager")
    try:
        with lm.autocast():
            logits: Tensor = lm.model(input_ids=row[None], use_cache=False).logits[0].float()
    finally:
        lm.use_attention(attention.NAME)
    return logits


def _check_windows(witness: _Witness, config: Any, family: str) -> None:
    kinds = getattr(config, "layer_types", None) or ["attention"] * config.num_hidden_layers
    convolved, ruled = witness.carried.values()
    # A state space model has a convolution too, and a state behind it that asks for nothing.
    whole = {layer for layer in convolved if kinds[layer] == "conv"} | (convolved & ruled)
    asking = witness.windows.keys() | whole
    if silent := sorted(set(range(config.num_hidden_layers)) - asking):
        raise PluginError(
            f"{family}: {len(asking)} of {config.num_hidden_layers} layers asked for the packed sequences; the torch "
            f"backend cannot compute the others, the first is layer {silent[0]} of kind {kinds[silent[0]]}. Choose "
            "another model.",
            code="model/layers-not-asked",
        )
    if witness.twice:
        raise PluginError(
            f"{family}: layer {min(witness.twice)} computes attention more than once for a token; the embedded engine "
            "has room for one key and one value of a token in each layer, and would sample by wrong numbers. Choose "
            "another model.",
            code="model/attends-twice",
        )
    for layer, asked in sorted(witness.windows.items()):
        expected = _window(config, layer)
        if asked != expected:
            raise PluginError(
                f"{family}: layer {layer} is {'full' if expected is None else 'sliding'}_attention but asked for "
                f"window {asked}, and the config says {expected}; the torch backend would attend to other tokens than "
                "the model does. Choose another model.",
                code="model/windows-differ",
            )


def _window(config: Any, layer: int) -> int | None:
    """Return the window of Transformers' own mask for a layer: by the layer's kind, or one for all layers."""
    kinds = getattr(config, "layer_types", None)
    window: int | None = getattr(config, "sliding_window", None)
    return None if kinds and kinds[layer] == "full_attention" else window
