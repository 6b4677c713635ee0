"""The fused head on a GPU: by kernels of our own where Triton can build them, else by compiled functions."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from ..building.compiling import compiled
from ..building.triton_modules import kernel_module
from ..models.modeling import LogitForm
from . import fused_head


@cache
def kernels() -> ModuleType | None:
    """Return the module ``head_kernels`` if its kernels run here; else None."""
    loss = "kernels of the output head cannot be built, so it is slower"
    return kernel_module(f"{__package__}.head_kernels", _try, loss=loss)


def _try(found: ModuleType) -> None:
    raw = torch.zeros(1, 16, device="cuda")
    found.head_scores(raw, torch.zeros(1, 1, dtype=torch.int64, device="cuda"), LogitForm())


def head_scores(raw: Tensor, ids: Tensor, form: LogitForm) -> tuple[Tensor, Tensor, Tensor]:
    """Return what ``fused_head.head_scores`` does, for ``raw`` (m, V) on a GPU."""
    found = kernels() if raw.is_cuda else None
    if found is None:
        scores: tuple[Tensor, Tensor, Tensor] = compiled(fused_head.head_scores)(raw, ids, form)
        return scores
    made: tuple[Tensor, Tensor, Tensor] = found.head_scores(raw.contiguous(), ids, form)
    return made


def head_grad_(
    raw: Tensor,
    action: Tensor,
    form: LogitForm,
    logsumexp: Tensor,
    grad_logprob: Tensor | None,
    grad_entropy: Tensor | None,
    entropies: Tensor,
) -> Tensor:
    """Return what ``fused_head.head_grad`` does, perhaps in the memory of ``raw``, whose numbers are then lost.

    A gradient that is None is zeros.
    """
    if grad_logprob is None:
        grad_logprob = torch.zeros_like(entropies)
    found = kernels() if raw.is_cuda else None
    if found is None:
        if grad_entropy is None:
            grad_entropy = torch.zeros_like(entropies)
        grad: Tensor = compiled(fused_head.head_grad)(
            raw.detach(), action, form, logsumexp, grad_logprob, grad_entropy, entropies
        )
        return grad
    # An operation that kept its output for its gradient notices that the output has changed.
    torch.autograd.graph.increment_version(raw)
    products = raw.detach().contiguous()
    made: Tensor = found.head_grad_(
        products, action, form, logsumexp, grad_logprob, grad_entropy, entropies
    )
    return made
