"""An engine that is stepped."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def stepping() -> ModuleType:
    """The module in ``rollouts/``; test folders are no packages."""
    here = str(Path(__file__).parent / "rollouts")
    pytest.register_assert_rewrite("stepping")
    sys.path.insert(0, here)
    try:
        return importlib.import_module("stepping")
    finally:
        sys.path.remove(here)
