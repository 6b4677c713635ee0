"""The table of frameworks and modes in docs/agents.md.

``python -m tests.clients.tables`` prints it.
"""

from __future__ import annotations

from .all_cases import CASES
from .cases import Case, Held


def rows() -> list[str]:
    """Return a row for each mode of each framework."""
    modes: dict[tuple[str, str], list[Case]] = {}
    for case in CASES:
        modes.setdefault((case.framework, case.mode), []).append(case)
    return [
        f"| {framework} | {mode} | {_cell(cases, 'chat')} | {_cell(cases, 'responses')} | {_held(cases)} |"
        for (framework, mode), cases in modes.items()
    ]


def _cell(cases: list[Case], route: str) -> str:
    found = [case for case in cases if case.route == route]
    if not found:
        return ""
    return "refused" if found[0].held is Held.REFUSED else "works"


def _held(cases: list[Case]) -> str:
    (held,) = {case.held for case in cases}
    return "" if held is Held.REFUSED else held


if __name__ == "__main__":
    print("\n".join(rows()))
