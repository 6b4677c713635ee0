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


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A run with a fault."""

    expected: tuple[str, ...]
    """Diagnoses of which each alone is right; ``(name)`` is a hint."""
    words: str = ""
    """Flags; ``{task}`` is the task's folder, ``{able}`` a model that has learned a part of it, ``{lr_x100}`` and so on
    are learning rates as multiples of the task's."""
    reward: str = ""
    """Name of the wrong reward, of ``diagnoses_rewards.py``; empty: the right one."""
    command: str = "train"
    planted: str = ""
    """Name in ``PLANTED`` of what is made wrong in the program; empty: nothing is."""


SFT = "--data.train {task}/%s.jsonl --data.prompt_key prompt --data.response_key answer"
PAIRS = "--data.train {task}/%s.jsonl"
RANDOM = PAIRS % "random_pairs"
ABLE = "--model.path {able} "
HELD_OUT = " --eval.every 10 --eval.data held_out={task}/test.jsonl"
HELD_PAIRS = " --eval.every 10 --eval.data held_out={task}/test_pairs.jsonl"
COPY = "--engine.embedded.weights copy --rollout.check_weights false "
TOKENS = "--observers.use token_files --log.samples 128"
AWAY = ("reward_falls", "reward_lost", "against_reward")
COLLAPSED = ("rate_too_high", "entropy_gone", "one_answer", "reward_lost")
HACKED = ("reward_hacking", "one_answer", "prompt_ignored")
FLIPPED = ("reward_hacking", "reward_lost", "prompt_ignored")
FAULTS = {
    "constant_reward": Fault(reward="constant", expected=("dead_reward",)),
    "reward_of_a_missing_form": Fault(reward="misread", expected=("dead_reward",)),
    "reward_too_rare": Fault(reward="rare", expected=("dead_reward", "equal_groups")),
    "temperature_0.01": Fault(
        words="--rollout.temperature 0.01 --algo.loss.entropy_coef 0",
        expected=("equal_groups", "same_samples", "other_weights", "entropy_gone"),
    ),
    "rate_x100": Fault(
        words="--actor.adam.lr {lr_x100}", expected=(*COLLAPSED, "empty_answers", "equal_groups")
    ),
    "rate_x100_no_clipping": Fault(
        words="--actor.adam.lr {lr_x100} --actor.max_norm 1e9 --train.inner_epochs 4",
        expected=(*COLLAPSED, "all_clipped", "equal_groups"),
    ),
    "rate_by_1000": Fault(words="--actor.adam.lr {lr_by_1000}", expected=("rate_too_low",)),
    "entropy_pushed_down": Fault(
        words="--algo.loss.entropy_coef 0 --actor.adam.lr {lr_x6} --train.inner_epochs 4",
        expected=COLLAPSED,
    ),
    "answers_too_short": Fault(
        words="--rollout.max_new_tokens {short}",
        reward="misread",
        expected=("dead_reward", "cut_off"),
    ),
    "hackable_reward": Fault(reward="hackable", expected=HACKED),
    "hackable_reward_held_out_right": Fault(reward="hackable_in_training", expected=HACKED),
    "reward_flipped": Fault(reward="flipped", expected=FLIPPED),
    "reward_flipped_held_out_right": Fault(reward="flipped_in_training", expected=FLIPPED),
    "reward_flipped_of_an_able_model": Fault(words=ABLE, reward="flipped", expected=FLIPPED),
    "reward_flipped_held_out_right_of_an_able_model": Fault(
        words=ABLE, reward="flipped_in_training", expected=FLIPPED
    ),
    "wrong_labels": Fault(
        words=ABLE + "--eval.max_samples 96",
        reward="wrong_labels",
        expected=("(wrong_labels)",),
    ),
    "sft_wrong_labels": Fault(
        command="sft",
        words=SFT % "noisy" + " --actor.adam.lr {lr_x1} --train.epochs 4" + HELD_OUT,
        expected=("(wrong_rows)",),
    ),
    "rm_wrong_labels": Fault(
        command="rm",
        words=PAIRS % "noisy_pairs" + " --actor.adam.lr {lr_x1}" + HELD_PAIRS,
        expected=("(wrong_rows)",),
    ),
    "dpo_wrong_labels": Fault(
        command="dpo",
        words=PAIRS % "noisy_pairs" + " --actor.adam.lr {lr_x1}" + HELD_PAIRS,
        expected=("(wrong_rows)",),
    ),
    "advantages_flipped": Fault(planted="advantages_flipped", expected=AWAY),
    "advantages_flipped_with_tokens": Fault(
        words=TOKENS, planted="advantages_flipped", expected=("against_reward",)
    ),
    "loss_flipped": Fault(planted="loss_flipped", expected=AWAY),
    "loss_flipped_of_an_able_model": Fault(words=ABLE, planted="loss_flipped", expected=AWAY),
    "weights_not_delivered": Fault(
        words=COPY + "--rollout.max_mismatch none",
        planted="weights_not_delivered",
        expected=("old_weights",),
    ),
    "weights_not_delivered_at_a_low_rate": Fault(
        words=COPY + "--actor.adam.lr {lr_by_50}",
        planted="weights_not_delivered",
        expected=("old_weights",),
    ),
    "weights_delivered_every_10_steps": Fault(
        words=COPY + "--rollout.max_mismatch none",
        planted="weights_delivered_every_10_steps",
        expected=("old_weights",),
    ),
    "reward_is_noise": Fault(reward="noise", expected=(*HACKED, "entropy_gone")),
    "stale_at_a_high_rate": Fault(
        words="--rollout.max_staleness 4 --actor.adam.lr {lr_x20}",
        expected=("other_weights", *COLLAPSED),
    ),
    "all_groups_filtered": Fault(
        words="--rollout.filters zero_variance --rollout.max_refills 1 --train.max_empty_steps 60",
        reward="rare",
        expected=("empty_steps", "nearly_all_dropped", "dead_reward"),
    ),
    "sft_rate_1": Fault(
        command="sft",
        words=SFT % "train" + " --actor.adam.lr 1.0",
        expected=("loss_rises", "not_finite", "rate_too_high"),
    ),
    "sft_by_heart": Fault(
        command="sft",
        words=SFT % "few" + " --actor.adam.lr {lr_x2} --train.epochs 60" + HELD_OUT,
        expected=("overfits",),
    ),
    "rm_of_random_labels": Fault(command="rm", words=RANDOM, expected=("at_chance",)),
    "rm_of_random_labels_held_out": Fault(
        command="rm",
        words=RANDOM + " --eval.fraction 0.1 --eval.every 10",
        expected=("at_chance",),
    ),
    "dpo_of_random_labels": Fault(
        command="dpo", words=RANDOM + " --actor.adam.lr {lr_by_50}", expected=("at_chance",)
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
