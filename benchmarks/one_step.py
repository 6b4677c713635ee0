"""What one training step goes through, in one process: files, functions, moves between files, and containers.

    python benchmarks/one_step.py [--list] [OPTION VALUE]...

Trains a tiny model on single turns with a reward in this process, and follows the second step from its first call to
its last. Counted are the files of this repository that are entered, their functions, how often a call goes from one
file into another, and the classes of containers that are made: dataclasses, and named tuples beside them. ``--list``
prints the files in the order in which they are entered, with the calls that go into each; further words are options
of ``rlhf train``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from rlhf_core import Component
from rlhf_core.contracts import Observer

ROOT = Path(__file__).resolve().parent.parent
FOLLOWED = 2
"""Number of the step that is followed; the first one imports and compiles."""
GENERATED = "<string>"
"""File of the functions that dataclasses and named tuples generate."""


class Trace:
    """Counts of calls, while it is on."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.functions: set[tuple[str, str]] = set()
        self.containers: set[str] = set()
        self.tuples: set[str] = set()
        self.moves = 0
        self._names: dict[str, str | None] = {}

    def start(self) -> None:
        """Follow calls of this thread and of threads that begin from now on."""
        threading.setprofile(self._hear)
        sys.setprofile(self._hear)

    def stop(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _hear(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename == GENERATED:
            self._note_container(frame)
            return
        file = self._name(code.co_filename)
        if file is None:
            return
        self.functions.add((file, code.co_qualname))
        caller = frame.f_back
        if caller is None or self._name(caller.f_code.co_filename) != file:
            self.files[file] += 1
            self.moves += 1

    def _note_container(self, frame: FrameType) -> None:
        # A named tuple's __new__ is a lambda of the class ``_cls``.
        made, name = frame.f_locals, frame.f_code.co_name
        found, kind = self.tuples, made.get("_cls")
        if name == "__init__":
            found, kind = self.containers, type(made["self"])
        if kind is not None and kind.__module__.startswith("rlhf"):
            found.add(f"{kind.__module__}:{kind.__qualname__}")

    def _name(self, file: str) -> str | None:
        """Return the path within this repository's source; None for other code."""
        if file not in self._names:
            path = Path(file)
            ours = path.is_relative_to(ROOT) and "src" in path.parts
            self._names[file] = path.relative_to(ROOT).as_posix() if ours else None
        return self._names[file]


TRACE = Trace()


class Follower(Observer):
    """Switches the trace on between the end of the step before and that of the step that is followed."""

    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        # A component in a file stands in a module of its own, beside the one that prints the counts.
        trace = importlib.import_module(Path(__file__).stem).TRACE
        if step == FOLLOWED - 1:
            trace.start()
        elif step == FOLLOWED:
            trace.stop()


FOLLOWER = Component(
    name="follower", factory=lambda config: Follower(), summary="follows the calls of one step"
)


def train(folder: Path, words: list[str]) -> None:
    """Train three steps in this process."""
    import rlhf_core.plugins as plugin_loader
    from rlhf_cli.train import execute
    from rlhf_testing.tiny import write_tiny_model

    model = write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n}=", "answer": f"{n}"} for n in range(12)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = {
        "model": model,
        "data": folder / "rows.jsonl",
        "output": folder / "run",
        "reward": "exact_match",
        "reward.exact_match.isolate": "false",
        "steps": FOLLOWED + 1,
        "rollout.batch_size": 4,
        "rollout.max_new_tokens": 4,
        "log.progress": "off",
        "observers.use": f"{Path(__file__).resolve()}:FOLLOWER",
    }
    typed = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    code = execute([*typed, *words], plugin_loader.load())
    if code:
        raise SystemExit(code)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the files as well")
    arguments, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), words)
    if arguments.list:
        for file, calls in TRACE.files.items():
            print(f"{calls:6}  {file}")
    print(f"files       {len(TRACE.files)}")
    print(f"functions   {len(TRACE.functions)}")
    print(f"moves       {TRACE.moves}")
    print(f"containers  {len(TRACE.containers)}")
    print(f"tuples      {len(TRACE.tuples)}")


if __name__ == "__main__":
    importlib.import_module(Path(__file__).stem).main()
