"""An option that was typed for this run and could not change it is refused; in a file it may wait."""

import pytest

from rlhf_core import ConfigError
from rlhf_core.config import Layer

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
        "is no estimator's",
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


def test_what_changes_nothing_may_stand_in_a_file(resolved):
    waiting = {"algo": {"kl": {"mode": "loss"}}, "eval": {"every": 5}, "ref": {"path": "x"}}

    resolved(files=[Layer.of(waiting, "run.toml")])
