"""Further losses beside the policy loss: weights, denominators of their own, rows of their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core.contracts import LossTerm, Normalizers


@pytest.fixture
def spec_with(make_spec, models, refs):
    def make(*terms, **changes):
        spec = make_spec(models["qwen3"], optimizer=refs.sgd, max_grad_norm=None, **changes)
        return replace(spec, objective=replace(spec.objective, terms=terms))

    return make


def term(refs, **changes):
    return LossTerm(**{"loss": refs.loss, "weight": 1.0, "aggregation": "token-mean", **changes})


def weights_after(backend, batch, plan):
    backend.train_step(batch, plan)
    return {name: value.clone() for name, value in backend.module().model.named_parameters()}


def test_a_term_equal_to_the_policy_loss_doubles_its_gradient(
    start, spec_with, make_batch, make_plan, refs
):
    batch = make_batch()
    plain, doubled = start(spec_with()), start(spec_with(term(refs, weight=1.0)))
    first = {n: p.detach().clone() for n, p in plain.module().model.named_parameters()}

    once = weights_after(plain, batch, make_plan(batch))
    twice = weights_after(doubled, batch, make_plan(batch))

    for name, before in first.items():
        torch.testing.assert_close(
            twice[name] - before, 2 * (once[name] - before), atol=1e-6, rtol=1e-4
        )


def test_a_term_has_its_own_aggregation_and_is_logged(
    start, spec_with, make_batch, make_plan, refs
):
    batch = make_batch()
    backend = start(spec_with(term(refs, aggregation="seq-mean-token-sum-norm", weight=0.5)))

    metrics = backend.train_step(batch, make_plan(batch)).metrics

    totals = make_plan(batch).normalizers
    by_tokens = metrics["loss/policy"].value() * totals.num_actions
    by_constant = metrics["loss/policy_gradient"].value() * totals.num_sequences * 20
    assert by_constant == pytest.approx(by_tokens, rel=1e-5)


def test_supervised_rows_add_the_gradient_of_their_own_mean(
    start, spec_with, make_batch, make_trajectories, make_plan, refs
):
    """The test's loss is -ratio * advantage: with advantage 1 it is -1, and its gradient that of -logprob."""
    batch, rows = make_batch(), make_trajectories(4, seed=9)
    silent = {name: np.zeros_like(column) for name, column in batch.columns.items()}
    batch = replace(batch, columns=silent, supervised=rows)
    spec = spec_with(term(refs, rows="supervised"), max_tokens_per_micro_batch=40)
    backend = start(spec)
    before = backend.logprobs(rows)
    totals = Normalizers(
        num_actions=int(rows.num_actions.sum()), num_sequences=len(rows), max_actions=20
    )

    metrics = backend.train_step(
        batch, replace(make_plan(batch), supervised_normalizers=totals)
    ).metrics

    assert metrics["loss/policy"].value() == 0.0
    assert metrics["loss/policy_gradient"].value() == pytest.approx(-1.0)
    assert backend.logprobs(rows).mean() > before.mean()


def test_the_teachers_tokens_reach_the_loss_with_the_policys_own_log_probs(
    start, spec_with, make_batch, make_plan
):
    batch = make_batch()
    backend = start(spec_with())
    top = backend.top_tokens(batch.trajectories, 5)

    backend.train_step(replace(batch, teacher_top=top), make_plan(batch))

    seen = backend._objective.components.loss.component.seen
    assert seen.policy_top_logprobs.requires_grad
    mask = seen.action_mask
    # The teacher is the policy itself here, so both name the same log-probs.
    torch.testing.assert_close(
        seen.policy_top_logprobs[mask], seen.teacher_top_logprobs[mask], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(seen.teacher_top_logprobs[mask], torch.from_numpy(top.logprobs))


def test_log_probs_of_the_forward_pass_come_back_when_asked_for(
    start, make_spec, make_batch, make_plan, models
):
    batch = make_batch()
    backend = start(make_spec(models["qwen3"], max_tokens_per_micro_batch=40))
    expected = backend.logprobs(batch.trajectories)

    without = start(make_spec(models["qwen3"])).train_step(batch, make_plan(batch))
    outcome = backend.train_step(batch, make_plan(batch, return_logprobs=True))

    assert without.logprobs is None
    assert without.entropies is None
    assert outcome.entropies is None
    np.testing.assert_allclose(outcome.logprobs, expected, atol=1e-6)


def test_entropies_of_the_forward_pass_come_back_when_asked_for(
    start, make_spec, make_batch, make_plan, models
):
    """In the order of the batch's actions, whatever the micro-batches are."""
    batch = make_batch()
    backend = start(make_spec(models["qwen3"], max_tokens_per_micro_batch=40))
    expected = backend.statistics(batch.trajectories, ["entropy"])["entropy"]

    outcome = backend.train_step(batch, make_plan(batch, return_entropies=True))

    assert outcome.logprobs is None
    np.testing.assert_allclose(outcome.entropies, expected, atol=1e-5)
    assert expected.std() > 1e-3  # so that another order would be seen


def test_prepared_columns_reach_the_loss_under_their_names(
    start, make_spec, make_batch, make_plan, models
):
    batch = make_batch()
    column = np.arange(len(batch.columns["advantages"]), dtype=np.float32)
    batch = replace(batch, columns={**batch.columns, "prepared/mark": column})
    backend = start(make_spec(models["qwen3"]))

    backend.train_step(batch, make_plan(batch))

    seen = backend._objective.components.loss.component.seen
    assert set(seen.prepared) == {"mark"}
    torch.testing.assert_close(seen.prepared["mark"][seen.action_mask], torch.from_numpy(column))
