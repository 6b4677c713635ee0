"""Reward functions of verl's kind, as the written file calls them, and rows as verl writes them."""

import asyncio
import importlib.util
import io
import os
import subprocess
import sys

import datasets
import pytest
from PIL import Image
from tests.deadlines import HANG_S

from rlhf_plugin_migrate.adapters import verl_reward
from rlhf_testing.tiny_vision import write_tiny_vision_model

ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1+1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 0, "question": "1+1?", "answer": "#### 2"},
}
ONE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert (data_source, extra_info["index"]) == ("openai/gsm8k", 0)
    extra_info["seen"] = True
    return float(solution_str == ground_truth)
"""
DICT = """
async def score(data_source, solution_str, ground_truth, extra_info=None, *, bonus):
    return {"score": bonus + (ground_truth in solution_str), "acc": True, "pred": solution_str}
"""
LISTS = """
def compute_score(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": float(a == b)} for a, b in zip(solution_strs, ground_truths)]
"""


@pytest.fixture
def scored(tmp_path):
    """Score a response with a function of verl's kind by the file that is written for it."""

    def call(text, response, name="compute_score", *, takes_lists=False, **kwargs):
        (tmp_path / "theirs.py").write_text(text)
        made = verl_reward(
            str(tmp_path / "theirs.py"), name, "data_source", kwargs, takes_lists=takes_lists
        )
        (tmp_path / "ours.py").write_text(made)
        spec = importlib.util.spec_from_file_location("ours", tmp_path / "ours.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return asyncio.run(module.verl_reward(response, ROW))

    return call


def test_a_function_gets_the_columns_of_the_row(scored):
    assert scored(ONE, "2") == 1.0
    assert scored(ONE, "3") == 0.0
    assert "seen" not in ROW["extra_info"]


def test_numbers_of_a_dict_are_kept_and_texts_left_out(scored):
    assert scored(DICT, "It is 2", "score", bonus=0.5) == {"acc": 1.0, "reward": 1.5}


def test_numbers_of_numpy_are_kept(scored):
    text = DICT.replace('"acc": True', '"acc": np.float32(0.5), "found": np.int64(1)')

    found = scored(f"import numpy as np\n{text}", "It is 2", "score", bonus=0.5)

    assert found == {"acc": 0.5, "found": 1.0, "reward": 1.5}


def test_a_function_of_the_manager_batch_gets_lists(scored):
    assert scored(LISTS, "2", takes_lists=True) == {"reward": 1.0}


def test_the_file_is_written_beside_the_configuration(run, workspace, tmp_path):
    (tmp_path / "s.sh").write_text(
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 "
        f"actor_rollout_ref.model.path={workspace['MODEL']} data.train_files=rows.jsonl "
        "custom_reward_function.path=mine.py custom_reward_function.name=score "
        "+custom_reward_function.reward_kwargs.bonus=0.5 reward_model.reward_manager=batch\n"
    )
    migrated = run("s.sh")

    assert migrated.code == 0, migrated.report
    assert migrated.config["reward"] == {"use": ["run_reward.py:verl_reward"]}
    text = (tmp_path / "run_reward.py").read_text()
    assert "KWARGS = {'bonus': 0.5}" in text
    assert "solution_strs=[given[1]]" in text


@pytest.mark.parametrize("estimator", ["gdpo", "remax"])
def test_a_penalty_of_length_is_left_out_where_the_estimator_reads_no_sum(
    run, workspace, tmp_path, estimator
):
    """With it the configuration would be refused."""
    (tmp_path / "s.sh").write_text(
        f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator={estimator} actor_rollout_ref.rollout.n=4 "
        f"actor_rollout_ref.model.path={workspace['MODEL']} data.train_files=rows.jsonl "
        "reward.reward_manager.name=dapo reward.reward_kwargs.overlong_buffer_cfg.enable=True "
        "reward.reward_kwargs.overlong_buffer_cfg.len=16 reward.reward_kwargs.max_resp_len=64\n"
    )
    migrated = run("s.sh")

    assert migrated.code == 0, migrated.report
    assert migrated.config["reward"] == {"use": ["math"], "math": migrated.config["reward"]["math"]}
    assert f"{estimator} does not read what shapers change" in migrated.report


def png(shade):
    made = io.BytesIO()
    Image.new("RGB", (28, 28), (shade, 0, 0)).save(made, "PNG")
    return made.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("sees", [False, True])
def test_parquet_of_verl_trains_as_it_is(workspace, tmp_path, sees):
    rows = [
        {**ROW, "prompt": [{"role": "user", "content": f"{'<image>' * sees}{n} + 1?"}]}
        | ({"images": [{"bytes": png(n), "path": None}]} if sees else {})
        for n in range(8)
    ]
    datasets.Dataset.from_list(rows).to_parquet("train.parquet")
    (tmp_path / "theirs.py").write_text(ONE)
    made = verl_reward("theirs.py", "compute_score", "data_source", {}, takes_lists=False)
    (tmp_path / "ours.py").write_text(made)
    model = workspace["MODEL"]
    if sees:
        model = str(write_tiny_vision_model(tmp_path / "vision", "qwen2_5_vl"))
    words = [
        "train",
        "--model",
        model,
        "--data",
        "train.parquet",
        "--steps",
        "1",
        "--output",
        "run",
    ]
    words += ["--reward", "ours.py:verl_reward", "math"]
    words += ["--reward.math.label_key", "reward_model.ground_truth"]
    words += ["--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"]
    words += ["--rollout.max_new_tokens", "4"]
    if sees:
        words += ["--model.vision", "vlm", "--data.image_key", "images"]
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_cli", *words],
        cwd=tmp_path,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert '"reward/verl_reward"' in (tmp_path / "run/metrics.jsonl").read_text()
