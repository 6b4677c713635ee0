"""A check with a deadline, after which the lack of a result is its result."""

from __future__ import annotations

import threading

from .subject import Check, CheckOutcome, Subject, outcome_of


def outcome_within(check: Check, tried: Subject, kind: str) -> CheckOutcome:
    """Return the outcome of a check; of one that takes longer than ``Check.deadline_s``, that it failed.

    The check runs on a thread of its own, which cannot be stopped: one that is late goes on until this process ends,
    and what is checked afterwards would wait for it.
    """
    found: list[CheckOutcome] = []
    thread = threading.Thread(
        target=lambda: found.append(outcome_of(check, tried, kind, {})),
        name=f"conformance {check.name}",
        daemon=True,
    )
    thread.start()
    thread.join(check.deadline_s)
    if found:
        return found[0]
    return CheckOutcome(
        component=tried.label,
        kind=kind,
        check=check.name,
        status="FAILED",
        reason=f"no result within {check.deadline_s:g} s: a call computes or waits without an end. Wait with await, "
        "bound what depends on the policy's text, or move the work to asyncio.to_thread",
        error=TimeoutError.__name__,
    )
