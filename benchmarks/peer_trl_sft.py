"""TRL's step of supervised fine-tuning, for ``sft_step.py``: prints one line of JSON with the seconds of each step.

Run in a process of its own, or by torchrun in one for each GPU: TRL brings its own trainer stack. On a GPU it computes
in bfloat16, attention is torch's, and the optimizer is torch's fused AdamW.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

from peer_trl_adapter import adapter, loading

PARALLEL: dict[str | None, dict[str, Any]] = {
    None: {},
    "deepspeed": {
        "deepspeed": {
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": "auto"},
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
        }
    },
    "fsdp2": {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
    },
}
"""Arguments of TRL's trainer on several GPUs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--micro-batch", type=int, required=True)
    parser.add_argument(
        "--weights", choices=("bfloat16", "float32"), default="bfloat16", help="and Adam's state"
    )
    parser.add_argument(
        "--recompute", action="store_true", help="activations, in the backward pass: TRL's default"
    )
    parser.add_argument("--parallel", choices=("deepspeed", "fsdp2"), help="under torchrun")
    parser.add_argument("--adapter", choices=("lora", "qlora"))
    parser.add_argument("--rank", type=int, default=16)
    arguments = parser.parse_args()
    found = measured(arguments)
    if os.environ.get("RANK", "0") == "0":
        print("TRL " + json.dumps(found), flush=True)


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the wall seconds of each step, and the peak memory in GiB."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = now(torch)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(now(torch) - self.started)

    on_gpu = torch.cuda.is_available()
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    with open(arguments.data, encoding="utf-8") as file:
        rows = Dataset.from_list([json.loads(line) for line in file])
    trainer = SFTTrainer(
        model=arguments.model,
        args=SFTConfig(
            output_dir=tempfile.mkdtemp(),
            max_length=arguments.tokens,
            per_device_train_batch_size=arguments.micro_batch,
            gradient_accumulation_steps=arguments.rows // arguments.micro_batch // processes,
            max_steps=arguments.steps,
            learning_rate=1e-5,
            optim="adamw_torch_fused",
            bf16=on_gpu,
            use_cpu=not on_gpu,
            gradient_checkpointing=arguments.recompute,
            logging_steps=1000,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **PARALLEL[arguments.parallel],
            model_init_kwargs=loading(arguments, arguments.weights if on_gpu else "float32"),
        ),
        peft_config=adapter(arguments),
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(arguments.model),
        callbacks=[Clock()],
    )
    trainer.train()
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    return {"step_s": seconds, "peak_gib": peak}


def now(torch: Any) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
