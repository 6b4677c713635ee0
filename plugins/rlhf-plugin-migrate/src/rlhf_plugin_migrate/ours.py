"""Defaults of this framework's options, read from the options models that are installed."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlhf_cli.runs import read_run
from rlhf_core.plugins import Plugins

_ANY_RUN = ("--model", "any", "--data", "any.jsonl", "--reward", "exact_match")
"""A run whose options are defaults; nothing is read from it but these."""

_HOOKS = {
    "runtime": ("rlhf_runtimes",),
    "engine": ("rlhf_engines",),
    "backend": ("rlhf_train_backends",),
    "rollout": ("rlhf_rollout_executors", "rlhf_environments", "rlhf_sample_filters"),
    "reward": ("rlhf_rewards", "rlhf_reward_shapers"),
    "algo.advantage": ("rlhf_advantage_estimators",),
    "algo.loss": ("rlhf_policy_losses",),
    "algo.correction": ("rlhf_is_corrections",),
    "actor": ("rlhf_optimizers",),
    "critic": ("rlhf_optimizers",),
}
"""Section of a selector -> hooks of the components whose own sections are below it."""


class OurDefaults:
    """Defaults by the paths of options."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._run: BaseModel = read_run(_ANY_RUN, plugins).run

    def has(self, path: str, value: object) -> bool:
        """Return True if ``value`` is what an option has when nobody sets it."""
        found = self._of(path)
        if found is None:
            return False
        default = _comparable(found[0])
        # A selector's default has its plugin in front, such as ppo:ppo.
        return default == _comparable(value) or str(default).endswith(f":{value}")

    def _of(self, path: str) -> tuple[object] | None:
        """Return the default in a tuple, or None for an option that is required or that no model describes."""
        component = self._component(path)
        if component is not None:
            return component
        value: object = self._run
        for name in path.split("."):
            if not isinstance(value, BaseModel) or name not in type(value).model_fields:
                return None
            value = getattr(value, name)
        return (value,)

    def _component(self, path: str) -> tuple[object] | None:
        for section, hooks in _HOOKS.items():
            name, _, option = path.removeprefix(f"{section}.").partition(".")
            if not path.startswith(f"{section}.") or not option:
                continue
            for hook in hooks:
                for entry in self._plugins.registries[hook]:
                    if entry.name == name:
                        return _default(entry.component.config.model_fields.get(option))
        return None


def _default(field: FieldInfo | None) -> tuple[object] | None:
    if field is None or field.is_required():
        return None
    return (field.get_default(call_default_factory=True),)


def _comparable(value: object) -> object:
    if isinstance(value, list | tuple):
        return [_comparable(entry) for entry in value]
    return "none" if value is None else value
