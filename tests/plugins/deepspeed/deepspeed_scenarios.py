"""What the tests do with a backend, written once: for one rank of torch, and for every rank of DeepSpeed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deepspeed_material import (
    ADAMW,
    DISTILLING,
    EXPONENTIAL,
    KINDS,
    LAMB,
    LOSS,
    MUON,
    PAIRED,
    ROWS,
    SEPARATED,
    SGD,
    SINGLE,
    every_third_left_out,
    in_pairs,
    make_answers,
    make_batch,
    make_plan,
    make_trajectories,
    plain_plugins,
    routed,
)
from torch.utils.checkpoint import CheckpointError

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import (
    LossTerm,
    PolicyObjective,
    PreferenceObjective,
    RoleSpec,
    ScheduleSpec,
    TopTokens,
    TrainBatch,
    ValueObjective,
)

SMALL_MICRO_BATCH = 30
NAN_STEP = 2
ENOUGH_FOR = 40
"""Tokens of a pass that a rank has memory for which is short of it."""


@dataclass(frozen=True)
class Place:
    """Where a scenario runs: which backend, and which rows are this rank's."""

    make: Callable[..., Any]
    """Called with options of the backend that differ from the defaults."""
    models: Path
    folder: Path
    """Shared by the ranks."""
    rank: int = 0
    world_size: int = 1

    def start(
        self, family: str = "qwen3", options: dict[str, Any] | None = None, **spec: Any
    ) -> Any:
        role = RoleSpec(
            role="policy",
            model_path=str(self.models / family),
            objective=PolicyObjective(loss=LOSS, aggregation="token-mean"),
            optimizer=SGD,
            max_grad_norm=None,
            max_tokens_per_micro_batch=SMALL_MICRO_BATCH,
        )
        backend = self.make(**(options or {}))
        backend.setup(replace(role, **spec), plain_plugins())
        return backend

    def rows(self, count: int, unit: int = 1) -> np.ndarray:
        """The first rank has the first unit of rows, the second all others, further ones none: different numbers of
        micro-batches."""
        if self.world_size == 1:
            return np.arange(count)
        if self.rank > 1:
            return np.arange(0)
        return np.arange(min(unit, count)) if self.rank == 0 else np.arange(unit, count)

    def part(self, batch: TrainBatch, unit: int = 1) -> TrainBatch:
        rows = self.rows(len(batch.trajectories), unit)
        index = batch.trajectories.action_index(rows)
        top = batch.teacher_top
        return replace(
            batch,
            trajectories=batch.trajectories.select(rows),
            columns={name: column[index] for name, column in batch.columns.items()},
            teacher_top=top
            and TopTokens(token_ids=top.token_ids[index], logprobs=top.logprobs[index]),
            supervised=batch.supervised
            and batch.supervised.select(self.rows(len(batch.supervised))),
        )


class Found:
    """What a scenario found on this rank."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.facts: dict[str, Any] = {"metrics": []}

    def keep_weights(self, backend: Any, prefix: str = "weights") -> None:
        """Copy the backend's weights."""
        for bucket in backend.buckets():
            for name, tensor in bucket.items():
                self.tensors[f"{prefix}/{name}"] = tensor.detach().cpu().clone()

    def weights(self, prefix: str = "weights") -> dict[str, torch.Tensor]:
        """Return the weights that were kept under the prefix."""
        return {name: t for name, t in self.tensors.items() if name.startswith(f"{prefix}/")}

    def array(self, name: str, values: Any) -> None:
        self.tensors[name] = torch.from_numpy(np.ascontiguousarray(values))

    def metrics(self, outcome: Any) -> None:
        self.facts["metrics"].append(
            {
                name: [float(metric.total), float(metric.count), metric.reduction]
                for name, metric in outcome.metrics.items()
            }
        )


