"""Task folders: ``task.toml``, ``instruction.md``, ``environment/``, ``tests/``, ``solution/``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core import DataError

_MAX_DEPTH = 6
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborFolder:
    """A task."""

    path: Path
    name: str
    """The name in task.toml, or the folder's."""
    instruction: str
    image: str
    """Image that is used instead of building one; empty: none."""
    workdir: str
    """Folder in which commands run, as task.toml has it; empty: as the image has it."""
    has_internet: bool
    cpus: float
    memory_mib: int
    agent_s: float
    """Seconds of all commands together."""
    verifier_s: float
    variables: Mapping[str, str]
    """Environment of all commands."""
    verifier_variables: Mapping[str, str]
    label: str
    """Words for messages: name and version of the format."""

    @property
    def dockerfile(self) -> Path | None:
        """The recipe of its image; None: it has none."""
        found = self.path / "environment" / "Dockerfile"
        return found if found.is_file() else None


def task_folders(paths: Iterable[str]) -> list[Path]:
    """Return the folders with a ``task.toml`` at or below the paths, by name. Links are not followed.

    Raises:
        DataError: a path is no folder, or has no task.
    """
    found: list[Path] = []
    for given in paths:
        path = Path(given).expanduser().absolute()
        below = list(_below(path, 0)) if path.is_dir() else []
        if not below:
            raise DataError(
                f"{given}: expected a task folder of Harbor, or a folder of such; found no task.toml",
                code="environment/no-task-folder",
            )
        found += below
    return found


def read_folder(path: Path, values: Mapping[str, str]) -> HarborFolder:
    """Return the task of a folder.

    Args:
        values: what the variables are that the task asks of its host.

    Raises:
        DataError: the folder is no task, or asks for something that this bridge does not have; the message names it.
    """
    try:
        fields = tomllib.loads((path / "task.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: expected a task of Harbor with task.toml ({error})",
            code="environment/no-task-file",
        ) from error
    version = str(fields.get("schema_version") or fields.get("version") or "(none)")
    name = str(_table(path, fields, "task").get("name") or path.name)
    label = f"Harbor task {name} (format {version})"
    _refuse(path, label, fields)
    environment = _table(path, fields, "environment")
    try:
        instruction = (path / "instruction.md").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{label}: expected instruction.md ({error})",
            code="environment/task-without-instruction",
        ) from error
    if not (path / "tests" / "test.sh").is_file():
        raise DataError(
            f"{label}: expected tests/test.sh, which writes the reward",
            code="environment/task-without-test",
        )
    verifier = _table(path, fields, "verifier")
    return HarborFolder(
        path=path,
        name=name,
        instruction=instruction,
        image=str(environment.get("docker_image") or ""),
        workdir=str(environment.get("workdir") or ""),
        has_internet=environment.get("allow_internet") is not False,
        cpus=_number(label, environment, "cpus", 1),
        memory_mib=int(_number(label, environment, "memory_mb", 2048)),
        agent_s=_number(label, _table(path, fields, "agent"), "timeout_sec", 600),
        verifier_s=_number(label, verifier, "timeout_sec", 600),
        variables=_variables(label, environment, values),
        verifier_variables=_variables(label, verifier, values),
        label=label,
    )


def _below(path: Path, depth: int) -> Sequence[Path]:
    if (path / "task.toml").is_file():
        return [path]
    if depth == _MAX_DEPTH:
        return []
    inner = sorted(one for one in path.iterdir() if one.is_dir() and not one.is_symlink())
    return [
        found for one in inner if not one.name.startswith(".") for found in _below(one, depth + 1)
    ]


def _refuse(path: Path, label: str, fields: Mapping[str, Any]) -> None:
    """Refuse by name what a task needs and would not get."""
    environment = _table(path, fields, "environment")
    compose = [one.name for one in (path / "environment").glob("*compose*.y*ml")]
    missing = {
        "several containers (environment/docker-compose.yaml)": bool(compose),
        "steps with instructions of their own ([[steps]])": bool(fields.get("steps")),
        "MCP servers (environment.mcp_servers)": bool(environment.get("mcp_servers")),
        "GPUs (environment.gpus)": bool(environment.get("gpus")),
        "another system than Linux (environment.os)": str(environment.get("os", "linux"))
        != "linux",
        "a machine of its own for the verifier (verifier.environment)": bool(
            _table(path, fields, "verifier").get("environment")
            or _table(path, fields, "verifier").get("environment_mode", "shared") != "shared"
        ),
    }
    wanted = [what for what, is_wanted in missing.items() if is_wanted]
    if wanted:
        raise DataError(
            f"{label}, {path}: needs {' and '.join(wanted)}, which this bridge does not have",
            code="environment/task-needs-more",
        )


def _table(path: Path, fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = fields.get(name, {})
    if not isinstance(found, dict):
        raise DataError(
            f"{path}/task.toml: expected a table [{name}], got {found!r:.100}",
            code="environment/task-table",
        )
    return found


def _number(label: str, table: Mapping[str, Any], name: str, default: float) -> float:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise DataError(
            f"{label}: {name} is {value!r:.100}; expected a number above 0",
            code="environment/task-number",
        )
    return float(value)


def _variables(label: str, table: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, str]:
    found = table.get("env", {})
    if not isinstance(found, dict):
        raise DataError(
            f"{label}: env is {found!r:.100}; expected a table", code="environment/task-table"
        )

    def value(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name not in values and default is None:
            raise DataError(
                f"{label}: asks for the host's variable {name}; expected it in the option variables",
                code="environment/variable-of-host",
            )
        return values.get(name, default or "")

    return {str(name): _VARIABLE.sub(value, str(text)) for name, text in found.items()}
