"""Writes docs/error-codes.md: the codes of all errors, read from the source.

    python docs/generate_errors.py

A code is the constant ``code`` of an error that is made (``DataError(..., code="data/no-rows")``), that of a class in
``rlhf_core.errors``, or the kind of a row's problem (``RowProblem("missing column", ...)``).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rlhf_core import errors
from rlhf_data.source import code_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "error-codes.md"
PACKAGES = ("core", "libs", "plugins", "contrib", "cli")
PROBLEMS = {"RowProblem", "MediaProblem", "TemplateProblem", "Unreadable"}
"""Classes of problems of rows, whose kind makes the code."""
SHOWN = 150
"""Characters of a message that the page shows."""

AREAS = {
    "adapter": "low-rank adapters: their folders, what they change, how engines serve them",
    "agent": "agents that ask the policy at the endpoint",
    "chat": "words with a slash in `rlhf chat`",
    "checkpoint": "checkpoints and what is in them",
    "config": "options, and how they go together",
    "container": "containers of environments",
    "data": "data files, rows, and the images in them",
    "deepspeed": "the backend DeepSpeed",
    "engine": "engines that generate",
    "environment": "environments, their servers, their processes and what they answer",
    "eval": "evaluations and their comparison",
    "fsdp": "the backend FSDP",
    "gpu": "GPUs that are missing, or too small",
    "image": "images and the model's processor",
    "lab": "`rlhf view`, `replay`, `audit` and `curve`",
    "logger": "services that get metrics",
    "metric": "metrics by name",
    "migrate": "scripts that `rlhf migrate` reads",
    "model": "models: their folders, families and weights",
    "observer": "callbacks of a Python program",
    "optimizer": "optimizers and their groups of parameters",
    "output": "folders and files that a command writes",
    "plan": "what `rlhf plan` is asked",
    "plugin": "plugins: how they load, and contracts of their hooks",
    "ranks": "processes that train one role together",
    "ray": "clusters and processes of Ray",
    "remote": "servers of models that `rlhf eval --url` asks",
    "resume": "how a run goes on",
    "reward": "rewards and their processes",
    "reward-model": "reward models",
    "rollout": "episodes and executors",
    "run": "runs, their ends and their records",
    "sandbox": "the sandbox in which programs of a policy run",
    "template": "chat templates",
    "tokenizer": "tokenizers",
    "tool": "tools of a policy",
    "trace": "training traces of agents",
    "training": "updates of weights",
    "usage": "words of a command line",
    "vllm": "the engine vLLM",
    "weights": "weights on their way from trainer to engine",
}
"""Part of a code before the slash -> what its errors are about."""


class Place(NamedTuple):
    """One place in the source where an error is made."""

    code: str
    kind: str
    """Name of the error's class."""
    message: str
    """Its text, with ``…`` for what is filled in; empty where it is put together elsewhere."""


def current() -> str:
    """Return the page as the source has it."""
    return page(sorted(places(), key=lambda place: (place.code, place.kind)))


def places() -> Iterator[Place]:
    """Yield each place of the source in which an error with a code is made, and each class with its own."""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.RLHFError):
            yield Place(kind.default_code, name, "")
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("src/**/*.py")):
            yield from _places_in(ast.parse(file.read_text()))


def _places_in(tree: ast.Module) -> Iterator[Place]:
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in PROBLEMS:
            kind, message = _problem(node, name)
            words = (
                constants.get(kind.id)
                if isinstance(kind, ast.Name)
                else getattr(kind, "value", None)
            )
            if isinstance(words, str):
                yield Place(code_of(words), "DataError", _text(message))
        elif (code := _code(node, constants)) is not None:
            is_report = name == "add"
            yield Place(code, "ConfigError" if is_report else name, _text(node.args[is_report]))


def _problem(node: ast.Call, name: str) -> tuple[ast.expr | None, ast.expr]:
    """Return the kind of a row's problem, and its text."""
    if name in ("RowProblem", "MediaProblem"):
        return node.args[0], node.args[1] if len(node.args) > 1 else node.args[0]
    return (node.args[1] if len(node.args) > 1 else None), node.args[0]


def _code(node: ast.Call, constants: dict[str, object]) -> str | None:
    for keyword in node.keywords:
        if keyword.arg == "code":
            value = keyword.value
            found = (
                constants.get(value.id)
                if isinstance(value, ast.Name)
                else getattr(value, "value", None)
            )
            return found if isinstance(found, str) and "/" in found else None
    return None


def _text(node: ast.expr) -> str:
    """Return the text of a message, ``…`` where something is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(part) if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return ""


def page(found: list[Place]) -> str:
    """Return the page: one table for each area."""
    by_area: dict[str, dict[str, list[Place]]] = defaultdict(lambda: defaultdict(list))
    for place in found:
        by_area[place.code.partition("/")[0]][place.code].append(place)
    count = sum(map(len, by_area.values()))
    lines = [
        "# Codes of errors",
        "",
        "<!-- Written by docs/generate_errors.py from the source. -->",
        "",
        "Each error has a code, which `rlhf --errors json` and the attribute `code` of the exception tell "
        "([errors](errors.md)).",
        f"These are the {count} codes of this version, with the classes that have them and the texts of some of their",
        "messages; `…` stands for what is filled in.",
    ]
    for area in sorted(by_area):
        lines += [
            "",
            f"## {area}",
            "",
            f"About {AREAS[area]}.",
            "",
            "| code | class | message |",
            "| --- | --- | --- |",
        ]
        for code, here in sorted(by_area[area].items()):
            kinds = ", ".join(f"`{kind}`" for kind in sorted({place.kind for place in here}))
            lines.append(f"| `{code}` | {kinds} | {_shown(here)} |")
    return "\n".join(lines) + "\n"


def _shown(here: list[Place]) -> str:
    """Return the longest of the texts, as far as a table has room."""
    text = max((place.message for place in here), key=len)
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "\\<").replace("`", "'")
    text = text.replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1].rstrip(chr(92))}…"


if __name__ == "__main__":
    PAGE.write_text(current())
