"""What is built and computed follows from what the chosen components need, and nothing else is."""

from dataclasses import asdict

import pytest

from rlhf_trainer.learning.demands import demands_of


def test_a_run_without_needs_has_no_models_and_no_passes_beside_the_update(resolved):
    demands = demands_of(resolved())

    assert [name for name, value in asdict(demands).items() if value is True] == []
    assert (demands.teacher, demands.teacher_top_k) == (False, 0)
    assert demands.old_statistics == ()
    assert demands.updates_per_step == 1


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--estimator", "discounted"), "critic"),
        (("--algo.kl.coef", "0.1"), "reference"),
        (("--loss", "reads_sampler"), "rollout_logprobs"),
        (("--loss", "looks_first"), "prepares_step"),
        (("--algo.terms.use", "imitate", "--supervised.data", "x"), "supervised"),
        (("--loss", "follow", "--algo.teacher.path", "x"), "teacher"),
        (("--algo.loss.off_policy_mask", "0.5"), "rollout_logprobs"),
        (("--rollout.max_staleness", "1"), "rollout_as_old"),
        (("--rollout.max_staleness", "1"), "rollout_logprobs"),
    ],
)
def test_what_is_asked_for_is_there_and_only_then(resolved, words, field):
    assert getattr(demands_of(resolved(*words)), field) is True
    assert getattr(demands_of(resolved()), field) is False


@pytest.mark.parametrize(
    ("words", "statistics"),
    [
        ((), ()),
        (("--algo.kl.coef", "0.1"), ("logprobs",)),  # of the KL in the reward
        (("--algo.kl.coef=0.1", "--algo.kl.mode=loss", "--algo.kl.estimator=k3"), ()),
        (("--train.inner_epochs", "2"), ("logprobs",)),
        (("--algo.loss.top_entropy", "0.2"), ("logprobs", "entropy")),
        (("--algo.loss.top_entropy", "1"), ()),
        (("--train.inner_epochs", "2", "--algo.loss.old_logprobs", "rollout"), ()),
    ],
)
def test_the_policy_is_read_before_its_updates_only_for_what_needs_it(resolved, words, statistics):
    assert demands_of(resolved(*words)).old_statistics == statistics


def plain_correction(old_logprobs, rollout_logprobs, action_mask):
    """A function that describes no needs."""


def test_a_correction_is_given_what_it_is_called_with_whatever_it_needs(resolved):
    demands = demands_of(resolved("--algo.correction.kind", f"{__file__}:plain_correction"))

    assert demands.rollout_logprobs


def test_needs_of_options_count(resolved):
    narrow = demands_of(resolved("--loss", "follow", "--algo.teacher.path", "x"))
    wide = demands_of(
        resolved("--loss", "follow", "--algo.loss.follow.wide", "--algo.teacher.path", "x")
    )

    assert (narrow.teacher_logprobs, narrow.teacher_top_k) == (True, 0)
    assert (wide.teacher_logprobs, wide.teacher_top_k) == (False, 64)
