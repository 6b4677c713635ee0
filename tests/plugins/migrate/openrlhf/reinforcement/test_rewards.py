"""Where the reward comes from, its shapers and its filter."""

import pytest

from rlhf_plugin_migrate.openrlhf.reinforcement.train_ppo_ray import migrate
from rlhf_plugin_migrate.table.outcome import Status

GROUP = "--algo.advantage.estimator rloo --rollout.n_samples_per_prompt 4"


@pytest.mark.parametrize(
    ("flags", "use"),
    [
        ("--reward.model_name_or_path r", ["reward_model"]),
        ("--reward.remote_url f.py", ["reward.py:openrlhf_reward"]),
        ("--reward.remote_url http://a:1/x --reward.model_name_or_path r", ["http"]),
        ("--train.agent_func_path a.py --reward.remote_url f.py", None),
        ("", None),
    ],
)
def test_an_agent_comes_before_a_function_and_that_before_a_model(outcome, flags, use):
    assert outcome(flags)[0].get("reward.use") == use


def test_a_run_without_a_reward_is_warned_of():
    assert any("no reward is given" in text for text in migrate([], "r.py").warnings)


def test_the_label_goes_where_the_reward_reads_it():
    words = ["--data.label_key", "answer"]

    function = migrate([*words, "--reward.remote_url", "f.py"], "r.py")
    servers = migrate([*words, "--reward.remote_url", "http://a:1/x"], "r.py")

    assert "LABEL_KEY = 'answer'" in function.files["r.py"]
    assert servers.settings["reward.http.label_key"].value == "answer"


def test_the_penalty_for_length_is_measured_as_openrlhf_does(outcome):
    base = "--reward.remote_url f.py --reward.overlong_buffer_len 100"

    assert (
        outcome(f"{base} --rollout.max_new_tokens 500")[0].get("reward.overlong.max_tokens") is None
    )
    assert outcome(f"{base} --data.max_len 4096")[0]["reward.overlong.max_tokens"] == 4096
    agent = outcome(f"{base} --rollout.max_new_tokens 500 --train.agent_func_path a.py")
    assert agent[0]["reward.overlong.max_tokens"] == 500
    assert agent[1]["--reward.overlong_buffer_len 100"].status is Status.DIFFERS


def test_shapers_are_in_openrlhfs_order(outcome):
    flags = "--reward.stop_properly_penalty_coef 0.5 --reward.overlong_buffer_len 100 --reward.clip_range -5 5"
    settings, _ = outcome(f"--reward.remote_url f.py {flags}")

    assert settings["reward.shapers"] == ["overlong", "stop_properly", "clip"]
    assert (settings["reward.clip.low"], settings["reward.clip.high"]) == (-5.0, 5.0)


def test_the_clip_is_left_out_where_openrlhf_clips_after_a_baseline():
    out = migrate(GROUP.split(), "r.py")

    assert "reward.shapers" not in out.settings
    assert [row.what for row in out.default_rows() if "clip_range" in row.what]


def test_a_clip_that_was_asked_for_is_set_with_a_remark(outcome):
    settings, rows = outcome(f"{GROUP} --reward.clip_range -1 1")

    assert settings["reward.shapers"] == ["clip"]
    assert rows["--reward.clip_range -1 1"].status is Status.DIFFERS


def test_the_filter_looks_at_the_reward_before_the_shapers(outcome):
    settings, _ = outcome(f"{GROUP} --reward.remote_url f.py --algo.dynamic_filtering_enable")

    assert settings["rollout.filters"] == ["dynamic_sampling"]
    assert settings["rollout.dynamic_sampling.reward"] == "openrlhf_reward"


def test_a_range_without_the_filter_does_nothing(outcome):
    settings, rows = outcome("--algo.dynamic_filtering_range 0.1 0.9")

    assert "rollout.filters" not in settings
    assert rows["--algo.dynamic_filtering_range 0.1 0.9"].status is Status.NOTHING
