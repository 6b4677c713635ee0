"""The closing table."""

from __future__ import annotations

from rlhf_plugin_inference.generate.records import AnsweredPrompt, ScoredAnswer
from rlhf_plugin_inference.generate.summary import GenerationSummary


def prompt(*answers):
    completions = tuple(
        ScoredAnswer(
            text="a",
            tokens=tokens,
            stop=stop,
            logprob=-1.0,
            seed=0,
            reward=reward,
            rewards={} if reward is None else {"mine": reward / 2},
        )
        for tokens, stop, reward in answers
    )
    return AnsweredPrompt(
        index=0, dataset="d", prompt="p", messages=None, prompt_tokens=1, completions=completions
    )


def test_counts_and_means_are_those_of_all_completions():
    """Tokens 2, 4, 9: mean 5. Rewards 1 and 3: mean 2, and half of that for the one reward."""
    summary = GenerationSummary()
    summary.add(prompt((2, "eos", 1.0), (4, "length", 3.0)), is_scored=True)
    summary.add(prompt((9, "eos", None)), is_scored=True)
    summary.chosen = 3
    summary.left_out.update({"equal rewards": 2})

    assert dict(summary.rows()) == {
        "prompts": "2",
        "completions": "3",
        "tokens of a completion": "5 (2 to 9)",
        "ended by": "eos 2, length 1",
        "reward": "2 (1 to 3)",
        "reward mine": "1 (0.5 to 1.5)",
        "without a reward": "1",
        "rows chosen": "3",
        "prompts left out: equal rewards": "2",
    }


def test_without_rewards_the_table_says_nothing_of_them():
    summary = GenerationSummary()
    summary.add(prompt((2, "eos", None)), is_scored=False)

    assert [name for name, _ in summary.rows()] == [
        "prompts",
        "completions",
        "tokens of a completion",
        "ended by",
    ]
