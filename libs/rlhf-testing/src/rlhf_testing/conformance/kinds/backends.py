"""Checks of training backends (``contracts.TrainBackend``) against the same model as Transformers runs it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from rlhf_core.component import Config
from rlhf_core.contracts.backend import (
    ROW_WEIGHTS,
    Aggregation,
    PolicyObjective,
    Statistic,
    ValueObjective,
)
from rlhf_core.math import pad_columns

from .. import following, mixtures, plain_steps, role_settings, routes, step_scores
from ..comparing import assert_equal
from ..running_backend import assert_same_weights, running, weights_of
from ..subject import Subject, checks_in
from ..tiny_policy import (
    ADAMW,
    CORRECTION,
    EXPONENTIAL,
    HALF_SQUARE,
    LOG_RATIO,
    LOSS,
    PlainModel,
    PolicyGradient,
    rollouts,
    samples_of_prompts,
    step_plan,
    tiny_model,
    train_batch,
    value_batch,
)
from ..written_out import written_out

_OBJECTIVES = (
    PolicyObjective(
        loss=LOSS, aggregation="token-mean", kl_estimator=EXPONENTIAL, kl_tail="linear"
    ),
    PolicyObjective(loss=LOSS, aggregation="token-mean", kl_estimator=EXPONENTIAL, kl_tail="clamp"),
    PolicyObjective(
        loss=LOSS, aggregation="seq-mean-token-mean", kl_estimator=HALF_SQUARE, kl_tail="linear"
    ),
    PolicyObjective(
        loss=LOSS, aggregation="seq-mean-token-sum-norm", kl_estimator=LOG_RATIO, kl_tail="clamp"
    ),
)
SMALL = 12
"""Tokens of a micro-batch that holds one or two of the rows."""
LARGE = 16384
"""Tokens of a micro-batch that holds all rows."""
DTYPES = ("float32", "bfloat16")
CRITIC_STEPS = 20
"""Steps of a critic towards returns of 1, from values of about 0."""
CRITIC_ERROR = 0.2
"""Distance from these returns at which its values may be then."""


def check_logprobs_equal_a_plain_forward(subject: Subject) -> None:
    """Log-probs of actions are those of the plain model at the token before each, end-of-sequence and a padding token
    that was written included; also over several turns."""
    rows = rollouts()
    with tiny_model() as folder, running(subject, folder) as backend, torch.no_grad():
        expected = PlainModel(folder).outputs(rows).logprobs
        actual = torch.from_numpy(backend.logprobs(rows))
        assert_equal(actual, expected, "log-probs", atol=1e-3)


def check_temperature_is_applied(subject: Subject) -> None:
    """Log-probs, entropy and the sum of squares are of the distribution after the temperature; the order of tokens is
    the same without it."""
    rows = rollouts()
    with tiny_model() as folder, torch.no_grad():
        plain = PlainModel(folder).outputs(rows, temperature=0.6)
        with running(subject, folder, temperature=0.6) as backend:
            found = backend.statistics(rows, get_args(Statistic))
    for name, expected in (
        ("logprobs", plain.logprobs),
        ("entropy", plain.entropies),
        ("sum_pi_squared", plain.sum_pi_squared),
        ("is_top1", plain.is_top1),
    ):
        assert_equal(torch.from_numpy(found[name]), expected, f"{name} at 0.6", atol=1e-3)


def check_scores_do_not_depend_on_the_batch(subject: Subject) -> None:
    """A sequence has the same log-probs alone, beside others, and in a micro-batch of its own."""
    rows = rollouts()
    with tiny_model() as folder:
        with running(subject, folder) as backend:
            together = torch.from_numpy(backend.logprobs(rows))
            alone = [backend.logprobs(rows.select(np.array([row]))) for row in range(len(rows))]
        with running(subject, folder, max_tokens_per_micro_batch=SMALL) as backend:
            cut = torch.from_numpy(backend.logprobs(rows))
    assert_equal(torch.from_numpy(np.concatenate(alone)), together, "log-probs of rows alone")
    assert_equal(cut, together, "log-probs in small micro-batches")


def check_a_step_is_the_plain_gradient(subject: Subject) -> None:
    """One step moves the weights by the gradient of the written-out objective: policy loss, KL and entropy, each over
    the actions alone, at the temperature, divided by the totals of the step."""
    batch = train_batch()
    for terms in _OBJECTIVES:
        objective = replace(terms, entropy_bonus=True)
        plan = step_plan(batch.trajectories, kl_coef=0.3, entropy_coef=0.2)
        with tiny_model() as folder:
            plain = PlainModel(folder)
            plain.descend(written_out(plain, objective, plan, temperature=0.8))
            with running(subject, folder, objective, temperature=0.8) as backend:
                backend.train_step(batch, plan)
                assert_same_weights(
                    backend,
                    plain.state(),
                    f"after a step with {objective.aggregation}, {terms.kl_estimator and terms.kl_estimator.name} and "
                    f"tail {objective.kl_tail}",
                )


def check_rows_of_an_episode_weigh_as_one(subject: Subject) -> None:
    """An episode of several rows (``row_weights``) weighs as much as one of a single row, also where its rows are in
    different micro-batches."""
    batch, rows_per_episode = train_batch(), (2, 1, 2)
    lengths = batch.trajectories.num_actions
    episode = np.repeat(np.arange(3), rows_per_episode)
    shares = lengths / np.bincount(episode, weights=lengths)[episode]
    weights = np.repeat(shares, lengths).astype(np.float32)
    batch = replace(batch, columns={**batch.columns, ROW_WEIGHTS: weights})
    plan = step_plan(batch.trajectories, kl_coef=0.3, entropy_coef=0.2)
    plan = replace(plan, normalizers=replace(plan.normalizers, num_sequences=3))
    for mode, size in product(get_args(Aggregation), (SMALL, LARGE)):
        objective = replace(_OBJECTIVES[0], aggregation=mode, entropy_bonus=True)
        with tiny_model() as folder:
            plain = PlainModel(folder)
            loss = written_out(
                plain, objective, plan, temperature=1.0, rows_per_episode=rows_per_episode
            )
            plain.descend(loss)
            with running(subject, folder, objective, max_tokens_per_micro_batch=size) as backend:
                backend.train_step(batch, plan)
                what = f"after a step with {mode} over episodes of {rows_per_episode} rows"
                assert_same_weights(backend, plain.state(), what)


def check_the_plan_scales_the_learning_rate(subject: Subject) -> None:
    """``StepPlan.lr_factor`` multiplies the learning rate of the step: with half of it plain SGD goes half of the way,
    with 0 nowhere, and the next step with 1 is a usual one."""
    batch = train_batch()
    plan = step_plan(batch.trajectories)
    with tiny_model() as folder:
        with running(subject, folder) as backend:
            start = weights_of(backend)
            backend.train_step(batch, plan)
            whole = weights_of(backend)
        halfway = {name: (start[name] + whole[name]) / 2 for name in start}
        with running(subject, folder) as backend:
            before = backend.checksum()
            backend.train_step(batch, replace(plan, lr_factor=0.0))
            assert backend.checksum() == before, "lr_factor = 0 changed the weights"
            backend.train_step(batch, plan)
            assert_same_weights(backend, whole, "a step after one with lr_factor = 0")
        with running(subject, folder) as backend:
            backend.train_step(batch, replace(plan, lr_factor=0.5))
            assert_same_weights(backend, halfway, "with lr_factor = 0.5")


def check_every_parameter_is_trained(subject: Subject) -> None:
    """A step moves every weight of the policy: in float32 and bfloat16, with tied and untied embeddings, whole and in
    micro-batches."""
    batch = train_batch()
    for tied in (True, False):
        with tiny_model(tied=tied) as folder:
            names = list(PlainModel(folder).parameters())
            for dtype, limit in product(DTYPES, (LARGE, SMALL)):
                changes: dict[str, Any] = {"dtype": dtype, "max_tokens_per_micro_batch": limit}
                with running(subject, folder, optimizer=ADAMW, **changes) as backend:
                    before = weights_of(backend)
                    backend.train_step(batch, step_plan(batch.trajectories))
                    _assert_moved(before, weights_of(backend), names, f"a {dtype} policy")


def check_a_critic_learns_its_returns(subject: Subject) -> None:
    """A critic gets near returns that are all 1, in float32 and bfloat16, whole and in micro-batches, and every weight
    of its model moves."""
    batch = value_batch()
    rows = batch.trajectories
    with tiny_model() as folder:
        names = list(PlainModel(folder).parameters())
        for dtype, limit in product(DTYPES, (LARGE, SMALL)):
            spec: dict[str, Any] = {"role": "critic", "head": "value", "dtype": dtype}
            spec |= {"objective": ValueObjective(), "max_tokens_per_micro_batch": limit}
            with running(subject, folder, optimizer=ADAMW, **spec) as backend:
                before = weights_of(backend)
                for _ in range(CRITIC_STEPS):
                    backend.train_step(batch, step_plan(rows))
                error = float(np.abs(backend.values(rows) - 1.0).mean())
                assert error <= CRITIC_ERROR, (
                    f"a {dtype} critic is {error:.3g} from returns of 1 after {CRITIC_STEPS} steps of AdamW, expected "
                    f"at most {CRITIC_ERROR}; is the value head trained?"
                )
                _assert_moved(before, weights_of(backend), names, f"a {dtype} critic")


def _assert_moved(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], names: Sequence[str], what: str
) -> None:
    still = [name for name in names if name in before and torch.equal(before[name], after[name])]
    assert not still, (
        f"{what}: {len(still)} of {len(names)} trainable parameters did not move, the first is {still[0]}"
    )


def check_samples_of_a_prompt_are_as_each_alone(subject: Subject) -> None:
    """Sequences with the same prompt have the log-probs and gradients that each has by itself, also beside another
    prompt of the same length."""
    batch = train_batch(samples_of_prompts())
    rows = batch.trajectories
    with tiny_model() as folder, running(subject, folder) as backend:
        plain = PlainModel(folder)
        expected = plain.outputs(rows).logprobs
        actual = torch.from_numpy(backend.logprobs(rows))
        assert_equal(actual, expected.detach(), "log-probs of samples of a prompt", atol=1e-3)
        plain.descend(-(torch.from_numpy(batch.columns["advantages"]) * expected).mean())
        backend.train_step(batch, step_plan(rows))
        assert_same_weights(backend, plain.state(), "after a step on samples of a prompt")


def check_micro_batches_do_not_matter(subject: Subject) -> None:
    """However the step is cut, the weights after it are the same, and so are its metrics; it is cut where
    ``max_tokens_per_micro_batch`` is small."""
    batch = train_batch()
    for mode in get_args(Aggregation):
        loss = PolicyGradient(Config())
        objective = PolicyObjective(loss=LOSS, aggregation=mode)
        with tiny_model() as folder:
            with running(subject, folder, objective) as whole:
                first = whole.train_step(batch, step_plan(batch.trajectories)).metrics
                expected = weights_of(whole)
            small: dict[str, Any] = {"max_tokens_per_micro_batch": SMALL, "loss": loss}
            with running(subject, folder, objective, **small) as backend:
                second = backend.train_step(batch, step_plan(batch.trajectories)).metrics
                assert_same_weights(backend, expected, f"cut into micro-batches, {mode}")
        tokens = int(batch.trajectories.num_tokens.sum())
        assert len(loss.seen) > 1, f"one pass over {tokens} tokens; the limit of a pass is {SMALL}"
        one, other = (metrics["loss/policy"].value() for metrics in (first, second))
        assert abs(one - other) < 1e-4, f"loss/policy is {one:.6g} whole and {other:.6g} cut"


def check_the_ratio_is_exactly_one(subject: Subject) -> None:
    """In an on-policy step the old log-probs are the policy's own, to the bit and without a gradient."""
    batch, loss = train_batch(), PolicyGradient(Config())
    with tiny_model() as folder, running(subject, folder, loss=loss) as backend:
        backend.train_step(batch, step_plan(batch.trajectories))
    assert loss.seen, "the policy loss was not called"
    for inputs in loss.seen:
        mask = inputs.action_mask
        apart = (inputs.policy_logprobs - inputs.old_logprobs)[mask].detach().abs().max()
        assert float(apart) == 0.0, f"policy and old log-probs are {float(apart):.4g} apart"
        assert not inputs.old_logprobs.requires_grad, "the old log-probs carry a gradient"


