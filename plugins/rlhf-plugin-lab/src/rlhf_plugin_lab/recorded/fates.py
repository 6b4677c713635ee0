"""Fates of the groups of each step, from ``ledger.jsonl``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .lines import Line, lines_of, step_of
from .problems import Problems

_LISTED = 200
"""Largest number of dropped groups whose names are listed, for each step and reason."""

Fates = dict[int, dict[str, Any]]
"""Step -> ``planned`` and ``trained``: number of episodes; ``dropped``: by reason, number and names of groups."""


def read_fates(path: Path, problems: Problems) -> Fates:
    """Return the fates of groups by step. Lines that a resume has made void do not count."""
    if not path.exists():  # commands that train on examples keep none
        return {}
    valid: list[Line] = []
    for line in lines_of(path, problems):
        voided = line.value.get("num_bytes")
        if line.value.get("event") == "resumed" and type(voided) is int:
            valid = [each for each in valid if each.start < voided]
        else:
            valid.append(line)
    fates: Fates = {}
    for line in valid:
        step, groups = step_of(line.value), line.value.get("groups")
        if step is None or not isinstance(groups, dict):
            problems.note(f"lines of {path.name} without groups are left out")
            continue
        counts = {name: n for name, n in groups.items() if type(n) is int}
        fate = fates.setdefault(step, {"planned": 0, "trained": 0, "dropped": {}})
        event = line.value.get("event")
        if event in ("planned", "trained"):
            fate[event] += sum(counts.values())
        elif event == "dropped":
            reason = str(line.value.get("reason", "no reason"))
            dropped = fate["dropped"].setdefault(reason, {"episodes": 0, "number": 0, "groups": []})
            dropped["episodes"] += sum(counts.values())
            dropped["number"] += len(counts)
            dropped["groups"] = (dropped["groups"] + list(counts))[:_LISTED]
    return fates
