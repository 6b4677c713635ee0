"""From a scored batch to updates: which role is asked for what, in which order, and what comes back."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from rlhf_config import Layer, parse_flags, resolve
from rlhf_core import NonFiniteError, RolloutError
from rlhf_core.batch.metric import metric_values
from rlhf_core.contracts import Metric, StepOutcome
from rlhf_core.contracts.learner import LearnRequest
from rlhf_core.plugins import load
from rlhf_testing.errors import has_code
from rlhf_trainer.learning.demands import demands_of
from rlhf_trainer.learning.learner import BatchLearner
from rlhf_trainer.learning.parts import LearningParts

OPTIONS = {
    "model": {"path": "model"},
    "data": {"train": ["org/set"]},
    "rollout": {
        "executor": "single_turn",
        "batch_size": 2,
        "n_samples_per_prompt": 2,
        "max_new_tokens": 8,
    },
    "reward": {"use": ["exact_match"]},
    "algo": {
        "advantage": {"estimator": "reinforce_baseline"},
        "loss": {"policy": "ppo"},
        "kl": {"estimator": "k1"},
    },
    "actor": {"optim": "adam"},
    "critic": {"optim": "adam"},
    "runtime": {"name": "local"},
    "engine": {"name": "embedded"},
    "backend": {"name": "torch"},
}
ROWS = {(0, 0): "pAA", (0, 1): "pAAA", (1, 0): "ppA", (1, 1): "pAA!"}
CRITIC = ("--estimator", "gae")


class Role:
    """Computes nothing: what it says of a batch is given, and what it is asked for is kept."""

    def __init__(self, name, calls):
        self.name = name
        self.calls = calls
        self.updates = []
        self.plans = []
        self.skips = set()
        self.shift = 0.0

    def _column(self, batch, what):
        self.calls.append(f"{self.name} {what}")
        return np.full(int(batch.num_actions.sum()), self.shift, np.float32)

    async def logprobs(self, batch):
        return self._column(batch, "logprobs")

    async def values(self, batch):
        return self._column(batch, "values")

    async def statistics(self, batch, names):
        return {name: self._column(batch, name) for name in names}

    async def train_step(self, batch, plan):
        self.calls.append(f"{self.name} update")
        self.updates.append(batch)
        self.plans.append(plan)
        skipped = len(self.updates) in self.skips
        count = int(batch.trajectories.num_actions.sum())
        return StepOutcome(
            metrics={
                "train/skipped_updates": Metric(float(skipped), reduction="sum"),
                f"{self.name}/rows": Metric(float(len(batch.trajectories)), reduction="sum"),
            },
            logprobs=np.full(count, self.shift, np.float32) if plan.return_logprobs else None,
            entropies=np.full(count, 0.5, np.float32) if plan.return_entropies else None,
            losses=np.full(count, len(self.updates), np.float32) if plan.return_losses else None,
            clipped=np.zeros(count, np.float32) if plan.return_losses else None,
        )


class Learning:
    def __init__(self, batch, *words):
        layers = [Layer.of(OPTIONS), parse_flags(list(words))]
        self.resolved = resolve(layers, load(""))
        self.calls = []
        self.roles = {
            name: Role(name, self.calls) for name in ("policy", "critic", "reference", "teacher")
        }
        chosen = self.resolved.one("algo.advantage.estimator")
        estimator = chosen.registered.build(chosen.options)
        kl, options = self.resolved.one("algo.kl.estimator"), self.resolved.run.algo.kl
        in_reward = options.coef > 0 and options.mode == "reward"
        parts = LearningParts(
            estimator=estimator,
            kl_estimator=kl.registered.build(kl.options) if in_reward else None,
        )
        self.learner = BatchLearner(self.resolved, demands_of(self.resolved), self.roles, parts)
        self.batch = batch

    def learn(self, step=1, *, skipped=None, kl_coef=0.0, entropy_coef=0.0, judged=None):
        request = LearnRequest(
            step=step,
            batch=self.batch,
            judged=judged,
            kl_coef=kl_coef,
            entropy_coef=entropy_coef,
            supervised_taken=5,
            skipped_updates=skipped or {},
        )
        return asyncio.run(self.learner.learn(request))


@pytest.fixture
def learning(batch_of):
    return lambda *words: Learning(batch_of(ROWS), *words)


def test_on_policy_a_step_is_one_update_of_the_policy_and_nothing_else(learning):
    one = learning()

    outcome = one.learn()

    assert one.calls == ["policy update"]
    (plan,) = one.roles["policy"].plans
    assert (plan.on_policy, plan.return_logprobs) == (True, True)
    assert outcome.policy_changed
    assert outcome.supervised_taken == 5
    assert outcome.skipped_updates == {"policy": 0}


def test_the_update_has_every_action_s_advantage_and_the_whole_steps_totals(learning):
    one = learning()

    one.learn()

    (update,), (plan,) = one.roles["policy"].updates, one.roles["policy"].plans
    assert len(update.columns["advantages"]) == 2 + 3 + 1 + 2
    assert (plan.normalizers.num_actions, plan.normalizers.num_sequences) == (8, 4)
    assert plan.normalizers.max_actions == 8


def test_the_reference_moves_after_the_last_update_of_every_nth_step(learning):
    one = learning(
        *("--train.batch_size", "2", "--algo.kl.coef", "0.1", "--algo.kl.mode", "loss"),
        *("--algo.kl.estimator", "k3", "--ref.sync_every", "2"),
    )
    one.roles["policy"].base_logprobs = one.roles.pop("reference").logprobs

    for step in (1, 2, 3, 4):
        one.learn(step)

    moved = [plan.syncs_reference for plan in one.roles["policy"].plans]
    assert moved == [False, False, False, True] * 2


def test_several_updates_read_the_old_logprobs_first_and_share_the_rows(learning):
    one = learning("--train.batch_size", "2", "--train.inner_epochs", "2")

    outcome = one.learn()

    assert one.calls == ["policy logprobs", *["policy update"] * 4]
    policy = one.roles["policy"]
    assert [plan.on_policy for plan in policy.plans] == [True, False, False, False]
    assert [plan.return_logprobs for plan in policy.plans] == [False] * 4
    uids = [set(update.trajectories.uids()) for update in policy.updates]
    assert uids[0] | uids[1] == uids[2] | uids[3] == set(one.batch.uids())
    assert metric_values(outcome.metrics)["policy/rows"] == 8.0


def test_entropies_that_the_update_computes_are_kept_where_an_observer_hears_them(learning):
    deaf, hearing = learning(), learning("--observers.use", "token_files")

    nothing, outcome = deaf.learn(), hearing.learn()

    assert nothing.columns is None
    assert not deaf.roles["policy"].plans[0].return_entropies
    assert hearing.calls == ["policy update"]  # no pass more
    assert outcome.columns["entropy"].tolist() == [0.5] * 8


def test_losses_are_those_of_the_last_update_with_the_token_where_an_observer_hears_them(learning):
    several = ["--train.batch_size", "2", "--train.inner_epochs", "2"]
    deaf, hearing = learning(*several), learning(*several, "--observers.use", "token_files")

    deaf.learn()
    outcome = hearing.learn()

    assert not any(plan.return_losses for plan in deaf.roles["policy"].plans)
    updates = hearing.roles["policy"].updates
    number = {
        uid: at for at in (3, 4) for uid in updates[at - 1].trajectories.uids()
    }  # the second epoch has the third and the fourth update
    expected = np.repeat([number[uid] for uid in hearing.batch.uids()], hearing.batch.num_actions)
    np.testing.assert_array_equal(outcome.columns["loss"], expected)
    assert outcome.columns["clipped"].tolist() == [0.0] * 8


def test_a_pass_before_several_updates_gives_the_entropies_too(learning):
    several = ["--train.batch_size", "2"]
    deaf, hearing = learning(*several), learning(*several, "--observers.use", "token_files")

    deaf.learn()
    outcome = hearing.learn()

    assert deaf.calls == ["policy logprobs", *["policy update"] * 2]
    assert hearing.calls == ["policy logprobs", "policy entropy", *["policy update"] * 2]
    assert not any(plan.return_entropies for plan in hearing.roles["policy"].plans)
    assert outcome.columns["entropy"].tolist() == [0.0] * 8
    assert "entropy" not in hearing.roles["policy"].updates[0].columns


def test_updates_of_parts_of_a_batch_without_a_pass_before_them_give_no_entropies(learning):
    """The later ones are of other weights."""
    one = learning(
        *("--train.batch_size", "2", "--algo.loss.old_logprobs", "rollout"),
        *("--observers.use", "token_files"),
    )

    outcome = one.learn()

    assert one.calls == ["policy update"] * 2
    assert "entropy" not in outcome.columns
    assert "advantages" in outcome.columns


def test_fewer_rows_than_updates_are_that_many_updates(learning, batch_of):
    """One group is left of a step that was planned for two, in four updates."""
    one = learning("--train.batch_size", "1")
    one.batch = batch_of({key: text for key, text in ROWS.items() if key[0] == 1})

    one.learn()

    assert one.calls == ["policy logprobs", "policy update", "policy update"]


def test_the_critic_is_read_before_any_update_and_updated_before_the_policy(learning):
    one = learning(*CRITIC, "--train.batch_size", "2")

    one.learn()

    assert one.calls == [
        "policy logprobs",
        "critic values",
        *["critic update", "policy update"] * 2,
    ]
    assert "returns" in one.roles["critic"].updates[0].columns


def test_while_the_critic_warms_up_the_policy_rests(learning):
    one = learning(*CRITIC, "--critic.warmup_steps", "2")

    changed = [one.learn(step).policy_changed for step in (1, 2, 3)]

    assert changed == [False, False, True]
    assert one.calls.count("critic update") == 3
    assert one.calls.count("policy update") == 1


def test_a_kl_in_the_reward_reads_both_models_and_is_no_term_of_the_loss(learning):
    one = learning("--algo.kl.coef", "0.5")
    one.roles["reference"].shift = -1.0

    outcome = one.learn(kl_coef=0.5)

    assert one.calls == ["policy logprobs", "reference logprobs", "policy update"]
    assert one.roles["policy"].plans[0].kl_coef == 0.0
    # k1 = policy - reference = 0 - (-1), at every action
    assert metric_values(outcome.metrics)["kl/ref"] == pytest.approx(1.0)


def test_a_kl_in_the_loss_hands_its_coefficient_to_the_update(learning):
    one = learning("--algo.kl.coef=0.5", "--algo.kl.mode=loss", "--algo.kl.estimator=k3")

    one.learn(kl_coef=0.25, entropy_coef=0.125)

    (plan,) = one.roles["policy"].plans
    assert (plan.kl_coef, plan.entropy_coef) == (0.25, 0.125)
    assert one.calls == ["reference logprobs", "policy update"]


def test_skipped_updates_count_in_a_row_across_steps_and_a_good_one_starts_anew(learning):
    one = learning()
    one.roles["policy"].skips = {1, 2, 4}

    first = one.learn(1)
    second = one.learn(2, skipped=first.skipped_updates)
    third = one.learn(3, skipped=second.skipped_updates)
    fourth = one.learn(4, skipped=third.skipped_updates)

    rows = [each.skipped_updates["policy"] for each in (first, second, third, fourth)]
    assert rows == [1, 2, 0, 1]


def test_too_many_skipped_updates_in_a_row_end_the_run_with_the_advice(learning):
    one = learning("--train.max_skipped_updates", "2")
    one.roles["policy"].skips = {1}

    with pytest.raises(NonFiniteError) as caught:
        one.learn(7, skipped={"policy": 1})

    assert "2 updates of the policy in a row" in str(caught.value)
    assert "rlhf show runs/run --step 6" in str(caught.value)


def test_a_critic_that_fails_does_not_count_for_the_policy(learning):
    one = learning(*CRITIC)
    one.roles["critic"].skips = {1}

    assert one.learn().skipped_updates == {"critic": 1, "policy": 0}


def test_a_request_is_left_as_it_came(learning):
    one = learning()
    one.roles["policy"].skips = {1}
    skipped = {"policy": 1}

    one.learn(skipped=skipped)

    assert skipped == {"policy": 1}


@pytest.mark.parametrize("words", [(), ("--train.inner_epochs", "2")], ids=["reuse", "recompute"])
def test_sampler_and_trainer_that_disagree_end_the_run(learning, words):
    """The sampler says 0 nats of every token, the trainer 0.3; the limit is 0.2."""
    one = learning(*words)
    one.roles["policy"].shift = -0.3

    with pytest.raises(RolloutError, match=r"0\.3", check=has_code("engine/logprobs-differ")):
        one.learn()


@pytest.mark.parametrize(
    "words",
    [
        ("--rollout.max_mismatch", "none"),
        ("--rollout.max_mismatch", "0.31"),
        ("--rollout.top_p", "0.9"),
        ("--rollout.max_staleness", "1"),
    ],
)
def test_a_difference_that_is_wanted_or_has_good_reasons_is_only_reported(learning, words):
    one = learning(*words)
    one.roles["policy"].shift = -0.3

    values = metric_values(one.learn().metrics)

    assert values["mismatch/logprob_diff_mean"] == pytest.approx(0.3)


def test_samples_without_the_samplers_logprobs_are_not_compared(learning, batch_of):
    one = learning()
    one.batch.rollout_logprobs[:] = np.nan

    values = metric_values(one.learn().metrics)

    assert not any("logprob_diff" in name for name in values)


def test_only_samples_with_logprobs_are_compared(learning):
    """Of 8 actions, the first row's 2 are known: there the difference is 0.1."""
    one = learning()
    one.batch.rollout_logprobs[:] = np.nan
    one.batch.rollout_logprobs[:2] = -0.2
    one.roles["policy"].shift = -0.3

    values = metric_values(one.learn().metrics)

    assert values["mismatch/logprob_diff_mean"] == pytest.approx(0.1, abs=1e-6)


