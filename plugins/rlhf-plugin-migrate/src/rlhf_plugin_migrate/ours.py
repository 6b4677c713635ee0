"""Defaults of this framework's options, read from the options models that are installed."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlhf_cli.runs import read_options, training_command
from rlhf_core.plugins import Plugins

_ANY_RUN = ("--model", "any", "--data", "any.jsonl")
"""A run whose options are defaults; nothing is read from it but these."""
_WHAT_TRAIN_NEEDS = ("--reward", "exact_match")


class OurDefaults:
    """Defaults of a command's options, by their paths."""

    def __init__(self, command: str, plugins: Plugins) -> None:
        """Read the defaults.

        Args:
            command: name of the command that trains, such as ``sft``.
        """
        self._plugins = plugins
        training = training_command(command, plugins)
        self._selectors = training.options.selectors
        words = _ANY_RUN + (_WHAT_TRAIN_NEEDS if command == "train" else ())
        self._run: BaseModel = read_options(training, words, plugins).run

    def has(self, path: str, value: object) -> bool:
        """Return True if ``value`` is what an option has when nobody sets it."""
        found = self._of(path)
        if found is None:
            return False
        default = _comparable(found[0])
        # A selector's default has its plugin in front, such as algorithms:ppo.
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
        for selector in self._selectors:
            section = selector.section
            name, _, option = path.removeprefix(f"{section}.").partition(".")
            if not path.startswith(f"{section}.") or not option:
                continue
            for entry in self._plugins.registries[selector.hook]:
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
