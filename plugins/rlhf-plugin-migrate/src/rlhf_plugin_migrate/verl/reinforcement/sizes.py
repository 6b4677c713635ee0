"""Rules of sizes: prompts of a step, samples of an update, lengths and micro-batches."""

from __future__ import annotations

import math

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from .algorithm import ACTOR, has_critic
from .machine import has_own_engines, num_gpus, ulysses

_N, _BATCH, _MINI = (
    "actor_rollout_ref.rollout.n",
    "data.train_batch_size",
    f"{ACTOR}.ppo_mini_batch_size",
)
_GENERATED, _REQUIRED = "data.gen_batch_size", "async_training.require_batches"
_MICRO_BATCH = "train.max_tokens_per_micro_batch"
_PER_GPU, _ALL_GPUS = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_micro_batch_size"
_DYNAMIC, _BUDGET = f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu"


def longest(source: SourceOptions) -> int:
    """Return the number of tokens of the longest prompt and response together."""
    return source.whole("data.max_prompt_length") + source.whole("data.max_response_length")


def set_batches(source: SourceOptions, out: Outcome) -> None:
    """Set prompts of a step and sequences of an update: verl counts prompts in both."""
    group, mini = source.whole(_N), max(source.whole(_MINI), 1)
    prompts = source.whole(_BATCH)
    if prompts <= 0:
        prompts = mini * source.whole(_REQUIRED)
        comment = f"{mini} x {source.whole(_REQUIRED)} batches that a step of the trainer waits for"
        out.set("rollout.batch_size", prompts, _BATCH, _REQUIRED, _MINI, comment=comment)
    else:
        out.set("rollout.batch_size", prompts, _BATCH)
        out.nothing(_REQUIRED, "a step trains on train_batch_size prompts")
    _set_generated(source, out, prompts)
    wanted = min(mini, prompts)
    size = next(number for number in range(wanted, 0, -1) if prompts % number == 0)
    comment = f"{size} prompts x {group} samples; updates in a step: {prompts // size}"
    out.set("train.batch_size", size * group, _MINI, _N, comment=comment)
    if size != mini:
        out.differs(
            _MINI, f"{size} prompts: minibatches are equal parts of the {prompts} prompts of a step"
        )
    for name in ("ppo_mini_batch_size", "ppo_epochs"):
        ours, critic = source.value(f"{ACTOR}.{name}"), f"critic.{name}"
        if has_critic(source) and source.value(critic) not in (None, ours):
            out.missing(critic, "the critic's minibatches and passes are the policy's")
        else:
            out.nothing(critic, "the critic's are the policy's")


def _set_generated(source: SourceOptions, out: Outcome, prompts: int) -> None:
    size = source.value(_GENERATED)
    if not isinstance(size, int) or size <= prompts:
        out.nothing(_GENERATED, "a step starts as many prompts as it trains on")
    elif source.flag("algorithm.filter_groups.enable"):
        out.differs(
            _GENERATED,
            "a step draws as many prompts as it trains on, and then those that the filter dropped",
        )
    else:
        out.differs(
            _GENERATED,
            "a step draws as many prompts as it trains on; rollout.oversampling starts more",
        )


def set_lengths(source: SourceOptions, out: Outcome) -> None:
    """Set the longest response, and what happens to a prompt that is too long."""
    response, turns = "data.max_response_length", "actor_rollout_ref.rollout.multi_turn.enable"
    out.copy("rollout.max_new_tokens", response)
    if source.flag(turns):
        out.differs(response, "it bounds each turn; verl's bounds all turns with what tools answer")
    filters, cut = "data.filter_overlong_prompts", "data.truncation"
    keeps = not source.flag(filters) and source.text(cut) == "error"
    out.set("data.on_bad_row", "fail" if keeps else "skip", filters, cut)
    if not source.flag(filters) and source.text(cut) != "error":
        out.differs(cut, "a prompt that is too long is left out and counted; verl cuts it")


def set_micro_batches(source: SourceOptions, out: Outcome) -> None:
    """Set the packed tokens of a micro-batch, on which memory depends and no result."""
    whole, ranks = longest(source), ulysses(source)
    out.nothing(
        (_PER_GPU, _ALL_GPUS, _BUDGET, _DYNAMIC), "a matter of memory, which other keys say"
    )
    if source.flag(_DYNAMIC):
        budget = max(source.whole(_BUDGET), whole)
        out.set(_MICRO_BATCH, budget, _BUDGET, _DYNAMIC)
        if budget > source.whole(_BUDGET):
            out.differs(_BUDGET, f"a micro-batch holds at least one sequence of {whole} tokens")
        return
    rows, key = source.value(_PER_GPU), _PER_GPU
    if rows is None and source.value(_ALL_GPUS) is not None:
        key = _ALL_GPUS
        rows = max(source.whole(key) // max(num_gpus(source) // ranks, 1), 1)
    if isinstance(rows, int):
        comment = f"{rows} x {whole}; a matter of memory, the gradient does not depend on it"
        out.set(_MICRO_BATCH, max(math.ceil(rows * whole / ranks), whole), key, comment=comment)


def set_async(source: SourceOptions, out: Outcome) -> None:
    """Set by how many versions generation runs ahead: with engines of its own, verl generates while it trains."""
    keys = [
        f"async_training.{name}" for name in ("staleness_threshold", "trigger_parameter_sync_step")
    ]
    partial, total = "async_training.partial_rollout", "rollout.total_rollout_steps"
    if not has_own_engines(source):
        out.nothing((*keys, partial, total), "engines share GPUs with the trainer")
        return
    out.set("rollout.max_staleness", 1, *keys)
    if source.given(*keys):
        out.differs(
            keys,
            "rollout.max_staleness counts versions, of which each step makes one; verl's a share of samples",
        )
    if source.given(partial):
        out.copy("rollout.in_flight_updates", partial)
    count = source.value(total)
    if isinstance(count, int):
        per_step = max(source.whole(_MINI) * source.whole(_REQUIRED), 1)
        out.set(
            "train.steps",
            max(count // per_step, 1),
            total,
            comment=f"{count} prompts, {per_step} a step",
        )
    else:
        out.nothing(total, "the trainer's keys say how long")
