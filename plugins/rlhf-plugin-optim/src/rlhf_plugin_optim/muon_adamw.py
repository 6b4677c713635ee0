"""One torch optimizer out of two: some parameter groups are updated by Muon, the others by AdamW.

Both updates are torch's own. Parameter groups, state, saving and loading are those of a single optimizer, so what works
with any torch optimizer (schedules, checkpoints by parameter) works with this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

ALGORITHM = "algorithm"
"""Key of a parameter group that says which of the two updates it."""

MUON, ADAMW = "muon", "adamw"
_CLASSES: Mapping[str, type[torch.optim.Muon] | type[torch.optim.AdamW]] = {
    MUON: torch.optim.Muon,
    ADAMW: torch.optim.AdamW,
}


class MuonAdamW(torch.optim.Optimizer):
    """Updates groups whose ``algorithm`` is ``muon`` with ``torch.optim.Muon``, others with ``torch.optim.AdamW``.

    What a group does not set has the default of its torch class.

    Args:
        groups: parameter groups as torch's optimizers take them, with the key ``algorithm``.

    Raises:
        ValueError: the algorithm is another word, or a parameter of a Muon group is not a matrix.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        self._steppers = _new_steppers()
        super().__init__(groups, {})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; without ``algorithm`` it is AdamW's."""
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
        """Update every parameter that has a gradient, and return what ``closure`` returns, which computes the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for name, stepper in self._steppers.items():
            # Set anew each time: loading replaces the state and the groups by others.
            stepper.param_groups = [g for g in self.param_groups if g[ALGORITHM] == name]
            stepper.state = self.state
            stepper.step()
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._steppers = _new_steppers()  # copies of an optimizer carry state and groups alone


def _new_steppers() -> dict[str, torch.optim.Optimizer]:
    """Optimizers without parameters of their own. Torch makes none that are empty, so they get one and lose it."""
    steppers: dict[str, torch.optim.Optimizer] = {}
    for name, kind in _CLASSES.items():
        stepper = kind([torch.zeros(1, 1)])
        stepper.param_groups = []
        steppers[name] = stepper
    return steppers