def gradient(place: Place, found: Found) -> None:
    """One step of SGD on policy loss, KL, entropy and a supervised term, from trajectories that are cut unevenly. Each
    two neighbors are an episode, whose rows are on different ranks and in different micro-batches."""
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"):
        objective = PolicyObjective(
            loss=LOSS,
            aggregation=mode,
            kl_estimator=EXPONENTIAL,
            entropy_bonus=True,
            terms=(LossTerm(loss=LOSS, weight=0.3, aggregation=mode, rows="supervised"),),
        )
        backend, batch = place.start(objective=objective), in_pairs(make_batch(supervised=True))
        if mode == "seq-mean-token-sum-norm":
            batch = every_third_left_out(batch)
        plan = make_plan(
            batch,
            kl_coef=0.1,
            entropy_coef=0.05,
            return_logprobs=True,
            return_entropies=True,
            return_losses=True,
        )
        totals = replace(plan.normalizers, num_sequences=len(batch.trajectories) // 2)
        plan = replace(plan, normalizers=totals)
        outcome = backend.train_step(place.part(batch), plan)
        found.metrics(outcome)
        found.array(f"logprobs/{mode}", outcome.logprobs)
        found.array(f"entropies/{mode}", outcome.entropies)
        found.array(f"losses/{mode}", outcome.losses)
        found.array(f"clipped/{mode}", outcome.clipped)
        found.keep_weights(backend, mode)
        backend.close()


def same_prompts(place: Place, found: Found) -> None:
    """One step of SGD on groups that are trees, whose nodes several ranks compute once and a single one does not."""
    backend = place.start(
        options={"share_prompts": place.world_size > 1}, max_tokens_per_micro_batch=90
    )
    batch = forked(make_batch(num=9, samples=3))
    part = place.part(batch)
    outcome = backend.train_step(part, make_plan(batch, return_logprobs=True))
    found.metrics(outcome)
    found.array("logprobs", outcome.logprobs)
    found.array("scored", backend.logprobs(part.trajectories))
    found.keep_weights(backend)
    backend.close()


def short_of_memory(place: Place, found: Found) -> None:
    """One step of SGD on ranks of which the last one has memory for short rows alone, where that ends no run."""
    _step_whose_passes_fail(place, found, refuse_long_rows)


def unlike_graphs(place: Place, found: Found) -> None:
    """One step of SGD on ranks of which the last one recomputes a layer by another graph in its first pass, where that
    ends no run."""
    passes: list[int] = []

    def refuse_the_first(*_: object) -> None:
        passes.append(1)
        if len(passes) == 1:
            raise CheckpointError("A different number of tensors was saved.")

    _step_whose_passes_fail(place, found, refuse_the_first)


def _step_whose_passes_fail(place: Place, found: Found, refuse: Callable[..., None]) -> None:
    backend = place.start(max_tokens_per_micro_batch=2 * ENOUGH_FOR)
    training = getattr(backend, "_training", None)
    if training is None or training.recovers:
        if place.rank == place.world_size - 1:
            embeddings = backend.module().model.get_input_embeddings()
            embeddings.register_forward_pre_hook(refuse)
        batch = make_batch()
        plan = make_plan(batch, return_logprobs=True)
        outcome = backend.train_step(place.part(batch), plan)
        found.array("logprobs", outcome.logprobs)
        found.keep_weights(backend)
        found.facts["limit"] = backend._limit.tokens
    backend.close()


def refuse_long_rows(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    if inputs[0].shape[-1] > ENOUGH_FOR:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def forked(batch: TrainBatch) -> TrainBatch:
    """The batch with each group's third sample going on from the first one, shortly before the end of the shorter."""
    rows = batch.trajectories
    columns = rows.tokens.read()
    tokens, offsets = columns.token_ids.copy(), rows.token_offsets
    for third in np.flatnonzero(rows.uid[:, 2] == 2):
        first, shared = third - 2, int(rows.num_tokens[[third - 2, third]].min()) - 2
        beginning = tokens[offsets[first] : offsets[first] + shared]
        tokens[offsets[third] : offsets[third] + shared] = beginning
    changed = replace(columns, token_ids=tokens)
    return replace(batch, trajectories=replace(rows, tokens=changed))


def preferences(place: Place, found: Found) -> None:
    """Three updates on pairs and on single answers. The third has one pair, or one answer and its neighbor."""
    for loss, unit, nll_coef in ((PAIRED, 2, 0.3), (SINGLE, 1, 0.0)):
        name = loss.name.partition(":")[2]
        objective = PreferenceObjective(loss=loss, nll_coef=nll_coef)
        backend = place.start(objective=objective, optimizer=ADAMW, max_tokens_per_micro_batch=50)
        for seed, pairs in ((0, 4), (1, 4), (2, 1)):
            batch = make_answers(seed, pairs)
            plan = make_plan(batch, return_logprobs=True)
            outcome = backend.train_step(place.part(batch, unit), plan)
            found.metrics(outcome)
            found.array(f"logprobs/{name}/{seed}", outcome.logprobs)
        found.keep_weights(backend, name)
        backend.close()


def critic(place: Place, found: Found) -> None:
    """Three steps of AdamW on values."""
    spec = {"role": "critic", "head": "value", "objective": ValueObjective(value_clip=0.5)}
    backend = place.start("llama", optimizer=ADAMW, **spec)
    batch = make_batch()
    part = place.part(batch)
    for _ in range(3):
        found.metrics(backend.train_step(part, make_plan(batch)))
    found.array("values", backend.values(part.trajectories))
    found.keep_weights(backend)
    backend.export(place.folder / "critic")
    backend.close()


COSINE = (
    *(1 / 3, 2 / 3),
    *(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * update / 6)) for update in range(7)),
)
"""Two updates of warm-up, then half a cosine from the peak to a tenth of it."""