def check_the_loss_sees_the_actions(subject: Subject) -> None:
    """The loss gets every action with its own advantage, and nothing of the prompt or of the environment."""
    batch, loss = train_batch(), PolicyGradient(Config())
    with tiny_model() as folder, running(subject, folder, loss=loss) as backend:
        backend.train_step(batch, step_plan(batch.trajectories))
        expected = batch.columns["advantages"]
    found = torch.cat([inputs.advantages[inputs.action_mask] for inputs in loss.seen])
    count, wanted = len(found), len(expected)
    assert count == wanted, f"the loss got {count} tokens; the batch has {wanted} actions"
    first, second = (np.sort(column) for column in (found.cpu().numpy(), expected))
    assert np.array_equal(first, second), "the advantages that the loss got are not the batch's"


def check_a_correction_weighs_the_loss(subject: Subject) -> None:
    """Weights of a correction multiply the token losses, and tokens that it drops still count in the normalizer."""
    batch = train_batch()
    rows = batch.trajectories
    objective = PolicyObjective(loss=LOSS, aggregation="token-mean", correction=CORRECTION)
    advantages, mask = pad_columns(
        torch.from_numpy(batch.columns["advantages"]), torch.from_numpy(rows.num_actions)
    )
    kept = 0.5 * torch.where(torch.arange(mask.shape[1]) > 0, advantages, 0.0)[mask]
    with tiny_model() as folder:
        plain = PlainModel(folder)
        plain.descend((-kept * plain.outputs(rows).logprobs).sum() / len(kept))
        with running(subject, folder, objective) as backend:
            backend.train_step(batch, step_plan(rows))
            assert_same_weights(backend, plain.state(), "with a correction")


