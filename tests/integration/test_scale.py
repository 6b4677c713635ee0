"""Ray places, vLLM generates, DeepSpeed trains on two ranks: the same configuration, the same first step."""

import pytest

pytest.importorskip("ray")
pytest.importorskip("vllm")
pytest.importorskip("deepspeed")

pytestmark = [pytest.mark.scale, pytest.mark.slow]

TWO_RANKS = ["--runtime", "ray", "--backend", "deepspeed", "--runtime.ray.ranks.policy", "2"]
COMMON = ["--reward", "vary.py:vary", "--algo.loss.entropy_coef", "0.1", "--steps", "3"]


@pytest.mark.parametrize("stage", ["2", "3"])
def test_two_ranks_of_zero_take_the_first_step_of_one_process(train, stage):
    alone = train("alone", *COMMON)
    ranks = train("ranks", *COMMON, *TWO_RANKS, "--backend.deepspeed.zero_stage", stage)

    first, second = alone[0]["metrics"], ranks[0]["metrics"]
    for name in ("policy/grad_norm", "loss/entropy", "policy/entropy", "reward/mean"):
        assert second[name] == pytest.approx(first[name], rel=1e-4), name


@pytest.mark.parametrize("weights", ["store", "memory", "collective"])
def test_all_three_together_train_on_what_was_sampled(train, weights):
    engine = ["--engine", "vllm", "--engine.vllm.threads", "1", "--runtime.ray.weights", weights]
    lines = train("run", *COMMON, *TWO_RANKS, *engine)

    for line in lines:
        assert line["timing"]["sync_gib_per_s"] > 0
        assert line["metrics"]["mismatch/logprob_diff_mean"] <= 1e-4
        assert line["metrics"]["policy/grad_norm"] > 0
