"""The check of ``Component.suits``, by which a component takes part where its selector says ``auto``."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

from rlhf_core.contracts.engine import Suitability

from ....checks import HEAVY
from ...subject import HANGS_AFTER_S, Check, Subject
from . import suits_probe


def _suits(subject: Subject) -> str | None:
    return None if subject.origin is None else subject.origin.component.suits


def check_suits_judges_any_machine(subject: Subject) -> None:
    """``Component.suits`` gives a rank and a reason for any machine, model and options that are described, twice the
    same; it imports nothing heavy and looks for no GPU itself."""
    reference = _suits(subject)
    assert reference is not None
    done = subprocess.run(
        [sys.executable, suits_probe.__file__, reference],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        timeout=HANGS_AFTER_S,
    )
    assert done.returncode == 0, f"{reference} could not be asked:\n{done.stderr}"
    found = json.loads(done.stdout.splitlines()[-1])
    heavy = [name for name in HEAVY if name in found["modules"]]
    assert not heavy, (
        f"{reference} imports {', '.join(heavy)}; it is asked before anything heavy is imported"
    )
    touched = ", ".join(found["touched"])
    assert not touched, f"{reference} looks for GPUs itself ({touched}); read setting.accelerators"
    for label, (first, again) in found["verdicts"].items():
        _assert_verdict(first, f"{reference} about {label}")
        assert first == again, f"{reference} about {label}: {first}, and then {again}"


def _assert_verdict(verdict: dict[str, Any], what: str) -> None:
    assert "raised" not in verdict, f"{what} raised {verdict['raised']}"
    expected = Suitability.__name__
    assert verdict["type"] == expected, f"{what} gave a {verdict['type']}, expected a {expected}"
    rank, reason = verdict["rank"], verdict["reason"]
    assert verdict["odd_rank"] is None, (
        f"{what}: rank {verdict['odd_rank']}, expected a number or None"
    )
    assert rank is None or math.isfinite(rank), f"{what}: rank {rank}, expected a finite number"
    is_line = isinstance(reason, str) and reason.strip() and "\n" not in reason
    assert is_line, f"{what}: reason {reason!r}, expected one line of text"
    assert not reason.endswith("."), f"{what}: reason {reason!r} ends with a full stop"


CHECK = Check(check_suits_judges_any_machine, lambda subject: _suits(subject) is not None)