TRAINING = {
    "optimizer": ADAMW,
    "max_grad_norm": 0.3,
    "schedule": ScheduleSpec(factors=COSINE),
    "ema_decay": 0.5,
}


LR_FACTORS = {1: 0.25}
"""Update -> share of the scheduled rate that its plan asks for."""


def training(
    place: Place,
    found: Found,
    updates: int = 5,
    *,
    rests: bool = False,
    change: Callable[[TrainBatch], TrainBatch] | None = None,
    **changes: Any,
) -> None:
    """Five updates with clipping, schedule and average; the third has NaN on one rank, and the rate of the second is a
    quarter of the schedule's."""
    backend = place.start(**{**TRAINING, **changes})
    for step in range(updates):
        batch = make_batch(seed=step)
        if change is not None:
            batch = change(batch)
        if step == NAN_STEP:
            advantages = batch.columns["advantages"].copy()
            advantages[0] = np.nan  # of the first row
            batch = replace(batch, columns={**batch.columns, "advantages": advantages})
        before = backend.checksum()
        plan = make_plan(batch, lr_factor=LR_FACTORS.get(step, 1.0))
        found.metrics(backend.train_step(place.part(batch), plan))
        if step == NAN_STEP:
            found.facts["unchanged"] = backend.checksum() == before
        if rests:
            rest(backend)
    found.keep_weights(backend)
    found.facts["checksum"] = before = backend.checksum()
    backend.export(place.folder / "ema", ema=True)
    backend.export(place.folder / "plain")
    found.facts["checksum after export"] = backend.checksum()
    backend.close()


def following(place: Place, found: Found) -> None:
    """A reference that moves after each second update; saved in the middle, and on again."""
    for dtype in ("float32", "bfloat16"):
        spec = {**TRAINING, "dtype": dtype, "reference_sync": 0.25}
        folder = place.folder / f"followed_{dtype}"
        straight, resumed = place.start(**spec), place.start(**spec)
        ends = []
        for backend, begins in ((straight, 0), (resumed, 3)):
            if begins:
                backend.load(folder)
            for step in range(begins, 5):
                batch = make_batch(seed=step)
                part = place.part(batch)
                logprobs = backend.base_logprobs(part.trajectories)
                found.array(f"{dtype}/{step}", logprobs)
                plan = make_plan(batch, syncs_reference=step % 2 == 1)
                backend.train_step(part, plan)
                if backend is straight and step == 2:
                    backend.save(folder)
            ends.append((backend.checksum(), backend.base_logprobs(part.trajectories).tolist()))
            found.array(f"{dtype}/end", backend.base_logprobs(part.trajectories))
            found.array(f"{dtype}/policy", backend.logprobs(part.trajectories))
            backend.close()
        found.facts[f"went on {dtype}"] = ends[0] == ends[1]


