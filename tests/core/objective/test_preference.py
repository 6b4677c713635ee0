"""The loss on answers some of which were preferred."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from rlhf_core import Component, PluginError, Registered
from rlhf_core.batch.metric import merge_metrics, metric_values
from rlhf_core.capabilities import UNPAIRED_ANSWERS
from rlhf_core.contracts import (
    ANSWER_WEIGHTS,
    PAIR_WEIGHTS,
    ComponentRef,
    Normalizers,
    PreferenceObjective,
    PreferenceResult,
    PreferenceTerm,
    StepPlan,
    ValueObjective,
)
from rlhf_core.objective import (
    ActionColumns,
    ActionGrid,
    ActionScores,
    build_objective,
    rows_per_unit,
)
from rlhf_core.objective.preference import preference_objective
from rlhf_core.plugins import empty
from rlhf_testing.errors import has_code

LENGTHS = (2, 1, 3, 2)
"""Actions of the rows: chosen, rejected, chosen, rejected."""


class Logistic:
    """-log sigmoid of the difference of the log-ratios, whose reward is half the log-ratio."""

    def __call__(self, inputs):
        chosen, rejected = inputs.chosen.log_ratio, inputs.rejected.log_ratio
        return PreferenceResult(
            loss=-torch.nn.functional.logsigmoid(chosen - rejected),
            chosen_rewards=chosen.detach() / 2,
            rejected_rewards=rejected.detach() / 2,
        )


def mean_of_logistic(inputs):
    found = Logistic()(inputs)
    return replace(found, loss=found.loss.mean())


def row_of_logistic(inputs):
    """The mean as a row, which would be broadcast over the pairs of another loss."""
    found = Logistic()(inputs)
    return replace(found, loss=found.loss.mean()[None])


def with_one_reward(inputs):
    found = Logistic()(inputs)
    return replace(found, rejected_rewards=found.rejected_rewards.mean())


class EachAnswer:
    """The mean log-prob of a token, with the sign of the label; takes answers without a partner."""

    def __call__(self, inputs):
        chosen, rejected = inputs.chosen, inputs.rejected
        parts = -chosen.policy / chosen.num_tokens, rejected.policy / rejected.num_tokens
        return PreferenceResult(
            loss=torch.cat(parts),
            chosen_rewards=chosen.policy.detach(),
            rejected_rewards=rejected.policy.detach(),
        )


@pytest.fixture
def build():
    plugins = empty()
    registry = plugins.registries["rlhf_preference_losses"]
    for component in (
        Component(name="logistic", factory=lambda config: Logistic()),
        Component(name="mean", factory=lambda config: mean_of_logistic),
        Component(name="row", factory=lambda config: row_of_logistic),
        Component(name="one_reward", factory=lambda config: with_one_reward),
        Component(name="nothing", factory=lambda config: lambda inputs: None),
        Component(
            name="each",
            factory=lambda config: EachAnswer(),
            provides=frozenset({UNPAIRED_ANSWERS}),
        ),
    ):
        registry.add(Registered(component, "test"))

    def of(name, nll_coef=0.0, further=()):
        ref, *others = (
            ComponentRef(kind="rlhf_preference_losses", name=f"test:{each}")
            for each in (name, *further)
        )
        terms = tuple(PreferenceTerm(loss=other, weight=0.5) for other in others)
        objective = PreferenceObjective(loss=ref, nll_coef=nll_coef, terms=terms)
        return build_objective(objective, plugins)

    return of


@pytest.fixture
def logprobs():
    return torch.tensor([-0.5, -1.0, -2.0, -0.1, -0.2, -0.3, -1.5, -0.25]).double().requires_grad_()


REFERENCE = torch.tensor([-0.4, -1.1, -1.0, -0.2, -0.2, -0.2, -1.0, -0.5]).double()


def part(
    logprobs,
    rows,
    *,
    reference=REFERENCE,
    rewards=(1.0, 0.0, 1.0, 0.0),
    weights=None,
    of_pairs=None,
):
    """Scores and columns of some rows."""
    starts = np.cumsum([0, *LENGTHS])
    index = torch.from_numpy(np.concatenate([np.arange(starts[r], starts[r + 1]) for r in rows]))
    grid = ActionGrid.of(np.array(LENGTHS)[list(rows)], torch.device("cpu"))
    mine = logprobs[index]
    flat = {} if reference is None else {"ref_logprobs": reference[index]}
    if weights is not None:
        flat[ANSWER_WEIGHTS] = weights[index]
    if of_pairs is not None:
        flat[PAIR_WEIGHTS] = torch.tensor(np.repeat(np.repeat(of_pairs, 2), LENGTHS))[index]
    given = None if rewards is None else torch.tensor(rewards)[list(rows)]
    scores = ActionScores(logprobs=mine, entropies=torch.zeros_like(mine))
    return scores, ActionColumns(flat=flat, grid=grid, rewards=given)


PLAN = StepPlan(normalizers=Normalizers(num_actions=8, num_sequences=4, max_actions=9))


def by_hand(logprobs, nll_coef=0.0):
    ends = np.cumsum([0, *LENGTHS])
    sums = [logprobs[a:b].sum() for a, b in itertools.pairwise(ends)]
    refs = [REFERENCE[a:b].sum() for a, b in itertools.pairwise(ends)]
    total = 0.0
    for chosen, rejected in ((0, 1), (2, 3)):
        z = (sums[chosen] - refs[chosen]) - (sums[rejected] - refs[rejected])
        total = total + torch.log1p(torch.exp(-z)) / 2
        total = total + nll_coef * (-sums[chosen] / LENGTHS[chosen]) / 2
    return total


@pytest.mark.parametrize("nll_coef", [0.0, 0.3])
def test_it_is_the_mean_over_pairs(build, logprobs, nll_coef):
    loss, metrics = build("logistic", nll_coef).rollouts(*part(logprobs, range(4)), PLAN)
    (slope,) = torch.autograd.grad(loss, logprobs)

    expected = by_hand(logprobs, nll_coef)
    (wanted,) = torch.autograd.grad(expected, logprobs)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(slope, wanted)
    values = metric_values(merge_metrics([metrics]))
    # Log-ratios: 0.0 and -1.0, then 0.0 and -0.25; rewards are half of them.
    assert values["preference/margin"] == pytest.approx((0.5 + 0.125) / 2)
    assert values["preference/accuracy"] == 1.0
    assert values["preference/chosen_nll"] == pytest.approx((1.5 / 2 + 0.6 / 3) / 2)
    assert ("loss/nll" in values) == (nll_coef > 0)


WEIGHTS = torch.tensor([1.0, 0.25, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0]).double()


@pytest.mark.parametrize("nll_coef", [0.0, 0.3])
@pytest.mark.parametrize("cut", [[range(4)], [(0, 1), (2, 3)]], ids=["whole", "a_pair_at_a_time"])
def test_weights_of_tokens_are_those_of_both_models_and_not_of_the_likelihood(
    build, logprobs, nll_coef, cut
):
    """Log-ratios: -0.1 + 0.25 * 0.1 and -1, then 0.1 - 0.5 * 0.1 and -0.25."""
    parts = [
        build("logistic", nll_coef).rollouts(*part(logprobs, rows, weights=WEIGHTS), PLAN)
        for rows in cut
    ]
    loss = sum(each for each, _ in parts)
    (slope,) = torch.autograd.grad(loss, logprobs)

    margins = [-0.075 + 1.0, 0.05 + 0.25]
    pushes = [1 / (1 + math.exp(z)) / 2 for z in margins]  # d loss / d chosen log-prob, negated
    expected = sum(math.log1p(math.exp(-z)) / 2 for z in margins)
    expected += nll_coef * (1.5 / 2 + 0.6 / 3) / 2
    assert loss.item() == pytest.approx(expected)
    signs = [-pushes[0], -pushes[0], pushes[0], *[-pushes[1]] * 3, pushes[1], pushes[1]]
    likelihood = [-1 / 4, -1 / 4, 0, -1 / 6, -1 / 6, -1 / 6, 0, 0]
    wanted = [
        sign * weight + nll_coef * extra
        for sign, weight, extra in zip(signs, WEIGHTS.tolist(), likelihood, strict=True)
    ]
    assert slope.tolist() == pytest.approx(wanted)
    values = metric_values(merge_metrics([metrics for _, metrics in parts]))
    assert values["preference/chosen_nll"] == pytest.approx((1.5 / 2 + 0.6 / 3) / 2)


@pytest.mark.parametrize("cut", [[range(4)], [(0, 1), (2, 3)]], ids=["whole", "a_pair_at_a_time"])
def test_weights_of_pairs_multiply_their_losses_and_not_the_divisor(build, logprobs, cut):
    """Log-ratios: 0.0 and -1.0, then 0.0 and -0.25; the likelihood is not weighted."""
    parts = [
        build("logistic", 0.3).rollouts(*part(logprobs, rows, of_pairs=[0.5, 0.1]), PLAN)
        for rows in cut
    ]
    loss = sum(each for each, _ in parts)

    likelihood = 0.3 * (1.5 / 2 + 0.6 / 3) / 2
    losses = [math.log1p(math.exp(-1.0)), math.log1p(math.exp(-0.25))]
    assert loss.item() == pytest.approx((0.5 * losses[0] + 0.1 * losses[1]) / 2 + likelihood)
    (slope,) = torch.autograd.grad(loss - likelihood_of(logprobs), logprobs)
    pushes = [0.5 / (1 + math.exp(1.0)) / 2, 0.1 / (1 + math.exp(0.25)) / 2]
    wanted = [-pushes[0]] * 2 + [pushes[0]] + [-pushes[1]] * 3 + [pushes[1]] * 2
    assert slope.tolist() == pytest.approx(wanted)
    values = metric_values(merge_metrics([metrics for _, metrics in parts]))
    assert values["preference/pair_weight"] == pytest.approx(0.3)


def likelihood_of(logprobs):
    return 0.3 * (-logprobs[:2].sum() / 2 - logprobs[3:6].sum() / 3) / 2


def test_equal_weights_of_1_change_no_bit(build, logprobs):
    found = []
    for weights, of_pairs in ((None, None), (torch.ones(8).double(), [1.0, 1.0])):
        rows = part(logprobs, range(4), weights=weights, of_pairs=of_pairs)
        loss, _ = build("logistic", 0.3).rollouts(*rows, PLAN)
        found.append((loss, *torch.autograd.grad(loss, logprobs)))

    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_it_does_not_depend_on_the_micro_batches(build, logprobs):
    objective = build("logistic", 0.3)
    whole, metrics = objective.rollouts(*part(logprobs, range(4)), PLAN)

    parts = [objective.rollouts(*part(logprobs, rows), PLAN) for rows in ((0, 1), (2, 3))]

    torch.testing.assert_close(sum(loss for loss, _ in parts), whole)
    together = metric_values(merge_metrics([metrics for _, metrics in parts]))
    assert together == pytest.approx(metric_values(merge_metrics([metrics])))


def test_chosen_and_rejected_are_told_by_their_reward(build, logprobs):
    objective = build("logistic")
    right, _ = objective.rollouts(*part(logprobs, range(4)), PLAN)
    swapped, _ = objective.rollouts(*part(logprobs, range(4), rewards=(0.0, 1.0, 0.0, 1.0)), PLAN)

    # With z the log-ratio of the two, log(1 + exp(-z)) and log(1 + exp(z)) differ by z.
    torch.testing.assert_close(swapped - right, torch.tensor((1.0 + 0.25) / 2).double())


def test_answers_without_a_partner_are_units_of_their_own(build, logprobs):
    objective = build("each")
    rows = part(logprobs, (0, 1, 3), rewards=(1.0, 0.0, 0.0, 0.0))
    plan = StepPlan(normalizers=Normalizers(num_actions=5, num_sequences=3, max_actions=9))

    loss, metrics = objective.rollouts(*rows, plan)

    expected = (1.5 / 2 - 2.0 / 1 - 1.75 / 2) / 3
    assert loss.item() == pytest.approx(expected)
    assert objective.rows_per_unit == 1
    assert "preference/accuracy" not in metrics


def test_a_loss_whose_reference_is_missing_says_so(build, logprobs):
    with pytest.raises(PluginError, check=has_code("plugin/no-ref-logprobs")):
        build("logistic").rollouts(*part(logprobs, range(4), reference=None), PLAN)


def test_rows_without_rewards_are_refused(build, logprobs):
    with pytest.raises(
        PluginError, match="needs the rewards of the rows", check=has_code("plugin/no-rewards")
    ):
        build("logistic").rollouts(*part(logprobs, range(4), rewards=None), PLAN)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "mean",
            r"^test:mean \(test\) returned loss of shape \(\); expected \(2,\), a number for each pair, which",
        ),
        ("one_reward", r"returned rejected_rewards of shape \(\); expected \(2,\), a number for"),
        (
            "nothing",
            r"^test:nothing \(test\) returned None \(NoneType\); expected PreferenceResult",
        ),
    ],
)
def test_an_answer_that_is_no_loss_of_each_pair_is_refused(build, logprobs, name, says):
    with pytest.raises(PluginError, match=says, check=has_code("plugin/wrong-answer")):
        build(name).rollouts(*part(logprobs, range(4)), PLAN)


@pytest.mark.parametrize(("name", "shape"), [("row", r"\(1,\)"), ("mean", r"\(\)")])
def test_each_part_of_a_sum_is_refused_by_its_own_name(build, logprobs, name, shape):
    """A part that is a mean would be broadcast, and the sum has the right shape."""
    says = rf"^test:{name} \(test\) returned loss of shape {shape}; expected \(2,\), a number for each pair"
    with pytest.raises(PluginError, match=says, check=has_code("plugin/wrong-answer")):
        build("logistic", further=(name,)).rollouts(*part(logprobs, range(4)), PLAN)


class WithNan(ActionColumns):
    """Columns with NaN at padding."""

    def optional(self, name):
        column = super().optional(name)
        return None if column is None else torch.where(self.grid.mask, column, torch.nan)


def test_padding_has_no_effect(build, logprobs):
    """The column of the shorter row is padded with whatever the grid pads with; the sums leave it out."""
    scores, columns = part(logprobs, range(4), weights=torch.ones(8).double(), of_pairs=[1.0, 1.0])
    spoiled = WithNan(flat=columns.flat, grid=columns.grid, rewards=columns.rewards)

    loss, _ = preference_objective(Logistic(), scores, spoiled, PLAN, rows_per_unit=2, nll_coef=0.0)

    torch.testing.assert_close(loss, by_hand(logprobs))


def test_only_a_loss_on_pairs_keeps_rows_together():
    assert rows_per_unit(None, empty()) == 1
    assert rows_per_unit(ValueObjective(), empty()) == 1


def test_a_loss_is_given_the_mismatched_kl_of_the_whole_update(build, logprobs):
    seen = []
    objective = build("each")
    (loss,) = objective.loss.args
    spy = partial(
        objective.loss.func,
        lambda inputs: seen.append(inputs) or loss(inputs),
        **objective.loss.keywords,
    )
    spying = replace(objective, loss=spy)

    for plan in (PLAN, replace(PLAN, mismatched_kl=-0.25)):
        spying.rollouts(*part(logprobs, range(4)), plan)

    assert seen[0].mismatched_kl is None
    assert seen[1].mismatched_kl.item() == -0.25
