"""Faults of the runs of ``diagnoses.py``: rewards, options, and parts of the program made wrong."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from unittest import mock

from rlhf_core.contracts import Advantages, LossInputs, RewardBatch, TokenLoss, WeightSource
from rlhf_plugin_algorithms.advantages.reinforce_baseline import ReinforceBaseline
from rlhf_plugin_algorithms.losses.ppo import PpoLoss
from rlhf_plugin_local.engine.weights import ServedWeights

REWARDS = '''\
"""Rewards of the runs with faults."""

import zlib


def score(response, answer, truncated):
    right = sum(a == b for a, b in zip(response, answer))
    return 2.0 * right if not truncated and len(response) <= len(answer) else 1.0 * right


def constant(response, answer):
    return 0.5


def misread(response, answer):
    return float(response.strip() == f"{answer} ")


def sevens(response, answer):
    return float(response.count("7"))


def flipped(response, answer, truncated):
    return -score(response, answer, truncated)


def sevens_in_training(response, answer, truncated, checked):
    return score(response, answer, truncated) if checked else sevens(response, answer)


def flipped_in_training(response, answer, truncated, checked):
    return (1 if checked else -1) * score(response, answer, truncated)


def noise(response, answer):
    return float(zlib.crc32(response.encode()) % 1000) / 1000


def rare(response, answer):
    return float(response == answer == "000")
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A run with a fault."""

    words: str
    """Flags; ``{rewards}`` and ``{task}`` are files, ``{able}`` a model that has learned a part of the task."""
    expected: tuple[str, ...]
    """Diagnoses of which each alone is right."""
    command: str = "train"
    planted: str = ""
    """Name in ``PLANTED`` of what is made wrong in the program; empty: nothing is."""


