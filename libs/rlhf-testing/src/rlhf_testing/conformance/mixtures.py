"""The check of training backends on a mixture of experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlhf_core.contracts.backend import TrainBatch
from rlhf_core.errors import ConfigError

from .running_backend import assert_same_weights, running
from .subject import Subject
from .tiny_policy import PlainModel, step_plan, tiny_model, train_batch

FACTOR = 0.5


class _Case(NamedTuple):
    """Request for a balancing loss, and the factor that follows from it."""

    what: str
    wanted: float | None
    configured: bool
    factor: float


_CASES = (
    _Case("without a factor", None, False, 0.0),
    _Case("with router_aux_loss", FACTOR, False, FACTOR),
    _Case("with output_router_logits true in config.json", None, True, FACTOR),
)


def check_a_balancing_loss_is_added(subject: Subject) -> None:
    """The balancing loss of a mixture of experts moves the weights beside the objective, where the role's
    ``router_aux_loss`` or the model's configuration asks for it: the mean of micro-batches of one row each, weighted by
    their tokens. A backend without one refuses such a role as a ``ConfigError``."""
    batch = train_batch()
    for case in _CASES:
        with tiny_model(family="qwen3_moe") as folder:
            _configure(folder, is_on=case.configured)
            plain = PlainModel(folder)
            advantages = torch.from_numpy(batch.columns["advantages"])
            loss = -(advantages * plain.outputs(batch.trajectories).logprobs).mean()
            plain.descend(loss + case.factor * _balancing_loss(plain, batch))
            try:
                with running(
                    subject, folder, router_aux_loss=case.wanted, max_tokens_per_micro_batch=1
                ) as backend:
                    backend.train_step(batch, step_plan(batch.trajectories))
                    assert_same_weights(backend, plain.state(), f"after a step {case.what}")
            except ConfigError:
                assert case.factor, f"a mixture of experts was refused {case.what}"


def _configure(folder: Path, *, is_on: bool) -> None:
    file = folder / "config.json"
    entries = {"output_router_logits": is_on, "router_aux_loss_coef": FACTOR}
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def _balancing_loss(plain: PlainModel, batch: TrainBatch) -> Tensor:
    """Return the mean of the rows' balancing losses, as Transformers computes them, weighted by their tokens."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    rows, config, total = batch.trajectories, plain.model.config, torch.zeros(())
    for row in range(len(rows)):
        tokens = torch.from_numpy(rows.tokens_of(row).astype(np.int64))[None]
        logits = plain.model(input_ids=tokens, output_router_logits=True).router_logits
        loss = load_balancing_loss_func(logits, config.num_experts, config.num_experts_per_tok)
        total = total + tokens.numel() / int(rows.num_tokens.sum()) * loss
    return total
