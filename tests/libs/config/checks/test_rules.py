"""Combinations that cannot be meant. Each case: flags on top of a complete run, what the message has to
say, and the error's code."""

import pytest

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

AHEAD = ("--rollout.max_staleness", "2")
WAITS = ("--observers.use", "waits", "--observers.waits.metric")
ROOM = ["--rollout.max_length", "64"]

CONTRADICTIONS = {
    "shares without sets": (
        ["--data.probabilities", "0.5", "0.5"],
        "--data.probabilities has 2 shares for 1 sets",
        "config/number-of-shares",
    ),
    "shares that do not add up": (
        ["--data", "b", "--data.probabilities", "0.5", "0.6"],
        "add up to 1, got 1.1",
        "config/sum-of-shares",
    ),
    "images for a text model": (
        ["--data.image_key", "images"],
        "--data.image_key: the run's model reads text alone",
        "config/no-reader-of-images",
    ),
    "template with a broken brace": (
        ["--data.template", "Q: {q"],
        "Write braces",
        "config/malformed-template",
    ),
    "template without a column": (
        ["--data.template", "Q:"],
        "uses no column",
        "config/template-without-column",
    ),
    "template with a position": (
        ["--data.template", "Q: {}"],
        "expected column names",
        "config/template-without-names",
    ),
    "template and prompt column": (
        ["--data.template", "{q}", "--data.prompt_key", "q"],
        "the template makes the prompt",
        "config/template-and-prompt-column",
    ),
    "system prompt on a text template": (
        ["--data.template", "{q}", "--data.system_prompt", "Be brief"],
        "--data.system_prompt: a template makes plain text",
        "config/system-prompt-of-plain-text",
    ),
    "a reference that follows, on a backend without one": (
        ["--algo.kl.coef", "0.1", "--ref.sync_every", "9", "--backend", "small_table"],
        "--ref.sync_every with --backend small_table",
        "config/no-reference-to-sync",
    ),
    "a reference that follows, and begins elsewhere": (
        ["--algo.kl.coef", "0.1", "--ref.sync_every", "9", "--ref.path", "other"],
        "--ref.sync_every and --ref.path: a reference that follows the policy begins as the policy",
        "config/sync-of-another-model",
    ),
    "a mean of adapters": (
        [
            *("--algo.kl.coef", "0.1", "--ref.sync_every", "9", "--ref.sync_alpha", "0.5"),
            *("--engine", "takes_factors", "--actor.adapter", "beside"),
        ],
        "Set --ref.sync_alpha 1",
        "config/sync-mixes-adapters",
    ),
    "more minimum than maximum": (
        ["--rollout.min_new_tokens", "9", "--rollout.max_new_tokens", "8"],
        "--rollout.min_new_tokens is 9; expected at most --rollout.max_new_tokens = 8",
        "config/min-above-max-tokens",
    ),
    "no room to answer": (
        ["--rollout.max_length", "1024"],
        "leaves no room to answer",
        "config/no-room-to-answer",
    ),
    "empty stop string": (["--rollout.stop", "a", ""], "empty string", "config/empty-stop"),
    "sampling that always gives the same": (
        ["--rollout.top_k", "1"],
        "would be the same",
        "config/equal-samples",
    ),
    "batch larger than the rollouts": (
        ["--train.batch_size", "513"],
        "--train.batch_size is 513, but a step has 64 prompts x 8 samples = 512 sequences",
        "config/batch-above-rollouts",
    ),
    "batch that does not divide": (
        ["--train.batch_size", "100"],
        "Set --train.batch_size 64.",
        "config/batch-does-not-divide",
    ),
    "sequence longer than a micro-batch": (
        ["--train.max_tokens_per_micro_batch", "1000"],
        "one sequence may have 1280 tokens",
        "config/pass-too-small",
    ),
    "reused log-probs with two updates": (
        ["--algo.loss.old_logprobs", "reuse", "--train.inner_epochs", "2"],
        "gives 2 updates",
        "config/reuse-with-several-updates",
    ),
    "sampler's log-probs of a truncated distribution": (
        ["--algo.loss.old_logprobs", "rollout", "--rollout.top_p", "0.9"],
        "those of another distribution",
        "config/logprobs-of-another-distribution",
    ),
    "distance to a truncated distribution": (
        ["--algo.loss.off_policy_mask", "0.5", "--rollout.top_p", "0.9"],
        "would look farther",
        "config/logprobs-of-another-distribution",
    ),
    "correction of nothing": (
        ["--algo.loss.old_logprobs", "rollout", "--algo.correction.kind", "cut"],
        "would be the same numbers",
        "config/correction-of-nothing",
    ),
    "target of no KL": (
        ["--algo.kl.target", "0.1"],
        "--algo.kl.target adapts --algo.kl.coef, which is 0",
        "config/kl-target-without-coef",
    ),
    "k1 as a loss": (
        ["--algo.kl.coef", "0.1", "--algo.kl.mode", "loss"],
        "its gradient is zero on average",
        "config/kl-without-pull",
    ),
    "a loss without its teacher": (
        ["--loss", "follow"],
        "Set --algo.teacher.path MODEL",
        "config/no-teacher",
    ),
    "a term without its teacher": (
        ["--algo.terms.use", "follow"],
        "--algo.terms.use follow learns from a teacher, and none is given",
        "config/no-teacher",
    ),
    "imitation as the policy loss": (
        ["--loss", "imitate", "--supervised.data", "x"],
        "--algo.terms.use imitate",
        "config/term-as-policy-loss",
    ),
    "a term that has to look first": (
        ["--algo.terms.use", "looks_first"],
        "--loss looks_first",
        "config/policy-loss-as-term",
    ),
    "weightless rewards": (
        ["--reward.pattern.weight", "0"],
        "nothing would be learned",
        "config/weightless-rewards",
    ),
    "a filter of rewards beside a loss that needs none": (
        ["--loss", "repeats", "--rollout.filters", "by_reward"],
        "--rollout.filters by_reward drops prompts by their rewards, and --loss repeats teaches the same",
        "config/filter-of-unused-rewards",
    ),
    "a KL in rewards beside a loss that needs none": (
        ["--loss", "repeats", "--algo.kl.coef", "0.1"],
        "--algo.kl.coef 0.1: the KL would be subtracted from rewards, and --loss repeats teaches the same",
        "config/kl-in-unused-rewards",
    ),
    "two kinds of held-out data": (
        ["--eval.data", "x", "--eval.fraction", "0.1"],
        "--eval.data and --eval.fraction",
        "config/two-kinds-of-held-out",
    ),
    "evaluation sets of one name": (
        ["--eval.data", "a=x", "a=y"],
        "two sets are called 'a'",
        "config/set-name-twice",
    ),
    "negative temperature": (
        ["--eval.fraction", "0.1", "--eval.temperatures", "-1"],
        "expected 0 (greedy) to 10, got -1",
        "config/out-of-range",
    ),
    "temperature twice": (
        ["--eval.fraction", "0.1", "--eval.temperatures", "1", "1.0"],
        "given twice",
        "config/temperature-twice",
    ),
    "many greedy samples": (
        ["--eval.fraction", "0.1", "--eval.n_samples", "8"],
        "at temperature 0 all samples",
        "config/equal-samples",
    ),
    "short evaluations of answers that must be long": (
        [
            *("--eval.fraction", "0.1", "--eval.max_new_tokens", "8"),
            *("--rollout.min_new_tokens", "9"),
        ],
        "--eval.max_new_tokens is 8; expected at least --rollout.min_new_tokens = 9",
        "config/min-above-max-tokens",
    ),
    "answers of evaluations that are longer than sequences": (
        [
            *("--eval.fraction", "0.1", "--eval.max_new_tokens", "2048"),
            *("--rollout.max_length", "2048"),
        ],
        "at most --rollout.max_length = 2048 tokens. Set --eval.max_length 3072",
        "config/no-room-to-answer",
    ),
    "prompts that fill the sequences of evaluations": (
        ["--eval.fraction", "0.1", "--eval.max_length", "1024"],
        "leaves no room to answer. Set --eval.max_length 1280",
        "config/no-room-to-answer",
    ),
    "best of a misspelled metric": (
        ["--eval.data", "hard=x.jsonl", "--checkpoint.best_metric", "eval/hrad/T0/reward"],
        "expected a metric that this run evaluates: eval/hard/T0/reward",
        "metric/unknown",
    ),
    "best of no evaluation": (
        ["--checkpoint.best_metric", "x"],
        "there is no evaluation",
        "metric/no-evaluation",
    ),
    "an observer of a misspelled metric": (
        ["--eval.data", "hard=x.jsonl", *WAITS, "eval/hard/T0/pas@1"],
        "--observers.waits.metric eval/hard/T0/pas@1: expected a metric that this run evaluates: eval/hard/T0/reward",
        "metric/unknown",
    ),
    "the same, with what was meant": (
        ["--eval.data", "hard=x.jsonl", *WAITS, "eval/hard/T0/pas@1"],
        "Did you mean eval/hard/T0/pass@1?",
        "metric/unknown",
    ),
    "an observer of a reward that nothing gives": (
        ["--eval.data", "hard=x.jsonl", *WAITS, "eval/hard/T0/reward/patern"],
        "Did you mean eval/hard/T0/reward/pattern?",
        "metric/unknown",
    ),
    "an observer of no evaluation": (
        [*WAITS, "eval/hard/T0/reward"],
        "--observers.waits.metric eval/hard/T0/reward: there is no evaluation",
        "metric/no-evaluation",
    ),
    "stale samples with recomputed log-probs": (
        [*AHEAD, "--algo.loss.old_logprobs", "recompute"],
        "--algo.correction.kind tis",
        "config/stale-samples-as-own",
    ),
    "stale samples with reused log-probs": (
        [*AHEAD, "--algo.loss.old_logprobs", "reuse"],
        "nothing would weigh the samples",
        "config/stale-samples-as-own",
    ),
    "stale samples of a truncated distribution": (
        [*AHEAD, "--rollout.top_p", "0.9"],
        "those of another distribution",
        "config/stale-samples-of-another-distribution",
    ),
    "stale samples for a loss of the same policy": (
        [*AHEAD, "--loss", "plain_gradient"],
        "provides={'off_policy'}",
        "config/stale-samples-unweighed",
    ),
    "the same, with what would help": (
        [*AHEAD, "--loss", "plain_gradient"],
        "--algo.correction.kind tis",
        "config/stale-samples-unweighed",
    ),
    "staleness below 0": (
        ["--rollout.max_staleness", "-1"],
        "--rollout.max_staleness",
        "config/out-of-range",
    ),
    "fewer prompts than a step needs": (
        ["--rollout.oversampling", "0.5"],
        "--rollout.oversampling",
        "config/out-of-range",
    ),
    "no prompt at a time": (
        ["--rollout.concurrency", "0"],
        "--rollout.concurrency",
        "config/out-of-range",
    ),
    "several turns without room": (
        ["--env", "maze", "--executor", "turns"],
        "--rollout.max_length is required",
        "config/no-max-length",
    ),
    "environment that nobody plays": (
        ["--env", "maze"],
        "Choose one that does: --executor turns",
        "config/environment-not-played",
    ),
}