def check_a_gradient_that_is_not_finite_is_skipped(subject: Subject) -> None:
    """NaN in the loss changes no weight, is counted, and leaves nothing behind for the next step."""
    batch = train_batch()
    broken = replace(
        batch, columns={**batch.columns, "advantages": batch.columns["advantages"] * np.nan}
    )
    plan = step_plan(batch.trajectories)
    with tiny_model() as folder:
        with running(subject, folder) as backend:
            backend.train_step(batch, plan)
            expected = weights_of(backend)
        with running(subject, folder) as backend:
            before = backend.checksum()
            skipped = backend.train_step(broken, plan).metrics["train/skipped_updates"].value()
            assert skipped == 1.0, f"train/skipped_updates is {skipped}, expected 1"
            assert backend.checksum() == before, "the weights changed"
            backend.train_step(batch, plan)
            assert_same_weights(backend, expected, "a step after a skipped one")


def check_state_continues(subject: Subject) -> None:
    """Saved and loaded, a backend has the same weights and goes on to the bit."""
    batch = train_batch()
    plan = step_plan(batch.trajectories)
    with tempfile.TemporaryDirectory() as saved, tiny_model() as folder:
        with running(subject, folder, optimizer=ADAMW) as first:
            first.train_step(batch, plan)
            first.save(Path(saved) / "state")
            stored = first.checksum()
            first.train_step(batch, plan)
            expected = first.checksum()
        with running(subject, folder, optimizer=ADAMW) as second:
            second.load(Path(saved) / "state")
            assert second.checksum() == stored, "other weights after loading"
            second.train_step(batch, plan)
            assert second.checksum() == expected, "other weights one step after loading"