def test_rows_whose_rewards_do_not_count_are_in_the_policys_updates_alone(learning):
    """Group 1 was dropped: advantages and the critic's update are those of group 0."""
    one = learning(*CRITIC, "--algo.kl.coef=0.5", "--algo.kl.mode=loss", "--algo.kl.estimator=k3")
    whole = learning(*CRITIC)
    whole.batch = one.batch.select(np.array([0, 1]))

    one.learn(judged=np.array([True, True, False, False]))
    whole.learn()

    ((update,), (plan,)), critic = (
        (one.roles["policy"].updates, one.roles["policy"].plans),
        one.roles["critic"],
    )
    (alone,) = whole.roles["policy"].updates
    expected = np.concatenate([alone.columns["advantages"], np.zeros(3, np.float32)])
    np.testing.assert_array_equal(update.columns["advantages"], expected)
    assert update.columns["judged"].tolist() == [1, 1, 1, 1, 1, 0, 0, 0]
    assert (plan.normalizers.num_actions, plan.normalizers.num_sequences) == (5, 2)
    assert (plan.sampled_normalizers.num_actions, plan.sampled_normalizers.num_sequences) == (8, 4)
    assert [len(each.trajectories) for each in critic.updates] == [2]


def test_a_step_without_rows_still_has_its_updates(learning):
    one = learning("--train.batch_size", "2")
    one.batch = one.batch.select(np.empty(0, np.int64))

    one.learn(judged=np.empty(0, bool))

    assert one.calls == ["policy update"] * 2
    assert [len(each.trajectories) for each in one.roles["policy"].updates] == [0, 0]


