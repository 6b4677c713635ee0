"""A role as a plain Transformers folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoTokenizer

from .role_model import VALUE_HEAD_FILE, RoleModel

log = logging.getLogger(__name__)


def export_model(model: RoleModel, source: str, folder: Path, *, trust_remote_code: bool) -> None:
    """Write weights, config and the tokenizer of ``source`` into ``folder``.

    Under an adapter the weights are the merged ones, and what the adapter saves of itself is in ``adapter/``. A value
    head is a file beside the model, which a critic that is loaded from the folder starts from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if model.adapter is None:
        model.lm.model.save_pretrained(folder)
    else:
        merged = dict(model.adapter.served_weights(model.lm.model))
        model.lm.model.save_pretrained(folder, state_dict=merged)
        model.adapter.save(model.lm.model, str(folder / "adapter"))
    if model.value_head is not None:
        head = {name: tensor.contiguous() for name, tensor in model.value_head.state_dict().items()}
        save_file(head, folder / VALUE_HEAD_FILE)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        log.warning("%s has no tokenizer that could be copied into %s: %s", source, folder, error)
        return
    tokenizer.save_pretrained(folder)


@contextmanager
def holding(weights: Mapping[str, nn.Parameter], other: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the parameters hold ``other``'s values for a while, then their own again, to the bit."""
    own = {name: weights[name].detach().clone() for name in other}
    _copy(weights, other)
    try:
        yield
    finally:
        _copy(weights, own)


@torch.no_grad()
def _copy(weights: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        weights[name].copy_(value)
