"""One torch optimizer out of two: some parameter groups are updated by Muon, the others by AdamW.

Both updates are torch's own. Parameter groups, state, saving and loading are those of a single optimizer, so schedules
and checkpoints by parameter work as with any torch optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .groups import ADAMW, ALGORITHM, MUON

_CLASSES: Mapping[str, type[torch.optim.Muon] | type[torch.optim.AdamW]] = {
    MUON: torch.optim.Muon,
    ADAMW: torch.optim.AdamW,
}


class MuonAdamW(torch.optim.Optimizer):
    """Updates parameter groups of ``algorithm`` ``muon`` by ``torch.optim.Muon``, others by ``torch.optim.AdamW``.

    Options that a parameter group does not set have the defaults of its torch class.

    Args:
        groups: parameter groups as torch's optimizers take them, with the key ``algorithm``.

    Raises:
        ValueError: ``algorithm`` is neither name, or a parameter in a parameter group of Muon is not a matrix.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self._steppers = _new_steppers()
        super().__init__(groups, {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; AdamW updates a group without ``algorithm``."""
        name = param_group.setdefault(ALGORITHM, ADAMW)
        if name not in _CLASSES:
            raise ValueError(f"{ALGORITHM} {name!r}: expected {' or '.join(_CLASSES)}")
        for key, value in self._steppers[name].defaults.items():
            param_group.setdefault(key, value)
        super().add_param_group(param_group)
        shapes = [tuple(parameter.shape) for parameter in self.param_groups[-1]["params"]]
        if name == MUON and (wrong := [shape for shape in shapes if len(shape) != 2]):
            raise ValueError(f"Muon updates matrices; got a parameter of shape {wrong[0]}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; return the loss that ``closure`` computes, if one is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for name, stepper in self._steppers.items():
            # Loading a state replaces state and parameter groups by other objects, so both are set before every update.
            stepper.param_groups = [g for g in self.param_groups if g[ALGORITHM] == name]
            stepper.state = self.state
            stepper.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._steppers = (
            _new_steppers()
        )  # A copy of an optimizer has only its state and parameter groups.


def _new_steppers() -> dict[str, torch.optim.Optimizer]:
    """Return one torch optimizer for each algorithm, without parameters.

    Torch refuses to create an optimizer without parameters, so each gets one parameter, which is then dropped.
    """
    steppers: dict[str, torch.optim.Optimizer] = {}
    for name, kind in _CLASSES.items():
        stepper = kind([torch.zeros(1, 1)])
        stepper.param_groups = []
        steppers[name] = stepper
    return steppers
