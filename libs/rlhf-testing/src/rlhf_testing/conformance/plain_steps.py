"""Checks of training backends: which rows and log-probs a step learns from, and which weights it hands on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.component import Config
from rlhf_core.contracts.backend import (
    LossTerm,
    PolicyObjective,
    PreferenceObjective,
    ValueObjective,
)
from rlhf_weights import weights_digest

from .columns import trajectory
from .comparing import assert_equal
from .running_backend import assert_same_weights, is_accepted, running, weights_of
from .subject import Subject
from .tiny_policy import (
    ADAMW,
    LOSS,
    PREFERENCE,
    PlainModel,
    PolicyGradient,
    samples_of_prompts,
    step_plan,
    tiny_model,
    train_batch,
    value_batch,
)

SMALL_STEPS = 12
"""Number of updates that are too small for bfloat16."""
SMALL_FACTOR = 0.03
"""Factor of AdamW's learning rate of 0.01 in them: 0.0003, where a weight of 0.3 in bfloat16 has steps of 0.002."""


def check_old_log_probs_are_those_of_the_batch(subject: Subject) -> None:
    """In a step that is not on-policy the loss gets the batch's old log-probs, each at its own action."""
    batch, loss = train_batch(), PolicyGradient(Config())
    old = np.random.default_rng(11).uniform(-6.0, -1.0, len(batch.columns["advantages"]))
    batch = replace(batch, columns={**batch.columns, "old_logprobs": old.astype(np.float32)})
    with tiny_model() as folder, running(subject, folder, loss=loss) as backend:
        backend.train_step(batch, step_plan(batch.trajectories, on_policy=False))
    seen = [
        (one.advantages[one.action_mask], one.old_logprobs[one.action_mask]) for one in loss.seen
    ]
    found = {float(key): float(value) for pair in seen for key, value in zip(*pair, strict=True)}
    expected = dict(
        zip(*(batch.columns[name].tolist() for name in ("advantages", "old_logprobs")), strict=True)
    )
    wrong = [key for key in expected if found.get(key) != expected[key]]
    assert not wrong, (
        f"old log-probs of {len(wrong)} of {len(expected)} actions are not the batch's, such as "
        f"{found.get(wrong[0])} for {expected[wrong[0]]:.6g}; with on_policy False a backend makes none of its own"
    )


def check_supervised_rows_are_learned(subject: Subject) -> None:
    """Terms on supervised rows add their gradient, divided by the totals of these rows, whole and in micro-batches."""
    term = LossTerm(loss=LOSS, weight=0.5, aggregation="token-mean", rows="supervised")
    objective = PolicyObjective(loss=LOSS, aggregation="token-mean", terms=(term,))
    given = samples_of_prompts()
    batch = replace(train_batch(), supervised=given)
    totals = step_plan(given).normalizers
    plan = step_plan(batch.trajectories, supervised_normalizers=totals)
    for limit in (16384, 12):
        with tiny_model() as folder:
            plain = PlainModel(folder)
            advantages = torch.from_numpy(batch.columns["advantages"])
            loss = -(advantages * plain.outputs(batch.trajectories).logprobs).mean()
            plain.descend(loss - 0.5 * plain.outputs(given).logprobs.mean())
            spec: dict[str, Any] = {"max_tokens_per_micro_batch": limit}
            with running(subject, folder, objective, **spec) as backend:
                backend.train_step(batch, plan)
                assert_same_weights(backend, plain.state(), "after a step with supervised rows")


def check_pairs_stay_together(subject: Subject) -> None:
    """Both answers of a pair are in one micro-batch, however small that is; or the objective is refused."""
    given = [
        trajectory(Uid(0, pair, answer), (3 + 2 * answer + pair,), prompt=3, reward=1.0 - answer)
        for pair in range(3)
        for answer in range(2)
    ]
    rows = TrajectoryColumns.from_trajectories(given)
    batch = replace(train_batch(rows), columns={})
    objective = PreferenceObjective(loss=PREFERENCE)
    with tiny_model() as folder:
        if not is_accepted(subject, folder, objective):
            return
        plain = PlainModel(folder)
        parts = plain.outputs(rows).logprobs.split(rows.num_actions.tolist())
        sums = torch.stack([part.sum() for part in parts]).view(3, 2)
        margins = (sums[:, 0] - sums[:, 1]) / 10
        plain.descend(-torch.nn.functional.logsigmoid(margins).mean())
        for limit in (16384, 1):
            spec: dict[str, Any] = {"max_tokens_per_micro_batch": limit}
            with running(subject, folder, objective, **spec) as backend:
                backend.train_step(batch, step_plan(rows))
                what = f"a step on pairs with max_tokens_per_micro_batch = {limit}"
                assert_same_weights(backend, plain.state(), what)


