"""Refusal of a sleeping engine in a run in which it never rests."""

from __future__ import annotations

from rlhf_core.errors import ConfigError

from ..problems import Labels
from ..run import RunConfig


def check(run: RunConfig, labels: Labels) -> None:
    """Refuse a ``runtime.sleep`` that has the engine sleep where generation runs beside training.

    Raises:
        ConfigError: names both options and a way out.
    """
    sleep = run.runtime.sleep
    if sleep not in ("auto", "never") and run.rollout.max_staleness:
        raise ConfigError(
            f"{labels('runtime.sleep')} {sleep} and {labels('rollout.max_staleness')} {run.rollout.max_staleness}: "
            "with rollouts of older weights the engine generates for the next steps while roles compute, so neither "
            "could give its memory to the other.\n"
            "  Set --rollout.max_staleness 0, or --runtime.sleep never and room for both.",
            code="config/conflict",
        )
