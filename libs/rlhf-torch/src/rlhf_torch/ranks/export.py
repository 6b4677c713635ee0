"""Export of a role as a Transformers folder, or as a PEFT folder under an adapter; a reward model as a classifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch import Tensor, nn

from rlhf_core.contracts import RoleSpec

from ..models.export import export_model
from ..models.role_model import RoleModel
from ..models.score_head import SCORE_HEAD
from .ranks import Ranks

Whole = Callable[[Iterable[nn.Parameter]], AbstractContextManager[None]]


def export_role(
    role: RoleModel,
    weights: Iterable[tuple[str, Tensor]] | None,
    spec: RoleSpec,
    folder: Path,
    ranks: Ranks,
    whole: Whole | None,
) -> None:
    """Write weights, config and tokenizer into ``folder``; return on every rank once the files are written.

    The files are those of ``rlhf_torch.models.export.export_model``.

    Args:
        weights: the weights by Hugging Face names. All ranks read every tensor, since reading may be a collective call;
            only the first rank keeps the tensors, in host memory. None under an adapter, which is written instead.
        whole: gives a context in which every rank has the given parameters whole; None: every rank has them anyway.

    Raises:
        StorageError: the first rank could not write; all of them raise it.
    """
    state = _collected(role, weights, keep=ranks.is_first) if weights is not None else None
    # A reward model's adapter is merged, for which all weights have to be whole.
    is_merged = role.head_name == SCORE_HEAD and role.adapter is not None
    needed = list(role.parameters()) if is_merged else own_weights(role)
    source = spec.tokenizer_path or spec.model_path
    with (
        whole(needed) if whole and (role.value_head or role.adapter) else nullcontext(),
        ranks.writing_together(),
    ):
        if ranks.is_first:
            trusts = spec.trust_remote_code
            export_model(role, source, folder, trust_remote_code=trusts, weights=state)


def _collected(
    role: RoleModel, weights: Iterable[tuple[str, Tensor]], *, keep: bool
) -> dict[str, Tensor]:
    """Return the weights in host memory, one tensor for all names of a tied parameter; nothing unless ``keep``."""
    owners = dict(role.lm.model.named_parameters(remove_duplicate=False))
    by_owner: dict[int | str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in weights:
        if keep:
            owner = id(owners[name]) if name in owners else name
            state[name] = by_owner.setdefault(owner, tensor.detach().cpu())
    return state


def own_weights(role: RoleModel) -> list[nn.Parameter]:
    """Return the parameters that the role has beside its base: the trained ones, and the heads, which may be frozen.

    A role that is not trained has no mark on its own parameters, so the result is all of them.
    """
    if not any(parameter.requires_grad for parameter in role.parameters()):
        return list(role.parameters())
    heads = [role.lm.model.get_output_embeddings(), role.value_head]
    kept = {id(p) for head in heads if head is not None for p in head.parameters()}
    return [p for p in role.parameters() if p.requires_grad or id(p) in kept]
