"""Muon for the matrices of the layers, AdamW for embeddings, heads, norms and biases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from rlhf_core import ConfigError
from rlhf_core.contracts import ParameterGroup

from .adam import can_fuse
from .config import MuonConfig
from .groups import by_decay, torch_groups, trainable_parameters
from .muon_adamw import ADAMW, ALGORITHM, MUON, MuonAdamW


class Muon:
    """The ``muon`` optimizer component.

    Muon replaces the momentum of a matrix by the nearest orthogonal matrix, so that every direction moves alike.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; scale of the update: Liu et al. 2025
    (Muon is Scalable for LLM Training), arXiv:2502.16982. The update is ``torch.optim.Muon``'s.
    """

    def __init__(self, config: MuonConfig) -> None:
        self.config = config

    def parameter_groups(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]]
    ) -> list[ParameterGroup]:
        """Return the parameter groups ``muon``, ``adam_decay`` and ``adam_no_decay``; empty ones are left out.

        ``muon`` has the matrices with exactly two axes whose name matches none of ``adam_names``; the factors of a
        low-rank adapter are among them. Embeddings, output heads, value heads, and stacks of matrices in one parameter
        (experts) are in ``adam_decay``; biases and gains of norms in ``adam_no_decay``.

        Raises:
            ConfigError: no parameter is trainable, or none is left for Muon.
        """
        config = self.config
        named = trainable_parameters(named_parameters)
        hidden = named.where(
            lambda name, parameter: (
                parameter.dim() == 2
                and named.is_matrix(name, parameter)
                and not self._is_adams(name)
            )
        )
        if not hidden:
            raise ConfigError(
                f"optimizer muon: none of the {len(named)} trainable parameters is a matrix outside of adam_names "
                f"({', '.join(config.adam_names)}); choose --optim adam"
            )
        taken = {id(parameter) for _, parameter in hidden}
        rest = named.where(lambda _, parameter: id(parameter) not in taken)
        muon = ParameterGroup(
            name=MUON,
            named_parameters=hidden.pairs,
            options={
                ALGORITHM: MUON,
                "lr": config.lr,
                "weight_decay": config.weight_decay,
                "momentum": config.momentum,
                "nesterov": config.nesterov,
                "ns_steps": config.ns_steps,
                "adjust_lr_fn": config.adjust_lr,
            },
        )
        adam = by_decay(
            rest,
            weight_decay=config.weight_decay,
            prefix="adam_",
            lr=config.lr if config.adam_lr is None else config.adam_lr,
            betas=config.adam_betas,
            eps=config.adam_eps,
            **{ALGORITHM: ADAMW},
        )
        return [muon, *adam]

    def create(self, groups: Sequence[ParameterGroup]) -> torch.optim.Optimizer:
        """Return one optimizer of all parameter groups."""
        made = torch_groups(groups)
        for group, source in zip(made, groups, strict=True):
            if group.get(ALGORITHM, ADAMW) == ADAMW:
                group["fused"] = can_fuse([source])
        return MuonAdamW(made)

    def _is_adams(self, name: str) -> bool:
        parts = name.split(".")
        return any(
            fnmatchcase(part, pattern) for part in parts for pattern in self.config.adam_names
        )
