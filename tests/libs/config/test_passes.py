"""Size of micro-batches that nobody has set."""

import pytest

from rlhf_config import write_toml
from rlhf_config.files import read_toml
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

TOKENS = "train.max_tokens_per_micro_batch"


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        ([], 16_384),
        (["--rollout.max_new_tokens", "15360"], 16_384),
        (["--rollout.max_new_tokens", "20480"], 21_504),
        (["--rollout.max_new_tokens", "20480", "--data.max_prompt_tokens", "3"], 20_483),
        (["--rollout.max_new_tokens", "20480", "--rollout.max_length", "18000"], 18_000),
        (["--rollout.max_length", "40000"], 40_000),
    ],
)
def test_a_pass_holds_the_longest_sequence_of_the_run(resolved, flags, size):
    """Unset, prompts have up to 1024 tokens, so 20 480 of a response make 21 504."""
    found = resolved(*flags)

    assert found.run.train.max_tokens_per_micro_batch == size
    assert found.tree["train"]["max_tokens_per_micro_batch"] == size


def test_a_size_by_hand_stays_and_one_that_is_too_small_is_refused(resolved):
    long = ["--rollout.max_new_tokens", "20480"]

    assert resolved(*long, f"--{TOKENS}", "30000").run.train.max_tokens_per_micro_batch == 30_000
    with pytest.raises(
        ConfigError,
        match=f"Set --{TOKENS} 21504 or shorten",
        check=has_code("config/pass-too-small"),
    ):
        resolved(*long, f"--{TOKENS}", "16384")


def test_the_recorded_configuration_starts_the_same_run(resolved, tmp_path):
    long = resolved("--rollout.max_new_tokens", "20480")
    write_toml(long, tmp_path / "config.toml")

    again = resolved(files=[read_toml(tmp_path / "config.toml")])

    assert again.run.train == long.run.train