MASKED = ("--algo.loss.mask_truncated", "true")


def with_cut(batch, *rows):
    """The batch with these rows cut off."""
    return replace(batch, truncated=np.isin(np.arange(len(batch)), rows))


def test_samples_that_were_cut_off_are_in_the_baselines_and_in_no_update(learning):
    all_rows, one = learning(*CRITIC), learning(*CRITIC, *MASKED)
    one.batch = all_rows.batch = with_cut(one.batch, 1)

    all_rows.learn()
    outcome = one.learn()

    (whole,), (update,) = all_rows.roles["policy"].updates, one.roles["policy"].updates
    uids = list(one.batch.uids())
    assert list(update.trajectories.uids()) == [uids[row] for row in (0, 2, 3)]
    kept = np.r_[0:2, 5:8]  # of the actions 2 + 3 + 1 + 2
    for name in ("advantages", "returns"):
        np.testing.assert_array_equal(update.columns[name], whole.columns[name][kept])
    (plan,) = one.roles["policy"].plans
    assert (plan.normalizers.num_actions, plan.normalizers.num_sequences) == (5, 3)
    assert [len(each.trajectories) for each in one.roles["critic"].updates] == [3]
    assert outcome.policy_changed


def test_a_cut_row_takes_its_whole_episode_out_and_the_others_share_the_updates(learning):
    one = learning(*MASKED, "--train.batch_size", "2")
    uid = one.batch.uid.copy()
    uid[1, :3] = uid[0, :3]  # rows 0 and 1 are one episode
    uid[1, 3] = 1
    one.batch = with_cut(replace(one.batch, uid=uid), 0)

    one.learn()

    updates = one.roles["policy"].updates
    assert sorted(len(each.trajectories) for each in updates) == [1, 1]
    learned = {each for update in updates for each in update.trajectories.uids()}
    assert learned == set(list(one.batch.uids())[2:])


