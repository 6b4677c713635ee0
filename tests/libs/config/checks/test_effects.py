"""An option that was typed for this run and could not change it is refused; in a file it may wait."""

import pytest

from rlhf_config import Layer
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

SEEING = ("--model.vision", "eyes", "--engine", "takes_images")
NO_EFFECT = {
    "KL mode": (["--algo.kl.mode", "reward"], "there is no KL penalty"),
    "KL estimator": (["--algo.kl.estimator", "k3"], "there is no KL penalty"),
    "KL horizon": (["--algo.kl.coef=0.1", "--algo.kl.horizon", "5"], "Set --algo.kl.target"),
    "epochs beside steps": (
        ["--steps", "5", "--train.epochs", "2"],
        "train.steps says how long the run is",
    ),
    "reference": (["--ref.path", "x"], "nothing uses a reference model"),
    "reference of nobody that follows": (
        ["--ref.sync_every", "2"],
        "nothing uses a reference model",
    ),
    "share of a reference that stays": (
        ["--algo.kl.coef=0.1", "--ref.sync_alpha", "0.5"],
        "Set --ref.sync_every too",
    ),
    "evaluation interval": (["--eval.every", "5"], "there is nothing to evaluate on"),
    "nucleus of greedy evaluations": (
        ["--eval.fraction", "0.1", "--eval.top_p", "0.9"],
        "evaluations are greedy. Set --eval.temperatures above 0 too",
    ),
    "answers of no evaluation": (["--eval.max_new_tokens", "9"], "nothing to evaluate on"),
    "environments' split beside held-out rows": (
        ["--eval.fraction", "0.1", "--eval.environment_split", "test"],
        "evaluated on --eval.data or --eval.fraction",
    ),
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
    "critic of nobody": (["--critic.value_clip", "none"], "the run has no critic"),
    "rate of no critic": (["--critic.plain.lr", "1e-3"], "Choose an --estimator that needs one"),
    "estimator of no loss": (
        ["--loss", "repeats", "--estimator", "discounted"],
        "no loss of this run is weighted with advantages",
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
    "limit on images of a text model": (["--data.max_images", "2"], "Set --model.vision"),
    "area of a text model's images": (["--data.max_pixels", "9"], "Set --model.vision"),
    "copies of a text model's images": (["--data.copy_images"], "Set --model.vision"),
    "room for images of a text model": (
        ["--rollout.drawn_images_gib", "2"],
        "Set --model.vision",
    ),
    "frozen eyes of a text model": (["--actor.freeze_visual_encoder"], "Set --model.vision"),
    "projector of a text model": (["--actor.freeze_projector"], "Set --model.vision"),
    "frozen text of a text model": (["--actor.freeze_language_model"], "Set --model.vision"),
    "rate of a text model's eyes": (["--actor.vision_lr_ratio", "0.1"], "Set --model.vision"),
    "rate of a text model's projector": (["--actor.projector_lr_ratio", "2"], "Set --model.vision"),
    "rate of frozen eyes": (
        [*SEEING, "--actor.freeze_visual_encoder", "--actor.vision_lr_ratio", "2"],
        "--actor.freeze_visual_encoder is set",
    ),
    "rate of a frozen projector": (
        [*SEEING, "--actor.freeze_projector", "--actor.projector_lr_ratio", "2"],
        "--actor.freeze_projector is set",
    ),
    "best mode of no best": (
        [
            *("--eval.fraction", "0.1", "--checkpoint.best_metric", "none"),
            *("--checkpoint.best_mode", "min"),
        ],
        "no best checkpoint",
    ),
    "best mode of no evaluation": (["--checkpoint.best_mode", "min"], "nothing to evaluate on"),
    "beginning of no warm-up": (
        ["--actor.warmup_ratio", "0", "--actor.init_lr_ratio", "0.5"],
        "there is no warm-up. Set --actor.warmup_ratio above 0",
    ),
    "end of a schedule": (["--actor.min_lr_ratio", "0.5"], "the learning rate is constant"),
    "error value": (
        ["--reward.pattern.error_value", "1"],
        "errors are not scored. Set on_error value",
    ),
    "refills without filters": (["--rollout.max_refills", "2"], "Add --rollout.filters"),
    "mismatch of older samples": (
        ["--rollout.max_staleness", "1", "--rollout.max_mismatch", "0.1"],
        "differ for good reasons",
    ),
    "mismatch of a truncated distribution": (
        ["--rollout.top_p", "0.9", "--rollout.max_mismatch", "0.1"],
        "differ for good reasons",
    ),
    "share of compared samples, for a loss that needs all": (
        ["--loss", "reads_sampler", "--rollout.compared_share", "0.5"],
        "all samples carry the sampler's log-probs",
    ),
    "share of compared samples, when all are measured": (
        ["--algo.loss.off_policy_mask", "0.5", "--rollout.compared_share", "0.5"],
        "all samples carry the sampler's log-probs",
    ),
    "share of compared samples, when they are the old ones": (
        ["--rollout.max_staleness", "1", "--rollout.compared_share", "0.5"],
        "all samples carry the sampler's log-probs",
    ),
    "strict beginning": (["--resume.strict"], "Add --resume"),
    "damaged records of a beginning": (
        ["--resume.damaged_records", "set-aside"],
        "Add --resume",
    ),
    "tables for no logger": (["--log.samples_every", "5"], "Add --log.to NAME"),
    "split of a held-out file": (
        ["--eval.data", "held=out.csv.gz", "--eval.split", "dev"],
        "out.csv.gz is a file, which has no splits",
    ),
    "wait for no logger": (["--log.wait_s", "5"], "Add --log.to NAME"),
    "tables without samples": (
        ["--log.to", "notebook", "--log.samples", "0", "--log.samples_every", "5"],
        "Set --log.samples too",
    ),
    "updates in flight of nothing": (
        ["--rollout.in_flight_updates"],
        "nothing is in flight when weights change",
    ),
}


@pytest.mark.parametrize(("words", "part"), NO_EFFECT.values(), ids=NO_EFFECT)
def test_a_typed_option_that_changes_nothing_is_refused(resolved, words, part):
    with pytest.raises(ConfigError) as caught:
        resolved(*words)

    assert part in str(caught.value)
    assert "would change nothing" in str(caught.value)


def test_epochs_that_are_typed_beside_the_steps_of_a_file_are_refused(resolved):
    steps = Layer.of({"train": {"steps": 300}}, "run.toml")

    with pytest.raises(ConfigError, match="set --steps none", check=has_code("config/no-effect")):
        resolved("--train.epochs", "2", files=[steps])
    assert resolved("--train.epochs", "2", "--steps", "none", files=[steps]).run.train.steps is None


def test_what_changes_nothing_may_stand_in_a_file(resolved):
    waiting = {"algo": {"kl": {"mode": "loss"}}, "data": {"shuffle": False}, "ref": {"path": "x"}}
    waiting |= {"critic": {"warmup_steps": 1, "plain": {"lr": 0.001}}}

    resolved(files=[Layer.of(waiting, "run.toml")])


COUNTS = [
    ("--data", "rows.jsonl", "--data.split", "validation"),  # beside a set of the hub
    ("--rollout.filters", "spread", "--rollout.max_refills", "2"),
    ("--rollout.max_mismatch", "0.1", "--rollout.compared_share", "0.5"),
    ("--algo.loss.old_logprobs=recompute", "--rollout.compared_share", "0.5"),
    ("--resume", "auto", "--resume.strict", "--resume.damaged_records", "set-aside"),
    ("--rollout.max_staleness", "1", "--rollout.in_flight_updates"),
    ("--estimator", "discounted", "--critic.value_clip", "none", "--critic.plain.lr", "1e-3"),
    ("--loss", "repeats", "--algo.terms.use", "clip", "--estimator", "discounted"),
    ("--actor.lr_schedule", "falling", "--actor.min_lr_ratio", "0.5"),
    ("--reward.pattern.on_error", "value", "--reward.pattern.error_value", "1"),
    ("--eval.data", "x", "--eval.split", "test", "--eval.every", "5"),
    ("--env=maze", "--executor=turns", "--rollout.max_length=2048", "--eval.every", "5"),
    (
        "--eval.fraction=0.1",
        "--checkpoint.best_metric=eval/set/T0/reward",
        "--checkpoint.best_mode=min",
    ),
    (
        "--executor=turns",
        "--env=maze",
        "--rollout.max_length=2048",
        "--eval.environment_split=test",
        "--checkpoint.best_metric=eval/maze/T0/reward",
        "--checkpoint.best_mode=max",
    ),
    (
        "--executor=turns",
        "--env=maze",
        "--rollout.max_length=2048",
        "--eval.environment_split=none",
    ),
]


@pytest.mark.parametrize("words", COUNTS, ids=" ".join)
def test_the_same_option_counts_beside_what_switches_it_on(resolved, words):
    resolved(*words)


def test_the_message_names_the_option_as_it_was_typed_and_what_to_do(resolved):
    with pytest.raises(ConfigError) as caught:
        resolved("--rollout.max_refills=2")

    assert str(caught.value) == (
        "--rollout.max_refills would change nothing: no filter drops what could be replaced. "
        "Add --rollout.filters NAME."
    )


def test_an_option_that_its_component_says_is_idle_is_refused_where_it_was_typed(resolved):
    flags = ("--estimator", "discounted", "--algo.advantage.discounted.gamma", "0")
    waiting = Layer.of({"algo": {"advantage": {"discounted": {"lambda_": 0.5}}}}, "run.toml")

    resolved(*flags, files=[waiting])
    with pytest.raises(ConfigError, check=has_code("config/no-effect")) as caught:
        resolved(*flags, "--algo.advantage.discounted.lambda_", "0.5")

    assert str(caught.value) == (
        "--algo.advantage.discounted.lambda_ would change nothing: gamma is 0. Set it above 0."
    )


def test_a_model_of_which_nothing_is_trained_is_refused_by_its_options(resolved):
    frozen = ("--actor.freeze_visual_encoder", "--actor.freeze_language_model")

    assert resolved(*SEEING, *frozen).run.actor.parts().freeze_projector is None
    with pytest.raises(
        ConfigError,
        match="freeze_visual_encoder, freeze_projector and freeze_lang",
        check=has_code("config/invalid"),
    ):
        resolved(*SEEING, *frozen, "--actor.freeze_projector")
    with pytest.raises(
        ConfigError,
        match=r"actor\.vision_lr_ratio: expected a value above 0",
        check=has_code("config/out-of-range"),
    ):
        resolved(*SEEING, "--actor.vision_lr_ratio", "0")
