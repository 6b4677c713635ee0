"""A torchvision that was built for another torch, as PyPI's is for CUDA, and is imported all the same.

Whoever imports this module before Transformers can use it. Its operators are missing then; those that it describes as
it is imported are declared here. Nothing computes them, and processors of images need none.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

OPERATORS = ("nms", "qnms")
"""Operators that torchvision describes without asking whether it has them."""


def search_path() -> str:
    """Where processes of tests find what those of the tests do: in the repository, and where the variable says."""
    own = str(Path(__file__).parents[1])
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


def declare_missing_operators() -> None:
    """Let ``import torchvision`` succeed where it is installed and its library cannot be loaded."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    import torch

    library = Path(spec.origin).parent / "_C.so"
    if not library.is_file():
        return
    try:
        torch.ops.load_library(str(library))
    except OSError:
        for name in OPERATORS:
            arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", arguments)


declare_missing_operators()