def check_an_export_is_a_plain_model(subject: Subject) -> None:
    """The exported folder loads with Transformers and gives the log-probs that the backend gives."""
    batch = train_batch()
    with tempfile.TemporaryDirectory() as out, tiny_model() as folder:
        with running(subject, folder) as backend, torch.no_grad():
            with torch.enable_grad():
                backend.train_step(batch, step_plan(batch.trajectories))
            backend.export(Path(out) / "model")
            actual = torch.from_numpy(backend.logprobs(batch.trajectories))
            expected = PlainModel(Path(out) / "model").outputs(batch.trajectories).logprobs
        assert_equal(actual, expected, "log-probs of the export", atol=1e-3)


def check_offloading_keeps_the_weights(subject: Subject) -> None:
    """After ``offload`` and ``reload`` weights and log-probs are what they were, and the next step is that of a backend
    that stayed; first the state alone leaves, and once the weights alone come back."""
    batch = train_batch()
    rows, plan = batch.trajectories, step_plan(batch.trajectories)
    with tiny_model() as folder, running(subject, folder, optimizer=ADAMW) as backend:
        backend.train_step(batch, plan)
        before, checksum = backend.logprobs(rows), backend.checksum()
        backend.offload(weights=False, state=False)
        assert backend.checksum() == checksum, "other weights after offload of nothing"
        backend.offload(weights=False)
        backend.offload()
        backend.reload(state=False)
        assert backend.checksum() == checksum, "other weights after they came back alone"
        backend.offload()
        backend.reload()
        assert backend.checksum() == checksum, "other weights after reload"
        assert np.array_equal(backend.logprobs(rows), before), "other log-probs after reload"
        backend.train_step(batch, plan)
        moved = backend.checksum()
        with running(subject, folder, optimizer=ADAMW) as stayed:
            for _ in range(2):
                stayed.train_step(batch, plan)
            assert moved == stayed.checksum(), "another step after reload"


CHECKS = (
    routes.OF_BACKENDS
    + following.OF_BACKENDS
    + checks_in(
        __name__, *(part.__name__ for part in (mixtures, step_scores, plain_steps, role_settings))
    )
)
