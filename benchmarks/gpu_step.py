"""A whole step on a GPU: seconds and tokens per second of each phase, memory, weight sync; beside TRL's step if wanted.

    python benchmarks/gpu_step.py --shape 1.5b --peer trl --json result.json
    python benchmarks/gpu_step.py --shape 0.5b -- runtime=ray backend=deepspeed backend.deepspeed.zero_stage=2
    python benchmarks/gpu_step.py --shape 1.5b --peer trl --peer-gpu 1
    python benchmarks/gpu_step.py --shape 7b --adapter qlora --peer trl --peer-engine generate
    python benchmarks/gpu_step.py --shape 7b --models DIR -- runtime.sleep=always train.batch_size=16 \
        train.max_tokens_per_micro_batch=20480 backend.torch.gradient_checkpointing=true
    python benchmarks/gpu_step.py --shape 1.5b --steps 6 -- engine=embedded rollout.max_staleness=1 \
        engine.embedded.overlap=always
    python benchmarks/gpu_step.py --shape vl-3b --images 1 --prompts 8 --prompt-tokens 64 --peer trl
    python benchmarks/gpu_step.py --shape qwen3.5-0.8b-vision --response-tokens 256 -- model.vision=vlm

Random weights of a published shape, prompts of one length, forced response lengths (if it generates ahead: as good as),
sampled at temperature 1, GRPO
without a reference model. The step is the whole one of ``rlhf train``. Everything runs in processes of their own, one
after the other, on the same GPU, or at the same time on two of one host; the first step of each is left out
(compilation and CUDA graphs), and of the others the median counts. Of a run that generates ahead
(``rollout.max_staleness``) the last step is left out too: nothing is generated beside it. With an adapter, TRL has
PEFT's of the same rank. TRL cannot hand vLLM a base in 4 bits: there it samples with ``generate``.
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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from shapes import SHAPES, image_tokens

HERE = Path(__file__).parent
ONE_GPU = {
    "engine": "vllm",
    "model.dtype": "bfloat16",
    "backend.torch.compile": "true",
}
COMPILE_CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
PHASES = ("generate_s", "reward_s", "score_s", "train_s", "hold_s", "sync_s", "check_s", "moves_s")
"""Seconds of a step's record. ``hold_s``: what the update of weights waited for generation that runs ahead;
``moves_s``: what an engine that sleeps and roles that leave cost (``runtime.sleep``)."""
OWN = {"weight sync": "sync_s", "sleep and wake": "moves_s"}
"""Planned phases that are measured by themselves."""
IDLE = ("engine_idle_share", "trainer_idle_share")
MOVES = ("sleep_s", "reload_s", "offload_s", "wake_s")
"""Parts of ``moves_s``."""


def main() -> None:
    arguments = command_line().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(arguments, arguments.models or Path(folder))
    print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if failed := report.get("peer_failed"):
        raise SystemExit(failed)


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line; what it reads is what ``measure`` takes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="1.5b")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--response-tokens", type=int, default=1024)
    parser.add_argument("--images", type=int, default=0, help="of a prompt, beside its tokens")
    parser.add_argument("--image-side", type=int, default=448, help="pixels; images are squares")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--peer", choices=["trl"], help="measure it too, in the same run")
    parser.add_argument("--peer-gpu", type=int, help="measure the peer there, at the same time")
    parser.add_argument("--peer-steps", type=int, default=3)
    parser.add_argument("--peer-micro-batch", type=int, default=8)
    parser.add_argument("--peer-engine", choices=["vllm", "generate"], default="vllm")
    parser.add_argument("--adapter", choices=["lora", "qlora"], help="on all linear layers")
    parser.add_argument(
        "--rank", type=int, default=16, help="of the adapter; its alpha is twice that"
    )
    parser.add_argument(
        "--four-bits", action="store_true", help="the base is in 4 bits in its files already"
    )
    parser.add_argument("--models", type=Path, help="where models are kept; a temporary folder")
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="NAME=VALUE: options of rlhf train")
    return parser


def measure(arguments: argparse.Namespace, models: Path) -> dict[str, Any]:
    """Run ours and the peer, and return everything that they said."""
    shape = SHAPES.get(arguments.shape)
    if arguments.images and shape is not None and shape.linear_heads:
        raise SystemExit("--images: of another family than Qwen2.5-VL their tokens are not counted")
    model = models / arguments.shape
    if not (model / "config.json").exists():
        words = (
            f"{arguments.shape!r}, pathlib.Path({str(model)!r}), four_bits={arguments.four_bits}"
        )
        code = f"import shapes, pathlib; shapes.write_model({words})"
        subprocess.run([sys.executable, "-c", code], check=True, cwd=HERE)
    names = ("prompts", "samples", "prompt_tokens", "response_tokens", "images", "image_side")
    workload = {name: getattr(arguments, name) for name in names}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in workload.items()]
    options: dict[str, str | None] = {**ONE_GPU, **_adapter_options(arguments)}
    for option in arguments.options:
        name, _, value = option.partition("=")
        options[name] = value or None
    if _generates_ahead(options):
        # Old samples are weighed by log-probs of the whole distribution, so no end is forbidden. Random weights draw
        # one in 150 thousand tokens.
        options.setdefault("rollout.min_new_tokens", "0")
    words = [f"{name}={value}" for name, value in options.items() if value is not None]
    beside = ThreadPoolExecutor(max_workers=1)
    start_peer = partial(beside.submit, _run_peer, arguments, model, flags)
    at_once = arguments.peer and arguments.peer_gpu is not None
    peer = start_peer() if at_once else None
    ours = _run("our_step.py", "OURS ", model, [*flags, f"--steps={arguments.steps}", "--", *words])
    report = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "shape": arguments.shape,
        "adapter": arguments.adapter,
        "options": options,
        **workload,
        "ours": ours,
    }
    if arguments.peer:
        print(table(report), flush=True)
        try:
            report["peer"] = (peer or start_peer()).result()
        except SystemExit as error:  # what was measured of ours is not lost for it
            report["peer_failed"] = str(error)
    return report


def _adapter_options(arguments: argparse.Namespace) -> dict[str, str | None]:
    name = arguments.adapter
    if name is None:
        return {}
    return {"actor.adapter": name, f"actor.{name}.rank": str(arguments.rank)}


def _run_peer(arguments: argparse.Namespace, model: Path, flags: list[str]) -> dict[str, Any]:
    extra = ["--gpu", "--recompute", f"--micro-batch={arguments.peer_micro_batch}"]
    extra.append(f"--engine={arguments.peer_engine}")
    if arguments.adapter:
        extra += [f"--adapter={arguments.adapter}", f"--rank={arguments.rank}"]
    environment = {}
    if arguments.peer_gpu is not None:
        # Two that compile at once do not share what is half written.
        caches = {name: str(model.parent / "caches" / name) for name in COMPILE_CACHES}
        environment = {"CUDA_VISIBLE_DEVICES": str(arguments.peer_gpu), **caches}
    steps = f"--steps={arguments.peer_steps}"
    return _run("peer_trl_step.py", "TRL ", model, [*flags, steps, *extra], environment)


def table(report: dict[str, Any]) -> str:
    """Return the measurement as lines of text."""
    ahead = _generates_ahead(report["options"])
    timings = [record["timing"] for record in report["ours"]["records"][1:]]
    timings = timings[:-1] if ahead and len(timings) > 1 else timings
    median = medians(timings)
    step = median["step_s"]
    trained = report["adapter"] or "all weights"
    work = f"{report['prompts']} x {report['samples']}"
    lines = [f"{report['gpu']}, {report['shape']}, {trained}, {work}"]
    plan = report["ours"]["plan"]
    # Of phases that may overlap, what is measured of them is how long the others were waited for.
    limits = {} if ahead and plan and not plan["step_s"]["overlaps"] else _limits(plan)
    for name in PHASES:
        seconds, limit = median.get(name, 0.0), limits.get(name)
        share = f"   {limit / seconds:5.0%} of the limit, {limit:.3f} s" if limit else ""
        lines.append(f"  {name:12} {seconds:8.3f} s{share}")
    rest = step - sum(median.get(name, 0.0) for name in PHASES)
    of_images = report["images"] * image_tokens(report["image_side"])
    tokens = report["prompts"] * report["samples"]
    tokens *= report["prompt_tokens"] + of_images + report["response_tokens"]
    lines.append(f"  {'rest':12} {rest:8.3f} s")
    if median.get("moves_s"):
        parts = ", ".join(f"{name} {median[name]:.3f}" for name in MOVES)
        lines.append(f"  of moves_s: {parts}")
    share = f"   {limits['step_s'] / step:5.0%} of the limit" if limits else ""
    lines.append(f"  {'step':12} {step:8.3f} s{share}   {tokens / step:8.0f} tokens/s")
    lines.append(f"  steps {[round(timing['step_s'], 2) for timing in timings]}")
    if ahead:
        idle = ", ".join(f"{name} {median[name]:.0%}" for name in IDLE)
        mean = statistics.mean(timing["step_s"] for timing in timings)
        lines.append(f"  mean of these steps {mean:.3f} s; {idle}")
    lines += _memory(report["ours"])
    metrics = report["ours"]["records"][-1].get("metrics", {})
    mean = metrics.get("mismatch/logprob_diff_mean")
    lines.append(f"  |sampler - trainer| log-prob: mean {mean}")
    if "peer" in report:
        peer = statistics.median(report["peer"]["step_s"][1:])
        lines.append(f"  TRL          {peer:8.3f} s   {tokens / peer:8.0f} tokens/s")
        lines.append(f"  ours / TRL   {step / peer:8.3f}")
        if (peak := report["peer"].get("torch_peak_gib")) is not None:
            lines.append(f"  TRL's process allocated at most {peak:.1f} GiB")
    return "\n".join(lines)


def medians(timings: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each phase over the steps that had it."""
    names = {name for timing in timings for name in timing}
    return {
        name: statistics.median(timing[name] for timing in timings if name in timing)
        for name in names
    }


