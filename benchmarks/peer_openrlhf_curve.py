"""OpenRLHF's GRPO on the rows, prompts, rewards and rates of ``examples/gsm_symbolic``, on one GPU, equal samples.

python examples/gsm_symbolic/prepare.py
python benchmarks/peer_openrlhf_curve.py --model Qwen/Qwen2.5-Coder-0.5B-Instruct --output runs/openrlhf
python benchmarks/curves.py --metric eval/held_out/T0/pass@1 curve.png "rlhf=runs/gsm_symbolic" "OpenRLHF=runs/openrlhf"

Ray, vLLM and DeepSpeed share the GPU, both sides sleep in turn. Sequences are not packed and attention is torch's own,
so that nothing of FlashAttention is called; where that package is not installed, an empty one stands in for imports.
Saved weights are judged by ``rlhf eval``, as ``peer_trl_curve.py`` does it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from peer_trl_curve import RECIPE, command_line, judge

REWARD = """\
from functools import lru_cache

import torch
from math_verify import parse, verify


@lru_cache(maxsize=None)
def gold_of(label):
    return parse(f"\\\\boxed{{{label}}}", parsing_timeout=None)


def reward_func(queries, prompts, labels, **_):
    scores = []
    for query, prompt, label in zip(queries, prompts, labels, strict=True):
        given = parse(query[len(prompt):], parsing_timeout=None)
        scores.append(float(verify(gold_of(label), given, timeout_seconds=None)))
    rewards = torch.tensor(scores)
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}
"""
STAND_IN = {
    "__init__.py": '__version__ = "0"\n',
    "utils/__init__.py": "",
    "utils/distributed.py": "def all_gather(*_): raise NotImplementedError\n",
    "bert_padding.py": "from einops import rearrange\n"
    + "".join(
        f"def {name}(*_): raise NotImplementedError\n"
        for name in ("index_first_axis", "pad_input", "unpad_input")
    ),
}
"""What OpenRLHF imports of FlashAttention, and calls where sequences are packed."""


def main() -> None:
    arguments = command_line(__doc__).parse_args()
    recipe = tomllib.loads((RECIPE / "run.toml").read_text(encoding="utf-8"))
    arguments.output = arguments.output.absolute()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not arguments.evaluate_only:
        train(arguments, recipe)
    gathered(arguments.output)
    judge(arguments, recipe)


def train(arguments: argparse.Namespace, recipe: dict[str, Any]) -> None:
    """Train as OpenRLHF's users do, by its command."""
    folder: Path = arguments.output / "given"
    folder.mkdir(exist_ok=True)
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")
    lines = (RECIPE / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    prompts = [
        {"prompt": recipe["data"]["template"].format(**row), "label": row["answer"]} for row in rows
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    if importlib.util.find_spec("flash_attn") is None:
        for name, text in STAND_IN.items():
            file = folder / "flash_attn" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    words = [
        word
        for name, value in settings(arguments, recipe, folder).items()
        for word in (name, *value)
    ]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "openrlhf.cli.train_ppo_ray", *words]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})


def settings(
    arguments: argparse.Namespace, recipe: dict[str, Any], folder: Path
) -> dict[str, tuple[str, ...]]:
    """Return OpenRLHF's options with the recipe's values."""
    rollout = recipe["rollout"]
    samples = rollout["batch_size"] * rollout["n_samples_per_prompt"]
    roles = {
        f"--{role}.{what}": ("1",)
        for role in ("actor", "ref", "reward", "critic")
        for what in ("num_nodes", "num_gpus_per_node")
    }
    switches = (
        "--train.colocate_all",
        "--vllm.enable_sleep",
        "--ds.enable_sleep",
        "--vllm.enable_prefix_caching",
        "--data.apply_chat_template",
        "--ckpt.save_hf",
        "--ckpt.disable_ds",
    )
    values = {
        "--vllm.num_engines": 1,
        "--vllm.tensor_parallel_size": 1,
        "--vllm.gpu_memory_utilization": 0.3,
        "--actor.model_name_or_path": arguments.model,
        "--reward.remote_url": folder / "reward.py",
        "--data.prompt_dataset": folder / "prompts.jsonl",
        "--data.input_key": "prompt",
        "--data.label_key": "label",
        "--data.max_len": 1024,
        "--data.max_samples": rollout["batch_size"] * arguments.steps,
        "--rollout.batch_size": rollout["batch_size"],
        "--rollout.n_samples_per_prompt": rollout["n_samples_per_prompt"],
        "--rollout.max_new_tokens": rollout["max_new_tokens"],
        "--rollout.micro_batch_size": arguments.micro_batch,
        "--train.batch_size": samples,
        "--train.micro_batch_size": arguments.micro_batch,
        "--train.max_epochs": 1,
        "--train.num_episodes": 1,
        "--train.seed": arguments.seed,
        "--algo.advantage.estimator": "group_norm",
        "--algo.kl.init_coef": 0,
        "--actor.adam.lr": recipe["actor"]["adam"]["lr"],
        "--actor.lr_scheduler": "constant_with_warmup",
        "--actor.lr_warmup_ratio": round(0.03 * recipe["train"]["steps"]) / arguments.steps,
        "--ds.zero_stage": 2,
        "--ds.param_dtype": "bf16",
        "--ds.attn_implementation": "sdpa",
        "--ckpt.save_steps": arguments.save_every,
        "--ckpt.path": arguments.output / "saved",
        "--ckpt.output_dir": arguments.output / "last",
        "--logger.tensorboard_dir": arguments.output / "events",
    }
    return (
        roles
        | dict.fromkeys(switches, ())
        | {name: (str(value),) for name, value in values.items()}
    )


def gathered(output: Path) -> None:
    """Write ``steps.jsonl`` out of OpenRLHF's events, and give its saved weights the names that ``judge`` looks for."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = (output / "events").iterdir()
    events = EventAccumulator(str(folder))
    events.Reload()
    seconds = {event.step: event.value for event in events.Scalars("train/timing/step_total")}
    rewards = {event.step: event.value for event in events.Scalars("train/rollout/reward_mean")}
    lines = [
        json.dumps({"step": step, "step_s": seconds[step], "reward": rewards[step]}) + "\n"
        for step in sorted(seconds)
    ]
    (output / "steps.jsonl").write_text("".join(lines), encoding="utf-8")
    (output / "checkpoints").mkdir(exist_ok=True)
    for saved in (output / "saved").glob("global_step*_hf"):
        step = saved.name.removeprefix("global_step").removesuffix("_hf")
        link = output / "checkpoints" / f"checkpoint-{step}"
        if not link.exists():
            link.symlink_to(saved, target_is_directory=True)


if __name__ == "__main__":
    main()
