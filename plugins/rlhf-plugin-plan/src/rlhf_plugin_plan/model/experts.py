"""Shape of the experts of a mixture, read from its config.json, and the numbers that follow from it.

A router sends each token to k of E experts, each a gated feed-forward part of width M, whose matrices are stacked in
two parameters. Some families have one more for every token, of width S, with a gate of one number. D is the hidden
width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text")
"""Values of ``model_type`` whose experts are modeled."""
_NORMALIZING = ("mixtral", "qwen3_next", "qwen3_5_moe_text")
"""Families whose routers divide the weights of a token's experts by their sum, unless their files say otherwise."""
WIDTHS = {
    family: "intermediate_size" if family == "mixtral" else "moe_intermediate_size"
    for family in FAMILIES
}
"""``model_type`` -> entry of config.json with the width of one expert."""
INDEX_BYTES = 8
"""Bytes of one index, of which four are kept for each token and expert: the choice, its order, and places by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsShape:
    """Shape of the feed-forward parts of a mixture of experts."""

    number: int
    """Number of experts, E."""
    chosen: int
    """Number of experts of a token, k."""
    width: int
    """Width of one expert, M."""
    shared: int = 0
    """Width of the part that computes every token, S; 0: there is none."""
    normalizes: bool = False
    """Whether the weights of a token's experts are divided by their sum."""
    float_weights: bool = False
    """Whether the weights of a token's experts stay in float32."""
    dense: frozenset[int] = frozenset()
    """Layers without experts, which have a feed-forward part as a dense model's."""

    def stacked(self, hidden: int) -> int:
        """Return the number of weights in the stacks of one layer: ``3 D M E``."""
        return 3 * hidden * self.width * self.number

    def beside(self, hidden: int) -> int:
        """Return the number of weights of a layer that multiply every token: router, and what is shared, with its
        gate."""
        return hidden * self.number + ((3 * self.shared + 1) * hidden if self.shared else 0)

    def active(self, hidden: int) -> int:
        """Return the number of weights of a layer's experts that multiply one token: ``3 D M k``."""
        return 3 * hidden * self.width * self.chosen

    def read(self, hidden: int, tokens: int) -> int:
        """Return the number of weights in the stacks that a pass over so many tokens reads, at most: those of experts
        that some token chooses."""
        return 3 * hidden * self.width * min(self.number, self.chosen * tokens)

    @property
    def route_bytes(self) -> int:
        """Bytes of the routes of one token in one layer, where a run sends tokens to the experts that its engine
        chose."""
        return self.chosen * (1 if self.number <= 128 else 2)

    def kept(self, hidden: int, width: int, stack_width: int, *, fixed: bool = False) -> int:
        """Return the bytes of one token that the experts keep for the backward pass, without the norm's output.

        Each of the k copies of a token keeps what its expert reads, gate and up, silu(gate), their product, and the
        output, which the router's weight multiplies. The router keeps its probabilities in float32.

        Args:
            width: bytes of one element of a matmul's input.
            stack_width: the same for the stacks, whose products autocast leaves in the parameters' type.
            fixed: the stacks and the router are not trained, so what an expert reads is kept nowhere.
        """
        arrays = hidden + 3 * self.width if fixed else 2 * hidden + 4 * self.width
        copies = self.chosen * (stack_width * arrays + (4 if self.float_weights else width))
        routes = 4 * self.number + 4 * INDEX_BYTES * self.chosen
        routes += 4 * self.chosen + 4 if self.normalizes else 0
        shared = 3 * self.shared if fixed else 4 * self.shared
        return copies + routes + (width * (shared + hidden + 1) if self.shared else 0)

    def backward(self, hidden: int, width: int) -> int:
        """Return the bytes of one token that the backward pass of the experts needs beside what is kept: gradients of
        outputs and inputs, and two of the expert's width."""
        return width * self.chosen * (2 * hidden + 2 * self.width)

    def widest(self, hidden: int, width: int) -> int:
        """Return the bytes of one token at the widest point of a pass without gradients: inputs, outputs, weighted
        outputs, and these in the order of tokens; or inputs, gate and up, silu(gate) and the product."""
        return width * self.chosen * max(4 * hidden, hidden + 4 * self.width)


def experts_of(
    config: Mapping[str, Any], number: Callable[[str], int], layers: int
) -> ExpertsShape | None:
    """Return the experts that a config.json describes; None: no layer has any.

    Args:
        number: returns an entry that is a positive integer.
        layers: number of the model's layers.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        return None
    # Transformers writes the entry of some families by another name than their authors.
    entry = "num_experts" if config.get("num_experts") else "num_local_experts"
    if family == "mixtral":
        return ExpertsShape(
            number=number(entry),
            chosen=number("num_experts_per_tok"),
            width=number(WIDTHS[family]),
            normalizes=True,
            float_weights=True,
        )
    step = config.get("decoder_sparse_step") or 1
    named = config.get("mlp_only_layers") or ()
    dense = {layer for layer in range(layers) if layer in named or (layer + 1) % step}
    if len(dense) == layers:
        return None
    return ExpertsShape(
        number=number(entry),
        chosen=number("num_experts_per_tok"),
        width=number(WIDTHS[family]),
        shared=0 if family == "qwen3_moe" else number("shared_expert_intermediate_size"),
        normalizes=bool(config.get("norm_topk_prob", family in _NORMALIZING)),
        dense=frozenset(dense),
    )
