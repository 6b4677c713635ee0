"""Lengths, micro-batches and responses per update."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_plugin_migrate.openrlhf.reinforcement.lengths import largest_divisor
from rlhf_plugin_migrate.table.outcome import Status

MICRO = "train.max_tokens_per_micro_batch"


@pytest.mark.parametrize(
    ("flags", "whole", "prompt", "response"),
    [
        ("", 2048, 2047, 2048),
        ("--data.max_len 4096", 4096, 4095, 4096),
        ("--data.max_len 4096 --rollout.max_new_tokens 1024", 4096, 3072, 1024),
        ("--data.max_len 512 --rollout.max_new_tokens 1024", 512, 1, 1024),
        ("--prompt_max_len 512 --generate_max_len 256", 768, 512, 256),
        ("--prompt_max_len 512", 1536, 512, 1536),
        (
            "--train.agent_func_path a.py --data.max_len 4096 --rollout.max_new_tokens 1024",
            4096,
            3072,
            4096,
        ),
    ],
)
def test_prompt_and_response_share_the_length(outcome, flags, whole, prompt, response):
    settings, _ = outcome(flags)

    assert settings["rollout.max_length"] == whole
    assert settings["data.max_prompt_tokens"] == prompt
    assert settings["rollout.max_new_tokens"] == response
    assert settings["data.on_bad_row"] == "skip"


def test_a_response_length_that_an_agent_s_turn_does_not_keep_is_a_difference(outcome):
    _, rows = outcome("--train.agent_func_path a.py --rollout.max_new_tokens 1024")

    row = rows["--rollout.max_new_tokens 1024"]
    assert row.status is Status.DIFFERS
    assert "lets a turn take what is left" in row.text


def test_a_micro_batch_has_room_for_its_samples(outcome):
    settings, rows = outcome("--train.micro_batch_size 4 --rollout.micro_batch_size 16")

    assert settings[MICRO] == 4 * 2048
    assert rows["--rollout.micro_batch_size 16"].status is Status.NOTHING


def test_a_dynamic_batch_has_a_budget(outcome):
    settings, rows = outcome(
        "--train.dynamic_batch_enable --train.max_tokens_per_gpu 30000 --rollout.max_tokens_per_gpu 60000 "
        "--train.micro_batch_size 4"
    )

    assert settings[MICRO] == 30000
    assert rows["--rollout.max_tokens_per_gpu 60000"].status is Status.DIFFERS
    assert rows["--train.micro_batch_size 4"].status is Status.NOTHING


def test_a_budget_below_one_sequence_is_raised(outcome):
    settings, rows = outcome("--train.dynamic_batch_enable --train.max_tokens_per_gpu 1000")

    assert settings[MICRO] == 2048
    assert rows["--train.max_tokens_per_gpu 1000"].status is Status.DIFFERS


@pytest.mark.parametrize(
    ("prompts", "samples", "wanted", "size"),
    [(1024, 1, 128, 128), (64, 4, 100, 64), (8, 2, 128, 16), (7, 3, 2, 1)],
)
def test_responses_per_update_divide_a_rollout_batch(outcome, prompts, samples, wanted, size):
    flags = f"--rollout.batch_size {prompts} --rollout.n_samples_per_prompt {samples}"

    assert outcome(f"{flags} --train.batch_size {wanted}")[0]["train.batch_size"] == size


@given(number=st.integers(1, 5000), limit=st.integers(1, 5000))
def test_no_larger_divisor_is_within_the_limit(number, limit):
    found = largest_divisor(number, limit)

    assert number % found == 0
    assert found == max(size for size in range(1, min(limit, number) + 1) if number % size == 0)
