"""Blocks of experts that are modules of their own, and what ZeRO can do with them.

Which experts a rank calls, and in which order, follows from its tokens. Stage 3 collects a module's weights when the
module is called, in a collective call of all ranks, so it must not look inside of such a block. Stages 1 and 2 sum
gradients in the order in which they come up, and have no such way out.

Families whose experts are stacked in one parameter, as all are in Transformers 5, have nothing inside and work at every
stage; models that come with their own code may not.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rlhf_core import ConfigError


def mark_leaf_modules(model: nn.Module, class_names: Sequence[str]) -> None:
    """Have stage 3 collect blocks of experts, and all modules of the named classes, whole.

    Raises:
        ConfigError: no module is of a named class.
    """
    from deepspeed.utils import set_z3_leaf_module

    for module in [*expert_blocks(model), *_of_classes(model, class_names)]:
        set_z3_leaf_module(module, True)


def refuse_expert_blocks(model: nn.Module, stage: int) -> None:
    """Refuse a model whose ranks would sum gradients of different experts.

    Raises:
        ConfigError: with the name of a block.
    """
    for name, module in model.named_modules():
        if _is_expert_block(module):
            raise ConfigError(
                f"zero_stage {stage} with several ranks: {name} ({type(module).__name__}) has experts as modules of "
                "their own, of which every rank calls others, while this stage needs the gradients of all ranks in "
                "one order. Set --backend.deepspeed.zero_stage to 3, or to 0."
            )


def expert_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold several like modules and, beside them, a router: a child with a parameter of as
    many rows as there are modules."""
    return [module for module in model.modules() if _is_expert_block(module)]


def _is_expert_block(module: nn.Module) -> bool:
    children = list(module.children())
    lists = [child for child in children if isinstance(child, nn.ModuleList) and len(child) > 1]
    counts = {len(one) for one in lists if len({type(expert) for expert in one}) == 1}
    routers = [child for child in children if not isinstance(child, nn.ModuleList)]
    rows = {
        p.shape[0] for child in routers for p in child.parameters(recurse=False) if p.dim() == 2
    }
    return bool(counts & rows)


def _of_classes(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    found = [module for module in model.modules() if type(module).__name__ in names]
    if missing := sorted(set(names) - {type(module).__name__ for module in found}):
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ConfigError(
            f"leaf_modules: the model has no module of class {', '.join(missing)}; it has {', '.join(classes)}"
        )
    return found
