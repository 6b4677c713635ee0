"""A step of supervised fine-tuning beside TRL's, on the same rows, one after the other on the same machine.

    python benchmarks/sft_step.py --shape 0.5b --peer 8 16 8:float32 8:recompute --json result.json
    python benchmarks/sft_step.py --shape 7b --adapter qlora --peer 8
    python benchmarks/sft_step.py --shape tiny --rows 16 --tokens 128 --rounds 2 --peer 8
    python benchmarks/sft_step.py --shape 7b --gpus 2 --peer 8:recompute --peer-parallel fsdp2

Random weights of a published shape; rows of plain text of one length, so neither side pads. Each side runs in processes
of its own, in turns; the first steps of each process are left out (compilation). The limit is the time of the matrix
products alone: 6 FLOP for each parameter and token, and 12 D for each layer and pair of tokens of causal attention, at
the dense bfloat16 rate of the GPU. With an adapter the base's weights have no gradient, so it is 4 FLOP, and the
adapter's own products are left out.

Ours keeps weights and Adam's state in float32 beside the weights in bfloat16. So does TRL with ``float32``, by
autocast; with weights in bfloat16 it has Adam's state in bfloat16 too, which is less work, and loses updates that are
smaller than their rounding. TRL's own default is the dtype of the checkpoint, 8 rows, and recomputation.

With ``--gpus`` ours is ``rlhf sft --gpus N``, and TRL's trainer has DeepSpeed's ZeRO stage 2 (its state in float32, as
ours) or FSDP2. Rows of a step are those of all GPUs, rows of a micro-batch those of one.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import string
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
DENSE_BF16_FLOPS = {"H200": 989e12, "H100": 989e12}
"""NVIDIA's data sheets, without sparsity."""
LEFT_OUT = 3
"""Steps at the start of each process that are not counted."""


