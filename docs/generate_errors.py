"""Writes docs/error-codes.md: the codes of all errors, read from the source.

    python docs/generate_errors.py

A code is the constant ``code`` of an error that is made (``DataError(..., code="data/no-rows")``), that of a class in
``rlhf_core.errors``, or the kind of a row's problem (``RowProblem("missing column", ...)``).
"""

from __future__ import annotations

import ast
import re
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


MEANINGS = {
    "agent/failed": "an agent raised, ended too early, or returned something that is no outcome",
    "chat/sampling": "a word behind `/sampling` is no option of sampling, or its value is out of range",
    "checkpoint/misnamed": "a folder among the checkpoints has the name of another step than it holds",
    "config/import-failed": "a file of yours that an option names raised while it was imported",
    "config/not-a-component": "an object of a Python program is no component of the kind that the option takes",
    "config/not-in-file": "a file of yours does not define the name that follows the colon in FILE.py:NAME",
    "config/unreadable-code": "a file of yours that an option names cannot be read",
    "config/unusable-path": "a file or folder that an option names is not there, or not what the option takes",
    "data/control-words": "a text has control words of the chat template; see --data.control_words",
    "data/file-of-a-video": "a video in a row is the name of a file; expected its frames, as images",
    "data/no-held-out": "a share of the rows was to be held out, and none could be",
    "data/repeated-id": "two rows have one id",
    "environment/died": "the process of an environment ended, or its connection broke, within an episode",
    "environment/failed": "an environment failed in a way that has no code of its own",
    "environment/raised": "a call of an environment raised; the message has the exception",
    "image/several": "a sequence has several images, and no option says how they are seen",
    "image/unusable": "an image of a sample cannot be used; the message has the sample and the reason",
    "lab/no-checkpoint": "the run has no checkpoint from which these steps could be computed again",
    "model/is-a-reward-model": "expected a language model, got a folder whose model gives scores",
    "model/is-an-adapter": "expected a whole model, got the folder of an adapter",
    "model/own-attention": "the model computes attention in a way of its own, which the trainer cannot replace",
    "model/unknown-router": "it is not known how models of this family choose experts",
    "plugin/exited": "a plugin ended the program while it was imported",
    "plugin/raised": "the code of a component raised; the message names component, call, exception and line",
    "plugin/wrong-answer": "a component, or its factory, returned something other than its kind promises",
    "ray/process-failed": "a process of the run raised; the message has its exception, the note its traceback",
    "resume/no-checkpoint": "there is no checkpoint to continue from",
    "resume/records-changed": "files of the run were changed since the checkpoint; the message lists the ways out",
    "resume/unusable-checkpoint": "the checkpoint cannot be taken up with the options of this command line",
    "reward-model/not-scored": "the reward model gave no score for a sample",
    "reward/died": "the process of a reward ended while it scored",
    "reward/failed": "a reward failed in a way that has no code of its own",
    "reward/raised": "the code of a reward raised; the message has the exception and its line",
    "reward/too-slow": "a reward did not score in the time that its option timeout_s gives",
    "reward/remote": "a reward server gave no score; the message has the server and the reason",
    "run/failed": "an error without a code of its own",
    "tokenizer/unreadable": "the tokenizer of the model cannot be loaded; the message has the reason",
    "tool/server-failed": "an MCP server did not start, died, or lacks a tool; the message has its last words",
    "usage/unknown-value": "a word of the command line is none of those that its option takes",
    "vllm/worker-failed": "a worker of vLLM refused a call, such as an update of weights, for the reason given",
}
"""Code -> its meaning, where the source does not show it: the message is put together elsewhere, or all filled in."""


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
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and node.args):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in PROBLEMS:
            kind, message = _problem(node, name)
            for words in _values(kind, constants):
                yield Place(code_of(words), "DataError", _text(message))
        for code in _codes(node, constants):
            is_report = name == "add"
            message = _assigned(node.args[is_report], tree)
            yield Place(code, "ConfigError" if is_report else name, _text(message))


def _problem(node: ast.Call, name: str) -> tuple[ast.expr | None, ast.expr]:
    """Return the kind of a row's problem, and its text."""
    if name in ("RowProblem", "MediaProblem"):
        return node.args[0], node.args[1] if len(node.args) > 1 else node.args[0]
    return (node.args[1] if len(node.args) > 1 else None), node.args[0]


def _codes(node: ast.Call, constants: dict[str, ast.expr]) -> list[str]:
    given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
    return [code for value in given for code in _values(value, constants) if "/" in code]


def _values(node: ast.expr | None, constants: dict[str, ast.expr]) -> list[str]:
    """Return the text of a constant, or all texts of a table of the module that one is taken from."""
    if isinstance(node, ast.BoolOp):
        return [text for value in node.values for text in _values(value, constants)]
    if isinstance(node, ast.Name):
        node = constants.get(node.id)
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        table = constants.get(node.value.id)
        texts = table.values if isinstance(table, ast.Dict) else []
        return [text for value in texts for text in _values(value, {})]
    text = getattr(node, "value", None)
    return [text] if isinstance(text, str) else []


def _assigned(node: ast.expr, tree: ast.Module) -> ast.expr:
    """Return what a name was last given above in its function, such as ``problem``; any other expression as it is."""
    around = [
        function
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function.lineno <= node.lineno <= (function.end_lineno or 0)
    ]
    given = [
        above
        for above in ast.walk(max(around, key=lambda function: function.lineno, default=tree))
        if isinstance(above, ast.Assign)
        and ast.unparse(above.targets[0]) == ast.unparse(node)
        and above.lineno < node.lineno
    ]
    return max(given, key=lambda above: above.lineno).value if given else node


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
        f"These are the {count} codes of this version, each with the classes that have it and a message, in which `…` "
        "stands for what is",
        "filled in. *(one of 3)* says that the code has three messages, about one mistake in several places.",
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
            lines.append(f"| `{code}` | {kinds} | {_shown(code, here)} |")
    return "\n".join(lines) + "\n"


def _shown(code: str, here: list[Place]) -> str:
    """Return what a code means or, as far as a table has room, the longest of its messages."""
    messages = {place.message for place in here if re.search(r"\w", place.message)}
    text = MEANINGS.get(code) or max(sorted(messages), key=len, default="")
    others = f" *(one of {len(messages)})*" if len(messages) > 1 and code not in MEANINGS else ""
    if not text:
        (text,) = {_first_sentence(getattr(errors, place.kind)) for place in here}
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "\\<").replace("`", "'")
    text = text.replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
    return (text if len(text) <= SHOWN else f"{text[: SHOWN - 1].rstrip(chr(92))}…") + others


def _first_sentence(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split()).partition(". ")[0].removesuffix(".")


if __name__ == "__main__":
    PAGE.write_text(current())