def mixed(place: Place, found: Found) -> None:
    """The same with bfloat16 parameters."""
    training(place, found, dtype="bfloat16")


SAVED_UPDATES = 4


def saved_updates(place: Place, found: Found) -> None:
    """Updates of bfloat16 parameters, each of which leaves a checkpoint with the float32 weights."""
    backend = place.start(**TRAINING, dtype="bfloat16")
    for update in range(SAVED_UPDATES):
        steps(place, backend, (update,))
        backend.save(place.folder / f"update{update}")
        found.keep_weights(backend, f"update{update}")
    backend.close()


def longer(place: Place, found: Found) -> None:
    """The same for longer than DeepCompile takes to know what to fetch ahead."""
    training(place, found, updates=7)


def resting(place: Place, found: Found) -> None:
    """The same, out of the GPU's memory and back after every update."""
    training(place, found, rests=True)


def whole(place: Place, found: Found) -> None:
    """The same with an optimizer that looks at whole parameters and keeps state for them."""
    training(place, found, optimizer=LAMB)


def muon(place: Place, found: Found) -> None:
    """The same with Muon."""
    training(place, found, optimizer=MUON)


def rest(backend: Any) -> None:
    """On a CPU nothing changes its place, but DeepSpeed makes its buffers anew all the same."""
    backend.offload(weights=False)
    backend.offload()
    backend.reload(state=False)
    backend.offload()
    backend.reload()


def recomputing(place: Place, found: Found) -> None:
    """The same with layers recomputed in the backward pass."""
    training(place, found, options={"gradient_checkpointing": True})


