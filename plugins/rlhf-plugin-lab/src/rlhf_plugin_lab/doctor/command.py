"""Command ``rlhf doctor``: what a run's records say is wrong with it, and what could not be looked at."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from rlhf_config import FlagParser

from ..paper.contents import require_run
from ..recorded.problems import Problems
from . import answers, direction, examples, labels, policy, rewards, rollouts, sampling
from .diagnosis import Diagnosis, Finding, Verdict, diagnose, diagnoses_in
from .record import Record, read_record

_OF_ROLLOUTS = (
    *diagnoses_in(rewards, direction, policy, answers, rollouts, sampling),
    labels.wrong_labels,
)
_OF_EXAMPLES = (*diagnoses_in(examples), labels.wrong_rows)
_OF_BOTH = ("not_finite",)


def parser() -> FlagParser:
    """Return the parser of the command's flags."""
    own = FlagParser(
        prog="rlhf doctor",
        description="Say whether a run cannot learn, has collapsed or is about to, with the numbers and the option "
        "to change. The command reads the run's own records, also while it is going on or after it was killed. Exit "
        "code 0: nothing found, 1: found. A healthy run may show a hint, too, so hints leave the code at 0.",
    )
    own.add_argument("run", type=Path, metavar="RUN", help="run folder (a run's --output)")
    own.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    return own


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong with a run, and return the exit code: 0 for nothing found, 1 for a finding.

    Raises:
        ConfigError: a flag is wrong, or the folder is no run folder.
    """
    own = parser().parse_args(list(arguments))
    require_run(own.run, "rlhf doctor")
    problems = Problems()
    record = read_record(own.run, problems)
    verdict = diagnose(record, diagnoses_of(record))
    if own.as_json:
        print(json.dumps(_report(own.run, record, verdict, problems), indent=2))
    else:
        _print(own.run, record, verdict)
        for problem in problems.lines():
            print(f"{own.run}: {problem}", file=sys.stderr)
    return 1 if verdict.found else 0


def diagnoses_of(record: Record) -> list[Diagnosis]:
    """Return the diagnoses for a run's kind: those of rollouts, or those of examples. Of a run that has neither
    rewards nor a loss of examples, all."""
    has_rewards = "reward/mean" in record.metrics.series
    has_loss = any(name in record.metrics.series for name in examples.LOSSES)
    played = [each for each in _OF_ROLLOUTS if has_rewards or not has_loss or each.name in _OF_BOTH]
    return played if has_rewards else [*played, *_OF_EXAMPLES]


def address_of(record: Record, finding: Finding) -> str:
    """Return the part behind ``#`` of the page of ``rlhf view`` that shows the step, or the curves where no rollouts of
    about that step were recorded."""
    steps = [text.step for text in (*record.texts.first, *record.texts.last)]
    near = max((step for step in steps if step <= finding.step), default=None)
    if near is None:
        return "#/curves"
    return "#/" + "/".join(quote(str(part), safe="") for part in ("step", 0, "", near))


def _print(run: Path, record: Record, verdict: Verdict) -> None:
    for name, finding in verdict.found.items():
        _print_finding(run, record, name, finding)
    for name, finding in verdict.hints.items():
        _print_finding(run, record, f"hint, {name}", finding)
    for reason, names in verdict.not_looked_at.items():
        print(f"not looked at: {', '.join(names)}; {reason}")
    hints = f", hints: {len(verdict.hints)}" if verdict.hints else ""
    print(
        f"{run}: {record.metrics.last_step} steps, {len(verdict.looked_at)} diagnoses, "
        f"{len(verdict.found)} found{hints}"
    )


def _print_finding(run: Path, record: Record, name: str, finding: Finding) -> None:
    numbers = ", ".join(f"{what} {value:.4g}" for what, value in finding.evidence.items())
    print(f"{name}: {finding.sentence}.")
    print(f"  numbers: {numbers}")
    print(f"  change:  {', '.join(f'--{option}' for option in finding.change)}")
    print(f"  look at: rlhf view {run}, address {address_of(record, finding)}")


def _report(run: Path, record: Record, verdict: Verdict, problems: Problems) -> dict[str, object]:
    return {
        "run": str(run),
        "command": record.command,
        "steps": record.metrics.last_step,
        "findings": _shown(record, verdict.found),
        "hints": _shown(record, verdict.hints),
        "looked_at": verdict.looked_at,
        "not_looked_at": [
            {"reason": reason, "diagnoses": names}
            for reason, names in verdict.not_looked_at.items()
        ],
        "problems": problems.lines(),
    }


def _shown(record: Record, findings: Mapping[str, Finding]) -> list[dict[str, object]]:
    return [
        {
            "diagnosis": name,
            "sentence": finding.sentence,
            "evidence": dict(finding.evidence),
            "change": list(finding.change),
            "step": finding.step,
            "address": address_of(record, finding),
        }
        for name, finding in findings.items()
    ]
