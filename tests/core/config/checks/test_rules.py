"""Combinations that cannot be meant. Each case: flags on top of a complete run, and what the message has to say."""

import pytest

from rlhf_core import CapabilityError, ConfigError
from rlhf_core.config import Layer

ROOM = ["--rollout.max_length", "64"]

CONTRADICTIONS = {
    "shares without sets": (
        ["--data.probabilities", "0.5", "0.5"],
        "--data.probabilities has 2 shares for 1 sets",
    ),
    "shares that do not add up": (
        ["--data", "b", "--data.probabilities", "0.5", "0.6"],
        "add up to 1, got 1.1",
    ),
    "template with a broken brace": (["--data.template", "Q: {q"], "Write braces"),
    "template without a column": (["--data.template", "Q:"], "uses no column"),
    "template with a position": (["--data.template", "Q: {}"], "expected column names"),
    "template and prompt column": (
        ["--data.template", "{q}", "--data.prompt_key", "q"],
        "the template makes the prompt",
    ),
    "system prompt on a text template": (
        ["--data.template", "{q}", "--data.system_prompt", "Be brief"],
        "--data.system_prompt: a template makes plain text",
    ),
    "more minimum than maximum": (
        ["--rollout.min_new_tokens", "9", "--rollout.max_new_tokens", "8"],
        "--rollout.min_new_tokens is 9; expected at most --rollout.max_new_tokens = 8",
    ),
    "no room to answer": (["--rollout.max_length", "1024"], "leaves no room to answer"),
    "empty stop string": (["--rollout.stop", "a", ""], "empty string"),
    "sampling that always gives the same": (["--rollout.top_k", "1"], "would be the same"),
    "batch larger than the rollouts": (
        ["--train.batch_size", "513"],
        "--train.batch_size is 513, but a step has 64 prompts x 8 samples = 512 sequences",
    ),
    "batch that does not divide": (["--train.batch_size", "100"], "Set --train.batch_size 64."),
    "sequence longer than a micro-batch": (
        ["--train.max_tokens_per_micro_batch", "1000"],
        "one sequence may have 1280 tokens",
    ),
    "steps and epochs": (["--steps", "5", "--train.epochs", "2"], "--steps and --train.epochs"),
    "reused log-probs with two updates": (
        ["--algo.loss.old_logprobs", "reuse", "--train.inner_epochs", "2"],
        "gives 2 updates",
    ),
    "sampler's log-probs of a truncated distribution": (
        ["--algo.loss.old_logprobs", "rollout", "--rollout.top_p", "0.9"],
        "those of another distribution",
    ),
    "correction of nothing": (
        ["--algo.loss.old_logprobs", "rollout", "--algo.correction.kind", "cut"],
        "would be the same numbers",
    ),
    "target of no KL": (
        ["--algo.kl.target", "0.1"],
        "--algo.kl.target adapts --algo.kl.coef, which is 0",
    ),
    "k1 as a loss": (
        ["--algo.kl.coef", "0.1", "--algo.kl.mode", "loss"],
        "its gradient is zero on average",
    ),
    "a loss without its teacher": (["--loss", "follow"], "Set --algo.teacher.path MODEL"),
    "a term without its teacher": (
        ["--algo.terms.use", "follow"],
        "--algo.terms.use follow learns from a teacher, and none is given",
    ),
    "imitation as the policy loss": (
        ["--loss", "imitate", "--supervised.data", "x"],
        "--algo.terms.use imitate",
    ),
    "a term that has to look first": (["--algo.terms.use", "looks_first"], "--loss looks_first"),
    "weightless rewards": (["--reward.pattern.weight", "0"], "nothing would be learned"),
    "two kinds of held-out data": (
        ["--eval.data", "x", "--eval.fraction", "0.1"],
        "--eval.data and --eval.fraction",
    ),
    "evaluation sets of one name": (["--eval.data", "a=x", "a=y"], "two sets are called 'a'"),
    "negative temperature": (
        ["--eval.fraction", "0.1", "--eval.temperatures", "-1"],
        "expected 0 (greedy) to 10, got -1",
    ),
    "temperature twice": (
        ["--eval.fraction", "0.1", "--eval.temperatures", "1", "1.0"],
        "given twice",
    ),
    "many greedy samples": (
        ["--eval.fraction", "0.1", "--eval.n_samples", "8"],
        "at temperature 0 all samples",
    ),
    "best of no evaluation": (["--checkpoint.best_metric", "x"], "there is no evaluation"),
    "several turns without room": (
        ["--env", "maze", "--executor", "turns"],
        "--rollout.max_length is required",
    ),
    "environment that nobody plays": (["--env", "maze"], "Choose one that does: --executor turns"),
}

