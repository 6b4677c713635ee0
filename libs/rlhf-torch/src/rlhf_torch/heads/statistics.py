"""Statistics at actions, read off the logits without a gradient, a chunk of actions at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlhf_core.contracts import Statistic

from ..building.compiling import compiled
from .action_head import expected
from .fused_head import head_sum_pi_squared
from .on_gpu import head_scores

if TYPE_CHECKING:
    from ..models.modeling import CausalLM, LogitForm


def action_statistics(
    lm: CausalLM,
    hidden: Float[Tensor, "M D"],
    targets: Int[Tensor, " M"],
    names: Sequence[Statistic],
    *,
    temperature: float,
    chunk: int,
) -> Float[Tensor, "M names"]:
    """Return the named statistics (M, len(names)), in float32, of actions ``targets`` (M,) given hidden states (M, D).

    ``logprobs`` and ``entropy`` are in nats, ``sum_pi_squared`` is ``sum_v p_v^2``, all after the temperature;
    ``is_top1`` is 1 where no token is more probable than the action, else 0.
    """
    parts = []
    form = lm.logit_form._replace(temperature=temperature)
    read = read_fused if hidden.is_cuda else read_plain
    for start in range(0, len(hidden), chunk):
        span = slice(start, start + chunk)
        parts.append(read(lm.raw_logits(hidden[span]), targets[span], names, form))
    return torch.cat(parts) if parts else hidden.new_zeros(0, len(names), dtype=torch.float32)


def top_tokens(
    lm: CausalLM, hidden: Float[Tensor, "M D"], k: int, *, temperature: float, chunk: int
) -> tuple[Int[Tensor, "M {k}"], Float[Tensor, "M {k}"]]:
    """Return ids and log-probs (M, k) of the most probable tokens, highest first."""
    ids, values = [hidden.new_zeros(0, k, dtype=torch.int64)], [hidden.new_zeros(0, k)]
    form = lm.logit_form._replace(temperature=temperature)
    for start in range(0, len(hidden), chunk):
        raw = lm.raw_logits(hidden[start : start + chunk])
        best = form.apply(raw).log_softmax(-1).topk(k, dim=-1)
        ids.append(best.indices)
        values.append(best.values)
    return torch.cat(ids), torch.cat(values)


def read_plain(
    raw: Float[Tensor, "m V"],
    targets: Int[Tensor, " m"],
    names: Sequence[Statistic],
    form: LogitForm,
) -> Float[Tensor, "m names"]:
    """Return the statistics (m, len(names)) of a chunk's products of the head, ``raw`` (m, V)."""
    logprobs = form.apply(raw).log_softmax(-1)  # (m, V)
    found = [
        is_top1(raw, targets) if name == "is_top1" else _statistic(name, logprobs, targets)
        for name in names
    ]
    return torch.stack(found, 1)


def read_fused(
    raw: Float[Tensor, "m V"],
    targets: Int[Tensor, " m"],
    names: Sequence[Statistic],
    form: LogitForm,
) -> Float[Tensor, "m names"]:
    """Return what ``read_plain`` does, by the functions that training calls, so both find the same log-probs."""
    logprobs, entropies, logsumexp = head_scores(raw, targets[:, None], form)
    found: dict[Statistic, Tensor] = {"logprobs": logprobs[:, 0], "entropy": entropies}
    if "sum_pi_squared" in names:
        found["sum_pi_squared"] = compiled(head_sum_pi_squared)(raw, form, logsumexp)
    if "is_top1" in names:
        found["is_top1"] = is_top1(raw, targets)
    return torch.stack([found[name] for name in names], 1)


def is_top1(raw: Float[Tensor, "m V"], targets: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Return 1 (m,) in float32 where no product of the head is above that of the target, else 0.

    Scale, softcap and temperature leave the order of the products as it is.
    """
    return (raw.gather(1, targets[:, None])[:, 0] >= raw.amax(dim=-1)).float()


def _statistic(
    name: Literal["logprobs", "entropy", "sum_pi_squared"],
    logprobs: Float[Tensor, "m V"],
    targets: Int[Tensor, " m"],
) -> Float[Tensor, " m"]:
    match name:
        case "logprobs":
            return logprobs.gather(1, targets[:, None])[:, 0]
        case "entropy":
            return -expected(logprobs.exp(), logprobs)
        case "sum_pi_squared":
            return logprobs.mul(2).exp().sum(-1)
