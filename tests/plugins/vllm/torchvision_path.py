"""Where processes of tests that read images find torchvision, which vLLM's models import."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def search_path() -> str:
    """The repository, and a torchvision: PyPI's for this torch is built for CUDA, and cannot be imported on a CPU."""
    stand_ins = [] if importlib.util.find_spec("torchvision") else [str(HERE / "stand_ins")]
    return os.pathsep.join([str(ROOT), *stand_ins])