class Peer(NamedTuple):
    """How TRL trains."""

    rows: int
    """Of a micro-batch."""
    weights: str = "bfloat16"
    recomputes: bool = False
    """Whether the backward pass computes activations again."""

    def __str__(self) -> str:
        again = ", recomputed" if self.recomputes else ""
        return f"TRL, {self.rows} rows, {self.weights}{again}"

    @classmethod
    def parse(cls, text: str) -> Peer:
        """Return the peer that ``ROWS[:float32][:recompute]`` stands for."""
        rows, *marks = text.split(":")
        if unknown := set(marks) - {"float32", "recompute"}:
            raise argparse.ArgumentTypeError(f"expected float32 or recompute, got {unknown}")
        weights = "float32" if "float32" in marks else "bfloat16"
        return cls(int(rows), weights, "recompute" in marks)

    def words(self) -> list[str]:
        """Return the arguments of ``peer_trl_sft.py``."""
        again = ["--recompute"] if self.recomputes else []
        return [f"--micro-batch={self.rows}", f"--weights={self.weights}", *again]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--rows", type=int, default=64, help="rows of a step")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side")
    parser.add_argument("--adapter", choices=("lora", "qlora"), help="on all linear layers")
    parser.add_argument(
        "--rank", type=int, default=16, help="of the adapter; its alpha is twice that"
    )
    parser.add_argument(
        "--peer",
        type=Peer.parse,
        nargs="+",
        default=[],
        metavar="ROWS[:float32][:recompute]",
        help="measure TRL too, with micro-batches of so many rows, and PEFT's adapter if any",
    )
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument(
        "--peer-parallel", choices=("deepspeed", "fsdp2"), default="deepspeed", help="with --gpus"
    )
    parser.add_argument("--models", type=Path, help="where models are kept; a temporary folder")
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="NAME=VALUE: options of rlhf sft")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(arguments, Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run both sides in turns; print and return seconds, ratio and share of the limit."""
    model = (arguments.models or folder) / arguments.shape
    if not (model / "config.json").exists():
        words = f"{arguments.shape!r}, pathlib.Path({str(model)!r})"
        code = f"import shapes, pathlib; shapes.write_model({words})"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE)
    data = folder / "rows.jsonl"
    draw = random.Random(0)
    # A text gets a token for its end, so it is one character shorter than its row.
    texts = (
        "".join(draw.choices(string.ascii_lowercase, k=arguments.tokens - 1))
        for _ in range(arguments.rows * arguments.steps)
    )
    data.write_text("\n".join(json.dumps({"text": text}) for text in texts) + "\n")
    ours: list[float] = []
    theirs: dict[Peer, list[float]] = {peer: [] for peer in arguments.peer}
    memory: dict[str, float] = {}
    for round_ in range(arguments.rounds):
        seconds, memory["ours"] = run_ours(arguments, model, data, folder / f"run{round_}")
        ours += seconds
        print(f"round {round_}, ours: {seconds}", flush=True)
        for peer in arguments.peer:
            found = read(peer_command(arguments, model, data, peer), "TRL ")
            theirs[peer] += found["step_s"][LEFT_OUT:]
            print(f"round {round_}, {peer}: {found['step_s'][LEFT_OUT:]}", flush=True)
            memory[str(peer)] = found["peak_gib"]
    report = {"shape": arguments.shape, "gpu": gpu(), "gpus": arguments.gpus, "memory_gib": memory}
    report["adapter"] = f"{arguments.adapter}, rank {arguments.rank}" if arguments.adapter else None
    report["ours_s"] = statistics.median(ours)
    report["trl_s"] = {str(peer): statistics.median(found) for peer, found in theirs.items()}
    tokens = arguments.rows * arguments.tokens
    trained = report["adapter"] or "all weights"
    print(
        f"{report['gpu']}, {arguments.shape}, {trained}, {arguments.rows} x {arguments.tokens} tokens"
    )
    print(f"  {'ours':36} {report['ours_s']:8.4f} s   {tokens / report['ours_s']:9.0f} tokens/s")
    per_weight = 4 if arguments.adapter else 6
    limit = limit_s(model, arguments.rows, arguments.tokens, report["gpu"], per_weight)
    if limit is not None:
        limit /= arguments.gpus
        report["limit_s"] = limit
        print(f"  {'limit':36} {limit:8.4f} s   ours is at {limit / report['ours_s']:.0%} of it")
    for name, seconds in report["trl_s"].items():
        print(f"  {name:36} {seconds:8.4f} s   {seconds / report['ours_s']:.2f} x ours")
    print(f"  peak memory, GiB: {memory}", flush=True)
    return report


def peer_command(arguments: argparse.Namespace, model: Path, data: Path, peer: Peer) -> list[str]:
    """Return the command that prints TRL's seconds."""
    words = [f"--{name}={getattr(arguments, name)}" for name in ("rows", "tokens", "steps")]
    if arguments.adapter:
        words += [f"--adapter={arguments.adapter}", f"--rank={arguments.rank}"]
    command = [str(HERE / "peer_trl_sft.py"), f"--model={model}", f"--data={data}"]
    if arguments.gpus == 1:
        return [sys.executable, *command, *peer.words(), *words]
    words.append(f"--parallel={arguments.peer_parallel}")
    start = ["-m", "torch.distributed.run", f"--nproc-per-node={arguments.gpus}"]
    return [sys.executable, *start, *command, *peer.words(), *words]


def run_ours(
    arguments: argparse.Namespace, model: Path, data: Path, output: Path
) -> tuple[list[float], float]:
    """Return the seconds of each counted step of ``rlhf sft``, and its peak memory in GiB."""
    on_gpu = gpu() is not None
    words = ["--model", str(model), "--data", str(data), "--data.text_key", "text"]
    words += ["--data.max_length", str(arguments.tokens), "--output", str(output)]
    words += ["--train.batch_size", str(arguments.rows), "--steps", str(arguments.steps)]
    words += ["--checkpoint.export", "false", "--log.tensorboard", "false", "--log.curve", "false"]
    words += ["--log.progress", "off", "--actor.adam.lr", "1e-5"]
    if arguments.adapter:
        words += ["--actor.adapter", arguments.adapter]
        words += [f"--actor.{arguments.adapter}.rank", str(arguments.rank)]
    if on_gpu:
        words += ["--model.dtype", "bfloat16"]
    if arguments.gpus > 1:
        words += ["--gpus", str(arguments.gpus)]
    elif on_gpu:
        words += ["--backend.torch.compile", "true"]
    for option in arguments.options:
        name, _, value = option.partition("=")
        words += [f"--{name}", value]
    code = (
        "import sys, torch\nfrom rlhf_cli.main import main\ncode = main(['sft', *sys.argv[1:]])\n"
        "peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0\n"
        "print('PEAK ' + str(peak)); sys.exit(code)"
    )
    peak = read([sys.executable, "-c", code, *words], "PEAK ")
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [line["timing"]["step_s"] for line in lines if "timing" in line][LEFT_OUT:], peak


def read(command: list[str], marker: str) -> Any:
    """Return what a process prints behind the marker."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(marker) and done.returncode == 0:
            return json.loads(line.removeprefix(marker))
    raise SystemExit(f"{command[:3]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def limit_s(model: Path, rows: int, tokens: int, name: str | None, per_weight: int) -> float | None:
    """Return the seconds of a step's matrix products at the GPU's dense bfloat16 rate; None for other GPUs.

    Args:
        per_weight: FLOP for each weight and token.
    """
    rate = next((rate for key, rate in DENSE_BF16_FLOPS.items() if key in (name or "")), None)
    if rate is None:
        return None
    config = json.loads((model / "config.json").read_text())
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    inner, vocabulary = config["intermediate_size"], config["vocab_size"]
    head = hidden // config["num_attention_heads"]
    attention = 2 * hidden * hidden + 2 * hidden * head * config["num_key_value_heads"]
    # The embedding is a table, and the head a product, whether they share weights or not.
    weights = layers * (attention + 3 * hidden * inner) + hidden * vocabulary
    pairs = tokens * tokens / 2
    return rows * (per_weight * weights * tokens + 12 * layers * hidden * pairs) / rate


if __name__ == "__main__":
    main()
