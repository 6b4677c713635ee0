"""The folder for temporary files of a run's processes.

A runtime that starts processes elsewhere may name one that it removes when the run has ended, however that ends. What a
killed process leaves there goes with it.
"""

from __future__ import annotations

import os
import tempfile

TEMPORARY_VARIABLE = "RLHF_TEMPORARY"
"""Environment variable by which the folder is named to the processes."""


def temporary_folder() -> str:
    """Return the folder that the runtime removes; without one that of Python's ``tempfile``."""
    return os.environ.get(TEMPORARY_VARIABLE) or tempfile.gettempdir()
