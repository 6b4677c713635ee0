"""Parts of a Dockerfile that hold without an image: WORKDIR, ENV, and COPY of files beside it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_core import DataError
from rlhf_core.outside.json_reader import parse_json


@dataclass(slots=True, kw_only=True)
class Recipe:
    """Parts that hold, in the order of the file."""

    workdir: str = ""
    """Folder in which commands run; empty: the image's."""
    variables: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    """Paths beside the Dockerfile, and where they go: an absolute path, with a slash at its end for a folder."""
    left_out: list[str] = field(default_factory=list)
    """Lines that do not hold."""


def read_recipe(path: Path | None) -> Recipe:
    """Return the parts of a Dockerfile that hold; of None, an empty recipe.

    Raises:
        DataError: a line of those parts cannot be read.
    """
    recipe = Recipe()
    if path is None:
        return recipe
    text = re.sub(r"\\\s*\n", " ", path.read_text(encoding="utf-8"))
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            continue
        try:
            _take(recipe, word.upper(), rest.strip(), line.strip())
        except ValueError as error:
            raise DataError(
                f"{path}: expected a line that can be read, got {line!r:.200} ({error})",
                code="environment/dockerfile-line",
            ) from error
    return recipe


def _take(recipe: Recipe, word: str, rest: str, line: str) -> None:
    if word == "WORKDIR":
        (folder,) = shlex.split(rest)
        recipe.workdir = _joined(recipe.workdir, folder)
    elif word == "ENV":
        parts = shlex.split(rest)
        if not parts:
            raise ValueError("no variable")
        if "=" not in parts[0]:
            parts = [f"{parts[0]}={rest.partition(' ')[2].strip()}"]
        recipe.variables |= dict(part.split("=", 1) for part in parts)
    elif word == "COPY" and "--from" not in rest and "<<" not in rest:
        words = parse_json(rest) if rest.startswith("[") else shlex.split(rest)
        paths = [one for one in words if not one.startswith("--")]
        *sources, target = paths
        target = _joined(recipe.workdir, target) + (
            "/" if target.endswith("/") or len(sources) > 1 else ""
        )
        recipe.copies += [(source, target) for source in sources]
    else:
        if word == "FROM" and any(one.startswith("FROM") for one in recipe.left_out):
            raise ValueError("an image of several stages")
        recipe.left_out.append(line)


def _joined(base: str, path: str) -> str:
    joined = Path("/", base, path)
    if ".." in joined.parts:
        raise ValueError("a path that leads up")
    return str(joined)
