"""Processes of each role, engines, and which of them share GPUs."""

import pytest

from rlhf_plugin_migrate.table.outcome import Status

NO_CRITIC = "--algo.advantage.estimator reinforce"


def test_ranks_are_nodes_times_gpus(outcome):
    settings, _ = outcome(
        "--actor.num_nodes 2 --actor.num_gpus_per_node 4 --critic.num_gpus_per_node 2"
    )

    assert settings["runtime.ray.ranks.policy"] == 8
    assert settings["runtime.ray.ranks.critic"] == 2
    assert settings["runtime.ray.ranks.reference"] == 8


@pytest.mark.parametrize(
    ("flags", "sets"),
    [
        ("", []),
        ("--train.colocate_actor_ref", ["policy+reference"]),
        ("--train.colocate_actor_ref --algo.kl.init_coef 0", []),
        ("--train.colocate_all", None),
        ("--train.colocate_all --train.async_enable", ["policy+critic+reference"]),
        (f"{NO_CRITIC} --train.colocate_all --train.async_enable", ["policy+reference"]),
        (f"{NO_CRITIC} --algo.kl.init_coef 0 --train.colocate_all --train.async_enable", []),
    ],
)
def test_sets_that_share_gpus(outcome, flags, sets):
    assert outcome(f"--vllm.num_engines 2 {flags}")[0].get("runtime.ray.colocate") == sets


def test_engines_that_share_gpus_have_one_each(outcome):
    settings, rows = outcome(
        "--vllm.num_engines 4 --vllm.tensor_parallel_size 2 --train.colocate_all"
    )

    assert settings["runtime.ray.engines"] == 8
    assert "engine.vllm.args.tensor_parallel_size" not in settings
    assert rows["--vllm.tensor_parallel_size 2"].status is Status.DIFFERS


def test_engines_apart_keep_their_size(outcome):
    settings, _ = outcome("--vllm.num_engines 4 --vllm.tensor_parallel_size 2")

    assert settings["runtime.ray.engines"] == 4
    assert settings["engine.vllm.args.tensor_parallel_size"] == 2
    assert settings["runtime.ray.gpus_per.engine"] == 2


def test_a_queue_bounds_the_staleness(outcome):
    settings, _ = outcome(
        "--train.async_enable --train.async_queue_size 3 --train.partial_rollout_enable"
    )

    assert settings["rollout.max_staleness"] == 3
    assert settings["rollout.in_flight_updates"] is True


def test_a_queue_without_async_does_nothing(outcome):
    settings, rows = outcome("--train.async_queue_size 3")

    assert "rollout.max_staleness" not in settings
    assert rows["--train.async_queue_size 3"].status is Status.NOTHING


@pytest.mark.parametrize(("generated", "factor"), [(1024, None), (1536, 1.5), (20480, 8.0)])
def test_oversampling_is_a_factor(outcome, generated, factor):
    flags = f"--train.async_enable --rollout.vllm_generate_batch_size {generated}"

    assert outcome(flags)[0].get("rollout.oversampling") == factor


def test_sequence_and_hierarchical_sharing(outcome):
    settings, _ = outcome("--ds.ring_attn_size 4 --ds.zpg 8 --ds.zero_stage 3")

    assert settings["backend.deepspeed.sequence_parallel"] == 4
    assert settings["backend.deepspeed.args.zero_optimization.zero_hpz_partition_size"] == 8


def test_float16_becomes_bfloat16(outcome):
    settings, rows = outcome("--ds.param_dtype fp16")

    assert settings["model.dtype"] == "bfloat16"
    assert rows["--ds.param_dtype fp16"].status is Status.DIFFERS


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ("--reward.model_name_or_path r", Status.MISSING),
        ("--reward.remote_url f.py", Status.NOTHING),
    ],
)
def test_gpus_of_a_reward_model_have_no_counterpart(outcome, flags, status):
    assert outcome(f"{flags} --reward.num_nodes 2")[1]["--reward.num_nodes 2"].status is status


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ("--vllm.enable_sleep --ds.enable_sleep", Status.MAPPED),
        ("--vllm.enable_sleep", Status.DIFFERS),
        ("--ds.enable_sleep", Status.DIFFERS),
    ],
)
def test_engine_and_trainer_that_share_gpus_sleep_in_turn(outcome, flags, status):
    """Either flag of OpenRLHF moves one of the two, ``runtime.sleep`` both."""
    settings, rows = outcome(f"--vllm.num_engines 1 --train.colocate_all {flags}")

    assert settings["runtime.sleep"] == "always"
    assert {rows[flag].status for flag in flags.split()} == {status}


@pytest.mark.parametrize("flags", ["", "--train.colocate_all --train.async_enable"])
def test_an_engine_apart_from_the_trainer_does_not_sleep(outcome, flags):
    settings, rows = outcome(f"--vllm.num_engines 1 --vllm.enable_sleep {flags}")

    assert "runtime.sleep" not in settings
    assert rows["--vllm.enable_sleep"].status is Status.NOTHING
