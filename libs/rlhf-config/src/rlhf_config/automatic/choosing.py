"""The best of the components that say how they suit a setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.component import Registered
from rlhf_core.contracts.engine import ChoiceSetting, Suitability
from rlhf_core.errors import ConfigError, PluginError
from rlhf_core.outside.json_reader import read_object
from rlhf_core.registry import AnyRegistry

AUTO = "auto"
"""Name by which a selector leaves the choice to the components."""


def may_choose(registry: AnyRegistry) -> bool:
    """Return whether ``auto`` means a choice: some component says how it suits, and none is called so."""
    entries = list(registry)
    named = any(AUTO in (entry.name, *entry.component.aliases) for entry in entries)
    return not named and any(entry.component.suits for entry in entries)


def best(
    registry: AnyRegistry, setting: ChoiceSetting, needs: Iterable[str]
) -> tuple[Registered[Any], str]:
    """Return the component with the highest rank, the first by name among equals, and its reason.

    Args:
        needs: capabilities that the run's other components need. Those that some component of this registry provides
            are asked of the chosen one, unless ``setting.provides`` has them.

    Raises:
        ConfigError: no component suits; the message has the reason of each.
    """
    entries = list(registry)
    offered = frozenset[str]().union(*(entry.component.provides for entry in entries))
    asked = (frozenset(needs) & offered) - setting.provides
    refused: list[str] = []
    found: list[tuple[float, Registered[Any], str]] = []
    for entry in entries:
        if not entry.component.suits:
            continue
        if missing := asked - entry.component.provides:
            refused.append(f"{entry.name}: lacks {', '.join(sorted(missing))}")
            continue
        fit = _asked(entry, entry.component.suits, setting)
        if fit.rank is None:
            refused.append(f"{entry.name}: {fit.reason}")
        else:
            found.append((fit.rank, entry, fit.reason))
    if not found:
        raise ConfigError(
            f"{AUTO}: expected {registry.kind}s of which one suits this run; {'; '.join(refused)}. Name one of "
            f"{', '.join(registry.names())}.",
            code="config/nothing-suits",
        )
    _, entry, reason = max(found, key=lambda each: each[0])
    others = [f"{other.name}: {why}" for _, other, why in found if other is not entry]
    return entry, "; ".join([reason, *(f"not {text}" for text in (*others, *refused))])


def model_config(name: str) -> Mapping[str, Any]:
    """Return the ``config.json`` of a model's folder, or of a model of the hub that this machine has already; else
    nothing.

    Raises:
        ConfigError: the file is no JSON.
    """
    path = Path(name) / "config.json"
    if name and not Path(name).exists() and name.count("/") <= 1:
        from huggingface_hub import try_to_load_from_cache  # not part of help

        try:
            cached = try_to_load_from_cache(name, "config.json")
        except ValueError:  # what is no name of the hub is refused where models are checked
            cached = None
        path = Path(cached) if isinstance(cached, str) else path
    if not name or not path.is_file():
        return {}
    return read_object(path, "a model's config.json")


def _asked(entry: Registered[Any], suits: str, setting: ChoiceSetting) -> Suitability:
    fit = entry.imported(suits)(setting)
    if not isinstance(fit, Suitability):
        raise PluginError(
            f"{entry.label}: {suits} returned {fit!r}; expected a Suitability",
            code="plugin/wrong-suitability",
        )
    return fit
