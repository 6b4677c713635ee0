"""The balancing loss of mixtures of experts, of one micro-batch as its part of an update.

``N`` tokens of a pass, ``E`` experts of a layer.

Source: Fedus et al. 2021, "Switch Transformers", arXiv:2101.03961, equations 4 to 6, as Transformers computes it
(``load_balancing_loss_func``): for k experts a token, over the tokens of all layers together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from .load import tokens_of_experts


def balancing_part(
    logits: Sequence[Float[Tensor, "N E"]],
    weights: Float[Tensor, " N"],
    *,
    top_k: int,
    update_tokens: int | float,
    whole: Callable[[Tensor], Tensor] | None = None,
) -> Float[Tensor, ""]:
    """Return ``tokens / update_tokens * E sum_i f_i P_i``, the micro-batch's part of the update's balancing loss.

    ``f_i`` is the number of the micro-batch's tokens that have expert i among their k most probable ones, divided by
    the number of tokens, and ``P_i`` the mean probability of expert i; both are means over layers too. ``f`` has no
    gradient. A loss of even routing is k, one of tokens that all go to the same expert, k = 1, is E. The parts of an
    update add up to the mean of its micro-batches' losses, weighted by their tokens.

    Different from Transformers: probabilities are computed in float32, whatever the type of the logits is.

    Args:
        logits: of each layer, what its router makes of each token before the softmax.
        weights: (N,) sequences that each token stands for; 0 leaves it out.
        top_k: experts of each token.
        update_tokens: tokens of all micro-batches of the update, over all ranks.
        whole: sums over ranks that compute a slice of the micro-batch's tokens each, for which the result is this
            rank's part; None: this rank computes all of them.
    """
    num_experts = logits[0].shape[-1]
    counts = weights.new_zeros(num_experts + 1)  # the last one: tokens
    sums = weights.new_zeros(num_experts)
    for layer in logits:
        probs = layer.float().softmax(dim=-1)  # (N, E)
        chosen = probs.detach().topk(top_k, dim=-1).indices  # (N, k)
        counts[:-1] += tokens_of_experts(chosen, weights, num_experts)
        sums = sums + weights @ probs
    counts[-1] = weights.sum()
    if whole is not None:
        counts = whole(counts)
    tokens = counts[-1].clamp_min(1.0)
    scale = num_experts / (len(logits) ** 2 * update_tokens)
    return scale * (counts[:-1] / tokens) @ sums
