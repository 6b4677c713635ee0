"""The environment that a command line names, with the options that follow its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from rlhf_config.flags import parse_flags
from rlhf_config.layers import Layer, lookup
from rlhf_config.problems import Labels, Report
from rlhf_config.sections import Validator, options_of
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader
from rlhf_core.component import Config, Registered
from rlhf_core.contracts import Environment, EnvironmentManifest, manifest_of
from rlhf_core.plugins import Plugins
from rlhf_guard.environments.chosen import version_label

HOOK = "rlhf_environments"
OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of a command that takes an environment's own options."""

Name = Annotated[str, typer.Argument(help="environment: NAME, PLUGIN:NAME or FILE.py:CLASS")]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedEnvironment:
    """An environment with its options, its code imported."""

    registered: Registered[Environment]
    config: Config
    manifest: EnvironmentManifest | None
    label: str
    """Name and version: ``guess_number@1``."""

    def make(self) -> Environment:
        """Return a fresh instance."""
        return self.registered.build(self.config)


def chosen(name: str, words: Sequence[str], plugins: Plugins | None = None) -> NamedEnvironment:
    """Return the environment of a name.

    Args:
        words: its options, as flags: ``--numbers 6``, or in full as for a run, ``--env.countdown.numbers 6``.

    Raises:
        RLHFError: there is no such environment, its code cannot be imported, or an option is wrong.
    """
    registered = (plugins or plugin_loader.load()).get(HOOK, name)
    return named(registered, options(registered, words))


def named(registered: Registered[Environment], config: Config) -> NamedEnvironment:
    """Return an environment with its code imported.

    Raises:
        RLHFError: its code cannot be imported, or its manifest is none.
    """
    factory: Any = registered.load()
    # A class in a file is made by a reference to it, which has no attributes of the class.
    owner = factory.load() if hasattr(factory, "load") else factory
    try:
        manifest = manifest_of(owner)
    except TypeError as error:
        raise ConfigError(
            f"{registered.qualified}: {error}", code="environment/contract"
        ) from error
    return NamedEnvironment(
        registered=registered,
        config=config,
        manifest=manifest,
        label=version_label(registered, owner),
    )


def options(registered: Registered[Any], words: Sequence[str]) -> Config:
    """Return the options that words of a command line give.

    Raises:
        ConfigError: an option is unknown, missing, or of the wrong type or range.
    """
    section = f"env.{registered.name}"
    layer = parse_flags([_in_full(word, section) for word in words])
    values = lookup(layer.values, section) or {}
    report = Report()
    for path in layer.origins:
        if not path.startswith(f"{section}."):
            text = f"expected an option of {registered.name}"
            report.add(Labels(layer)(path), text, code="config/unknown-option")
    model = registered.component.config
    known = options_of(model, section)
    labels = Labels(Layer(layer.values, layer.origins))
    validator = Validator(labels, known, report, f"train --env {registered.name}")
    config = validator.validate(model, values, section, registered.qualified)
    report.raise_if_any()
    assert config is not None
    return config


def _in_full(word: str, section: str) -> str:
    if not word.startswith("--") or word.startswith("--env."):
        return word
    return f"--{section}.{word.removeprefix('--')}"
