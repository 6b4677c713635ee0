"""Modules that compute with the weights of modules inside of them without calling those.

Where ranks share weights and a call of a module collects its own alone, such a module has to be collected as a whole.
It says so by an attribute ``reads_inside`` that is true.
"""

from __future__ import annotations

from torch import nn


def modules_that_read_inside(model: nn.Module) -> list[nn.Module]:
    """Return the modules that have to be collected as a whole."""
    return [module for module in model.modules() if getattr(module, "reads_inside", False) is True]
