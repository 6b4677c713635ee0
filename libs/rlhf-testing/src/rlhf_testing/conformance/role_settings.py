"""Checks of training backends: a role follows what its ``RoleSpec`` asks for, or refuses it as it is set up."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.batch.vocabulary import Vocabulary
from rlhf_core.component import Config
from rlhf_core.contracts.backend import PolicyObjective, ScheduleSpec, TopTokens, TrainBatch

from .comparing import assert_equal
from .running_backend import assert_same_weights, is_accepted, running, weights_of
from .subject import Subject
from .tiny_policy import (
    GAIN_SHARE,
    MEAN_READER,
    TWO_RATES,
    PlainModel,
    PolicyGradient,
    rollouts,
    step_plan,
    tiny_model,
    train_batch,
)

K = 3
"""Number of most probable tokens that are asked for."""
DECAY = 0.5
NOISE = 5.0


def check_gradients_are_clipped(subject: Subject) -> None:
    """With ``max_grad_norm`` one step goes as far as by the gradient scaled to that norm, all tensors together; below
    the norm nothing is scaled."""
    batch = train_batch()
    with tiny_model() as folder:
        plain = PlainModel(folder)
        parameters = [one for one in plain.parameters().values() if one.requires_grad]
        grads = torch.autograd.grad(_loss(plain, batch), parameters, allow_unused=True)
        norm = float(torch.nn.utils.get_total_norm([one for one in grads if one is not None]))
        for limit, scale in ((norm / 4, 0.25), (norm * 2, 1.0)):
            plain = PlainModel(folder)
            plain.descend(scale * _loss(plain, batch))
            with running(subject, folder, max_grad_norm=limit) as backend:
                backend.train_step(batch, step_plan(batch.trajectories))
                what = f"max_grad_norm = {limit:.3g} with a gradient of norm {norm:.3g}"
                assert_same_weights(backend, plain.state(), what)


def check_the_schedule_goes_on(subject: Subject) -> None:
    """Each update has its own factor of ``RoleSpec.schedule``, also after an update that was skipped, and after a role
    was saved and loaded."""
    batch = train_batch()
    plan, broken = step_plan(batch.trajectories), _broken(batch)
    schedule = ScheduleSpec(factors=(0.5, 1.0, 0.25))
    with tempfile.TemporaryDirectory() as saved, tiny_model() as folder:
        with running(subject, folder) as backend:
            backend.train_step(batch, replace(plan, lr_factor=0.5))
            backend.train_step(batch, replace(plan, lr_factor=0.25))
            expected = weights_of(backend)
        with running(subject, folder, schedule=schedule) as backend:
            backend.train_step(batch, plan)
            backend.train_step(broken, plan)
            backend.save(Path(saved) / "state")
            backend.train_step(batch, plan)
            what = "updates at 0.5 and 0.25 of the peak rate, with a skipped one between them"
            assert_same_weights(backend, expected, what)
        with running(subject, folder, schedule=schedule) as backend:
            backend.load(Path(saved) / "state")
            backend.train_step(batch, plan)
            what = "the third update of a schedule, in a role that was saved before it and loaded"
            assert_same_weights(backend, expected, what)


def check_groups_keep_their_rates(subject: Subject) -> None:
    """Parameter groups with different ``lr`` are scaled, none gets another one's."""
    batch = train_batch()
    plan = step_plan(batch.trajectories, lr_factor=0.5)
    with tiny_model() as folder:
        with running(subject, folder) as backend:
            start = weights_of(backend)
            backend.train_step(batch, plan)
            expected = weights_of(backend)
        for name, tensor in start.items():
            if "norm" in name:
                expected[name] = tensor + GAIN_SHARE * (expected[name] - tensor)
        with running(subject, folder, optimizer=TWO_RATES) as backend:
            backend.train_step(batch, plan)
            assert_same_weights(backend, expected, f"gains at {GAIN_SHARE} of the others' rate")


