"""Our GRPO step, for ``cpu_step.py`` and ``gpu_step.py``: prints one line of JSON with the seconds of each step.

The step is the whole one of ``rlhf train``: generation, reward in its own process, advantages, update, weight sync.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import string
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

from pictures import write_pictures
from shapes import image_tokens

STUCK_S = 180
"""Seconds after which, and again, all threads say where they are."""
REWARD = "def score(token_ids):\n    return sum(token_ids) % 7 / 7\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    add_workload(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = train_options(arguments, Path(folder))
        with MemoryGauge() as memory:
            records = step_records(options)
        result = {
            "step_s": [record["timing"]["step_s"] for record in records],
            "records": records,
            "peak_gib": memory.peak_gib,
            "peak_by_process": memory.by_process,
            "torch_peak_gib": memory.torch_peak_gib,
            "plan": planned(options, arguments) if memory.peak_gib else None,
        }
    print("OURS " + json.dumps(result), flush=True)


def add_workload(parser: argparse.ArgumentParser, **defaults: int) -> None:
    """Add the flags of the workload; those without a default are required."""
    for name in ("prompts", "samples", "prompt_tokens", "response_tokens", "steps"):
        flag, value = f"--{name.replace('_', '-')}", defaults.get(name)
        parser.add_argument(flag, type=int, default=value, required=value is None)
    parser.add_argument("--images", type=int, default=0, help="of a prompt")
    parser.add_argument("--image-side", type=int, default=448, help="pixels")
    parser.add_argument("options", nargs="*", help="NAME=VALUE: further options of rlhf train")


class MemoryGauge:
    """Most memory in use on the fullest of the visible GPUs, by all processes, looked up ten times a second.

    The driver's library counts, so that the gauge takes no memory of a GPU itself.
    """

    def __init__(self) -> None:
        self.peak_gib: float | None = None
        self.by_process: dict[str, float] = {}
        """GiB of each process at that moment, where the machine says it."""
        self.torch_peak_gib: float | None = None
        """What torch had allocated in this process."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> MemoryGauge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        import torch

        self._done.set()
        self._thread.join()
        if torch.cuda.is_initialized():
            self.torch_peak_gib = torch.cuda.max_memory_allocated() / 2**30

    def _watch(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:
            return  # a machine without GPUs
        numbers = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(",", " ").split()
        if not all(number.isdigit() for number in numbers) or not numbers:
            numbers = [str(number) for number in range(pynvml.nvmlDeviceGetCount())]
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(int(number)) for number in numbers]
        while not self._done.wait(0.1):
            for gpu in gpus:
                used = pynvml.nvmlDeviceGetMemoryInfo(gpu).used / 2**30
                if used > (self.peak_gib or 0.0):
                    self.peak_gib = used
                    self.by_process = {
                        _process_name(one.pid): (one.usedGpuMemory or 0) / 2**30
                        for one in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
                    }


def _process_name(pid: int) -> str:
    """Return a process's number and what it is called."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return str(pid)
    return f"{pid} {b' '.join(words)[:60].decode(errors='replace').strip()}"


class Whereabouts:
    """Prints where all threads are, again and again: a run that is cut off says in its last lines where it stood.

    A thread that holds the interpreter's lock does it: ``faulthandler`` reads frames without, and crashed on those of
    compiled functions.
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(STUCK_S):
            for number, frame in sys._current_frames().items():
                place = "".join(traceback.format_stack(frame)[-8:])
                print(f"after {STUCK_S} s and more, thread {number}:\n{place}", file=sys.stderr)


def train_options(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write prompts and a reward into ``folder``, and return the options of the run by name."""
    (folder / "reward.py").write_text(REWARD)
    draw = random.Random(0)
    prompts = [
        "".join(draw.choices(string.ascii_lowercase, k=arguments.prompt_tokens))
        for _ in range(arguments.prompts * arguments.steps)
    ]
    rows: list[dict[str, Any]] = [{"prompt": prompt} for prompt in prompts]
    prompt_tokens = arguments.prompt_tokens
    if arguments.images:
        files = write_pictures(folder, len(rows) * arguments.images, arguments.image_side)
        for number, row in enumerate(rows):
            chosen = files[number * arguments.images : (number + 1) * arguments.images]
            row["images"] = [str(file) for file in chosen]
        prompt_tokens += arguments.images * image_tokens(arguments.image_side)
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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
        "data.max_prompt_tokens": prompt_tokens,
        "actor.adam.lr": 1e-6,
        "steps": arguments.steps,
        "checkpoint.at_end": "false",
        "checkpoint.export": "false",
        "log.progress": "plain",
    }
    if arguments.images:
        options |= {"model.vision": "vlm", "data.chat": "true", "data.image_key": "images"}
    given = dict(option.split("=", 1) for option in arguments.options)
    if "model.vision" in given and not arguments.images:
        options["data.image_key"] = ""  # rows of text for a model that sees
    return options | given


def step_records(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Run ``rlhf train`` and return what it recorded of each step."""
    from rlhf_cli.main import main as rlhf

    with contextlib.redirect_stdout(sys.stderr), Whereabouts():
        code = rlhf(["train", *_words(options)])
    if code:
        raise SystemExit(code)
    lines = (Path(options["output"]) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record for record in records if "timing" in record]


def planned(options: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return what ``rlhf plan`` predicts of the run that was; None for a GPU or a family that it does not know."""
    import torch

    name = torch.cuda.get_device_name().lower()
    gpu = next((known for known in ("h200", "h100") if known in name), None)
    if gpu is None:
        return None
    command = [sys.executable, "-m", "rlhf_cli", "plan", *plan_words(options, arguments)]
    done = subprocess.run([*command, f"--gpu={gpu}", "--json"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def plan_words(options: dict[str, Any], arguments: argparse.Namespace) -> list[str]:
    """Return the words behind ``rlhf plan`` that describe the run in ``options["output"]``.

    The configuration is the recorded one: the run has chosen options about memory that were not given, and without them
    another run would be predicted.
    """
    words = ["-c", str(Path(options["output"]) / "config.toml")]
    of_images = arguments.images * image_tokens(arguments.image_side)
    words.append(f"--prompt-tokens={arguments.prompt_tokens + of_images}")
    words.append(f"--response-tokens={arguments.response_tokens}")
    if of_images:
        words.append(f"--image-tokens={of_images}")
    return words


def _words(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


if __name__ == "__main__":
    main()
