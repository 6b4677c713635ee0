"""GPU memory of a run by phase beside what ``rlhf plan`` predicts, and which lines had allocated it at the peak.

    python benchmarks/memory_by_phase.py --shape 1.5b -- engine=embedded model.dtype=bfloat16 \
        backend.torch.compile=true rollout.min_new_tokens=0
    python benchmarks/memory_by_phase.py --shape tiny --prompts 2 --samples 4 --prompt-tokens 16 \
        --response-tokens 16 --steps 2 -- engine=embedded

The workload is that of ``gpu_step.py``, in this process: backend ``torch``, engine ``embedded``, no Ray. Peaks are
reset between phases. *Held* is what was allocated when a phase ended. Of the phases that a step has several times, and
of several steps, the largest counts; the first step, in which layers are compiled, has lines of its own. Without a GPU
the memory of the process takes the place of the GPU's, and nothing is said of lines: to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest.mock import patch

import our_step
from memory_at_peak import held_at_peak, table
from shapes import SHAPES, TINY

GIB = 2**30
KEPT_EVENTS = 150_000
"""Of torch's history: more than a step has."""


class Reading(NamedTuple):
    """Bytes since the reading before."""

    peak: int
    held: int
    reserved: int


class Memory(Protocol):
    """Counters of a device's memory."""

    def read(self) -> Reading:
        """Return what was used since the last call."""

    def snapshot(self) -> dict[str, Any] | None:
        """Return torch's snapshot with its history; None where there is no history."""


class GpuMemory:
    """torch's counters of the first GPU, with the history of its allocations from now on."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._cuda.init()  # before it nothing is recorded
        self._cuda.memory._record_memory_history(
            context="alloc", stacks="python", max_entries=KEPT_EVENTS
        )

    def read(self) -> Reading:
        self._cuda.synchronize()
        peak, held = self._cuda.max_memory_allocated(), self._cuda.memory_allocated()
        reserved = self._cuda.max_memory_reserved()
        self._cuda.reset_peak_memory_stats()
        return Reading(peak, held, reserved)

    def snapshot(self) -> dict[str, Any] | None:
        found: dict[str, Any] = self._cuda.memory._snapshot()
        self._cuda.memory._record_memory_history(enabled=None)
        return found


class ProcessMemory:
    """The process's own memory, whose peak cannot be reset."""

    def read(self) -> Reading:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return Reading(peak, pages * resource.getpagesize(), peak)

    def snapshot(self) -> dict[str, Any] | None:
        return None


class Phases:
    """Readings by phase, and the snapshot of the last step."""

    def __init__(self, memory: Memory, steps: int) -> None:
        self.records: list[dict[str, Any]] = []
        self.snapshot: dict[str, Any] | None = None
        self._memory, self._steps, self._step = memory, steps, 0

    def ended(self, phase: str) -> None:
        """Note that ``phase`` ends here and the next one begins."""
        sizes = {name: size / GIB for name, size in self._memory.read()._asdict().items()}
        self.records.append({"step": self._step, "phase": phase, **sizes})

    def begin_learning(self) -> None:
        """Note that the step's generation has ended. All up to here is the first step's."""
        self._step += 1
        self.ended("generation")

    def end_update(self) -> None:
        """Note that the optimizer has stepped; after the last step's the history is read."""
        self.ended("optimizer step")
        if self._step == self._steps and self.snapshot is None:
            self.snapshot = self._memory.snapshot()

    def largest(self) -> list[dict[str, Any]]:
        """Return the largest of each phase over all steps but the first, whose phases come before them."""
        found: dict[tuple[bool, str], dict[str, Any]] = {}
        for record in self.records:
            later = record["step"] > 1
            kept = found.setdefault((later, record["phase"]), dict(record))
            for name in Reading._fields:
                kept[name] = max(kept[name], record[name])
        return sorted(found.values(), key=lambda record: record["step"] > 1)