def check_tokens_beyond_the_vocabulary_have_no_probability(subject: Subject) -> None:
    """With ``RoleSpec.vocabulary`` log-probs, entropies, sums of squares, most probable tokens, and the mean log-probs
    that a loss needs, are those of an output head without the other rows."""
    batch, loss = train_batch(), PolicyGradient(Config())
    rows, vocabulary = batch.trajectories, Vocabulary(size=70, holes=(3,))
    objective = PolicyObjective(loss=MEAN_READER, aggregation="token-mean")
    with tiny_model() as folder:
        with torch.no_grad():
            logits, actions = _logits(PlainModel(folder), rows)
        unused = list(vocabulary.unused(logits.shape[1]))
        logits[:, unused] = -torch.inf
        logprobs = logits.log_softmax(-1)  # (A, V)
        with running(subject, folder, objective, loss=loss, vocabulary=vocabulary) as backend:
            found = backend.statistics(rows, ["logprobs", "entropy", "sum_pi_squared"])
            top = backend.top_tokens(rows, K)
            backend.train_step(batch, step_plan(rows))
            moved = weights_of(backend)
    where = f"where ids from {vocabulary.size} on have no probability"
    for name, expected in (
        ("logprobs", logprobs.gather(1, actions[:, None])[:, 0]),
        ("entropy", torch.special.entr(logprobs.exp()).sum(-1)),
        ("sum_pi_squared", (2 * logprobs).exp().sum(-1)),
    ):
        assert_equal(torch.from_numpy(found[name]), expected, f"{name} {where}", atol=1e-3)
    _assert_top(top, logprobs, where)
    assert all(one.isfinite().all() for one in moved.values()), f"a step makes weights nan {where}"
    mean = [
        one.mean_logprobs[one.action_mask] for one in loss.seen if one.mean_logprobs is not None
    ]
    assert mean, "a policy loss that needs mean_logprobs got None (ActionScores.mean_logprobs)"
    kept = [number for number in range(logits.shape[1]) if number not in unused]
    expected = logprobs[:, kept].mean(1)
    # Micro-batches may come in any order, and a mean is of one action.
    assert_equal(
        torch.cat(mean).detach().cpu().sort().values,
        expected.sort().values,
        f"mean log-probs {where}",
        atol=1e-3,
    )


def check_the_most_probable_tokens(subject: Subject) -> None:
    """``top_tokens`` gives the most probable tokens at each action, the first one first, and a step the log-probs of
    the teacher's; both at ``top_temperature``."""
    batch, loss = train_batch(), PolicyGradient(Config())
    rows = batch.trajectories
    ids = np.random.default_rng(5).integers(4, 60, (len(batch.columns["advantages"]), K))
    teacher = TopTokens(
        token_ids=ids.astype(np.int32), logprobs=np.full(ids.shape, -1.0, np.float32)
    )
    with tiny_model() as folder:
        with torch.no_grad():
            logprobs = (_logits(PlainModel(folder), rows)[0] / 0.5).log_softmax(-1)
        settings: dict[str, Any] = {"temperature": 1.2, "top_temperature": 0.5}
        with running(subject, folder, loss=loss, **settings) as backend:
            _assert_top(backend.top_tokens(rows, K), logprobs, "at top_temperature 0.5")
            backend.train_step(replace(batch, teacher_top=teacher), step_plan(rows))
    seen = [
        one.policy_top_logprobs[one.action_mask]
        for one in loss.seen
        if one.policy_top_logprobs is not None
    ]
    assert seen, "a batch with teacher_top: the policy loss got no policy_top_logprobs"
    # Micro-batches may come in any order: an action is known by its advantage.
    order = torch.cat([one.advantages[one.action_mask] for one in loss.seen]).argsort()
    expected = logprobs.gather(1, torch.from_numpy(ids))
    place = torch.from_numpy(batch.columns["advantages"]).argsort()
    found = torch.cat(seen)[order].detach().cpu()
    assert_equal(found, expected[place], "the teacher's tokens at 0.5", atol=1e-3)


def check_embeddings_grow(subject: Subject) -> None:
    """With ``embedding_rows`` the embeddings have so many rows, each new one the mean of the model's own; or the role
    is refused."""
    with tiny_model() as folder:
        table = PlainModel(folder).model.get_input_embeddings().weight.detach()
        mean, rows = table.mean(0), len(table)
        if not is_accepted(subject, folder, embedding_rows=rows + 5):
            return
        with running(subject, folder, embedding_rows=rows + 5) as backend:
            (grown,) = [one for name, one in weights_of(backend).items() if "embed_tokens" in name]
            assert len(grown) == rows + 5, (
                f"embedding_rows is {rows + 5}; the embeddings have {len(grown)} rows"
            )
            assert_equal(grown[rows:], mean.expand(5, -1), "new rows of the embeddings", atol=1e-4)


