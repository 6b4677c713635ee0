"""Requests of the frameworks, as recorded for tests that go without them.

``python -m tests.clients.recording``, after ``make clients``, asks in each mode and writes them to ``FILE``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .all_cases import CASES
from .cases import Case, Held
from .installed import ROOT, required, show
from .policy import asking, play, play_written

FILE = ROOT / "tests/plugins/endpoint/client_requests.json"
FORMED = next(case for case in CASES if case.held is Held.SCHEMA)
RECORDED: list[dict[str, object]] = json.loads(FILE.read_text(encoding="utf-8"))


def client_of(case: Case) -> str:
    """Return a framework with its version, as recorded."""
    return f"{case.framework} {required().get(case.framework, '')}".strip()


def mode_of(case: Case) -> str:
    """Return a mode with its protocol, as recorded."""
    return f"{case.route}, {case.mode}"


def recorded(folder: Path) -> Iterator[Mapping[str, object]]:
    """Yield the requests of all modes that are served, and of the first with a form at temperature 0.

    Args:
        folder: where the policy's model lies.
    """
    for case, temperature in (*((case, None) for case in CASES), (FORMED, 0.0)):
        sent: list[Mapping[str, object]] = []
        agent = asking(case.ask, temperature, [], sent)
        if case.held is Held.NOTHING:
            play_written(agent, lambda read, text=case.written: text)
        elif case.held is not Held.REFUSED:
            play(agent, folder)
        for each in sent:
            mode = mode_of(case) + (", temperature 0" if temperature == 0.0 else "")
            yield {"client": client_of(case), "mode": mode, **each}


def main() -> None:
    """Write the requests."""
    show()
    with tempfile.TemporaryDirectory() as folder:
        lines = [json.dumps(each) for each in recorded(Path(folder) / "model")]
    FILE.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
