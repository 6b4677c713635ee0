"""Named points of the loop at which a test can kill the process. Without a plan they do nothing."""

from __future__ import annotations

import os
import signal

ENVIRONMENT_VARIABLE = "RLHF_FAULT"
"""``PHASE:STEP``: send SIGKILL to this process when it first reaches that phase of that step."""

PHASES = ("generate", "reward", "model_outputs", "asleep", "train", "save", "export")


def fault_point(phase: str, step: int) -> None:
    """Kill this process, by SIGKILL, if the environment variable names this phase and step."""
    if os.environ.get(ENVIRONMENT_VARIABLE) == f"{phase}:{step}":
        os.kill(os.getpid(), signal.SIGKILL)
