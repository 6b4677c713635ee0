"""What options mean for components: who weighs stale samples, how many updates a step has, which words a run brings."""

import pytest

from rlhf_core import CapabilityError
from rlhf_core.config.checks.features import (
    features_of,
    old_logprobs_from,
    prompts_in_flight,
    spare_prompts,
)

AHEAD = ("--rollout.max_staleness", "2")


def old(found):
    return old_logprobs_from(found.run, found.selections)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "reuse"),
        (("--train.inner_epochs", "2"), "recompute"),
        (AHEAD, "rollout"),
        ((*AHEAD, "--train.inner_epochs", "2"), "rollout"),
        # A correction weighs samples for where they came from; the ratio then starts from the trainer's own policy.
        ((*AHEAD, "--algo.correction.kind", "cut"), "reuse"),
        ((*AHEAD, "--algo.correction.kind", "cut", "--train.inner_epochs", "2"), "recompute"),
        ((*AHEAD, "--algo.correction.kind", "cut", "--algo.loss.old_logprobs=reuse"), "reuse"),
        ((*AHEAD, "--algo.loss.old_logprobs", "rollout"), "rollout"),
        ((*AHEAD, "--loss", "plain_gradient", "--algo.correction.kind", "cut"), "reuse"),
        ((*AHEAD, "--loss", "reads_sampler"), "reuse"),
    ],
)
def test_stale_samples_are_weighed_by_somebody(resolved, words, expected):
    assert old(resolved(*words)) == expected


def test_components_see_that_rollouts_are_stale_and_what_stands_for_the_old_policy(resolved):
    found, on_policy = resolved(*AHEAD), resolved()

    added = features_of(found.run, found.selections)
    added -= features_of(on_policy.run, on_policy.selections)
    assert added == {"stale_rollouts", "rollout_as_old"}


@pytest.mark.parametrize(
    ("words", "spare", "in_flight"),
    [
        ((), 0, 10),
        (("--rollout.oversampling", "1.1"), 1, 11),
        (("--rollout.oversampling", "1.11"), 2, 12),
        (AHEAD, 0, 30),
        # Spare prompts take their place among those that run ahead.
        ((*AHEAD, "--rollout.oversampling", "1.5"), 5, 30),
        ((*AHEAD, "--rollout.oversampling", "4"), 30, 40),
        ((*AHEAD, "--rollout.concurrency", "7"), 0, 7),
    ],
)
def test_engines_are_told_how_many_prompts_may_be_in_flight(resolved, words, spare, in_flight):
    rollout = resolved("--rollout.batch_size", "10", *words).run.rollout

    assert spare_prompts(rollout) == spare
    assert prompts_in_flight(rollout) == in_flight


CAPABILITIES = {
    "group of one": (["--rollout.n_samples_per_prompt", "1"], "needs at least 2"),
    "turns without an environment": (["--executor", "turns"], "choose one with --env"),
    "loss that needs a correction": (["--loss", "needs_is"], "set --algo.correction.kind"),
    "correction of a truncated distribution": (
        ["--algo.correction.kind", "cut", "--rollout.top_p", "0.9"],
        "cannot be combined with 'renormalized_sampling'",
    ),
    "optimizer that needs a KL": (["--optim", "picky"], "--algo.kl.mode loss"),
    "imitation without responses": (
        ["--algo.terms.use", "imitate"],
        "give the responses to imitate with --supervised.data",
    ),
}


@pytest.mark.parametrize(("words", "part"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_components_that_cannot_work_together_are_refused(resolved, words, part):
    with pytest.raises(CapabilityError) as caught:
        resolved(*words)

    assert part in str(caught.value)