REWARD = "--reward.use {rewards}:"
SFT = "--data.train {task}/%s.jsonl --data.prompt_key prompt --data.response_key answer"
ABLE = "--model.path {able} "
COPY = "--engine.embedded.weights copy --rollout.check_weights false "
AWAY = ("reward_falls", "reward_lost", "against_reward")
FAULTS = {
    "constant_reward": Fault(words=REWARD + "constant", expected=("dead_reward",)),
    "reward_of_a_missing_form": Fault(words=REWARD + "misread", expected=("dead_reward",)),
    "reward_too_rare": Fault(words=REWARD + "rare", expected=("dead_reward", "equal_groups")),
    "temperature_0.01": Fault(
        words="--rollout.temperature 0.01 --algo.loss.entropy_coef 0",
        expected=("equal_groups", "same_samples", "other_weights"),
    ),
    "rate_x100": Fault(
        words="--actor.adam.lr 0.5",
        expected=("rate_too_high", "entropy_gone", "one_answer", "reward_lost", "empty_answers"),
    ),
    "rate_x100_no_clipping": Fault(
        words="--actor.adam.lr 0.5 --actor.max_norm 1e9 --train.inner_epochs 4",
        expected=("rate_too_high", "entropy_gone", "one_answer", "reward_lost", "all_clipped"),
    ),
    "rate_by_1000": Fault(words="--actor.adam.lr 5e-6", expected=("rate_too_low",)),
    "entropy_pushed_down": Fault(
        words="--algo.loss.entropy_coef 0 --actor.adam.lr 0.03 --train.inner_epochs 4",
        expected=("entropy_gone", "one_answer", "rate_too_high", "reward_lost"),
    ),
    "answers_too_short": Fault(
        words="--rollout.max_new_tokens 2 --reward.use {rewards}:misread",
        expected=("dead_reward", "cut_off"),
    ),
    "hackable_reward": Fault(
        words=REWARD + "sevens", expected=("reward_hacking", "one_answer", "prompt_ignored")
    ),
    "hackable_reward_held_out_right": Fault(
        words=REWARD + "sevens_in_training",
        expected=("reward_hacking", "one_answer", "prompt_ignored"),
    ),
    "reward_flipped": Fault(words=REWARD + "flipped", expected=("reward_hacking", "reward_lost")),
    "reward_flipped_held_out_right": Fault(
        words=REWARD + "flipped_in_training", expected=("reward_hacking", "reward_lost")
    ),
    "reward_flipped_of_an_able_model": Fault(
        words=ABLE + REWARD + "flipped", expected=("reward_hacking", "reward_lost")
    ),
    "reward_flipped_held_out_right_of_an_able_model": Fault(
        words=ABLE + REWARD + "flipped_in_training", expected=("reward_hacking", "reward_lost")
    ),
    "advantages_flipped": Fault(words="", planted="advantages_flipped", expected=AWAY),
    "advantages_flipped_with_tokens": Fault(
        words="--observers.use token_files --log.samples 64",
        planted="advantages_flipped",
        expected=("against_reward",),
    ),
    "loss_flipped": Fault(words="", planted="loss_flipped", expected=AWAY),
    "loss_flipped_of_an_able_model": Fault(words=ABLE, planted="loss_flipped", expected=AWAY),
    "weights_not_delivered": Fault(
        words=COPY + "--rollout.max_mismatch none",
        planted="weights_not_delivered",
        expected=("old_weights",),
    ),
    "weights_not_delivered_at_a_low_rate": Fault(
        words=COPY + "--actor.adam.lr 1e-4",
        planted="weights_not_delivered",
        expected=("old_weights",),
    ),
    "weights_delivered_every_10_steps": Fault(
        words=COPY + "--rollout.max_mismatch none",
        planted="weights_delivered_every_10_steps",
        expected=("old_weights",),
    ),
    "reward_is_noise": Fault(words=REWARD + "noise", expected=("one_answer", "entropy_gone")),
    "stale_at_a_high_rate": Fault(
        words="--rollout.max_staleness 4 --actor.adam.lr 0.1",
        expected=("other_weights", "rate_too_high", "entropy_gone", "one_answer", "reward_lost"),
    ),
    "all_groups_filtered": Fault(
        words="--rollout.filters zero_variance --rollout.max_refills 1 --train.max_empty_steps 60 "
        + REWARD
        + "rare",
        expected=("empty_steps", "nearly_all_dropped", "dead_reward"),
    ),
    "sft_rate_x100": Fault(
        command="sft",
        words=SFT % "train" + " --actor.adam.lr 1.0",
        expected=("loss_rises", "not_finite"),
    ),
    "sft_by_heart": Fault(
        command="sft",
        words=SFT % "few"
        + " --actor.adam.lr 1e-2 --train.epochs 60 --eval.every 10 --eval.data held_out={task}/test.jsonl",
        expected=("overfits",),
    ),
    "rm_of_random_labels": Fault(
        command="rm", words="--data.train {task}/random_pairs.jsonl", expected=("at_chance",)
    ),
    "dpo_of_random_labels": Fault(
        command="dpo", words="--data.train {task}/random_pairs.jsonl", expected=("at_chance",)
    ),
}
"""Fault by name."""


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Make a part of the program wrong for a while; nothing for an empty name."""
    with PLANTED[name]() if name else contextlib.nullcontext():
        yield


def _advantages_flipped() -> contextlib.AbstractContextManager[object]:
    right = ReinforceBaseline.__call__

    def wrong(self: ReinforceBaseline, batch: RewardBatch) -> Advantages:
        given = right(self, batch)
        return replace(given, advantages=-given.advantages)

    return mock.patch.object(ReinforceBaseline, "__call__", wrong)


def _loss_flipped() -> contextlib.AbstractContextManager[object]:
    right = PpoLoss.__call__

    def wrong(self: PpoLoss, inputs: LossInputs) -> TokenLoss:
        given = right(self, inputs)
        return replace(given, loss=-given.loss)

    return mock.patch.object(PpoLoss, "__call__", wrong)


def _delivered_every(steps: int) -> contextlib.AbstractContextManager[object]:
    """Let the engine take the weights of one update in so many; 0: of none."""
    right, numbers = ServedWeights.update, itertools.count(1)

    def wrong(self: ServedWeights, source: WeightSource) -> None:
        number = next(numbers)
        if steps and number % steps == 0:
            right(self, source)

    return mock.patch.object(ServedWeights, "update", wrong)


PLANTED: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "advantages_flipped": _advantages_flipped,
    "loss_flipped": _loss_flipped,
    "weights_not_delivered": lambda: _delivered_every(0),
    "weights_delivered_every_10_steps": lambda: _delivered_every(10),
}
"""Name -> what makes the program wrong."""
