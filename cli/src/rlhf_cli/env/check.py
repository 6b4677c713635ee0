"""The command ``rlhf env check``: the conformance checks of environments, without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ..kit import require_kit
from .chosen import HOOK, Name, NamedEnvironment, chosen
from .printing import plain

if TYPE_CHECKING:
    from rlhf_testing.conformance import Check, CheckOutcome, Subject

_PREFIX = "check_"
_LATER_S = 60.0
"""Seconds of a check behind one that had no result, if it may wait for the same call."""
_ENOUGH = 3
"""Checks without a result after which others that may wait for the same call are not run."""


def check(
    context: typer.Context,
    name: Name,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Check an environment without a model: episodes, rewards, tasks, resources, answers that earn too much. Its own
    options may follow. Exit code 1 if a check fails."""
    require_kit("rlhf env check")
    from rlhf_testing.conformance import Subject, applying, checks_of

    found = chosen(name, context.args)
    tried = Subject(
        label=found.label, make=found.make, config=found.config, origin=found.registered
    )
    applied = applying(HOOK, tried)
    left_out = [each.name.removeprefix(_PREFIX) for each in checks_of(HOOK) if each not in applied]
    outcomes: list[CheckOutcome] = []
    blamed: dict[str, str] = {}
    not_run: list[str] = []
    for each, outcome in _outcomes(applied, tried):
        if outcome is None:
            not_run.append(each.name.removeprefix(_PREFIX))
            continue
        outcomes.append(outcome)
        if outcome.failed and any(one.check == each.rests_on and one.failed for one in outcomes):
            blamed[each.name] = each.rests_on.removeprefix(_PREFIX)
        if not as_json:
            typer.echo(_line(outcome, blamed.get(each.name, "")))
    failed = sum(outcome.failed for outcome in outcomes)
    if as_json:
        typer.echo(json.dumps(_report(found, outcomes, left_out, not_run, blamed), indent=2))
    else:
        if not_run:
            typer.echo(
                f"without a verdict: {', '.join(not_run)}. They make the calls of the check that gave no result"
            )
        if left_out:
            typer.echo(f"not checked: {', '.join(left_out)}. {_reason(left_out)}")
        follow = f", {len(blamed)} of which follow from another" if blamed else ""
        typer.echo(f"{found.label}: {len(outcomes)} checks, {failed} failed{follow}")
    if failed:
        raise typer.Exit(1)


def _outcomes(
    checks: Sequence[Check], tried: Subject
) -> Iterator[tuple[Check, CheckOutcome | None]]:
    """Run checks and yield the outcome of each; None: there is no verdict, for a call that an earlier one waits for.

    Behind a check that had no result, those that may wait for the same call have less time, and after a few without a
    result they are left out.
    """
    from rlhf_testing.conformance.deadline import outcome_within

    late = 0
    for each in checks:
        may_wait_too = late > 0 and not each.stands_alone
        if may_wait_too and late >= _ENOUGH:
            yield each, None
            continue
        limit_s = min(each.deadline_s, _LATER_S) if may_wait_too else each.deadline_s
        outcome = outcome_within(replace(each, deadline_s=limit_s), tried, "environment")
        is_late = outcome.error == TimeoutError.__name__
        late += is_late
        yield each, None if is_late and limit_s < each.deadline_s else outcome


def _line(outcome: CheckOutcome, cause: str) -> str:
    """Return the line of a check.

    Args:
        cause: the failed check that this failure follows from; empty: none.
    """
    identifier = outcome.check.removeprefix(_PREFIX)
    reason = plain(outcome.reason.partition("\n")[0])
    if cause:
        reason = f"follows from {cause}, which is to be mended first"
    return f"{outcome.status:<8} {identifier}{f': {reason}' if reason else ''}"


def _report(
    found: NamedEnvironment,
    outcomes: list[CheckOutcome],
    left_out: list[str],
    not_run: list[str],
    blamed: Mapping[str, str],
) -> dict[str, object]:
    return {
        "environment": found.label,
        "origin": found.registered.origin,
        "options": found.config.model_dump(mode="json"),
        "failed": sum(outcome.failed for outcome in outcomes),
        "checks": [
            {
                "id": outcome.check.removeprefix(_PREFIX),
                "status": outcome.status,
                "reason": outcome.reason,
                "follows_from": blamed.get(outcome.check),
            }
            for outcome in outcomes
        ],
        "not_checked": left_out,
        "not_run": not_run,
    }


def _reason(left_out: list[str]) -> str:
    """Return what the environment would have to state, for the checks that do not apply."""
    if "floor_gap" in left_out:
        return "For most of these it needs right answers: a method oracle, or a column oracle of its rows"
    return "They are of what this environment does not have, or does not state in its manifest"
