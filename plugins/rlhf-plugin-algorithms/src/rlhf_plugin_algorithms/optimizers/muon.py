"""Muon for the matrices of the layers, AdamW for embeddings, heads, norms and biases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field, model_validator

from rlhf_core import Component, Config, ConfigError
from rlhf_core.capabilities import WHOLE_PARAMETERS
from rlhf_core.contracts import ParameterGroup
from rlhf_core.lazy import torch

from .groups import (
    ADAMW,
    ALGORITHM,
    MUON,
    PEAK_LR,
    Decay,
    by_decay,
    can_fuse,
    torch_groups,
    trainable_parameters,
)


class MuonConfig(Config):
    """Options of Muon for hidden matrices and of AdamW for all other parameters."""

    lr: float = Field(
        1e-6, gt=0.0, le=1.0, description=f"{PEAK_LR}, of the hidden matrices; see adjust_lr"
    )
    momentum: float = Field(
        0.95, ge=0.0, lt=1.0, description="decay per update of the gradient's average"
    )
    nesterov: bool = Field(
        True, description="use Nesterov momentum, which looks ahead by one update"
    )
    ns_steps: int = Field(
        5, ge=1, le=20, description="Newton-Schulz iterations that orthogonalize the average"
    )
    adjust_lr: Literal["match_rms_adamw", "original"] = Field(
        "match_rms_adamw",
        description="learning rate of a rows x columns matrix. match_rms_adamw: lr * 0.2 * sqrt(max(rows, columns)), "
        "so that AdamW's rates fit; original: lr * sqrt(max(1, rows / columns))",
    )
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="decoupled weight decay, times the learning rate, of matrices but not of biases and norms",
    )
    adam_lr: float | None = Field(
        None,
        gt=0.0,
        le=1.0,
        description="peak learning rate of all other parameters, which AdamW updates; unset: lr, with "
        "match_rms_adamw only",
    )
    adam_betas: tuple[Decay, Decay] = Field(
        (0.9, 0.95),
        description="AdamW: decay per update of the averages of the gradient and of its square",
    )
    adam_eps: float = Field(
        1e-8, gt=0.0, le=1.0, description="AdamW: added to the root of the second moment"
    )
    adam_names: tuple[str, ...] = Field(
        ("*embed*", "wte", "wpe", "*_head", "output_layer", "score"),
        description="patterns for parts of a parameter's dotted name; AdamW updates matching parameters of any shape",
    )

    @model_validator(mode="after")
    def _learning_rates_fit(self) -> MuonConfig:
        if self.adjust_lr == "original" and self.adam_lr is None:
            raise ValueError(
                "adjust_lr original without adam_lr: the scale of lr is then far too large for AdamW; set adam_lr"
            )
        return self


class Muon:
    """The ``muon`` optimizer component.

    Muon replaces the momentum of a matrix by the nearest orthogonal matrix, so that every direction moves alike.

    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/; scale of the update: Liu et al. 2025
    (Muon is Scalable for LLM Training), arXiv:2502.16982. The update is ``torch.optim.Muon``'s.
    """

    def __init__(self, config: MuonConfig) -> None:
        self.config = config

    def parameter_groups(
        self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]
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
                f"({', '.join(config.adam_names)}); choose --optim adam",
                code="optimizer/no-matrix",
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
        from .muon_adamw import MuonAdamW  # a class of torch's, so its module imports torch

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


COMPONENT = Component(
    name="muon",
    factory=Muon,
    config=MuonConfig,
    summary="orthogonalized momentum for hidden matrices, AdamW for everything else",
    provides=frozenset({WHOLE_PARAMETERS}),
)