def check_dropout_stays_off(subject: Subject) -> None:
    """A model whose configuration has dropout is trained without, as it samples."""
    batch = train_batch()
    with tiny_model() as folder:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"attention_dropout": 0.5}))
        plain = PlainModel(folder)
        advantages = torch.from_numpy(batch.columns["advantages"])
        plain.descend(-(advantages * plain.outputs(batch.trajectories).logprobs).mean())
        with running(subject, folder) as backend:
            backend.train_step(batch, step_plan(batch.trajectories))
            assert_same_weights(backend, plain.state(), "a step of a model with attention_dropout")


def check_the_digest_is_of_the_weights(subject: Subject) -> None:
    """``checksum`` is the digest of what ``buckets`` yields, and ``module`` has the same weights; both also after an
    update."""
    batch = train_batch()
    with tiny_model() as folder, running(subject, folder) as backend:
        for when in ("before an update", "after an update"):
            named = [pair for bucket in backend.buckets() for pair in bucket.items()]
            assert backend.checksum() == weights_digest(named), (
                f"{when}, checksum is not the digest of what buckets yields (rlhf_weights.weights_digest)"
            )
            if (module := backend.module()) is not None:
                _assert_served(module.state_dict(), weights_of(backend), f"module {when}")
            backend.train_step(batch, step_plan(batch.trajectories))


def _assert_served(state: Mapping[str, Tensor], weights: Mapping[str, Tensor], what: str) -> None:
    """Compare tensors by name; a module around the Transformers model puts something in front of its names."""
    for own, tensor in state.items():
        for name in (own, own.partition(".")[2]):
            if name in weights:
                assert_equal(tensor.detach().float().cpu(), weights[name], f"{what}: {name}")


def check_small_updates_add_up(subject: Subject) -> None:
    """Updates of bfloat16 weights that are each smaller than half a step of their type move most of them in the end."""
    batch = train_batch()
    plan = step_plan(batch.trajectories, lr_factor=SMALL_FACTOR)
    with (
        tiny_model() as folder,
        running(subject, folder, optimizer=ADAMW, dtype="bfloat16") as backend,
    ):
        before = weights_of(backend)
        for _ in range(SMALL_STEPS):
            backend.train_step(batch, plan)
        moved = [
            (after != before[name]).flatten()
            for name, after in weights_of(backend).items()
            if after.dim() > 1
        ]
    share = float(torch.cat(moved).float().mean())
    assert share >= 0.5, (
        f"{SMALL_STEPS} updates of bfloat16 weights by 0.0003 each moved {share:.0%} of the numbers, expected most: "
        "smaller updates than half a step are lost without float32 copies"
    )


def check_values_are_of_the_states_before_actions(subject: Subject) -> None:
    """A value depends on all tokens before its action and on no other: neither on the action nor on what follows."""
    batch = value_batch()
    rows = [trajectory(Uid(0, number), (4,), prompt=3) for number in range(3)]
    other_end = [trajectory(Uid(0, number), (4,), prompt=3, last_token=9) for number in range(3)]
    other_prompt = [trajectory(Uid(0, number), (4,), prompt=3) for number in range(3)]
    for row in other_prompt:
        row.token_ids[2] = 9 if row.token_ids[2] != 9 else 10
    spec: dict[str, Any] = {"role": "critic", "head": "value", "optimizer": ADAMW}
    with tiny_model() as folder, running(subject, folder, ValueObjective(), **spec) as backend:
        for _ in range(3):
            backend.train_step(batch, step_plan(batch.trajectories))
        plain, end, prompt = (
            torch.from_numpy(backend.values(TrajectoryColumns.from_trajectories(each)))
            for each in (rows, other_end, other_prompt)
        )
    assert_equal(end, plain, "values of rows whose last action is another one", atol=1e-4)
    first = (prompt - plain).abs().view(3, 4)[:, 0]
    assert float(first.min()) > 1e-6, (
        "the value before the first action does not depend on the last token of the prompt"
    )
