"""Orders of generation and training for responses of different lengths, beside loops and limits."""

import math

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_plan.command import main as plan
from rlhf_plugin_plan.seconds.schedules import _joined, response_lengths
from rlhf_testing.errors import has_code


def test_lengths_are_quantiles_of_a_log_normal_distribution():
    found = response_lengths(3, mean=math.exp(1.5), spread=1.0, longest=1000)

    # m = 1.5 - 0.5 = 1; quantiles 1/6, 1/2 and 5/6 of the normal distribution are -0.9674, 0 and 0.9674
    assert found == [round(math.exp(1 - 0.9674)), round(math.e), round(math.exp(1.9674))]


def test_lengths_have_the_mean_that_was_asked_for_and_are_cut():
    many = response_lengths(100_000, mean=2000, spread=1.0, longest=10**9)
    cut = response_lengths(1000, mean=2000, spread=1.0, longest=3000)

    assert sum(many) / len(many) == pytest.approx(2000, rel=2e-3)
    assert max(cut) == 3000
    assert response_lengths(5, mean=1, spread=3.0, longest=10)[0] == 1


def test_no_spread_is_one_length():
    assert response_lengths(4, mean=700, spread=1e-9, longest=10_000) == [700] * 4


def test_the_slower_side_counts_where_both_go_on_at_once_and_the_sum_in_turn():
    flags = ("--x",)

    assert _joined(flags, 3.0, 2.0, 0.5, in_turn=True).step_s == 5.5
    assert _joined(flags, 3.0, 2.0, 0.5, in_turn=False).step_s == 3.5
    assert _joined(flags, 1.0, 2.0, 0.5, in_turn=False).step_s == 2.5


def test_the_longest_response_sets_a_step_that_is_too_short_for_it():
    short = _joined((), 3.0, 2.0, 0.0, in_turn=False, longest=6.0)
    hidden = _joined((), 3.0, 9.0, 0.0, in_turn=False, longest=6.0)
    turns = _joined((), 3.0, 9.0, 0.0, in_turn=True, longest=6.0)

    assert (short.step_s, short.waits) == (6.0, True)
    assert (hidden.step_s, hidden.waits) == (9.0, False)
    assert (turns.step_s, turns.generation_s, turns.waits) == (15.0, 6.0, True)


LENGTHS = ("--prompt-tokens", "256", "--response-tokens", "2000", "--response-spread", "1.0")
LONG = (
    *("--rollout.max_new_tokens", "16384", "--rollout.max_length", "16640"),
    *("--train.max_tokens_per_micro_batch", "20480"),
)
APART = (
    *("--runtime", "ray", "--backend", "deepspeed", "--runtime.ray.ranks.policy", "2"),
    *("--runtime.ray.engines", "2", "--runtime.ray.colocate", "none"),
    *("--backend.deepspeed.gradient_checkpointing", "true"),
)


def test_apart_the_engine_stays_full_and_on_policy_it_waits_for_the_longest(run):
    _, result = run(*APART, *LONG, *LENGTHS)
    found = {tuple(one["flags"]): one for one in result["schedules"]}
    waiting = found[()]
    ahead = found["--rollout.max_staleness", "1"]
    full = found["--rollout.max_staleness", "8", "--rollout.in_flight_updates"]

    assert list(found) == sorted(found, key=lambda flags: found[flags]["step_s"])
    assert waiting["generation_s"] == ahead["generation_s"]
    assert waiting["step_s"] > waiting["generation_s"] + waiting["rest_s"] - 1e-9
    assert ahead["step_s"] == pytest.approx(max(ahead["generation_s"], ahead["rest_s"]), rel=0.01)
    # The same tokens, with no place empty.
    phases = {phase["name"]: phase["measured_s"] for phase in result["phases"]}
    assert phases["decode"] < full["generation_s"] < waiting["generation_s"]


def test_where_all_take_turns_nothing_is_generated_ahead(run):
    _, result = run(*LONG, *LENGTHS, "--runtime.sleep", "always")

    assert [one["flags"] for one in result["schedules"]] == [[]]


def test_without_a_spread_there_are_no_schedules(run):
    assert run(*LONG, *LENGTHS[:4])[1]["schedules"] == []


@pytest.mark.parametrize(
    ("flags", "message", "code"),
    [
        (
            LENGTHS[2:],
            "prompts are is not known. Give it with --prompt-tokens",
            "plan/unknown-prompt-length",
        ),
        (
            (*LENGTHS[:2], *LENGTHS[4:]),
            "Give it with --response-tokens",
            "plan/unknown-response-length",
        ),
        ((*LENGTHS[:5], "0"), "expected a number above 0", "plan/response-spread"),
        ((*LENGTHS[:5], "nan"), "expected a number above 0", "plan/response-spread"),
    ],
)
def test_a_spread_that_is_none_is_refused(run, flags, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        run(*LONG, *flags)


def test_a_machine_whose_engines_would_wait_is_divided(tmp_path, config_file, capsys):
    (tmp_path / "model").mkdir()
    config_file("qwen2.5-7b").rename(tmp_path / "model" / "config.json")

    batch = ("--rollout.batch_size", "32", "--rollout.n_samples_per_prompt", "8")

    assert plan([str(tmp_path / "model"), "--gpus", "4xh200", *batch, *LONG, *LENGTHS]) == 0

    *_, command = capsys.readouterr().out.strip().splitlines()
    assert "--runtime.ray.ranks.policy 2 --runtime.ray.engines 2" in command
    assert command.endswith("--rollout.in_flight_updates")
