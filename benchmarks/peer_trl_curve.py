"""TRL's GRPO on the rows, prompts, rewards and rates of ``examples/gsm_symbolic``: a curve beside ours, equal samples.

python examples/gsm_symbolic/prepare.py
python benchmarks/peer_trl_curve.py --model Qwen/Qwen2.5-Coder-0.5B-Instruct --output runs/trl
python benchmarks/curves.py --metric eval/held_out/T0/pass@1 curve.png "rlhf=runs/gsm_symbolic" "TRL=runs/trl"

TRL trains with vLLM in the same process, which sleeps while it trains, and saves its weights every --save-every steps.
Each of them is then judged by ``rlhf eval``, as our own run judges its own: greedy answers to the held-out questions.
The folder gets a metrics.jsonl in the form of a run's, whose seconds are those of TRL's training steps alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parent.parent / "examples" / "gsm_symbolic"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--engine", choices=["vllm", "generate"], default="vllm")
    parser.add_argument("--cpu", action="store_true", help="to try the script itself")
    arguments = parser.parse_args()
    recipe = tomllib.loads((RECIPE / "run.toml").read_text(encoding="utf-8"))
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not arguments.evaluate_only:
        train(arguments, recipe)
    judge(arguments, recipe)


def command_line(description: str | None) -> argparse.ArgumentParser:
    """Return the flags that the curves of peers share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="folder or hub name")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--save-every", type=int, default=40)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--micro-batch", type=int, default=32, help="sequences")
    parser.add_argument("--evaluate-only", action="store_true", help="of weights that are there")
    parser.add_argument("--at-once", type=int, default=1, help="saved models judged side by side")
    return parser


def train(arguments: argparse.Namespace, recipe: dict[str, Any]) -> None:
    """Train, and write a line of seconds and mean reward for each step to ``steps.jsonl``."""
    import torch
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    log = (arguments.output / "steps.jsonl").open("w", encoding="utf-8", buffering=1)

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = time.perf_counter() - self.started
            log.write(json.dumps({"step": state.global_step, "step_s": seconds}) + "\n")

        def on_log(self, _: Any, state: Any, *__: Any, logs: dict[str, Any], **___: Any) -> None:
            if "reward" in logs:
                kept = {"step": state.global_step, "reward": float(logs["reward"])}
                log.write(json.dumps(kept) + "\n")

    trainer = GRPOTrainer(
        model=arguments.model,
        reward_funcs=right_answers,
        args=GRPOConfig(**settings(arguments, recipe)),
        train_dataset=prompts(recipe),
        callbacks=[Clock()],
    )
    trainer.train()
    log.close()


def right_answers(
    completions: list[list[dict[str, str]]], answer: list[str], **_: Any
) -> list[float]:
    """Return 1 for each completion whose answer math-verify takes for the right one, else 0."""
    from math_verify import parse, verify

    scores = []
    for messages, label in zip(completions, answer, strict=True):
        gold = parse(f"\\boxed{{{label}}}", parsing_timeout=None)
        given = parse(messages[-1]["content"], parsing_timeout=None)
        scores.append(float(verify(gold, given, timeout_seconds=None)))
    return scores


def prompts(recipe: dict[str, Any]) -> Any:
    """Return the recipe's training questions as TRL's conversations, with their answers beside."""
    from datasets import Dataset

    lines = (RECIPE / "data" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    template = recipe["data"]["template"]
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": template.format(**row)}],
                "answer": row["answer"],
            }
            for row in rows
        ]
    )


def settings(arguments: argparse.Namespace, recipe: dict[str, Any]) -> dict[str, Any]:
    """Return TRL's configuration with the recipe's values; what TRL calls otherwise has a comment."""
    rollout = recipe["rollout"]
    sequences = rollout["batch_size"] * rollout["n_samples_per_prompt"]
    chosen = {
        "output_dir": str(arguments.output / "checkpoints"),
        "seed": arguments.seed,
        "per_device_train_batch_size": min(arguments.micro_batch, sequences),
        "gradient_accumulation_steps": sequences // min(arguments.micro_batch, sequences),
        "num_generations": rollout["n_samples_per_prompt"],
        "max_completion_length": rollout["max_new_tokens"],
        "temperature": 1.0,
        "beta": 0.0,
        "loss_type": "dapo",  # the mean over all action tokens of an update, our default beside `ppo`
        "learning_rate": recipe["actor"]["adam"]["lr"],
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": round(0.03 * recipe["train"]["steps"]),
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "max_steps": arguments.steps,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": arguments.save_every,
        "save_only_model": True,
        "report_to": "none",
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        # Weights and Adam's moments in float32, products in bfloat16, as ours.
        "model_init_kwargs": {"dtype": "float32"},
    }
    if arguments.cpu:
        return chosen | {"use_cpu": True, "bf16": False}
    chosen |= {"bf16": True}
    if arguments.engine == "generate":
        return chosen
    return chosen | {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_enable_sleep_mode": True,
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_max_model_length": 1024,
    }


def judge(arguments: argparse.Namespace, recipe: dict[str, Any]) -> None:
    """Write ``metrics.jsonl``: the share of right greedy answers before training and of each saved model."""
    seconds = {0: 0.0}
    for line in (arguments.output / "steps.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "step_s" in record:
            seconds[record["step"]] = seconds[record["step"] - 1] + record["step_s"]
    saved = (arguments.output / "checkpoints").glob("checkpoint-*")
    models = sorted((int(folder.name.rpartition("-")[2]), folder) for folder in saved)
    with (
        (arguments.output / "metrics.jsonl").open("w", encoding="utf-8") as metrics,
        ThreadPoolExecutor(arguments.at_once) as judges,
    ):
        shares = judges.map(
            lambda model: share_of_right_answers(model, arguments, recipe),
            [model for _, model in models],
        )
        for (step, _), share in zip(models, shares, strict=True):
            record = {
                "step": step,
                "time_s": seconds[step],
                "eval": {"eval/held_out/T0/pass@1": share},
            }
            metrics.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)


def share_of_right_answers(
    model: Path, arguments: argparse.Namespace, recipe: dict[str, Any]
) -> float:
    """Return what ``rlhf eval`` finds for a model, with the recipe's prompts, lengths and reward."""
    folder = arguments.output / f"eval-{model.name}"
    options = {
        "output": folder,
        "data.template": recipe["data"]["template"],
        "data.chat": "true",
        "reward.math.label_key": recipe["reward"]["math"]["label_key"],
        "rollout.max_new_tokens": recipe["rollout"]["max_new_tokens"],
        "engine.embedded.compile": "false",
    }
    command = [sys.executable, "-m", "rlhf_cli", "eval", str(model)]
    command += ["--data", str(RECIPE / "data" / "held_out.jsonl"), "--reward", "math"]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    subprocess.run(command, check=True)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    share: float = summary["sets"][0]["pass_at"]["1"]["value"]
    return share


if __name__ == "__main__":
    main()
