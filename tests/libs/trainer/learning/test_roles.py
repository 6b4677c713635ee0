"""From the resolved configuration to the models of a run."""

import pytest

from rlhf_config import Layer
from rlhf_trainer.learning.demands import demands_of
from rlhf_trainer.learning.roles import critic_role, policy_role, runtime_spec


def spec(found, *, total_steps=10):
    return runtime_spec(found, demands_of(found), total_steps=total_steps, eos_token_ids=(2,))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "token-mean"),
        (("--loss", "by_sequence"), "seq-mean-token-mean"),
        (
            ("--loss", "by_sequence", "--algo.loss.aggregation", "seq-mean-token-sum-norm"),
            "seq-mean-token-sum-norm",
        ),
    ],
)
def test_the_aggregation_follows_the_loss_unless_it_is_written(resolved, words, expected):
    run = resolved(*words)

    objective = policy_role(run, demands_of(run), total_steps=1).objective
    assert objective.aggregation == expected


def test_a_term_has_a_weight_and_an_aggregation_of_its_own(resolved):
    run = resolved(
        *("--algo.terms.use", "imitate", "by_sequence", "--supervised.data", "x"),
        *("--algo.terms.imitate.weight", "0.1"),
    )

    terms = policy_role(run, demands_of(run), total_steps=1).objective.terms
    assert [(term.loss.name, term.weight, term.rows) for term in terms] == [
        ("sample:imitate", 0.1, "supervised"),
        ("sample:by_sequence", 1.0, "rollouts"),
    ]
    assert [term.aggregation for term in terms] == ["token-mean", "seq-mean-token-mean"]


def test_only_models_that_somebody_asks_for_are_built(resolved):
    assert list(spec(resolved()).roles) == ["policy"]
    everything = resolved(
        *("--estimator", "discounted", "--algo.kl.coef", "0.1"),
        *("--loss", "follow", "--algo.teacher.path", "wise"),
    )

    roles = spec(everything).roles

    assert list(roles) == ["policy", "critic", "reference", "teacher"]
    assert [role.head for role in roles.values()] == ["lm", "value", "lm", "lm"]
    assert [role.model_path for role in roles.values()] == ["some/model"] * 3 + ["wise"]
    assert [role.optimizer is None for role in roles.values()] == [False, False, True, True]


def test_each_trained_role_has_its_factor_of_the_balancing_loss(resolved):
    written = ("--actor.router_aux_loss", "0.01", "--critic.router_aux_loss", "0")
    roles = spec(resolved("--estimator", "discounted", "--algo.kl.coef", "0.1", *written)).roles
    factors = {name: role.router_aux_loss for name, role in roles.items()}

    assert factors == {"policy": 0.01, "critic": 0.0, "reference": None}
    assert spec(resolved()).roles["policy"].router_aux_loss is None


def test_critic_and_reference_may_have_models_of_their_own(resolved):
    found = resolved(
        *("--estimator", "discounted", "--critic.path", "judge"),
        *("--algo.kl.coef", "0.1", "--ref.path", "first"),
    )

    roles = spec(found).roles

    assert (roles["critic"].model_path, roles["reference"].model_path) == ("judge", "first")


@pytest.mark.parametrize("words", [(), ("--engine", "takes_factors", "--actor.adapter", "beside")])
def test_the_policy_keeps_the_reference_that_follows_it(resolved, words):
    found = spec(resolved("--algo.kl.coef", "0.1", "--ref.sync_every", "9", *words)).roles

    assert {name: role.reference_sync for name, role in found.items()} == {"policy": 1.0}
    assert spec(resolved("--algo.kl.coef", "0.1")).roles["policy"].reference_sync is None


def test_each_role_draws_from_a_seed_of_its_own_that_follows_the_runs(resolved):
    flags = ("--estimator", "discounted")
    one, other = (
        [role.seed for role in spec(resolved(*flags, "--seed", seed)).roles.values()]
        for seed in ("1", "2")
    )

    assert len({*one, *other}) == 4


@pytest.mark.parametrize(
    ("words", "policy", "critic"),
    [
        # 10 steps of one update; a share of 0.2 of them warms up.
        ((), (2, 10), (2, 10)),
        # 512 sequences in minibatches of 128, twice: 8 updates a step.
        (("--train.batch_size", "128", "--train.inner_epochs", "2"), (16, 80), (16, 80)),
        # The policy rests in the first 4 steps.
        (("--critic.warmup_steps", "4"), (1, 6), (2, 10)),
        (("--critic.warmup_steps", "10"), (0, 1), (2, 10)),
    ],
)
def test_a_schedule_counts_the_updates_of_its_role(resolved, words, policy, critic):
    found = resolved(
        *("--estimator", "discounted", "--actor.warmup_ratio=0.2", "--critic.warmup_ratio=0.2"),
        *("--actor.lr_schedule", "flat", "--critic.lr_schedule", "flat"),
        *words,
    )

    demands = demands_of(found)
    schedules = [policy_role(found, demands, 10).schedule, critic_role(found, demands, 10).schedule]
    for schedule, (warmup, total) in zip(schedules, (policy, critic), strict=True):
        # A share for each update, one for all beyond the last, and a rise before the peak.
        assert len(schedule.factors) == total + 1
        assert [factor < 1 for factor in schedule.factors] == [True] * warmup + [False] * (
            total + 1 - warmup
        )


