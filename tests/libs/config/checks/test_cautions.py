"""What a run says at its start of options that are allowed and probably not meant."""

import pytest

from rlhf_config import Layer
from rlhf_core import CapabilityError
from rlhf_testing.errors import has_code


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--rollout.top_p", "0.8"), "--rollout.top_p 0.8:"),
        (("--rollout.top_k", "20"), "--rollout.top_k 20:"),
        (("--rollout.min_p", "0.05"), "--rollout.min_p 0.05:"),
        (
            ("--rollout.top_p", "0.9", "--rollout.top_k", "50"),
            "--rollout.top_p 0.9, --rollout.top_k 50:",
        ),
    ],
)
def test_truncated_sampling_is_said_once_with_its_size(resolved, words, named):
    (caution,) = resolved(*words).cautions

    assert caution.startswith(named)
    assert "0.896" in caution
    assert "51.8 %" in caution
    assert "huggingface/trl#7269" in caution


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--rollout.top_p", "1", "--rollout.top_k", "0", "--rollout.min_p", "0"),
        ("--rollout.temperature", "0.7"),
        ("--train.inner_epochs", "2"),
        ("--loss", "plain_gradient"),
        ("--loss", "reads_sampler", "--train.inner_epochs", "2"),
    ],
)
def test_what_is_meant_is_not_commented_on(resolved, words):
    assert resolved(*words).cautions == ()


@pytest.mark.parametrize("words", [("--train.inner_epochs", "2"), ("--train.batch_size", "256")])
def test_several_updates_by_a_loss_without_a_ratio_are_doubted(resolved, words):
    (caution,) = resolved("--loss", "plain_gradient", *words).cautions

    assert "plain_gradient: a rollout batch gives 2 updates" in caution
    assert "'off_policy'" in caution


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--actor.adapter", "thin", "--actor.plain.lr", "1e-6"), "--actor.adapter thin"),
        (
            (
                *("--estimator", "discounted", "--critic.adapter", "thin"),
                *("--critic.plain.lr", "1e-6"),
            ),
            "--critic.adapter thin",
        ),
    ],
)
def test_an_adapter_at_the_learning_rate_of_full_training_is_doubted(resolved, words, named):
    (caution,) = resolved(*words).cautions

    assert caution.startswith(f"{named} with a learning rate of 1e-06")
    assert "about 10 times" in caution


def test_the_rate_of_a_critic_that_is_not_built_is_not_commented_on(resolved):
    waiting = {"critic": {"adapter": "thin", "plain": {"lr": 1e-6}}}

    assert resolved(files=[Layer.of(waiting, "run.toml")]).cautions == ()


@pytest.mark.parametrize(
    "words",
    [
        ("--actor.adapter", "thin", "--actor.plain.lr", "1e-5"),
        ("--actor.plain.lr", "1e-6"),
    ],
)
def test_an_adapter_that_learns_and_full_training_are_not(resolved, words):
    assert resolved(*words).cautions == ()


def test_a_reward_that_sees_no_image_is_named_where_the_policy_does(resolved):
    assert resolved("--reward", "reads_texts").cautions == ()

    (caution,) = resolved(
        "--reward", "reads_texts", "--model.vision", "eyes", "--engine", "takes_images"
    ).cautions

    assert caution.startswith("--reward reads_texts reads text alone: the policy sees the images")


def test_a_reward_that_sees_images_by_its_options_is_for_policies_that_do(resolved):
    words = ("--reward", "reads_texts", "--reward.reads_texts.sees", "true")
    seeing = ("--model.vision", "eyes", "--engine", "takes_images")

    assert resolved(*words, *seeing).cautions == ()
    with pytest.raises(
        CapabilityError,
        match="reads_texts needs 'images': the policy reads text",
        check=has_code("config/missing-capability"),
    ):
        resolved(*words)
