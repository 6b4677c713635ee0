"""The processes of a run, found by a variable that each of them inherits, whoever its parent is now (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROLES = (
    ("raylet", "raylet"),
    ("gcs_server", "gcs"),
    ("EngineCore", "engine"),
    ("Engine", "engine"),
    ("Role", "rank"),
    ("Rank", "rank"),
    ("ray::", "ray worker"),
    ("ray/", "ray helper"),
    ("agent.py", "agent"),
    ("keeper", "keeper"),
    ("resource_tracker", "tracker"),
    ("worker", "worker"),
    ("spawn_main", "worker"),
    ("forkserver", "worker"),
)
"""Words of a command line, and whose they are."""


def marked(variable: str, folder: str) -> list[int]:
    """Return the processes that live and inherited the variable with this folder, or one below it; zombies are dead."""
    wanted = f"{variable}={folder}/".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                if any((each + b"/").startswith(wanted) for each in variables):
                    found.append(int(entry.name))
            except OSError:
                continue  # it ended, or is another user's
    return [pid for pid in sorted(found) if state(pid) not in ("", "Z", "X")]


def state(pid: int) -> str:
    """Return the letter of a process's state; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def role(pid: int, driver: int) -> str:
    """Return what a process is for."""
    if pid == driver:
        return "driver"
    try:
        words = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return "ended"
    return next((name for word, name in ROLES if word in words), "other: " + words[:40].strip())


def shared_memory(pids: list[int]) -> set[str]:
    """Return the files in /dev/shm that these processes have open or mapped."""
    return {path for pid in pids for path in _open_paths(pid) if path.startswith("/dev/shm/")}


def _open_paths(pid: int) -> Iterator[str]:
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "/dev/shm/" in line:
                yield line.split(maxsplit=5)[5]
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            yield os.readlink(descriptor)
    except OSError:
        return


def usage(pid: int) -> dict[str, int]:
    """Return resident memory in KiB, descriptors and threads of a process; empty: it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        return {
            "rss_kib": int(values["VmRSS"].split()[0]),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "threads": int(values["Threads"]),
        }
    except (OSError, KeyError):
        return {}
