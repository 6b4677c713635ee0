"""Episodes in a fresh process, which is told the environment's place in words: a request in JSON, an answer in JSON."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import Any

from rlhf_core.batch.task import Task
from rlhf_core.code_reference import CodeReference, parse

from ..subject import Subject
from ..subject import subject as subject_of

PROCESS_LIMIT_S = 300.0
"""Seconds after which the other process counts as one that hangs."""


def runs_elsewhere(subject: Subject) -> bool:
    """Return whether another process can import the environment by a name."""
    return subject.origin is not None and place_of(subject.origin.component.factory) is not None


def place_of(factory: Any) -> str | None:
    """Return where a factory is: ``module:name``, or ``FILE.py:name``; None: another process cannot find it."""
    if isinstance(factory, str):
        return factory
    if isinstance(factory, CodeReference):
        return f"{factory.path.absolute()}:{factory.attribute}"
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if not name.isidentifier():
        return None
    # A file that was loaded under a name of its own is no module that another process finds.
    if module != "__main__" and PathFinder.find_spec(module.partition(".")[0]) is not None:
        return f"{module}:{name}"
    file = inspect.getsourcefile(factory)
    return None if file is None else f"{os.path.abspath(file)}:{name}"


def played_elsewhere(
    subject: Subject, tasks: Sequence[Task], answers: Sequence[str]
) -> list[list[str]]:
    """Return the course of each task's episode, from a process of its own.

    Raises:
        AssertionError: the process failed, or did not end.
    """
    assert subject.origin is not None
    request = {
        "place": place_of(subject.origin.component.factory),
        "config": place_of(type(subject.config)),
        "options": subject.config.model_dump(mode="json"),
        "rows": [dict(task.row) for task in tasks],
        "answers": list(answers),
    }
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(request, default=str),
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_LIMIT_S,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "12345"},
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"it fails in another process: {_error_in(done.stderr)}"
    assert lines, "the other process printed no result"
    found: list[list[str]] = json.loads(lines[-1])
    return found


def main() -> None:
    """Play what the request on the standard input asks for, and print the result."""
    from .material import environment_of, seed_for, task_of
    from .playing import always, course_of, played, run

    request = json.loads(sys.stdin.read())
    subject = _imported(request["place"], request["config"], request["options"])
    found = []
    for number, row in enumerate(request["rows"]):
        task = task_of(row, number)
        player = always(*request["answers"])
        turns = len(request["answers"])
        episode = run(played(environment_of(subject), task, seed_for(task), player, turns=turns))
        found.append(course_of(episode))
    print(json.dumps(found))


def _imported(place: str, config_place: str, options: dict[str, Any]) -> Subject:
    module, _, name = place.rpartition(":")
    if module.endswith(".py"):
        return subject_of(parse(place).register("rlhf_environments"), **options)
    config_module, _, config_name = config_place.rpartition(":")
    config = getattr(importlib.import_module(config_module), config_name).model_validate(options)
    factory = getattr(importlib.import_module(module), name)
    return Subject(label=name, make=lambda: factory(config))


def _error_in(text: str) -> str:
    """Return the exception at the end of a traceback in one line: what stands behind the last frame."""
    frames = [place for place in range(len(text)) if text.startswith("\n  File ", place)]
    lines = text[frames[-1] if frames else 0 :].splitlines()
    said = [number for number, line in enumerate(lines) if line and not line.startswith(" ")]
    return " ".join(line.strip() for line in lines[said[0] :])[:500] if said else "it wrote nothing"


if __name__ == "__main__":
    main()