def test_rows_whose_rewards_do_not_count_are_left_out_too_where_they_were_cut_off(learning):
    one = learning(*MASKED, "--algo.kl.coef=0.5", "--algo.kl.mode=loss", "--algo.kl.estimator=k3")
    one.batch = with_cut(one.batch, 1, 3)

    one.learn(judged=np.array([True, True, False, False]))

    ((update,), (plan,)) = one.roles["policy"].updates, one.roles["policy"].plans
    assert update.columns["judged"].tolist() == [1, 1, 0]
    assert plan.normalizers.num_sequences == 1
    assert plan.sampled_normalizers.num_sequences == 2


def test_where_all_samples_were_cut_off_nothing_is_updated(learning):
    one = learning(*MASKED)
    one.batch = with_cut(one.batch, 0, 1, 2, 3)

    outcome = one.learn()

    assert one.calls == []
    assert not outcome.policy_changed
    assert outcome.supervised_taken == 5


HALF = ("--algo.loss.top_entropy", "0.5")


def entropies_are(role, column):
    """Have the policy say these entropies of the batch."""

    async def statistics(batch, names):
        role.calls.append("policy statistics")
        zeros = np.zeros(int(batch.num_actions.sum()), np.float32)
        return {name: np.float32(column) if name == "entropy" else zeros for name in names}

    role.statistics = statistics


