"""A base that several roles of one process compute with: modules of their own, and one copy of the weights.

An adapter puts modules of its own into the model. Each role therefore has all modules to itself, so that nothing of one
role reaches another, and only the parameters, which no role changes, are the same objects. Results are those of a base
for each role, to the bit.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from rlhf_core import PluginError
from rlhf_core.contracts import RoleSpec

SHARES = "the %s computes with weights that another role of this process holds"
"""Line of the log for a role that shares its base."""
_HELD: weakref.WeakSet[SharedBase] = weakref.WeakSet()
"""The bases that roles of this process hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseKey:
    """Everything that the weights of a base depend on."""

    path: str
    dtype: str
    trust_remote_code: bool
    load_options: Mapping[str, Any]

    @classmethod
    def of(cls, spec: RoleSpec, load_options: Mapping[str, Any]) -> BaseKey:
        """Return the key of a role's base; the same folder under two names is one base."""
        return cls(
            path=_one_name(spec.model_path),
            dtype=spec.dtype,
            trust_remote_code=spec.trust_remote_code,
            # Transformers' configs of quantization call each other equal without a look at their fields.
            load_options={
                name: option.to_dict() if hasattr(option, "to_dict") else option
                for name, option in load_options.items()
            },
        )


class SharedBase:
    """A model as it was loaded.

    Args:
        model: never run and never changed from now on, except that its parameters move with those of the views.
    """

    def __init__(self, key: BaseKey, model: PreTrainedModel) -> None:
        self.key = key
        self._model = model
        self._dtypes = [parameter.dtype for parameter in model.parameters()]
        _HELD.add(self)

    def view(self) -> PreTrainedModel:
        """Return new modules, and new buffers, with the same parameters, on the device of these."""
        kept: dict[int, Any] = {}
        for parameter in self._model.parameters():
            kept[id(parameter)] = parameter
            # A quantized parameter keeps its scales beside its numbers, and its module holds them too.
            for value in vars(parameter).values():
                if not isinstance(value, nn.Module):
                    kept[id(value)] = value
        # deepcopy takes what is in its memo as copied already.
        model = copy.deepcopy(self._model, kept)
        # The first view may have moved the parameters, which are the same for all; buffers are each view's own.
        device = next(model.parameters()).device
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
        return model

    def is_fixed(self) -> bool:
        """Return whether the parameters are those that were loaded, and no role trains any."""
        return all(
            parameter.dtype == dtype and not parameter.requires_grad
            for parameter, dtype in zip(self._model.parameters(), self._dtypes, strict=True)
        )

    def can_be_copied(self) -> bool:
        """Return whether no module keeps a function that may refer to modules of this model, as its copy would too."""
        return not any(
            isinstance(value, FunctionType) and value.__closure__
            for module in self._model.modules()
            for value in _kept_by(module)
        )

    def require_fixed(self, role: str) -> None:
        """Refuse a role that changes weights of a base which others compute with.

        Raises:
            PluginError: a parameter has ``requires_grad`` or another dtype.
        """
        if not self.is_fixed():
            raise PluginError(
                f"the adapter of the {role} trains or casts weights of its base, which other roles compute with; "
                "expected ModelAdapter.wrap to leave them as they are, with requires_grad off",
                code="adapter/changes-base",
            )


def _kept_by(module: nn.Module) -> Iterator[Any]:
    yield from vars(module).values()
    yield from module._forward_hooks.values()
    yield from module._forward_pre_hooks.values()


def find_base(bases: Iterable[SharedBase], key: BaseKey) -> SharedBase | None:
    """Return the first of the bases with that key that no role trains."""
    return next((base for base in bases if base.key == key and base.is_fixed()), None)


def held_base(path: str) -> SharedBase | None:
    """Return the base of that path which roles of this process hold and none trains, in whatever dtype; None: there is
    none."""
    name = _one_name(path)
    return next((base for base in _HELD if base.key.path == name and base.is_fixed()), None)


def _one_name(path: str) -> str:
    """Return the same name for two ways to write the path of one folder, and a hub name as it is."""
    return str(Path(path).resolve()) if Path(path).is_dir() else path
