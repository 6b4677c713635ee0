"""The option ``preset``: the options of a published method, a layer above the defaults and below those of the user."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from rlhf_core.contracts.preset import Preset
from rlhf_core.errors import PluginError, RLHFError
from rlhf_core.plugins import Plugins

from .annotations import NONE
from .layers import Layer, Origin, Words, leaves, lookup, merge
from .option_tree import OptionTree
from .problems import Labels

PRESET, HOOK = "preset", "rlhf_presets"


def with_preset(layers: Sequence[Layer], plugins: Plugins, options: OptionTree[Any]) -> list[Layer]:
    """Return the layers with that of the preset that the last of them names, above the command's defaults.

    Where none is named, and for commands without presets, they are returned as they are.

    Raises:
        UnknownComponent: no installed plugin has the preset; AmbiguousComponent: several have.
        PluginError: the preset's file cannot be read, or names a preset itself.
    """
    name = chosen_preset(layers)
    if name is None or PRESET not in options.model.model_fields:
        return list(layers)
    first_own = next(
        (place for place, layer in enumerate(layers) if not _is_defaults(layer)), len(layers)
    )
    written = Labels(merge(layers))(PRESET)
    return [*layers[:first_own], _layer(name, written, plugins), *layers[first_own:]]


def chosen_preset(layers: Sequence[Layer]) -> str | None:
    """Return the name that the last layer with one gives; None: there is none, or it is no single word."""
    written = next(
        (
            found
            for layer in reversed(layers)
            if (found := lookup(layer.values, PRESET)) is not None
        ),
        None,
    )
    # Anything else than one word is refused where the option is validated.
    name = written[0] if isinstance(written, Words) and len(written) == 1 else written
    return name if isinstance(name, str) and name != NONE else None


def _is_defaults(layer: Layer) -> bool:
    return bool(layer.origins) and all(origin.is_default for origin in layer.origins.values())


def _layer(name: str, written: str, plugins: Plugins) -> Layer:
    """Return the options of the preset ``name``, which stands where ``written`` says."""
    try:
        registered = plugins.get(HOOK, name)
    except RLHFError as error:
        raise error.with_text(f"{written} {name}: {error}") from error
    preset: Preset = registered.build()
    label = f"preset {registered.qualified}"
    try:
        values = preset.options()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PluginError(
            f"{label}: expected TOML in {preset.file}: {error}", code="plugin/malformed-preset"
        ) from error
    if PRESET in values:
        raise PluginError(
            f"{label}: {preset.file} names a preset itself; write its options out",
            code="plugin/preset-in-preset",
        )
    return Layer(values, {path: Origin(f"{label}: {path}") for path, _ in leaves(values)})
