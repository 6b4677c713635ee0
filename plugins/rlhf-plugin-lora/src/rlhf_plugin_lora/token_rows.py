"""Rows of the embeddings that learn beside an adapter, such as those of new tokens; all other rows stay the base's.

A trained row replaces the base's, as PEFT's ``trainable_token_indices`` do, and an output head that shares the matrix
has the same rows. PEFT copies the whole matrix in each pass; here the rows alone are looked up and multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional as F
from transformers import PreTrainedModel

from rlhf_core import ConfigError

from .beginning import TOKENS

TENSOR = "token_adapter.trainable_tokens_delta"
"""End of the name of the rows (k, D) in PEFT's files, behind the name of the embeddings."""


class TokenRows(nn.Module):
    """Embeddings or an output head of V tokens, k rows of which are trained.

    Args:
        base_layer: an embedding or a linear layer with a weight (V, D).
        token_ids: (k,) the rows.
        rows: the trained ones (k, D) by the name of their adapter; two tables that are one have one dictionary.
        active: name of the adapter that is computed with.
    """

    token_ids: Tensor
    """(k,)"""
    places: Tensor
    """(V,) place of each token among the trained ones; -1: it is none."""

    def __init__(
        self, base_layer: nn.Module, token_ids: Tensor, rows: nn.ParameterDict, active: str
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.trainable_tokens_delta = rows
        self._active = active
        self._is_on = True
        places = torch.full((len(self.weight),), -1, device=token_ids.device)
        places[token_ids] = torch.arange(len(token_ids), device=token_ids.device)
        self.register_buffer("token_ids", token_ids, persistent=False)
        self.register_buffer("places", places, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The base's rows (V, D)."""
        weight: Tensor = self.base_layer.weight  # type: ignore[assignment]
        return weight

    def set_adapter(self, name: str) -> None:
        """Compute with the rows of the adapter of this name."""
        self._active = name

    def enable_adapters(self, enabled: bool) -> None:
        """Compute with trained rows, or with the base's alone."""
        self._is_on = enabled

    def merged(self, name: str) -> Tensor:
        """Return a copy of the base's rows (V, D) with the trained ones of an adapter in their places, shared among
        ranks as the base's are."""
        weight, rows = self.weight, self.trainable_tokens_delta[name]
        rows = rows.full_tensor() if isinstance(rows, DTensor) else rows
        own = rows.to(weight.dtype)[self.places.clamp_min(0)]  # (V, D)
        return torch.where(
            _beside((self.places >= 0)[:, None], weight), _beside(own, weight), weight
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return embeddings (..., D) of token ids (...), or products (..., V) with hidden states (..., D)."""
        outputs: Tensor = self.base_layer(inputs)
        if not self._is_on:
            return outputs
        rows: Tensor = self.trainable_tokens_delta[self._active]
        if isinstance(self.base_layer, nn.Linear):
            bias = self.base_layer.bias
            own = F.linear(inputs, rows, None if bias is None else bias[self.token_ids])
            # In place: the products with all tokens are the largest array of a pass.
            return outputs.index_copy_(-1, self.token_ids, own)
        places = self.places[inputs]
        own = F.embedding(places.clamp_min(0), rows)
        scale = getattr(self.base_layer, "embed_scale", None)  # Gemma's
        own = own if scale is None else own * torch.as_tensor(scale).to(own.dtype)
        return torch.where((places >= 0)[..., None], own, outputs)


def _beside(whole: Tensor, weight: Tensor) -> Tensor:
    """Return a tensor that every rank has whole, as one that is computed with beside ``weight``."""
    if not isinstance(weight, DTensor):
        return whole
    everywhere = [Replicate()] * weight.device_mesh.ndim
    return DTensor.from_local(whole, weight.device_mesh, everywhere, run_check=False)


def put_rows(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    adapters: Sequence[str],
    changed: Sequence[str],
) -> None:
    """Have the embeddings of these tokens trained in the first of the adapters, beginning as the base's; the others
    have fixed copies. An output head that shares the embeddings' matrix gets the same rows.

    Args:
        changed: names of the modules that the adapter changes in another way.

    Raises:
        ConfigError: a token has no row, or the embeddings cannot be trained in part.
    """
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    for name in changed:
        if model.get_submodule(name) is embeddings:
            raise ConfigError(
                f"{TOKENS} of the adapter: it changes {name} in another way too, by target or modules_to_save. Leave "
                "one of them out.",
                code="adapter/changed-twice",
            )
    _require_plain(model, embeddings, token_ids)
    ids = torch.tensor(token_ids, device=embeddings.weight.device)
    rows = nn.ParameterDict(
        {
            name: nn.Parameter(embeddings.weight.detach()[ids].clone(), requires_grad=not number)
            for number, name in enumerate(adapters)
        }
    )
    shared = [m for m in (embeddings, head) if m is not None and m.weight is embeddings.weight]
    for name, module in list(model.named_modules()):
        if any(module is each for each in shared):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, TokenRows(module, ids, rows, adapters[0]))


def row_tables(model: nn.Module) -> dict[str, TokenRows]:
    """Return the modules of which rows are trained by their names in the plain model."""
    return {name: m for name, m in model.named_modules() if isinstance(m, TokenRows)}


def embeddings_of(model: PreTrainedModel) -> tuple[str, TokenRows] | None:
    """Return the embeddings of which rows are trained with their name in the plain model; None: no row is."""
    for name, table in row_tables(model).items():
        if table is model.get_input_embeddings():
            return name, table
    return None


def _require_plain(model: PreTrainedModel, table: nn.Module, token_ids: Sequence[int]) -> None:
    if not isinstance(table, nn.Embedding) or table.max_norm is not None:
        raise ConfigError(
            f"{TOKENS} of the adapter: the embeddings of {type(model).__name__} are a {type(table).__name__}; expected "
            "plain ones. Leave it out.",
            code="adapter/token-rows",
        )
    if type(table) is not nn.Embedding and not hasattr(table, "embed_scale"):
        raise ConfigError(
            f"{TOKENS} of the adapter: the embeddings of {type(model).__name__} are a {type(table).__name__}, which "
            "computes in a way of its own. Leave it out.",
            code="adapter/token-rows",
        )
    if wrong := [token for token in token_ids if not 0 <= token < table.num_embeddings]:
        raise ConfigError(
            f"{TOKENS} {wrong[0]} of the adapter: {type(model).__name__} has {table.num_embeddings} rows of "
            "embeddings. Give ids below that, or a base in which the token has a row (--model.resize_embeddings adds "
            "some where a model is trained whole).",
            code="adapter/no-token-row",
        )
