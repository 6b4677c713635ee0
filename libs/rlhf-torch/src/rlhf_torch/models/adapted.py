"""Models of PEFT folders that are only read: the adapter beside a base that another role holds, or merged into one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedModel

from rlhf_core.contracts import RoleSpec

from ..adapters.beside import LOW_RANK, put_beside
from ..adapters.folder import AdapterFolder, read_adapter
from ..adapters.merging import cast_back, merge_adapter, refuse_quantized
from .loading import as_dtype, load_model, verified
from .modeling import CausalLM
from .shared_base import SHARES, BaseKey, SharedBase, find_base

log = logging.getLogger(__name__)


def read_adapted(spec: RoleSpec, bases: Sequence[SharedBase]) -> tuple[CausalLM, SharedBase | None]:
    """Return the model of a role that is only read, whose path is a PEFT folder, and the base that it shares.

    The base is the one that the folder names. If one of ``bases`` is it, the adapter stands beside it, in its dtype;
    None: the role has a model of its own, summed in float32 and rounded once.

    Raises:
        ConfigError: the folder names no base, the base cannot be read, or the adapter does not fit it.
        MissingDependency: PEFT is not installed.
        PluginError: the architecture cannot be computed here.
    """
    folder = read_adapter(spec.model_path)
    path = folder.named_base()
    base = find_base(bases, BaseKey.of(replace(spec, model_path=path), {}))
    if base is None or folder.config["peft_type"] != LOW_RANK:
        lm = load_merged(path, folder, dtype=spec.dtype, trust_remote_code=spec.trust_remote_code)
        return lm, None
    model = put_beside(base.view(), path, folder)
    log.info(SHARES, spec.role)
    return verified(model, as_dtype(spec.dtype)), base


def load_merged(
    base: str, folder: AdapterFolder, *, dtype: str, trust_remote_code: bool
) -> CausalLM:
    """Return the model of a base with an adapter merged into it, summed in float32 and rounded once to ``dtype``.

    Raises:
        ConfigError: the base cannot be read or is quantized, or the adapter does not fit it.
        MissingDependency: PEFT is not installed.
        PluginError: the architecture cannot be computed here, or the adapter cannot be merged exactly.
    """
    loaded = load_model(base, dtype="float32", trust_remote_code=trust_remote_code)
    verified(loaded.model, as_dtype("float32"))
    refuse_quantized(base, loaded.model.config)
    merged: PreTrainedModel = merge_adapter(loaded.model, base, folder)
    rounded = as_dtype(dtype)
    cast_back(merged, dict.fromkeys(merged.state_dict(), rounded))
    return CausalLM(merged, rounded)