def check_noise_of_embeddings_is_of_updates_alone(subject: Subject) -> None:
    """With ``embedding_noise`` an update has another gradient than without, and log-probs are the same; or the role is
    refused."""
    batch = train_batch()
    with tiny_model() as folder:
        if not is_accepted(subject, folder, embedding_noise=NOISE):
            return
        with running(subject, folder) as backend:
            before = torch.from_numpy(backend.logprobs(batch.trajectories))
            backend.train_step(batch, step_plan(batch.trajectories))
            without = backend.checksum()
        with running(subject, folder, embedding_noise=NOISE) as backend:
            found = torch.from_numpy(backend.logprobs(batch.trajectories))
            assert_equal(found, before, f"log-probs with embedding_noise = {NOISE:g}")
            backend.train_step(batch, step_plan(batch.trajectories))
            assert backend.checksum() != without, (
                f"embedding_noise = {NOISE:g} changes no update; expected noise, or a ConfigError"
            )


def check_a_moving_average_is_exported(subject: Subject) -> None:
    """With ``ema_decay`` ``export(ema=True)`` writes the average of the weights after each update, which begins with
    the first weights; or the role is refused."""
    batch = train_batch()
    with tempfile.TemporaryDirectory() as out, tiny_model() as folder:
        if not is_accepted(subject, folder, ema_decay=DECAY):
            return
        with running(subject, folder, ema_decay=DECAY) as backend:
            average = weights_of(backend)
            for _ in range(2):
                backend.train_step(batch, step_plan(batch.trajectories))
                now = weights_of(backend)
                average = {name: DECAY * average[name] + (1 - DECAY) * now[name] for name in now}
            backend.export(Path(out) / "model", ema=True)
        for name, tensor in PlainModel(Path(out) / "model").parameters().items():
            if name in average:
                what = f"export(ema=True) with ema_decay = {DECAY:g}: {name}"
                assert_equal(tensor, average[name], what, atol=1e-4, rtol=1e-3)


def check_a_role_without_an_objective_scores(subject: Subject) -> None:
    """A role that is not trained, such as the reference, has neither objective nor optimizer and gives the log-probs
    of its model."""
    rows = rollouts()
    with tiny_model() as folder, torch.no_grad():
        expected = PlainModel(folder).outputs(rows).logprobs
        with running(subject, folder, trained=False, role="reference") as backend:
            actual = torch.from_numpy(backend.logprobs(rows))
    assert_equal(actual, expected, "log-probs of a role without an objective", atol=1e-3)


def _loss(plain: PlainModel, batch: TrainBatch) -> Tensor:
    advantages = torch.from_numpy(batch.columns["advantages"])
    return -(advantages * plain.outputs(batch.trajectories).logprobs).mean()


def _broken(batch: TrainBatch) -> TrainBatch:
    nan = batch.columns["advantages"] * np.nan
    return replace(batch, columns={**batch.columns, "advantages": nan})


def _logits(plain: PlainModel, rows: TrajectoryColumns) -> tuple[Tensor, Tensor]:
    """Return logits (A, V) before each action, and the actions (A,)."""
    parts, columns = [], rows.tokens.read()
    for row in range(len(rows)):
        span = slice(columns.token_offsets[row], columns.token_offsets[row + 1])
        places = np.flatnonzero(columns.action_mask[span]) - 1
        parts.append(plain.logits(columns.token_ids[span])[torch.from_numpy(places)])
    taken = columns.token_ids[columns.action_mask].astype(np.int64)
    return torch.cat(parts), torch.from_numpy(taken)


def _assert_top(found: TopTokens, logprobs: Tensor, what: str) -> None:
    best = logprobs.topk(K)
    expected, actual = best.values, torch.from_numpy(found.logprobs)
    assert_equal(actual, expected, f"log-probs of top_tokens {what}", atol=1e-3)
    own = logprobs.gather(1, torch.from_numpy(found.token_ids.astype(np.int64)))
    assert_equal(own, actual, f"the ids of top_tokens {what}, by their log-probs", atol=1e-3)
