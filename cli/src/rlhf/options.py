"""Options from Python as layers of a configuration, with functions, objects and rows where a file has names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rlhf_cli.train import COMMAND
from rlhf_cli.training import TrainingCommand
from rlhf_config import Layer, Origin, Selector, read_toml
from rlhf_config.flags import SHORT_NAMES
from rlhf_config.layers import insert, lookup, merge
from rlhf_core import ConfigError, RLHFError
from rlhf_core.component import Component
from rlhf_core.plugins import GIVEN, Plugins

from .given_objects import give
from .rows import GivenRows, are_rows

Given: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""One configuration: the path of a TOML file, or its content."""
Options: TypeAlias = Mapping[str, Any]

_ISOLATE = "isolate"
_PROGRESS = "log.progress"
_SUMMARY = "log.summary"
_AS_ROWS = {
    "to_dict": "; give a data frame as frame.to_dict('records')",
    "__next__": "; give an iterator as list(rows)",
}
"""Attribute of what is no rows -> how to make rows of it."""
_ROWS = ("data.train", "eval.data", "supervised.data")
"""Options whose values may be rows instead of the names of files."""


class PythonOptions:
    """The layers of one call: the defaults of the command line, configurations in order, and keywords.

    Args:
        plugins: get the components that the call gives as objects.
        command: the command whose options they are.
        in_notebook: a view of the notebook shows progress, unless the call says how to show it.

    Raises:
        ConfigError: a file cannot be read, an option is given twice, or an object cannot stand where it does.
        DataError: rows are not what rows have to be.
    """

    def __init__(
        self,
        config: Given | Sequence[Given] | None,
        keywords: Options,
        plugins: Plugins,
        command: TrainingCommand[Any] = COMMAND,
        *,
        in_notebook: bool = False,
    ) -> None:
        self._plugins = plugins
        self._tree = command.options
        self._selectors = {slot.path: slot for slot in command.options.selectors}
        self.rows: list[GivenRows] = []
        """Rows that the call gives, which the run writes into its folder."""
        given = [self._layer_of(one) for one in _configurations(config)]
        given.append(self._layer(keywords, "keyword"))
        self.wants_view = in_notebook and all(
            lookup(layer.values, _PROGRESS) is None for layer in given
        )
        self.layers: list[Layer] = [
            read_toml(command.defaults, defaults=True),
            self._assumed(),
            *given,
        ]

        self._place_rows()

    def _place_rows(self) -> None:
        """Name the files of the given rows, below the run folder, in the options that hold them."""
        default = self._tree.model.model_fields["output"].default
        output = lookup(merge(self.layers).values, "output")
        for rows in self.rows:
            rows.place(Path(output if isinstance(output, str) else default))
        self.layers = [_placed(layer) for layer in self.layers]

    def _layer_of(self, config: Given) -> Layer:
        if isinstance(config, Mapping):
            return self._layer(config, "config")
        return read_toml(Path(config))

    def _layer(self, options: Options, source: str) -> Layer:
        values: dict[str, Any] = {}
        origins: dict[str, Origin] = {}
        for written, path, value in _leaves(options):
            label = f"{source} {written}"
            if path in origins:
                raise ConfigError(
                    f"{label}: {path!r} is given twice; leave one out",
                    code="config/given-twice",
                )
            try:
                insert(values, path, self._value(path, value, label))
            except KeyError as error:
                raise ConfigError(
                    f"{label}: {error.args[0]!r} is given as an option and as a section; leave one out",
                    code="config/given-twice",
                ) from None
            origins[path] = Origin(label)
        return Layer(values, origins)

    def _value(self, path: str, value: Any, label: str) -> Any:
        if (slot := self._selectors.get(path)) is not None:
            return self._names(slot, value, label)
        if path in _ROWS:
            return self._sets(path, value, label)
        return _plain(value)

    def _names(self, slot: Selector, value: Any, label: str) -> Any:
        """Return the names of what a selector picks; an object gets one."""
        if isinstance(value, list | tuple):
            return [self._names(slot, one, label) for one in value]
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        try:
            return give(self._plugins, slot.hook, value, label)
        except RLHFError as error:
            raise ConfigError(
                str(error) if str(error).startswith(label) else f"{label}: {error}",
                code="config/not-a-component",
            ) from error

    def _sets(self, path: str, value: Any, label: str) -> Any:
        """Return the names of data sets, in which rows stand for themselves until they have a file."""
        if value is None or isinstance(value, str | os.PathLike):
            return _plain(value)
        if are_rows(value):
            return [self._taken(path, value, label)]
        if not isinstance(value, list | tuple):
            fix = next((way for name, way in _AS_ROWS.items() if hasattr(value, name)), "")
            raise ConfigError(
                f"{label}: got {type(value).__name__}; expected files, a list of rows (mappings of column to value), "
                f"or a datasets.Dataset{fix}",
                code="config/not-rows",
            )
        return [
            self._taken(path, one, f"{label}[{index}]") if are_rows(one) else _plain(one)
            for index, one in enumerate(value)
        ]

    def _taken(self, path: str, value: Any, label: str) -> GivenRows:
        name = path.partition(".")[2] if path == _ROWS[0] else path.partition(".")[0]
        number = sum(rows.name.partition("_")[0] == name for rows in self.rows)
        rows = GivenRows(value, f"{name}_{number + 1}" if number else name, label)
        self.rows.append(rows)
        return rows

    def _assumed(self) -> Layer:
        """Return the layer over which all that the caller writes wins: rewards that are objects are scored by a thread
        of this process, and a view is enough progress."""
        values: dict[str, Any] = {}
        if self.wants_view:
            insert(values, _PROGRESS, "off")
            insert(values, _SUMMARY, False)
        for path, shared in self._tree.shared.items():
            if _ISOLATE not in shared.model_fields:
                continue
            for entry in self._plugins.registries[self._selectors[path].hook]:
                if entry.plugin == GIVEN:
                    insert(values, f"{path.rpartition('.')[0]}.{entry.name}.{_ISOLATE}", False)
        return Layer.of(values)


def _configurations(config: Given | Sequence[Given] | None) -> list[Given]:
    if config is None:
        return []
    if isinstance(config, str | os.PathLike | Mapping):
        return [config]
    if isinstance(config, list | tuple):
        return list(config)
    raise ConfigError(
        f"config: got {type(config).__name__}; expected the path of a TOML file, a mapping, or a list of them",
        code="config/not-a-configuration",
    )


def _leaves(options: Options, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield each option as it was written, its path, and its value. Short names stand at the top alone."""
    for key, value in options.items():
        if not isinstance(key, str):
            raise ConfigError(
                f"{prefix or 'options'}: expected names of options, got {key!r}",
                code="config/names-of-options",
            )
        written = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{written}.")
            continue
        yield written, written if prefix else SHORT_NAMES.get(key, key), value


def _plain(value: Any) -> Any:
    """Return a value as a TOML file could have given it: a path as text, an item of numpy as a number."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if (
        hasattr(value, "item")
        and getattr(value, "ndim", None) == 0
        and not isinstance(value, Component)
    ):
        return value.item()
    return value


def _placed(layer: Layer) -> Layer:
    """Return the layer with the files of its rows in their place."""

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: placed(one) for key, one in value.items()}
        if isinstance(value, list):
            return [placed(one) for one in value]
        return value.entry if isinstance(value, GivenRows) else value

    return Layer(placed(layer.values), layer.origins)