NO_EFFECT = {
    "KL mode": (["--algo.kl.mode", "reward"], "there is no KL penalty"),
    "KL estimator": (["--algo.kl.estimator", "k3"], "there is no KL penalty"),
    "KL horizon": (["--algo.kl.coef=0.1", "--algo.kl.horizon", "5"], "Set --algo.kl.target"),
    "reference": (["--ref.path", "x"], "nothing uses a reference model"),
    "evaluation interval": (["--eval.every", "5"], "there is nothing to evaluate on"),
    "gradient of a KL in the reward": (
        ["--algo.kl.coef", "0.1", "--algo.kl.unbiased_gradient"],
        "the KL is in the reward",
    ),
    "tail of a KL in the reward": (
        ["--algo.kl.coef", "0.1", "--algo.kl.tail", "clamp"],
        "the KL is in the reward",
    ),
    "tail beside the unbiased gradient": (
        [
            "--algo.kl.coef=0.1",
            "--algo.kl.mode=loss",
            "--algo.kl.unbiased_gradient",
            "--algo.kl.tail=clamp",
        ],
        "replaces the gradient",
    ),
    "step of a fixed bonus": (["--algo.loss.entropy_step", "0.1"], "entropy_target to adapt it"),
    "teacher of nobody": (["--algo.teacher.path", "x"], "learns from a teacher"),
    "many tokens of a teacher": (
        ["--loss", "follow", "--algo.teacher.path", "x", "--algo.teacher.top_k", "4"],
        "looks at several tokens",
    ),
    "responses that nobody imitates": (["--supervised.data", "x"], "imitates responses"),
    "responses per update": (["--supervised.batch_size", "2"], "imitates responses"),
    "evaluation split": (
        ["--eval.fraction", "0.1", "--eval.split", "test"],
        "the split of --eval.data",
    ),
    "best mode": (["--checkpoint.best_mode", "min"], "no best checkpoint"),
    "end of a schedule": (["--actor.min_lr_ratio", "0.5"], "the learning rate is constant"),
    "error value": (["--reward.pattern.error_value", "1"], "Set --reward.pattern.on_error value"),
}

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


