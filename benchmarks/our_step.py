"""Our GRPO step on the CPU, for ``cpu_step.py``: prints one line of JSON with the seconds of each step.

The step is the whole one of ``rlhf train``: generation, reward in its own process, advantages, update, weight sync.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

REWARD = "def score(token_ids):\n    return sum(token_ids) % 7 / 7\n"


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
    with tempfile.TemporaryDirectory() as folder:
        print("OURS " + json.dumps({"step_s": step_seconds(arguments, Path(folder))}), flush=True)


def step_seconds(arguments: argparse.Namespace, folder: Path) -> list[float]:
    """Run ``rlhf train`` and return the wall seconds of each step."""
    from rlhf_cli.main import main as rlhf

    (folder / "reward.py").write_text(REWARD)
    row = json.dumps({"prompt": "a" * arguments.prompt_tokens})
    (folder / "data.jsonl").write_text((row + "\n") * arguments.prompts)
    options = {
        "model": arguments.model,
        "data": folder / "data.jsonl",
        "reward": f"{folder}/reward.py:score",
        "output": folder / "run",
        "estimator": "group_norm",
        "rollout.batch_size": arguments.prompts,
        "rollout.n_samples_per_prompt": arguments.samples,
        "rollout.min_new_tokens": arguments.response_tokens,
        "rollout.max_new_tokens": arguments.response_tokens,
        "data.max_prompt_tokens": arguments.prompt_tokens,
        "actor.adam.lr": 1e-4,
        "steps": arguments.steps,
        "backend.torch.compute_dtype": "bfloat16" if arguments.bf16 else "float32",
        "checkpoint.export": "false",
        "log.progress": "off",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    if code := rlhf(["train", *words]):
        raise SystemExit(code)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record["timing"]["step_s"] for record in records if "timing" in record]


if __name__ == "__main__":
    main()
