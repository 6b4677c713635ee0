"""The policy's loss on rollouts: by hand, against a loop over tokens, cut anyhow."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from rlhf_core import PluginError
from rlhf_core.batch.metric import merge_metrics, metric_values
from rlhf_core.contracts import TopTokens
from rlhf_core.objective import ActionColumns, ActionGrid, ActionScores
from rlhf_testing.errors import has_code

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KLS = (None, "k1", "k2", "k3", "unbiased")
CORRECTIONS = ("none", "applied", "left_to_the_loss")
LENGTHS = (2, 1, 3)
ALL = range(3)


def weight_of(aggregation, length):
    """The weight of a token in a row of ``length``: 6 actions, 3 rows, at most 4 actions a row."""
    return {
        "token-mean": 1 / 6,
        "seq-mean-token-mean": 1 / (3 * length),
        "seq-mean-token-sum-norm": 1 / (3 * 4),
    }[aggregation]


def kl_of(kl, policy, old, reference):
    log_ratio = policy - reference
    match kl:
        case None:
            return 0.0
        case "k1":
            return log_ratio
        case "k2":
            return log_ratio**2 / 2
        case "k3":
            return torch.exp(-log_ratio) - 1 + log_ratio
    # The value of k2, and the gradient w * log_ratio.
    pull = min((policy - old).exp().item(), 10.0) * log_ratio.detach()
    return log_ratio.detach() ** 2 / 2 + pull * (policy - policy.detach())


def loop_over_tokens(batch, logprobs, entropies, *, aggregation, kl, correction, bonus, terms):
    """The loss of the whole step, a token at a time."""
    total, place = 0.0, 0
    for length in LENGTHS:
        for _ in range(length):
            column = {name: float(values[place]) for name, values in batch.columns.items()}
            policy, old = logprobs[place], column["old_logprobs"]
            loss = -column["advantages"] * torch.exp(policy - old)
            if correction == "applied":
                loss = loss * np.exp(old - column["rollout_logprobs"])
            if correction != "none" and column["rollout_logprobs"] > -0.5:
                loss = 0.0
            loss = loss + 0.3 * kl_of(kl, policy, old, column["ref_logprobs"])
            if bonus:
                loss = loss - 0.2 * entropies[place]
            total = total + weight_of(aggregation, length) * loss
            for weight, other in terms:
                total = total + weight * weight_of(other, length) * policy**2
            place += 1
    return total


@pytest.mark.parametrize(
    ("aggregation", "kl", "correction"), list(product(AGGREGATIONS, KLS, CORRECTIONS))
)
@pytest.mark.parametrize("rest", [False, True], ids=["alone", "with_entropy_and_terms"])
def test_it_is_the_sum_over_tokens(
    built, batch, plan, leaves, part, refs, term, aggregation, kl, correction, rest
):
    """Loss and gradient equal a loop over tokens, for every combination of what an objective may name."""
    others = [(0.5, "seq-mean-token-mean"), (0.25, "seq-mean-token-sum-norm")] if rest else []
    objective = built(
        loss=refs.own_weights if correction == "left_to_the_loss" else refs.loss,
        aggregation=aggregation,
        correction=None if correction == "none" else refs.correction,
        kl_estimator=kl and getattr(refs, "k2" if kl == "unbiased" else kl),
        kl_unbiased_gradient=kl == "unbiased",
        entropy_bonus=rest,
        terms=tuple(term(weight=weight, aggregation=other) for weight, other in others),
    )
    leaf = leaves()
    loss, _ = objective.rollouts(*part(batch, ALL, *leaf), plan)
    loss.backward()

    same = leaves()
    expected = loop_over_tokens(
        batch,
        *same,
        aggregation=aggregation,
        kl=kl,
        correction=correction,
        bonus=rest,
        terms=others,
    )
    expected.backward()

    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(leaf[0].grad, same[0].grad, atol=1e-7, rtol=1e-6)
    # Without a bonus nothing reads the entropies, and neither side gives them a gradient.
    torch.testing.assert_close(leaf[1].grad, same[1].grad, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("coef", [0.0, 0.5])
def test_parts_are_logged_without_their_coefficients(
    built, batch, plan, leaves, part, refs, term, coef
):
    """A coefficient of 0 keeps the metric."""
    given, plan = part(batch, ALL, *leaves()), replace(plan, kl_coef=coef, entropy_coef=coef)
    objective = built(kl_estimator=refs.k3, entropy_bonus=True, terms=(term(weight=coef),))

    loss, metrics = objective.rollouts(*given, plan)
    parts = {
        name: metrics[f"loss/{name}"].value() for name in ("policy", "kl", "entropy", "square")
    }

    assert all(parts.values())
    expected = parts["policy"] + coef * (parts["kl"] - parts["entropy"] + parts["square"])
    assert loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("cut", [[[0], [1], [2]], [[1, 2], [0]], [[0, 2], [1]], [[2, 1, 0]]])
def test_it_does_not_depend_on_the_micro_batches(
    built, batch, plan, leaves, part, refs, term, aggregation, cut
):
    objective = built(
        aggregation=aggregation,
        correction=refs.correction,
        kl_estimator=refs.k3,
        entropy_bonus=True,
        terms=(term(),),
    )
    whole = leaves()
    loss, metrics = objective.rollouts(*part(batch, ALL, *whole), plan)
    loss.backward()

    leaf, parts = leaves(), []
    for rows in cut:
        share, found = objective.rollouts(*part(batch, rows, *leaf), plan)
        share.backward()
        parts.append(found)

    for found, wanted in zip(leaf, whole, strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, atol=1e-12, rtol=1e-9)
    own = ("loss/", "kl/", "policy/")
    merged = metric_values(merge_metrics(parts))
    for name, value in metric_values(metrics).items():
        if name.startswith(own):
            assert merged[name] == pytest.approx(value, rel=1e-6), name


def test_padding_gets_no_gradient_and_has_no_effect(built, batch, plan, leaves, refs):
    """A grid with two columns more than the longest row gives the same loss, to the bit."""
    objective = built(correction=refs.correction, kl_estimator=refs.k3, entropy_bonus=True)
    logprobs, entropies = leaves()
    scores = ActionScores(logprobs=logprobs, entropies=entropies)
    narrow = ActionGrid.of(np.array(LENGTHS), torch.device("cpu"))
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    wide = ActionGrid(mask=mask, index=mask.flatten().nonzero()[:, 0])

    losses = [
        objective.rollouts(scores, ActionColumns.of(batch, np.arange(3), grid), plan)[0]
        for grid in (narrow, wide)
    ]

    torch.testing.assert_close(losses[1], losses[0], atol=1e-12, rtol=0)
    losses[1].backward()
    assert logprobs.grad.isfinite().all()


def test_a_dropped_token_gets_no_gradient_of_the_policy_loss(
    built, batch, plan, leaves, part, refs
):
    rollout = np.array([-1.0, -0.4, -1.0, -0.3, -1.0, -1.0], dtype=np.float32)
    batch = replace(batch, columns={**batch.columns, "rollout_logprobs": rollout})
    logprobs, entropies = leaves()

    loss, _ = built(correction=refs.correction).rollouts(
        *part(batch, ALL, logprobs, entropies), plan
    )
    loss.backward()

    assert (logprobs.grad == 0).tolist() == [False, True, False, True, False, False]


def test_two_tokens_by_hand(built, batch, leaves, part, plan):
    """On-policy the ratio is 1: the loss is -(2 - 4) / 6 = 1/3, its gradient -A / 6."""
    advantages = np.array([2, -4, 0, 0, 0, 0], dtype=np.float32)
    batch = replace(batch, columns={"advantages": advantages})
    logprobs, entropies = leaves()

    loss, metrics = built().rollouts(
        *part(batch, ALL, logprobs, entropies), replace(plan, on_policy=True)
    )
    loss.backward()

    assert loss.item() == pytest.approx(1 / 3)
    assert logprobs.grad.tolist() == pytest.approx([-2 / 6, 4 / 6, 0, 0, 0, 0])
    assert metrics["policy/approx_kl"].value() == 0.0
    assert metrics["loss/policy"].value() == pytest.approx(1 / 3)


def test_on_policy_the_old_log_probs_are_the_policys_to_the_bit(built, batch, leaves, part, plan):
    objective = built()

    objective.rollouts(*part(batch, ALL, *leaves()), replace(plan, on_policy=True))

    (seen,) = objective.components.loss.component.seen
    assert torch.equal(seen.policy_logprobs, seen.old_logprobs)
    assert not seen.old_logprobs.requires_grad


def test_on_policy_a_correction_compares_the_old_log_probs_of_the_batch(
    built, batch, leaves, part, plan, refs
):
    """Where they are the sampler's the weights are 1, whatever an adapter's dropout makes of the update's own."""
    equal = np.full(6, -1.0, dtype=np.float32)
    columns = {"old_logprobs": equal, "rollout_logprobs": equal, "advantages": np.ones(6, "f4")}
    logprobs, entropies = leaves()

    loss, _ = built(correction=refs.correction).rollouts(
        *part(replace(batch, columns=columns), ALL, logprobs, entropies),
        replace(plan, on_policy=True),
    )
    loss.backward()

    assert logprobs.grad.tolist() == pytest.approx([-1 / 6] * 6)