@pytest.mark.parametrize(("words", "part", "code"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_is_refused(resolved, words, part, code):
    with pytest.raises(ConfigError, check=has_code(code)) as caught:
        resolved(*words)

    assert part in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ("--data", "b", "--data.probabilities", "0.3334", "0.6666"),
        (*WAITS, "reward/mean"),
        ("--eval.fraction", "0.1", "--checkpoint.best_metric", "eval/set/T0/reward/pattern"),
        ("--eval.fraction", "0.1", *WAITS, "eval/set/T0/pass@1"),
        ("--eval.fraction", "0.1", *WAITS, "eval/set/T0/rollout/turns"),
        ("--eval.fraction", "0.1", *WAITS, "eval/set/T0/dropped_prompts"),
        (
            *("--env", "maze", "--executor", "turns", "--rollout.max_length", "2048"),
            *("--eval.data", "x.jsonl", *WAITS, "eval/x/T0/reward/way"),
        ),
        (
            *("--env", "maze", "--executor", "turns", "--rollout.max_length", "2048"),
            *(*WAITS, "eval/maze/T0/reward"),
        ),
        ("--rollout.max_length", "1025"),
        ("--train.batch_size", "512"),
        ("--train.batch_size", "128", "--train.inner_epochs", "2"),
        ("--algo.kl.coef", "0.1", "--algo.kl.mode", "loss", "--algo.kl.estimator", "k3"),
        ("--algo.kl.coef", "0.1", "--algo.kl.target", "1", "--algo.kl.horizon", "5"),
        ("--algo.kl.coef", "0.1", "--ref.path", "other"),
        ("--algo.kl.coef", "0.1", "--ref.sync_every", "9", "--ref.sync_alpha", "0.5"),
        (
            *("--algo.kl.coef", "0.1", "--ref.sync_every", "9"),
            *("--engine", "takes_factors", "--actor.adapter", "beside"),
        ),
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
        ("--loss", "repeats", "--algo.kl.coef", "0.1", "--algo.terms.use", "clip"),
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
        ("--estimator", "discounted", "--critic.value_clip", "none"),
        ("--rollout.n_samples_per_prompt", "1", "--estimator", "discounted"),
        ("--data.template", "{{literal}} {q!r:>4} {row[a]}"),
    ],
)
def test_what_makes_sense_is_accepted(resolved, words):
    resolved(*words)


def test_a_run_needs_tasks(resolved):
    with pytest.raises(
        ConfigError,
        match=r"Add --data FILE.jsonl or --env NAME",
        check=has_code("config/no-tasks"),
    ):
        resolved("--model", "m", "--reward", "pattern", enough=False)


def test_a_run_needs_something_to_learn_from(resolved):
    with pytest.raises(ConfigError, match="Add --reward NAME", check=has_code("config/no-reward")):
        resolved("--model", "m", "--data", "d", enough=False)


def test_an_environment_is_task_and_reward(resolved):
    result = resolved(
        *["--model", "m", "--env", "maze", "--executor", "turns", *ROOM, "--steps", "3"],
        enough=False,
    )

    assert result.one("env.use").registered.name == "maze"


def test_an_environment_may_have_epochs_of_its_own(resolved):
    """Whether its tasks have an end is known once they are there."""
    words = ["--model", "m", "--env", "maze", "--executor", "turns", *ROOM]

    assert resolved(*words, enough=False).run.train.steps is None