@pytest.mark.parametrize(("words", "part"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_is_refused(resolved, words, part):
    with pytest.raises(ConfigError) as caught:
        resolved(*words)

    assert part in str(caught.value)


@pytest.mark.parametrize(("words", "part"), NO_EFFECT.values(), ids=NO_EFFECT)
def test_a_typed_option_that_changes_nothing_is_refused(resolved, words, part):
    with pytest.raises(ConfigError) as caught:
        resolved(*words)

    assert part in str(caught.value)
    assert "would change nothing" in str(caught.value)


@pytest.mark.parametrize(("words", "part"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_components_that_cannot_work_together_are_refused(resolved, words, part):
    with pytest.raises(CapabilityError) as caught:
        resolved(*words)

    assert part in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ("--data", "b", "--data.probabilities", "0.3334", "0.6666"),
        ("--rollout.max_length", "1025"),
        ("--train.batch_size", "512"),
        ("--train.batch_size", "128", "--train.inner_epochs", "2"),
        ("--algo.kl.coef", "0.1", "--algo.kl.mode", "loss", "--algo.kl.estimator", "k3"),
        ("--algo.kl.coef", "0.1", "--algo.kl.target", "1", "--algo.kl.horizon", "5"),
        ("--algo.kl.coef", "0.1", "--ref.path", "other"),
        ("--algo.kl.coef=0.1", "--algo.kl.mode=loss", "--algo.kl.unbiased_gradient"),
        (
            "--algo.kl.coef=0.1",
            "--algo.kl.mode=loss",
            "--algo.kl.estimator=k3",
            "--algo.kl.tail=clamp",
        ),
        (
            "--algo.terms.use",
            "imitate",
            "clip",
            "--supervised.data",
            "x",
            "--algo.terms.clip.weight=2",
        ),
        ("--loss", "follow", "--algo.teacher.path", "x"),
        (
            "--loss=follow",
            "--algo.loss.follow.wide",
            "--algo.teacher.path=x",
            "--algo.teacher.top_k=4",
        ),
        ("--algo.loss.entropy_target", "0.3", "--algo.loss.entropy_step", "0.01"),
        ("--reward.pattern.weight", "-1"),
        ("--eval.data", "a=x", "b=y", "--eval.temperatures", "0", "1", "--eval.n_samples", "4"),
        ("--executor", "turns", "--env", "maze", "--rollout.max_length", "2048"),
        ("--critic.value_clip", "none"),  # value options wait for an estimator with values
        ("--critic.optim", "picky"),  # no critic, so what its optimizer needs does not matter
        ("--rollout.n_samples_per_prompt", "1", "--estimator", "discounted"),
        ("--data.template", "{{literal}} {q!r:>4} {row[a]}"),
    ],
)
def test_what_makes_sense_is_accepted(resolved, words):
    resolved(*words)


def test_a_run_needs_tasks(resolved):
    with pytest.raises(ConfigError, match=r"Add --data FILE.jsonl or --env NAME"):
        resolved("--model", "m", "--reward", "pattern", enough=False)


def test_a_run_needs_something_to_learn_from(resolved):
    with pytest.raises(ConfigError, match="Add --reward NAME"):
        resolved("--model", "m", "--data", "d", enough=False)


def test_an_environment_is_task_and_reward(resolved):
    result = resolved(
        *["--model", "m", "--env", "maze", "--executor", "turns", *ROOM, "--steps", "3"],
        enough=False,
    )

    assert result.one("rollout.environment").registered.name == "maze"


def test_an_environment_without_data_has_no_epochs(resolved):
    resolved(
        *["--model", "m", "--env", "maze", "--executor", "turns", *ROOM, "--data.max_samples", "9"],
        enough=False,
    )
    with pytest.raises(ConfigError, match="no epochs to count"):
        resolved(*["--model", "m", "--env", "maze", "--executor", "turns", *ROOM], enough=False)


def test_what_changes_nothing_may_stand_in_a_file(resolved):
    waiting = {"algo": {"kl": {"mode": "loss"}}, "eval": {"every": 5}, "ref": {"path": "x"}}

    resolved(files=[Layer.of(waiting, "run.toml")])


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
    from rlhf_core.learning.demands import demands_of
    from rlhf_core.learning.roles import policy_role

    run = resolved(*words)

    objective = policy_role(run, demands_of(run), total_steps=1).objective
    assert objective.aggregation == expected


def test_a_term_has_a_weight_and_an_aggregation_of_its_own(resolved):
    from rlhf_core.learning.demands import demands_of
    from rlhf_core.learning.roles import policy_role

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


def test_needs_of_options_count(resolved):
    from rlhf_core.learning.demands import demands_of

    narrow = demands_of(resolved("--loss", "follow", "--algo.teacher.path", "x"))
    wide = demands_of(
        resolved("--loss", "follow", "--algo.loss.follow.wide", "--algo.teacher.path", "x")
    )

    assert (narrow.teacher_logprobs, narrow.teacher_top_k) == (True, 0)
    assert (wide.teacher_logprobs, wide.teacher_top_k) == (False, 64)
