"""Export of a role as a Transformers folder, or as a PEFT folder under an adapter; a reward model as a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from rlhf_core.contracts import RoleSpec
from rlhf_torch.models.export import copy_tokenizer, export_scorer, learned_end, save_weights
from rlhf_torch.models.role_model import VALUE_HEAD_FILE, RoleModel
from rlhf_torch.models.score_head import SCORE_HEAD
from rlhf_torch.models.vision_lm import VisionLM

from ..parallel.ranks import Ranks
from .weights import own_weights, whole


def export_role(
    role: RoleModel,
    weights: Mapping[str, Tensor] | None,
    spec: RoleSpec,
    folder: Path,
    ranks: Ranks,
) -> None:
    """Write weights, config and tokenizer into ``folder``; return on every rank once the files are written.

    Under an adapter the folder is the adapter's own (PEFT's), without the base. A value head is a file beside either. A
    model with a score head is written as ``rlhf_torch.models.export`` says.

    Args:
        weights: the result of ``served_weights``. All ranks read every tensor, since reading may be a collective call;
            only the first rank keeps the tensors, in host memory. None under an adapter, which is written instead.
    """
    state = _collected(role, weights, keep=ranks.is_first) if weights is not None else None
    head = role.value_head
    shared = any(hasattr(parameter, "ds_id") for parameter in role.parameters())
    is_scorer = role.head_name == SCORE_HEAD
    # A reward model's adapter is merged, for which all weights have to be whole.
    needed = list(role.parameters()) if is_scorer and role.adapter else own_weights(role)
    source = spec.tokenizer_path or spec.model_path
    with whole(needed) if shared and (head or role.adapter) else nullcontext():
        if ranks.is_first and is_scorer:
            export_scorer(role, state, source, folder, trust_remote_code=spec.trust_remote_code)
        elif ranks.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            save_weights(role, folder, state)
            if head is not None:
                # The file is float32 for every role; the value head of a bfloat16 role may be bfloat16 here.
                tensors = {name: t.float().contiguous() for name, t in head.state_dict().items()}
                save_file(tensors, folder / VALUE_HEAD_FILE)
            copy_tokenizer(
                source,
                folder,
                trust_remote_code=spec.trust_remote_code,
                learned=learned_end(role),
            )
            if isinstance(role.lm, VisionLM):
                role.lm.reader.family.save(folder)
    ranks.wait()


def _collected(role: RoleModel, weights: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return the weights in host memory, one tensor for all names of a tied parameter; nothing unless ``keep``."""
    owners = dict(role.lm.model.named_parameters(remove_duplicate=False))
    by_owner: dict[int | str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if keep:
            owner = id(owners[name]) if name in owners else name
            state[name] = by_owner.setdefault(owner, tensor.detach().cpu())
    return state