@contextmanager
def watched(phases: Phases) -> Iterator[None]:
    """Have the calls at which phases end tell ``phases``."""
    import torch

    from rlhf_plugin_local.engine.embedded import EmbeddedEngine
    from rlhf_plugin_local.torch_backend import TorchBackend
    from rlhf_torch.training.updater import Updater
    from rlhf_trainer.learning.learner import BatchLearner

    def ends(phase: str) -> Callable[[], None]:
        return lambda: phases.ended(phase)

    places: list[tuple[type, str, Callable[[], None] | None, Callable[[], None] | None]] = [
        (TorchBackend, "setup_beside", ends("start of the process"), ends("roles loaded")),
        (EmbeddedEngine, "start", None, ends("engine started")),
        (BatchLearner, "learn", phases.begin_learning, None),
        (TorchBackend, "train_step", ends("log-probs and advantages"), None),
        (torch.Tensor, "backward", ends("forward of a micro-batch"), ends("backward")),
        (Updater, "collect", None, ends("gradients added up")),
        (Updater, "update", None, phases.end_update),
        (EmbeddedEngine, "update_weights", None, ends("weights to the engine")),
    ]
    with ExitStack() as stack:
        for owner, name, before, after in places:
            stack.enter_context(patch.object(owner, name, _around(owner, name, before, after)))
        yield


def _around(
    owner: type, name: str, before: Callable[[], None] | None, after: Callable[[], None] | None
) -> Callable[..., Any]:
    """Return the method, a coroutine or not, with calls before and after it."""
    method = getattr(owner, name)

    @wraps(method)
    def called(*words: Any, **named: Any) -> Any:
        if before is not None:
            before()
        result = method(*words, **named)
        if hasattr(result, "__await__"):
            return _then(result, after)
        if after is not None:
            after()
        return result

    return called


async def _then(result: Any, after: Callable[[], None] | None) -> Any:
    value = await result
    if after is not None:
        after()
    return value


def report(phases: Phases, plan: dict[str, Any] | None) -> str:
    """Return phases and the plan's terms as text; sizes in GiB."""
    lines = [f"{'phase':32}{'peak':>9}{'held':>9}{'reserved':>10}"]
    for record in phases.largest():
        name = record["phase"] if record["step"] > 1 else f"{record['phase']} (first)"
        sizes = f"{record['peak']:9.2f}{record['held']:9.2f}{record['reserved']:10.2f}"
        lines.append(f"{name:32}{sizes}")
    peak = max(record["peak"] for record in phases.records)
    if plan is not None:
        process = plan["gpus"][0]["processes"][0]
        planned = process["torch_peak_gib"]
        lines.append(f"\npeak {peak:.2f}, planned {planned:.2f} ({planned / peak - 1:+.1%}):")
        lines += [f"{size:9.2f}  {name}" for name, size in process["parts_gib"].items()]
        roles = process["roles"].items()
        lines += [f"{name}: resident {role['resident_gib']:.2f}" for name, role in roles]
    return "\n".join(lines)


def _write_model(shape: str, folder: str) -> None:
    """Write the weights in a process of its own, so that nothing of them is on the GPU that is read."""
    code = f"import pathlib, shapes; shapes.write_model({shape!r}, pathlib.Path({folder!r}))"
    Path(folder).mkdir()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="1.5b", choices=[TINY, *SHAPES])
    lengths = {"prompt_tokens": 256, "response_tokens": 1024}
    our_step.add_workload(parser, prompts=32, samples=8, steps=3, **lengths)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch

    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        arguments.model = str(Path(folder) / "model")
        _write_model(arguments.shape, arguments.model)
        options = our_step.train_options(arguments, Path(folder))
        phases = Phases(GpuMemory() if on_gpu else ProcessMemory(), arguments.steps)
        with watched(phases):
            our_step.step_records(options)
        plan = our_step.planned(options, arguments) if on_gpu else None
    print(report(phases, plan), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"records": phases.records, "plan": plan}, indent=1))
    if phases.snapshot is not None:
        print("\n" + table(held_at_peak(phases.snapshot)))


if __name__ == "__main__":
    main()
