"""Our training step beside TRL's GRPO step, and our engine beside Transformers' ``generate``, on the CPU, in one run.

    python benchmarks/cpu_step.py --peer-python PYTHON_WITH_TRL --json result.json

Same random weights, same prompts, same forced lengths, fp32 and bf16 each. The two are timed in turns, several rounds,
because machines are noisy: what counts is the ratio. TRL runs in a process of its own, with ``--peer-python`` (an
interpreter with ``trl`` installed; this one by default).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Shape:
    """One workload."""

    name: str
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int


SHAPES = (
    Shape("0.85M", layers=4, hidden=128, heads=4, intermediate=384, vocabulary=512),
    Shape("11M", layers=6, hidden=384, heads=6, intermediate=1024, vocabulary=4096),
)
PROMPTS, SAMPLES, PROMPT_TOKENS, RESPONSE_TOKENS = 8, 8, 32, 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=5, help="steps of each round; the first one is left out"
    )
    parser.add_argument("--dtype", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-engine", action="store_true", help="leave generate out")
    arguments = parser.parse_args()

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES:
            model = write_model(shape, Path(folder, shape.name))
            for dtype in arguments.dtype:
                row = compare(model, shape, dtype, arguments)
                rows.append(row)
                print(format_row(row), flush=True)
    if not arguments.no_engine:
        print("engine and generate, tokens per second", flush=True)
        subprocess.run([sys.executable, str(HERE / "engine_vs_generate.py")], check=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


def compare(
    model: Path, shape: Shape, dtype: str, arguments: argparse.Namespace
) -> dict[str, object]:
    """Time both in turns and return the medians (seconds) and the ratio."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(arguments.rounds):
        ours += run_ours(model, dtype, arguments.steps)[1:]
        theirs += run_trl(model, dtype, arguments)[1:]
    our_s, their_s = statistics.median(ours), statistics.median(theirs)
    return {
        "model": shape.name,
        "dtype": dtype,
        "our_step_s": round(our_s, 4),
        "trl_step_s": round(their_s, 4),
        "ratio": round(their_s / our_s, 2),
    }


def run_ours(model: Path, dtype: str, steps: int) -> list[float]:
    """Seconds of each of our steps, in a process of its own like the peer's."""
    command = [sys.executable, str(HERE / "our_step.py"), "--model", str(model), *workload(steps)]
    compute = "bfloat16" if dtype == "bf16" else "float32"
    return _step_seconds([*command, f"backend.torch.compute_dtype={compute}"], "OURS ")


def run_trl(model: Path, dtype: str, arguments: argparse.Namespace) -> list[float]:
    """Seconds of each of TRL's steps."""
    command = [arguments.peer_python, str(HERE / "peer_trl_step.py"), "--model", str(model)]
    command += workload(arguments.steps)
    return _step_seconds(command + (["--bf16"] if dtype == "bf16" else []), "TRL ")


def workload(steps: int) -> list[str]:
    words = {"prompts": PROMPTS, "samples": SAMPLES, "prompt-tokens": PROMPT_TOKENS}
    words |= {"response-tokens": RESPONSE_TOKENS, "steps": steps}
    return [word for name, value in words.items() for word in (f"--{name}", str(value))]


def _step_seconds(command: list[str], marker: str) -> list[float]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith(marker):
            seconds: list[float] = json.loads(line.removeprefix(marker))["step_s"]
            return seconds
    raise SystemExit(
        f"{' '.join(command)} gave no times:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )


def write_model(shape: Shape, folder: Path) -> Path:
    """Write a Qwen3 model of the shape with random weights, and a character tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen3Config

    from rlhf_testing.tiny import tiny_tokenizer

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    print(f"{shape.name}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def format_row(row: dict[str, object]) -> str:
    return (
        f"{row['model']:>6} {row['dtype']:>5}   ours {row['our_step_s']:8.3f} s   TRL {row['trl_step_s']:8.3f} s"
        f"   {row['ratio']:5.2f}x"
    )


def machine() -> dict[str, object]:
    return {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}


if __name__ == "__main__":
    main()
