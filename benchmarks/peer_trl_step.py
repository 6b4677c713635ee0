"""One TRL GRPO step on the CPU, for ``cpu_step.py``: prints one line of JSON with the seconds of each step.

Run by ``cpu_step.py`` in a process of its own, with the interpreter given there: TRL brings its own trainer stack.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, required=True)
    parser.add_argument("--response-tokens", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()
    print("TRL " + json.dumps({"step_s": step_seconds(arguments)}), flush=True)


def step_seconds(arguments: argparse.Namespace) -> list[float]:
    """Return the wall seconds of each training step: generation, scoring and update together."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    sequences = arguments.prompts * arguments.samples
    prompt = "a" * arguments.prompt_tokens
    rows = Dataset.from_list(
        [{"prompt": prompt} for _ in range(arguments.prompts * arguments.steps)]
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=sequences,
        num_generations=arguments.samples,
        max_completion_length=arguments.response_tokens,
        # All responses have the full length, here and in our step.
        generation_kwargs={"min_new_tokens": arguments.response_tokens},
        temperature=1.0,
        beta=0.0,
        learning_rate=1e-4,
        max_steps=arguments.steps,
        bf16=arguments.bf16,
        use_cpu=True,
        logging_steps=1000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
    )
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.started)

    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    trainer = GRPOTrainer(
        model=arguments.model,
        reward_funcs=lambda completion_ids, **_: [sum(ids) % 7 / 7 for ids in completion_ids],
        args=config,
        train_dataset=rows,
        processing_class=tokenizer,
        callbacks=[Clock()],
    )
    trainer.train()
    return seconds


if __name__ == "__main__":
    main()
