"""Log-probs and entropies of actions from hidden states, with gradients, never holding the logits of all actions.

``statistics.py`` computes numbers that need no gradient.

Logits of a chunk of m actions live only while the chunk is worked on; the backward pass computes them again. So memory
is O(m x V) instead of O(M x V), for one more matmul of the head. A micro-batch whose actions are one chunk keeps its
products, in the dtype of the matmuls, and is spared that matmul. ``k`` counts tokens beside each action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.objective import ActionScores

from .on_gpu import head_grad_, head_scores

if TYPE_CHECKING:
    from ..models.modeling import CausalLM

CPU_LOGITS = 2**21
"""Logits of one chunk on a CPU: 8 MiB stay in its caches (measured: 3 times faster passes than 64 MiB)."""
CPU_ROWS = 256
"""Fewest actions of one chunk on a CPU."""
GPU_ROWS = 4096
"""Actions of one chunk on a GPU."""


def default_chunk(device: torch.device, vocab_size: int) -> int:
    """Return the number of actions in a chunk where the user sets none."""
    if device.type == "cpu":
        return max(CPU_ROWS, CPU_LOGITS // vocab_size)
    return GPU_ROWS


def action_scores(
    lm: CausalLM,
    hidden: Float[Tensor, "M D"],
    targets: Int[Tensor, " M"],
    *,
    temperature: float,
    chunk: int,
    others: Int[Tensor, "M k"] | None = None,
    others_temperature: float | None = None,
    with_mean: bool = False,
) -> ActionScores:
    """Return log-probs (M,) of ``targets`` (M,) and entropies (M,), in nats and float32, given hidden states (M, D).

    With s = logits / temperature: log p(a) = s_a - logsumexp(s), H = -sum_v p_v log p_v. Gradients flow to the hidden
    states and to the head's parameters, from every result.

    Args:
        chunk: number of actions whose logits are in memory at once.
        others: (M, k) ids of further tokens whose log-probs (M, k) are wanted.
        others_temperature: divides the logits before the log-probs of ``others``; None: ``temperature`` does.
        with_mean: return the mean log-prob (M,) over all ids that have a probability, too.
    """
    parameters = [p for p in lm.model.get_output_embeddings().parameters() if p.requires_grad]
    ids = targets[:, None] if others is None else torch.cat([targets[:, None], others], dim=1)
    temperatures = (temperature, others_temperature or temperature)
    logprobs, entropies, means = _ChunkedHead.apply(  # type: ignore[no-untyped-call]
        hidden, ids, lm, temperatures, with_mean, chunk, *parameters
    )
    return ActionScores(
        logprobs=logprobs[:, 0],
        entropies=entropies,
        others=None if others is None else logprobs[:, 1:],
        mean_logprobs=means if with_mean else None,
    )


class _ChunkedHead(torch.autograd.Function):
    """``temperatures`` are those of the action and of the tokens beside it."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        ids: Tensor,
        lm: CausalLM,
        temperatures: tuple[float, float],
        with_mean: bool,
        chunk: int,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs = torch.empty(ids.shape, dtype=torch.float32, device=hidden.device)  # (M, 1 + k)
        entropies, logsumexps, means = logprobs.new_empty(3, len(hidden))
        form, others_form = (lm.logit_form._replace(temperature=each) for each in temperatures)
        splits = others_form.temperature != form.temperature
        is_one_chunk = len(hidden) <= chunk and any(ctx.needs_input_grad)
        ctx.kept = None
        for start in range(0, len(hidden), chunk):
            span = slice(start, start + chunk)
            products = _products(lm, hidden[span], with_graph=is_one_chunk)
            if is_one_chunk:
                ctx.kept = products
            raw = products[1].detach()
            if with_mean:
                logits = form.apply(raw)
                means[span] = lm.mean_of_sampled(logits) - logits.logsumexp(-1)
            if splits:
                logits = others_form.apply(raw)
                logprobs[span, 1:] = logits.log_softmax(-1).gather(1, ids[span, 1:])
            own = slice(0, 1) if splits else slice(None)
            if hidden.is_cuda:
                scores = head_scores(raw, ids[span, own], form)
                logprobs[span, own], entropies[span], logsumexps[span] = scores
                continue
            all_logprobs = form.apply(raw).log_softmax(-1)  # (m, V)
            logprobs[span, own] = all_logprobs.gather(1, ids[span, own])
            entropies[span] = -expected(all_logprobs.exp(), all_logprobs)
        ctx.save_for_backward(hidden, ids, entropies, logsumexps, *parameters)
        ctx.lm, ctx.form, ctx.chunk, ctx.temperatures = lm, form, chunk, temperatures
        ctx.set_materialize_grads(False)
        return logprobs, entropies, means

    @staticmethod
    def backward(
        ctx: Any,
        grad_logprobs: Tensor | None,
        grad_entropies: Tensor | None,
        grad_means: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        hidden, ids, entropies, logsumexps, *parameters = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grads: list[Tensor | None] = [None] * len(parameters)
        # Only distillation and smoothed labels need gradients of other tokens than the action: not worth a kernel.
        is_fused = hidden.is_cuda and ids.shape[1] == 1 and grad_means is None
        for start in range(0, len(hidden), ctx.chunk):
            span = slice(start, start + ctx.chunk)
            # Computed again: the products of all chunks would be the largest arrays of the step.
            leaf, raw = ctx.kept or _products(ctx.lm, hidden[span], with_graph=True)
            ctx.kept = None
            with torch.enable_grad():
                products = raw if is_fused else ctx.form.apply(raw)
            if is_fused:
                grad_products = head_grad_(
                    raw,
                    ids[span, 0],
                    ctx.form,
                    logsumexps[span],
                    None if grad_logprobs is None else grad_logprobs[span, 0],
                    None if grad_entropies is None else grad_entropies[span],
                    entropies[span],
                )
            else:
                grad_products = _grad_of_products(
                    products.detach(),
                    ids[span],
                    ctx.temperatures,
                    None if grad_logprobs is None else grad_logprobs[span],
                    None if grad_entropies is None else (grad_entropies[span], entropies[span]),
                )
                if grad_means is not None:
                    grad_products += ctx.lm.grad_of_mean_logprobs(
                        products.detach(), grad_means[span]
                    )
            grad_hidden[span], *parts = torch.autograd.grad(
                products, [leaf, *parameters], grad_products
            )
            # In float32: chunks add up to the gradient of a whole micro-batch.
            grads = [
                part.float() if total is None else total.add_(part)
                for total, part in zip(grads, parts, strict=True)
            ]
            # Arrays of (m, V) elements: kept, they would stand beside those of the next chunk.
            del raw, products, grad_products
        # Autograd takes a gradient in the dtype of its parameter alone.
        typed = [
            None if grad is None else grad.to(parameter.dtype)
            for grad, parameter in zip(grads, parameters, strict=True)
        ]
        return grad_hidden, None, None, None, None, None, *typed


def _products(
    lm: CausalLM, hidden: Float[Tensor, "m D"], *, with_graph: bool
) -> tuple[Float[Tensor, "m D"], Float[Tensor, "m V"]]:
    """Return the hidden states of a chunk, cut off from the model, and the output head's products with them."""
    leaf = hidden.detach().requires_grad_(with_graph)
    with torch.set_grad_enabled(with_graph):
        return leaf, lm.raw_logits(leaf)


def _grad_of_products(
    logits: Float[Tensor, "m V"],
    ids: Int[Tensor, "m j"],
    temperatures: tuple[float, float],
    grad_logprobs: Float[Tensor, "m j"] | None,
    entropy: tuple[Float[Tensor, " m"], Float[Tensor, " m"]] | None,
) -> Float[Tensor, "m V"]:
    """Return dL/ds (m, V) for s = ``logits``, of the actions' log-probs, the entropies, and the others' log-probs."""
    ratio = temperatures[0] / temperatures[1]
    if ratio == 1.0 or grad_logprobs is None:
        return _grad_of_logits(logits, ids, grad_logprobs, entropy)
    grad = _grad_of_logits(logits, ids[:, :1], grad_logprobs[:, :1], entropy)
    return grad.add_(
        _grad_of_logits(logits * ratio, ids[:, 1:], grad_logprobs[:, 1:], None), alpha=ratio
    )


def _grad_of_logits(
    logits: Float[Tensor, "m V"],
    ids: Int[Tensor, "m j"],
    grad_logprobs: Float[Tensor, "m j"] | None,
    entropy: tuple[Float[Tensor, " m"], Float[Tensor, " m"]] | None,
) -> Float[Tensor, "m V"]:
    """Return dL/ds (m, V) for s = ``logits``, by d log p(a) / ds = onehot(a) - p and dH / ds = -p (log p + H)."""
    all_logprobs = logits.log_softmax(-1)  # (m, V)
    probs = all_logprobs.exp()
    grad_of_all = None if grad_logprobs is None else grad_logprobs.sum(dim=1, keepdim=True)
    if entropy is None:
        grad = probs.zero_() if grad_of_all is None else probs.mul_(-grad_of_all)
    else:
        grad_entropy, entropies = entropy
        factor = all_logprobs.add_(entropies[:, None]).mul_(-grad_entropy[:, None])
        if grad_of_all is not None:
            factor.sub_(grad_of_all)
        grad = probs.mul_(factor)
    if grad_logprobs is not None:
        grad.scatter_add_(1, ids, grad_logprobs)
    return grad


def expected(probs: Float[Tensor, "m V"], values: Float[Tensor, "m V"]) -> Float[Tensor, " m"]:
    """Return the sum (m,) of ``probs * values`` (m, V) over the vocabulary."""
    total: Tensor = torch.linalg.vecdot(probs, values)  # (m,)
    return total
