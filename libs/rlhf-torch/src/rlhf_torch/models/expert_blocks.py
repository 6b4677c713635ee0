"""Blocks of experts that are separate modules, of which the tokens of a rank decide which are called.

Transformers 5 stacks the experts of all its families in one parameter. Models that come with their own code may have
such blocks.
"""

from __future__ import annotations

from torch import nn


def expert_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold a list of E modules of one class, the experts, beside a router.

    A router is recognized by its shape: a child module with a matrix of E rows.
    """
    return [module for module in model.modules() if is_expert_block(module)]


def is_expert_block(module: nn.Module) -> bool:
    """Return whether a module is such a block."""
    children = list(module.children())
    lists = [child for child in children if isinstance(child, nn.ModuleList) and len(child) > 1]
    counts = {len(one) for one in lists if len({type(expert) for expert in one}) == 1}
    routers = [child for child in children if not isinstance(child, nn.ModuleList)]
    rows = {
        p.shape[0] for child in routers for p in child.parameters(recurse=False) if p.dim() == 2
    }
    return bool(counts & rows)
