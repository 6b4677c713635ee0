"""From the estimator's result to columns and metrics."""

import numpy as np
import pytest
import torch

from rlhf_core.contracts import Advantages, Metric
from rlhf_core.errors import NonFiniteError, PluginError
from rlhf_plugin_algorithms.kl.k1 import k1
from rlhf_testing.errors import has_code
from rlhf_trainer.learning.advantages import KlPenalty, advantages
from rlhf_trainer.learning.model_outputs import ModelOutputs

NOTHING = ModelOutputs(columns={})


def test_the_measured_kl_does_not_depend_on_the_coefficient(batch):
    columns = {
        "old_logprobs": np.float32([-1.0, -2.0, -0.5, -1.0, -1.0]),
        "ref_logprobs": np.float32([-1.5, -1.0, -0.5, -1.0, -3.0]),
    }
    for coef in (0.1, 3.0):
        _, metrics = advantages(
            batch,
            ModelOutputs(columns=columns),
            constant(1.0),
            KlPenalty(coef=coef, estimator=k1),
        )
        assert metrics["kl/ref"].value() == pytest.approx((0.5 - 1 + 0 + 0 + 2) / 5)


def constant(value):
    return lambda made: Advantages(advantages=torch.full(made.action_mask.shape, value))


def test_advantages_come_back_as_a_flat_column(batch):
    columns, _ = advantages(
        batch, NOTHING, lambda made: Advantages(advantages=made.token_rewards), None
    )

    np.testing.assert_allclose(columns["advantages"], [0, 0.5, 2.25, 0, -1.0])


def test_an_advantage_that_is_not_finite_names_the_sample(batch):
    def broken(made):
        values = torch.zeros(made.action_mask.shape)
        values[1, 1] = torch.nan
        return Advantages(advantages=values)

    with pytest.raises(
        NonFiniteError,
        match=r"advantages of sample 0\.4\.1\.0 is nan at action token 1",
        check=has_code("training/value-not-finite"),
    ):
        advantages(batch, NOTHING, broken, None)


def test_nan_at_padding_is_no_problem(batch):
    def sloppy(made):
        return Advantages(advantages=torch.where(made.action_mask, 1.0, torch.nan))

    columns, _ = advantages(batch, NOTHING, sloppy, None)

    np.testing.assert_array_equal(columns["advantages"], np.ones(5))


def test_an_estimator_with_values_owes_returns(batch):
    with pytest.raises(PluginError, check=has_code("plugin/no-returns")):
        advantages(
            batch, ModelOutputs(columns={"values": np.zeros(5, np.float32)}), constant(1.0), None
        )


def test_explained_variance_by_hand(batch):
    returns = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])
    columns = {"values": np.float32([1.0, 2.0, 3.0, 4.0, 3.0])}

    def estimator(made):
        return Advantages(advantages=returns, returns=returns)

    _, metrics = advantages(batch, ModelOutputs(columns=columns), estimator, None)

    # returns 1..5 have variance 2; the errors (0, 0, 0, 0, 2) have variance 4/5 - (2/5)^2 = 0.64
    assert metrics["critic/explained_variance"].value() == pytest.approx(1 - 0.64 / 2)


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("group/reward_std", {}),
        ("group/no_signal", {}),
        ("advantage/abs_mean", {}),
        ("critic/explained_variance", {"values": np.zeros(5, np.float32)}),
        (
            "kl/ref",
            {"old_logprobs": np.zeros(5, np.float32), "ref_logprobs": np.ones(5, np.float32)},
        ),
    ],
)
def test_a_metric_of_the_estimator_is_refused_that_is_called_like_one_of_the_step(
    batch, name, columns
):
    """The estimator's number was recorded as the group's, or the step's as the estimator's."""

    def estimator(made):
        zeros = torch.zeros(made.action_mask.shape)
        returns = zeros if "values" in columns else None
        return Advantages(advantages=zeros, returns=returns, metrics={name: Metric(9.0)})

    outputs = ModelOutputs(columns=columns)
    penalty = KlPenalty(coef=0.1, estimator=k1) if "ref_logprobs" in columns else None
    says = rf"^--algo.advantage.estimator mine \(v1\): {name} is "
    with pytest.raises(PluginError, match=says, check=has_code("metric/name-taken")):
        advantages(batch, outputs, estimator, penalty, label="--algo.advantage.estimator mine (v1)")


def test_a_metric_of_the_estimator_with_a_name_of_its_own_is_kept(batch):
    def estimator(made):
        zeros = torch.zeros(made.action_mask.shape)
        return Advantages(advantages=zeros, metrics={"advantage/mine": Metric(9.0)})

    _, metrics = advantages(batch, NOTHING, estimator, None)

    assert metrics["advantage/mine"].value() == 9.0
    assert {"group/reward_std", "group/no_signal", "advantage/abs_mean"} <= metrics.keys()