def _generates_ahead(options: Mapping[str, str | None]) -> bool:
    return options.get("rollout.max_staleness") not in (None, "0")


def _limits(plan: dict[str, Any] | None) -> dict[str, float]:
    """Seconds that no implementation can beat, by phase of the step; of phases that overlap only the whole step's,
    since what is measured of them is how long the others were waited for."""
    if plan is None:
        return {}
    step = {"step_s": plan["step_s"]["limit"]}
    if plan["step_s"]["overlaps"]:
        return step
    found = dict.fromkeys(("generate_s", "score_s", "train_s", "sync_s", "moves_s"), 0.0)
    for phase in plan["phases"]:
        found[_measured_in(phase["name"])] += phase["limit_s"]
    return found | step


def _measured_in(phase: str) -> str:
    """The measured phase that a planned one is a part of."""
    if phase in ("prefill", "decode", "exchange engine"):
        return "generate_s"
    if phase in OWN:
        return OWN[phase]
    trains = phase.split()[0] in ("train", "optimizer", "exchange")
    return "train_s" if trains else "score_s"


def _memory(ours: dict[str, Any]) -> list[str]:
    if ours["peak_gib"] is None:
        return []
    lines = [f"  peak {ours['peak_gib']:.1f} GiB of the GPU, all processes, cached blocks included"]
    trains_here = bool(ours["torch_peak_gib"])
    if trains_here and ours["plan"] is not None and len(ours["plan"]["gpus"]) == 1:
        process = ours["plan"]["gpus"][0]["processes"][0]
        planned, peak = process["torch_peak_gib"], ours["torch_peak_gib"]
        share = f"planned {planned:.1f}, {planned / peak - 1:+.1%}"
        lines.append(f"  trainer allocated at most {peak:.1f} GiB ({share})")
    return lines


def _run(
    script: str,
    mark: str,
    model: Path,
    flags: list[str],
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    command = [sys.executable, str(HERE / script), f"--model={model}", *flags]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(mark)]
    if done.returncode or not found:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    result: dict[str, Any] = json.loads(found[-1].removeprefix(mark))
    return result


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


if __name__ == "__main__":
    main()
