"""TRL's GRPO step, for ``cpu_step.py`` and ``gpu_step.py``: prints one line of JSON with the seconds of each step.

Run in a process of its own, with the interpreter given there: TRL brings its own trainer stack. On a GPU it generates
with vLLM in the same process, which sleeps while it trains (TRL's own way to share one GPU), or with the model's
``generate``. With an adapter it trains PEFT's, and hands vLLM the merged weights.
"""

from __future__ import annotations

import argparse
import json
import random
import string
import tempfile
import time
from pathlib import Path
from typing import Any

from peer_trl_adapter import adapter, loading
from pictures import write_pictures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--response-tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--images", type=int, default=0, help="of a prompt")
    parser.add_argument("--image-side", type=int, default=448, help="pixels")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--micro-batch", type=int, help="sequences; all of a step if unset")
    parser.add_argument(
        "--recompute", action="store_true", help="activations, in the backward pass"
    )
    parser.add_argument("--engine", choices=["vllm", "generate"], default="vllm")
    parser.add_argument("--adapter", choices=["lora", "qlora"], help="on all linear layers")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter")
    parser.add_argument("--memory-share", type=float, default=0.4, help="of the GPU, for vLLM")
    arguments = parser.parse_args()
    result = {"step_s": step_seconds(arguments), "torch_peak_gib": peak_gib()}
    print("TRL " + json.dumps(result), flush=True)


def step_seconds(arguments: argparse.Namespace) -> list[float]:
    """Return the wall seconds of each training step: generation, scoring and update together."""
    import torch
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    draw = random.Random(0)
    prompts = [
        "".join(draw.choices(string.ascii_lowercase, k=arguments.prompt_tokens))
        for _ in range(arguments.prompts * arguments.steps)
    ]
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = _now(torch)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(_now(torch) - self.started)

    trainer = GRPOTrainer(
        model=arguments.model,
        reward_funcs=lambda completion_ids, **_: [sum(ids) % 7 / 7 for ids in completion_ids],
        args=GRPOConfig(**_settings(arguments)),
        peft_config=adapter(arguments),
        train_dataset=_rows(arguments, prompts),
        processing_class=_reader(arguments),
        callbacks=[Clock()],
    )
    trainer.train()
    return seconds


def _rows(arguments: argparse.Namespace, prompts: list[str]) -> Any:
    from datasets import Dataset, Image, Sequence

    if not arguments.images:
        return Dataset.from_list([{"prompt": prompt} for prompt in prompts])
    folder = Path(tempfile.mkdtemp())
    files = write_pictures(folder, len(prompts) * arguments.images, arguments.image_side)
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt}],
            "images": [
                str(file)
                for file in files[number * arguments.images : (number + 1) * arguments.images]
            ],
        }
        for number, prompt in enumerate(prompts)
    ]
    return Dataset.from_list(rows).cast_column("images", Sequence(Image()))


def _reader(arguments: argparse.Namespace) -> Any:
    """Return the tokenizer, or what reads text and images."""
    from transformers import AutoProcessor, AutoTokenizer

    kind = AutoProcessor if arguments.images else AutoTokenizer
    return kind.from_pretrained(arguments.model, padding_side="left")


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    sequences = arguments.prompts * arguments.samples
    micro_batch = arguments.micro_batch or sequences
    settings = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": sequences // micro_batch,
        "num_generations": arguments.samples,
        "max_completion_length": arguments.response_tokens,
        "temperature": 1.0,
        "beta": 0.0,
        "learning_rate": 1e-6,
        "max_steps": arguments.steps,
        "logging_steps": 1000,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "gradient_checkpointing": arguments.recompute,
    }
    # All responses have the full length, here and in our step.
    if not arguments.gpu:
        return settings | {
            "use_cpu": True,
            "bf16": arguments.bf16,
            "generation_kwargs": {"min_new_tokens": arguments.response_tokens},
            "model_init_kwargs": {"dtype": "float32"},
        }
    settings |= {"bf16": True, "model_init_kwargs": loading(arguments, "bfloat16")}
    if arguments.engine == "generate":
        return settings | {"generation_kwargs": {"min_new_tokens": arguments.response_tokens}}
    return settings | {
        "generation_kwargs": {"ignore_eos": True, **_no_placeholders(arguments)},
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_enable_sleep_mode": True,
        "vllm_gpu_memory_utilization": arguments.memory_share,
    }


def _no_placeholders(arguments: argparse.Namespace) -> dict[str, Any]:
    """Keep random weights from sampling the tokens that stand for images, with which TRL's training step would fail."""
    if not arguments.images:
        return {}
    config = json.loads(Path(arguments.model, "config.json").read_text())
    names = ("image_token_id", "video_token_id", "vision_start_token_id")
    return {"logit_bias": {config[name]: -100.0 for name in names if name in config}}


def peak_gib() -> float | None:
    """Return what torch allocated at most in this process, in GiB; None without a GPU."""
    import torch

    return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None


def _now(torch: Any) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
