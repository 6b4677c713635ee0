"""A few rollouts as text."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rlhf_trainer.rollouts.reports import sample_texts


class Letters:
    """The tokens of ``batch_of`` are code points."""

    def decode(self, token_ids, *, skip_special_tokens=True):
        return "".join(map(chr, token_ids))

    def decode_batch(self, sequences, *, skip_special_tokens=True):
        return [self.decode(token_ids) for token_ids in sequences]


@pytest.fixture
def batch(batch_of):
    return batch_of({(prompt, 0): f"p{'A' * (1 + prompt)}eB" for prompt in range(5)})


@pytest.mark.parametrize(
    ("count", "prompts"),
    [(0, []), (1, [0]), (2, [0, 4]), (3, [0, 2, 4]), (5, [0, 1, 2, 3, 4]), (99, [0, 1, 2, 3, 4])],
)
def test_samples_are_spread_over_the_batch(batch, count, prompts):
    texts = sample_texts(batch, count, Letters())

    assert [text["uid"] for text in texts] == [f"0.{prompt}.0.0" for prompt in prompts]


def test_a_response_is_all_after_the_first_action_what_the_environment_wrote_too(batch_of):
    (text,) = sample_texts(batch_of({(3, 1): "ppAAeB!"}), 4, Letters())

    assert json.loads(json.dumps(text)) == {
        "uid": "0.3.1.0",
        "prompt": "pp",
        "response": "AAeB",
        "reward": 0.0,
        "rewards": {},
        "truncated": True,
        "parts": [["policy", "AA"], ["environment", "e"], ["policy", "B"]],
    }


def test_a_response_of_the_policy_alone_has_no_parts(batch_of):
    (text,) = sample_texts(batch_of({(0, 0): "ppAAA"}), 1, Letters())

    assert text["response"] == "AAA"
    assert "parts" not in text


def test_the_reward_before_shaping_is_told_where_shaping_changed_it(batch_of):
    batch = batch_of({(0, 0): "pA", (1, 0): "pA"})
    batch.metrics["unshaped_reward"] = np.float32([0.0, 0.5])

    same, changed = sample_texts(batch, 2, Letters())

    assert "unshaped" not in same
    assert (changed["reward"], changed["unshaped"]) == (0.0, 0.5)


def test_a_score_that_a_sample_does_not_have_is_left_out(batch):
    batch.rewards["exact"] = batch.reward.copy()
    batch.rewards["exact"][0] = float("nan")

    first, last = sample_texts(batch, 2, Letters())

    assert (first["rewards"], last["rewards"]) == ({}, {"exact": 0.0})


def test_parts_of_a_reward_are_pairs_of_action_and_number(batch_of):
    batch = batch_of({(0, 0): "pAAeB", (1, 0): "pA", (2, 0): "pAAA"})
    batch = replace(
        batch,
        num_steps=np.array([2, 0, 1]),
        step_actions=np.array([1, 2, 0]),
        step_rewards=np.float32([0.5, -0.25, 1.0]),
    )

    texts = json.loads(json.dumps(sample_texts(batch, 3, Letters())))

    assert texts[0]["step_rewards"] == [[1, 0.5], [2, -0.25]]
    assert "step_rewards" not in texts[1]
    assert texts[2]["step_rewards"] == [[0, 1.0]]


def test_the_end_of_an_episode_is_told_where_its_executor_says_it(batch):
    batch.metrics["end/turns"] = np.array([1, 0, 0, 0, np.nan], np.float32)
    batch.metrics["end/finished"] = np.array([0, 1, 1, 1, np.nan], np.float32)

    texts = sample_texts(batch, 5, Letters())

    assert [text.get("end") for text in texts] == ["turns", *["finished"] * 3, None]


def test_tokens_come_with_the_columns_of_their_own_actions(batch_of):
    batch = batch_of({(0, 0): "pAAeB", (1, 0): "pA", (2, 0): "pAAA"})  # 3, 1 and 3 actions
    learned = {
        "advantages": np.arange(7, dtype=np.float32),
        "of_another_batch": np.zeros(9, np.float32),
    }

    first, last = (text["tokens"] for text in sample_texts(batch, 2, Letters(), learned))

    assert first.texts == tuple("pAAeB")
    assert first.token_ids.tolist() == list(map(ord, "pAAeB"))
    assert first.action_mask.tolist() == [False, True, True, False, True]
    assert first.columns["advantages"].tolist() == [0.0, 1.0, 2.0]
    assert last.columns["advantages"].tolist() == [4.0, 5.0, 6.0]
    assert first.columns.keys() == {"advantages", "rollout_logprobs"}
    assert len(last.weight_version) == len(last.columns["rollout_logprobs"]) == 3


def test_log_probs_of_the_sampler_do_not_pass_for_the_trainers(batch_of):
    batch = batch_of({(0, 0): "pAA"})
    ours, theirs = batch.rollout_logprobs + np.float32(0.5), batch.rollout_logprobs

    for old, expected in ((ours, True), (theirs, False)):
        (text,) = sample_texts(batch, 1, Letters(), {"old_logprobs": old})

        assert ("old_logprobs" in text["tokens"].columns) is expected


def test_no_sample_has_tokens_where_nobody_hears_them(batch):
    assert not any("tokens" in text for text in sample_texts(batch, 9, Letters()))
