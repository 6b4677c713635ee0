"""Blocks of experts that are separate modules: leaf modules at stage 3, refused at stages 1 and 2.

The tokens of a rank decide which experts the rank calls, and in which order. Stage 3 collects a module's weights when
the module is called, in a collective call of all ranks. So stage 3 must collect such a block as a whole, as a *leaf
module*. Stages 1 and 2 sum gradients in the order of the backward pass, which would differ between ranks.

Transformers 5 stacks the experts of all its families in one parameter, which works at every stage. Models that come
with their own code may have such blocks.

A module that reads weights inside of it without calling their modules, as some adapters do, is a leaf module too. It
says so by an attribute ``reads_inside`` that is true.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rlhf_core import ConfigError
from rlhf_torch.models.expert_blocks import expert_blocks, is_expert_block


def mark_leaf_modules(model: nn.Module, class_names: Sequence[str]) -> None:
    """Mark blocks of experts, modules that read inside of them, and all modules of the named classes, as modules that
    stage 3 collects as a whole.

    Raises:
        ConfigError: the model has no module of one of the named classes.
    """
    from deepspeed.utils import set_z3_leaf_module

    reading = [
        module for module in model.modules() if getattr(module, "reads_inside", False) is True
    ]
    for module in [*expert_blocks(model), *reading, *_of_classes(model, class_names)]:
        set_z3_leaf_module(module, True)


def refuse_expert_blocks(model: nn.Module, stage: int) -> None:
    """Refuse a model with a block of experts, because its ranks would sum gradients of different experts.

    Raises:
        ConfigError: the model has such a block; the message names the first.
    """
    for name, module in model.named_modules():
        if is_expert_block(module):
            raise ConfigError(
                f"zero_stage {stage} with several ranks: {name} ({type(module).__name__}) has experts as separate "
                "modules. Each rank calls other experts, but this stage needs the gradients of all ranks in the same "
                "order. Set --backend.deepspeed.zero_stage to 3, or to 0.",
                code="deepspeed/separate-experts",
            )


def _of_classes(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    found = [module for module in model.modules() if type(module).__name__ in names]
    if missing := sorted(set(names) - {type(module).__name__ for module in found}):
        classes = sorted({type(module).__name__ for module in model.modules()})
        raise ConfigError(
            f"leaf_modules: the model has no module of class {', '.join(missing)}; it has {', '.join(classes)}",
            code="deepspeed/unknown-module",
        )
    return found
