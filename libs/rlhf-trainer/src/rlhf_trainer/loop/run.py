"""The entrance of ``rlhf train``."""

from __future__ import annotations

from rlhf_config.resolved import Resolved
from rlhf_core.observer import RunResult
from rlhf_core.plugins import Plugins

from .control import Control
from .driver import drive
from .training import TRAINING


def run(resolved: Resolved, plugins: Plugins, control: Control | None = None) -> RunResult:
    """Run a whole training and return how it ended.

    Args:
        control: steers the run from outside; None: only signals can end it early.

    Raises:
        RLHFError: the run could not start, or failed; its results so far are in the run folder, and ``--resume auto``
            goes on from the newest checkpoint.
    """
    return drive(TRAINING, resolved, plugins, control)
