"""The models of a command: the one that is trained, and those that are asked beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlhf_config import ReferenceSync, ResolvedOptions
from rlhf_core.contracts import Objective, RoleSpec, TrajectoryColumns
from rlhf_data import eos_token_ids, load_tokenizer, vocabulary_of
from rlhf_trainer.runs import schedule_of, seed_of, vision_spec

from .options import ExampleOptions
from .order import passes

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The model that a command trains, beyond the options that all commands have."""

    objective: Objective
    role: str = "policy"
    head: Literal["lm", "score"] = "lm"
    beside: Mapping[str, RoleSpec] = field(default_factory=dict)
    """Models that are asked and not trained, by their roles."""
    reference: ReferenceSync = field(default_factory=ReferenceSync)
    """Whether a reference follows the model, and how."""
    embedding_noise: float = 0.0
    top_temperature: float | None = None
    """See ``RoleSpec`` of both."""
    learns_ends: bool = True
    """Whether the model learns of the tokens that end its rows; False: of other places in them alone."""


def roles_of(
    resolved: ResolvedOptions[Any], trained: TrainedModel, rows: TrajectoryColumns, updates: int
) -> dict[str, RoleSpec]:
    """Return the models of a command, with what the tokenizer says of them: the ends that the rows teach, the rows that
    embeddings lack, and the ids that a model beside may name."""
    model = resolved.run.model
    tokenizer = load_tokenizer(
        model.tokenizer or model.path, trust_remote_code=model.trust_remote_code
    )
    ends = eos_token_ids(tokenizer, model.path, trust_remote_code=model.trust_remote_code)
    vocabulary = vocabulary_of(tokenizer)
    size = vocabulary.size if model.resize_embeddings else None
    own = replace(
        role_spec(resolved, trained, updates),
        embedding_rows=size,
        row_ends=row_ends_of(rows, ends) if trained.learns_ends else (),
    )
    beside = {
        name: replace(spec, embedding_rows=size, vocabulary=vocabulary)
        for name, spec in trained.beside.items()
    }
    return {trained.role: own, **beside}


def row_ends_of(rows: TrajectoryColumns, ends: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens that end turns and that end rows, most frequent first; a row that was cut ends with another."""
    counts = Counter[int]()
    for part in passes(len(rows), _ROWS_AT_ONCE):  # of a million rows, not all tokens are in memory
        some = rows.select(part)
        last = some.token_ids[some.action_mask][some.action_offsets[1:] - 1]  # (B,)
        counts.update({token: int((last == token).sum()) for token in ends})
    return tuple(sorted(filter(counts.get, ends), key=lambda token: -counts[token]))


def role_spec(resolved: ResolvedOptions[Any], trained: TrainedModel, updates: int) -> RoleSpec:
    """Return the model that is trained."""
    run: ExampleOptions = resolved.run
    adapter = resolved.optional("actor.adapter")
    return RoleSpec(
        role=trained.role,
        model_path=run.model.path,
        tokenizer_path=run.model.tokenizer,
        dtype=run.model.dtype,
        trust_remote_code=run.model.trust_remote_code,
        head=trained.head,
        objective=trained.objective,
        optimizer=resolved.one("actor.optim").ref("rlhf_optimizers"),
        adapter=adapter.ref("rlhf_model_adapters") if adapter else None,
        schedule=schedule_of(resolved.optional("actor.lr_schedule"), run.actor, updates),
        max_grad_norm=run.actor.max_norm,
        router_aux_loss=run.actor.router_aux_loss,
        ema_decay=run.actor.ema,
        reference_sync=trained.reference.sync_alpha if trained.reference.sync_every else None,
        max_tokens_per_micro_batch=run.train.max_tokens_per_micro_batch,
        top_temperature=trained.top_temperature,
        embedding_noise=trained.embedding_noise,
        seed=seed_of(run.seed, f"role/{trained.role}"),
        vision=vision_spec(resolved, run.actor.parts()),
    )
