"""Metrics of a step do not depend on the number of its updates: losses are means over them, counts are sums."""

import pytest

pytestmark = pytest.mark.slow

STILL = ["--actor.adam.lr", "1e-12", "--steps", "1"]
"""Weights that do not move, so that all updates of the step see the same model."""


@pytest.fixture
def first_step(train, workspace):
    """The metrics of a step on twelve sequences, with so many of them in an update."""

    def run(batch_size, *flags):
        common = ["--reward", "vary.py:vary", "--train.batch_size", str(batch_size), *STILL]
        (line,) = train(f"run{batch_size}", *common, *flags)
        return line["metrics"]

    return run


def test_losses_of_the_policy_are_means_over_updates(first_step):
    flags = ["--algo.loss.entropy_coef", "0.01", "--algo.kl.coef", "0.1", "--algo.kl.mode", "loss"]
    flags += ["--algo.kl.estimator", "k3"]

    whole, cut = (first_step(size, *flags) for size in (12, 3))

    # Responses are of equal length up to an early end, so updates weigh nearly the same.
    assert whole["loss/entropy"] == pytest.approx(whole["policy/entropy"], rel=1e-5)
    assert cut["loss/entropy"] == pytest.approx(whole["loss/entropy"], rel=0.02)
    assert cut["loss/policy"] == pytest.approx(whole["loss/policy"], abs=0.1)
    assert (whole["train/micro_batches"], cut["train/micro_batches"]) == (1.0, 4.0)
    assert cut["train/tokens"] == whole["train/tokens"]
    assert cut["train/skipped_updates"] == 0.0


def test_the_loss_of_the_critic_is_a_mean_over_updates(first_step):
    flags = ["--estimator", "gae", "--critic.adam.lr", "1e-12"]

    whole, cut = (first_step(size, *flags) for size in (12, 3))

    assert whole["critic/loss"] > 0.1
    assert cut["critic/loss"] == pytest.approx(whole["critic/loss"], rel=0.1)
