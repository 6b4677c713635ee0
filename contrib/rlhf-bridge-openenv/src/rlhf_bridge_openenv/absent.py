"""Packages that a server's interpreter lacks, read off what the server printed when it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ABSENT = re.compile(r"No module named '?([\w.]+)'?$")
OPENENV = "openenv>=0.10,<0.11"
"""Requirement of any server of OpenEnv."""
REPOSITORY = "git+https://github.com/huggingface/OpenEnv#subdirectory=envs/"
"""Address of OpenEnv's own environments: folders of its repository, named like their modules; they are on no index."""


def absent_module(lines: Sequence[str]) -> str | None:
    """Return the module for whose absence a program ended, by the last line that says so; None: no line does."""
    found = [match[1] for line in lines if (match := _ABSENT.search(line.strip()))]
    return found[-1] if found else None


def advice(module: str, app: str, python: str) -> str:
    """Return what is missing, and the command that installs it.

    The package of ``app`` is the environment's own; ``uvicorn``, ``fastapi`` and ``openenv`` come with OpenEnv; any
    other module belongs to what the environment's package requires.

    Args:
        module: what could not be imported.
        app: ``MODULE:NAME`` of the server's application.
        python: the interpreter that lacks it.
    """
    package, absent = app.partition(":")[0].partition(".")[0], module.partition(".")[0]
    install = f"\n  {python} -m pip install"
    lacks = f"{python} has no package {absent}"
    if module == package:
        return (
            f"{lacks}, which is the environment's own. Install the distribution or the folder that has it:"
            f"{install} FOLDER\nIf it is an environment of OpenEnv's repository:"
            f"{install} '{REPOSITORY}{package}'"
        )
    if absent == package:
        return f"the package {package} of {python} has no module {module}; expected MODULE:NAME of its application"
    if absent in ("uvicorn", "fastapi", "openenv", "openenv_core"):
        return f"{lacks}, which servers of OpenEnv need:{install} '{OPENENV}'"
    return (
        f"{lacks}, which {package} imports. Install the distribution that has it, often of the same name:"
        f"{install} {absent}"
    )