def test_each_update_trains_on_the_actions_of_its_own_highest_entropies(learning):
    """The actions of the rows are 2 + 3 + 1 + 2; each update has two rows."""
    one = learning(*HALF, "--train.batch_size", "2")
    entropies_are(one.roles["policy"], [5, 6, 7, 8, 9, 1, 2, 3])
    of_row = {0: [5, 6], 1: [7, 8, 9], 2: [1], 3: [2, 3]}
    uids = list(one.batch.uids())

    one.learn()

    assert one.calls == ["policy statistics", "policy update", "policy update"]
    for update in one.roles["policy"].updates:
        rows = [uids.index(uid) for uid in update.trajectories.uids()]
        entropies = [each for row in rows for each in of_row[row]]
        middle = float(np.median(entropies))
        assert update.columns["trained"].tolist() == [float(each >= middle) for each in entropies]


def test_entropies_of_rows_whose_rewards_do_not_count_have_no_part_in_the_choice(learning):
    one = learning(*HALF, "--algo.kl.coef=0.5", "--algo.kl.mode=loss", "--algo.kl.estimator=k3")
    entropies_are(one.roles["policy"], [1, 2, 3, 4, 5, 9, 9, 9])

    one.learn(judged=np.array([True, True, False, False]))

    (update,) = one.roles["policy"].updates
    assert update.columns["trained"].tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


def test_entropies_of_samples_that_are_left_out_have_no_part_in_the_choice(learning):
    one = learning(*HALF, *MASKED)
    entropies_are(one.roles["policy"], [1, 2, 9, 9, 9, 3, 4, 5])
    one.batch = with_cut(one.batch, 1)

    one.learn()

    (update,) = one.roles["policy"].updates
    assert update.columns["trained"].tolist() == [0, 0, 1, 1, 1]


def test_without_a_share_no_pass_is_made_and_no_column_is_sent(learning):
    one = learning()

    one.learn()

    assert one.calls == ["policy update"]
    assert {"trained", "entropy"}.isdisjoint(one.roles["policy"].updates[0].columns)


def test_a_step_without_rows_has_its_updates_with_a_share_too(learning):
    one = learning(*HALF, "--train.batch_size", "2")
    one.batch = one.batch.select(np.empty(0, np.int64))

    one.learn(judged=np.empty(0, bool))

    assert one.calls == ["policy update"] * 2