def test_a_loss_sees_what_the_batch_has_and_no_more(built, batch, leaves, part, plan, refs):
    columns = {name: batch.columns[name] for name in ("advantages", "old_logprobs")}
    batch = replace(batch, columns=columns)
    plain, reader = built(), built(loss=refs.reads_entropy)

    for objective in (plain, reader):
        objective.rollouts(*part(batch, ALL, *leaves()), plan)

    (seen,), (read,) = (objective.components.loss.component.seen for objective in (plain, reader))
    assert seen.entropy is None
    assert seen.ref_logprobs is None
    assert seen.is_weights is None
    assert not read.entropy.requires_grad


def test_the_teachers_tokens_and_the_policys_log_probs_of_them_reach_the_loss(
    built, batch, leaves, part, plan
):
    draw = np.random.default_rng(2)
    top = TopTokens(
        token_ids=draw.integers(0, 50, size=(6, 4)).astype(np.int32),
        logprobs=draw.uniform(-3, 0, size=(6, 4)).astype(np.float32),
    )
    batch, objective = replace(batch, teacher_top=top), built()
    scores, columns = part(batch, ALL, *leaves())
    assert columns.teacher_top_ids.tolist() == top.token_ids.tolist()
    others = torch.randn(6, 4, requires_grad=True)

    objective.rollouts(replace(scores, others=others), columns, plan)

    (seen,) = objective.components.loss.component.seen
    mask = seen.action_mask
    assert seen.policy_top_logprobs.shape == (3, 3, 4)
    torch.testing.assert_close(seen.policy_top_logprobs[mask], others)
    torch.testing.assert_close(seen.teacher_top_logprobs[mask], torch.from_numpy(top.logprobs))


def test_metrics_of_components_are_passed_on(built, batch, leaves, part, plan, refs):
    objective = built(correction=refs.correction)

    _, metrics = objective.rollouts(*part(batch, ALL, *leaves()), plan)

    assert metrics["clip/fraction"].value() == 1.0
    assert metrics["correction/mean"].value() == 2.0


def test_a_missing_column_is_named(built, batch, leaves, part, plan):
    batch = replace(batch, columns={"advantages": batch.columns["advantages"]})

    with pytest.raises(
        PluginError,
        match="'old_logprobs'; the batch has advantages",
        check=has_code("plugin/missing-column"),
    ):
        built().rollouts(*part(batch, ALL, *leaves()), plan)