def test_critics_that_are_not_built_do_not_shorten_the_policys_schedule(resolved):
    waiting = Layer.of({"critic": {"warmup_steps": 4}}, "run.toml")

    found = resolved("--actor.lr_schedule", "flat", files=[waiting])

    assert len(spec(found).roles["policy"].schedule.factors) == 10 + 1


@pytest.mark.parametrize(
    ("words", "estimator"),
    [
        ((), None),
        (("--algo.kl.coef", "0.1"), None),  # in the reward
        (
            ("--algo.kl.coef", "0.1", "--algo.kl.mode=loss", "--algo.kl.estimator=k3"),
            "sample:k3",
        ),
    ],
)
def test_a_kl_is_in_the_objective_only_as_a_loss(resolved, words, estimator):
    found = spec(resolved(*words)).roles["policy"].objective.kl_estimator

    assert (found and found.name) == estimator


@pytest.mark.parametrize(
    ("words", "length"),
    [
        ((), 1024 + 256),
        (("--data.max_prompt_tokens", "10", "--rollout.max_new_tokens", "5"), 15),
        (("--rollout.max_length", "1100"), 1100),
    ],
)
def test_the_longest_sequence_is_prompt_and_response_unless_it_is_written(resolved, words, length):
    found = resolved(*words)

    assert found.run.longest_sequence == length
    assert spec(found).engine_spec.max_length == length


@pytest.mark.parametrize(
    ("words", "served"),
    [
        ((), 1280),
        (("--eval.fraction", "0.1", "--eval.max_new_tokens", "2048"), 3072),
        (("--eval.fraction", "0.1", "--eval.max_new_tokens", "16"), 1280),
        (("--eval.fraction", "0.1", "--eval.max_length", "4096"), 4096),
        (
            ("--eval.data", "x", "--rollout.max_length", "2048", "--eval.max_new_tokens", "2000"),
            2048,
        ),
    ],
)
def test_an_engine_also_serves_the_longest_sequence_of_evaluations(resolved, words, served):
    found = spec(resolved(*words))

    assert found.engine_spec.max_length == served


@pytest.mark.parametrize(
    ("words", "concurrency"),
    [
        (("--rollout.batch_size", "4", "--rollout.n_samples_per_prompt", "3"), 12),
        (("--rollout.batch_size", "4", "--rollout.max_staleness", "1"), 64),
        # An evaluation plays more episodes of a prompt than a step has at all.
        (
            (
                *("--rollout.batch_size", "1", "--rollout.n_samples_per_prompt", "2"),
                *("--eval.fraction", "0.1", "--eval.n_samples", "16", "--eval.temperatures", "1"),
            ),
            16,
        ),
    ],
)
def test_an_engine_is_made_for_all_samples_that_are_played_at_once(resolved, words, concurrency):
    assert spec(resolved(*words)).engine_spec.max_concurrency == concurrency


def test_other_processes_get_the_components_of_episodes_by_name(resolved):
    found = resolved("--env", "maze", "--executor", "turns", "--rollout.max_length", "2048")

    rollouts = spec(found).rollouts

    (environment,) = rollouts.environments
    assert (rollouts.executor.name, environment.component.name) == ("sample:turns", "sample:maze")
    assert environment.name == "maze"
    assert {"share": None, "isolation": "none"}.items() <= environment.shared.items()
    assert environment.component.options == {"gamma": 1.0, "lambda_": 0.95, "mode": "full"}
    assert [reward.section for reward in rollouts.rewards] == ["reward.pattern"]
    assert rollouts.tokenizer_path == "some/model"
    assert spec(resolved("--model.tokenizer", "t")).rollouts.tokenizer_path == "t"


FACTORS = ("--engine", "takes_factors", "--actor.adapter", "beside", "--algo.kl.coef", "0.1")


@pytest.mark.parametrize(
    ("words", "roles"),
    [
        ((), ["policy"]),
        (("--ref.path", "some/model"), ["policy"]),
        (("--ref.path", "first"), ["policy", "reference"]),
    ],
)
def test_under_an_adapter_the_base_is_the_reference_unless_another_one_is_named(
    resolved, words, roles
):
    built = spec(resolved(*FACTORS, *words))

    assert list(built.roles) == roles
    assert built.roles["policy"].adapter.name == "sample:beside"


@pytest.mark.parametrize(
    ("words", "roles"),
    [
        ((), ["policy"]),
        (("--ref.path", "some/model"), ["policy", "reference"]),
        (("--ref.path", "first"), ["policy", "reference"]),
    ],
)
def test_beside_an_adapter_that_goes_on_the_base_is_a_reference_of_its_own(resolved, words, roles):
    found = resolved(*FACTORS, "--actor.beside.begun", "earlier", *words)

    assert list(spec(found).roles) == roles
    assert ("actor.beside", "earlier") in found.inputs


def test_a_critic_has_an_adapter_of_its_own(resolved):
    words = ("--estimator", "discounted", "--critic.adapter", "thin")

    built = spec(resolved(*FACTORS, *words))

    assert built.roles["critic"].adapter.name == "sample:thin"


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        ((), None),
        (("--actor.adapter", "thin"), None),
        (FACTORS, 8),
        ((*FACTORS, "--actor.beside.rank", "4"), 4),
        ((*FACTORS, "--actor.beside.rank", "none"), None),
    ],
)
def test_the_engine_is_told_the_rank_of_the_factors_that_it_serves(resolved, words, rank):
    assert spec(resolved(*words)).engine_spec.adapter_rank == rank