def compiled(place: Place, found: Found) -> None:
    """The same with each layer compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor itself uses what torch has deprecated.
        training(place, found, options={"compile": True})


def shared_keys(place: Place, found: Found) -> None:
    """The same on a model that has fewer key heads than there are ranks."""
    training(place, found, family="shared_keys")


def untied(place: Place, found: Found) -> None:
    """The same on a model whose output head is no copy of its embeddings."""
    training(place, found, family="untied")


def windows(place: Place, found: Found) -> None:
    """The same with layers that see eight tokens only."""
    training(place, found, family="gemma3")


def experts(place: Place, found: Found) -> None:
    """The same on a mixture of experts: which of them get a gradient differs from rank to rank."""
    training(place, found, family="qwen3_moe")


def balanced(place: Place, found: Found) -> None:
    """The same with a balancing loss. A loss of a micro-batch depends on its rows, so each row is one."""
    training(place, found, family="qwen3_moe", router_aux_loss=0.3, max_tokens_per_micro_batch=1)


def replayed(place: Place, found: Found) -> None:
    """The same with tokens that go to given experts."""
    training(place, found, family="qwen3_moe", change=routed, replays_routes=True)


def separate_experts(place: Place, found: Found) -> None:
    """The same with each expert a module of its own, which only the ranks call whose tokens go there."""
    spec = {**TRAINING, "adapter": SEPARATED}
    try:
        backend = place.start("qwen3_moe", **spec)
    except ConfigError as error:
        found.facts["error"] = str(error)
        return
    for step in range(3):
        batch = make_batch(seed=step)
        found.metrics(backend.train_step(place.part(batch), make_plan(batch)))
    found.keep_weights(backend)
    backend.close()


def resuming(place: Place, found: Found, kinds: Sequence[str] = tuple(KINDS)) -> None:
    """A run that is saved and goes on, and one that is restored."""
    for kind in kinds:
        spec = {**TRAINING, **KINDS[kind]}
        straight = place.start(**spec)
        steps(place, straight, (0, 1, 2))
        straight.save(place.folder / f"saved_{kind}")
        found.keep_weights(straight, f"saved_{kind}")
        stored = straight.checksum()
        steps(place, straight, (3, 4))
        resumed = place.start(**spec)
        resumed.load(place.folder / f"saved_{kind}")
        found.facts[f"restored {kind}"] = resumed.checksum() == stored
        steps(place, resumed, (3, 4))
        found.facts[f"went on {kind}"] = resumed.checksum() == straight.checksum()
        for name, backend in (("straight", straight), ("resumed", resumed)):
            backend.export(place.folder / f"{name}_{kind}", ema=True)
            backend.close()


def resuming_shards(place: Place, found: Found) -> None:
    """The same where no rank can have whole parameters."""
    resuming(place, found, ("float32", "bfloat16"))


def rejoining(place: Place, found: Found) -> None:
    """A run that goes on from a checkpoint which somebody else has left in its folder."""
    for kind, changes in KINDS.items():
        backend = place.start(**{**TRAINING, **changes})
        backend.load(place.folder / f"handed_{kind}")
        backend.save(place.folder / f"again_{kind}")
        steps(place, backend, (3, 4))
        backend.export(place.folder / f"went_on_{kind}", ema=True)
        backend.close()


def steps(place: Place, backend: Any, seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        batch = make_batch(seed=seed)
        backend.train_step(place.part(batch), make_plan(batch))


def few_rows(place: Place, found: Found) -> None:
    """One row for two ranks: one of them has nothing to train on and nothing to score."""
    backend, batch = place.start(optimizer=ADAMW), make_batch(num=1)
    plan = make_plan(batch)
    part = place.part(batch)
    found.array("before", backend.logprobs(part.trajectories))
    found.metrics(backend.train_step(part, plan))
    found.array(
        "statistics", backend.statistics(part.trajectories, ["logprobs", "entropy"])["entropy"]
    )
    found.array("top", backend.top_tokens(part.trajectories, 3).token_ids)
    found.keep_weights(backend)
    backend.close()


def top_of_teacher(place: Place, found: Found) -> None:
    """A loss on the teacher's three most probable tokens at each action."""
    objective = PolicyObjective(loss=DISTILLING, aggregation="token-mean")
    backend, batch = place.start(objective=objective), make_batch(top=3)
    found.metrics(backend.train_step(place.part(batch), make_plan(batch)))
    found.keep_weights(backend)
    backend.close()


def reference(place: Place, found: Found) -> None:
    """A role that only scores."""
    backend = place.start("gemma3", objective=None, optimizer=None)
    rows = make_trajectories()
    part = rows.select(place.rows(len(rows)))
    found.array("logprobs", backend.logprobs(part))
    found.array("again", backend.logprobs(part))
    found.facts["checksum"] = backend.checksum()
    found.keep_weights(backend)
    backend.close()


def offloaded(place: Place, found: Found, **changes: Any) -> None:
    """Optimizer state, and at stage 3 the weights, in host memory."""
    stage = place.make.keywords["zero_stage"] if place.world_size > 1 else 0
    options = {"offload_optimizer": True} if stage else {}
    options |= {"offload_param": True} if stage == 3 else {}
    training(place, found, options=options, **changes)


def whole_on_host(place: Place, found: Found) -> None:
    """The same with an optimizer that looks at whole parameters."""
    offloaded(place, found, optimizer=LAMB)


def refused(place: Place, found: Found) -> None:
    """An optimizer whose state ranks cannot share."""
    try:
        place.start(optimizer=ROWS).close()
    except PluginError as error:
        found.facts["error"] = str(error)


def unshared(place: Place, found: Found) -> None:
    """Models whose matrices cannot be shared by two ranks, and an optimizer that has to see them whole."""
    for family, optimizer in (("qwen3_moe", SGD), ("shared_keys", SGD), ("qwen3", LAMB)):
        try:
            place.start(family, optimizer=optimizer).close()
        except (ConfigError, PluginError) as error:
            found.facts[family] = str(error)


def run(scenario: Callable[[Place, Found], None], place: Place) -> Found:
    found = Found()
    place.folder.mkdir(parents=True, exist_ok=True)
    scenario(place, found)
    return found
