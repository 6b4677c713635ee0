"""The commands ``rlhf new plugin`` and ``rlhf new environment``, which write a package with a working component for its
author to change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from rlhf_config import TRAIN
from rlhf_config.flags import SHORT_NAMES
from rlhf_config.presets import HOOK as PRESET_HOOK
from rlhf_config.presets import PRESET
from rlhf_core import ConfigError
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.plugins import Plugins

from .groups import CommandGroup
from .plugins_command import kind_word

_ENVIRONMENT, _COMMAND = "environment", "command"
_HOOKS = {kind_word(hook): hook for hook in COMPONENT_HOOKS}
KINDS = tuple(_HOOKS)
"""Kinds of plugins that the command can write; each has a folder of templates."""
_LIBRARIES = {"train_backend": ("rlhf-weights",)}
"""Libraries that a template imports beside the core, by kind."""
_BESIDE = {
    _ENVIRONMENT: " --executor multi_turn --rollout.max_length 2048",
    "kl_estimator": " --algo.kl.coef 0.01",
}
"""Options without which a run refuses a component, as one that would change nothing, by kind."""

_TEMPLATES = files(__package__) / "templates"
_SUFFIX = ".tmpl"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Package:
    """Names of a new plugin."""

    name: str
    """Name of the plugin as typed, with dashes: ``my-estimator``."""
    kind: str
    """RowKind of its component, one of ``KINDS``."""

    @property
    def distribution(self) -> str:
        """Name of the distribution: ``rlhf-plugin-my-estimator``."""
        family = "env" if self.kind == _ENVIRONMENT else "plugin"
        return f"rlhf-{family}-{self.name}"

    @property
    def module(self) -> str:
        """Name of the package to import: ``rlhf_plugin_my_estimator``."""
        return self.distribution.replace("-", "_")

    @property
    def component(self) -> str:
        """Name of the component: ``my_estimator``."""
        return self.name.replace("-", "_")

    @property
    def class_name(self) -> str:
        """Name of the component's class: ``MyEstimator``."""
        return "".join(part.capitalize() for part in self.name.split("-"))

    @property
    def use(self) -> str:
        """A command line that uses the component: ``rlhf train -c run.toml --estimator my_estimator``.

        What no option of ``rlhf train`` chooses is shown.
        """
        if self.kind == _COMMAND:
            return f"rlhf {self.name} --help"
        paths = [slot.path for slot in TRAIN.selectors if slot.hook == _HOOKS[self.kind]]
        paths += [PRESET] if _HOOKS[self.kind] == PRESET_HOOK else []
        if not paths:
            return f"rlhf plugins show {self.component}"
        short = {path: name for name, path in SHORT_NAMES.items()}
        flag = next((short[path] for path in paths if path in short), paths[0])
        return f"rlhf train -c run.toml --{flag} {self.component}{_BESIDE.get(self.kind, '')}"

    def names(self) -> dict[str, str]:
        """Return the values of the templates' placeholders."""
        major, minor, *_ = version("rlhf-core").split(".")
        entry_point = f"env_{self.component}" if self.kind == _ENVIRONMENT else self.component
        core = f">={major}.{minor},<{major}.{int(minor) + 1}"
        required = ("rlhf-core", *_LIBRARIES.get(self.kind, ()))
        return {
            "distribution": self.distribution,
            "module": self.module,
            "plugin": entry_point,
            "component": self.component,
            "command": self.name,
            "use": self.use,
            "class_name": self.class_name,
            "kind": self.kind,
            "hook": _HOOKS[self.kind],
            "core": core,
            "requires": ", ".join(f'"{name}{core}"' for name in required),
        }


def tree(plugins: Plugins) -> typer.Typer:
    """Return the commands ``rlhf new plugin`` and ``rlhf new environment``.

    Args:
        plugins: the installed ones, whose components' names are taken.
    """
    app = typer.Typer(
        cls=CommandGroup, help="Write a new plugin or environment package.", no_args_is_help=True
    )

    @app.callback()
    def new() -> None:
        """Write a new plugin or environment package."""

    @app.command()
    def plugin(
        name: Annotated[
            str, typer.Argument(help="name in lower-case words with dashes, such as my-estimator")
        ],
        kind: Annotated[str, typer.Option(help=f"one of {', '.join(KINDS)}")],
        output: Annotated[
            Path, typer.Option(help="folder in which the package's folder is made")
        ] = Path(),
    ) -> None:
        """Write a plugin package with a small working component of the given kind, and its tests."""
        package = _package(name, kind)
        _refuse_taken(package, plugins)
        folder = write_package(name, kind, output)
        typer.echo(
            f"{folder}: a plugin with a working {package.kind}. Try it:\n"
            f"  pip install -e {folder}\n  pytest {folder}\n  {package.use}"
        )

    @app.command()
    def environment(
        name: Annotated[
            str, typer.Argument(help="name in lower-case words with dashes, such as guess-number")
        ],
        output: Annotated[
            Path, typer.Option(help="folder in which the package's folder is made")
        ] = Path(),
    ) -> None:
        """Write a package with a small working environment: tasks, rewards, tests, and how it is evaluated."""
        package = _package(name, _ENVIRONMENT)
        _refuse_taken(package, plugins)
        folder = write_package(name, _ENVIRONMENT, output)
        component = package.component
        typer.echo(
            f"{folder}: a working environment. Try it:\n  pip install -e {folder}\n"
            f"  rlhf env try {component}\n  rlhf env check {component}\n  pytest {folder}\n"
            f"  rlhf train -c {folder / 'eval.toml'} --model MODEL"
        )

    return app


def write_package(name: str, kind: str, output: Path) -> Path:
    """Write the package and return its folder.

    Raises:
        ConfigError: the name or the kind cannot be used, or the folder exists or cannot be written.
    """
    package = _package(name, kind)
    folder = output / package.distribution
    if folder.exists():
        raise ConfigError(
            f"{folder} exists already; choose another name or --output", code="output/not-empty"
        )
    try:
        for source in (_TEMPLATES / "common", _TEMPLATES / package.kind):
            _write(source, folder, package.names())
    except OSError as error:
        raise ConfigError(
            f"--output {output}: cannot write {folder}: {error.strerror}",
            code="output/cannot-create",
        ) from error
    return folder


def _refuse_taken(package: Package, plugins: Plugins) -> None:
    """Refuse the name of an installed component of the same kind: from two plugins it would choose neither."""
    registry = plugins.registries[_HOOKS[package.kind]]
    taken = next((entry for entry in registry if entry.is_called(package.component)), None)
    if taken is not None:
        raise ConfigError(
            f"{package.name}: expected the name of no installed {package.kind}; {package.component} is one of "
            f"{taken.plugin} ({taken.origin}), and with a second one every run that names it would be refused. "
            f"Choose another, such as my-{package.name}",
            code="usage/name-taken",
        )


def _package(name: str, kind: str) -> Package:
    wanted = kind.replace("-", "_")
    if wanted not in KINDS:
        # The last word of a kind will do where it is that of one kind: executor, correction, filter.
        meant = [known for known in KINDS if known.endswith(f"_{wanted}")]
        if len(meant) != 1:
            raise ConfigError(
                f"--kind {kind}: expected one of {', '.join(meant or KINDS)}", code="usage/kind"
            )
        wanted = meant[0]
    bare = name.removeprefix("rlhf-plugin-").removeprefix("rlhf-env-").replace("_", "-")
    if not _NAME.fullmatch(bare):
        raise ConfigError(
            f"{name!r}: expected lower case words with dashes, such as my-estimator",
            code="usage/kind",
        )
    return Package(bare, wanted)


def _write(source: Traversable, target: Path, names: dict[str, str]) -> None:
    """Copy a folder of templates with its placeholders replaced, in paths (``__module__``) and texts (``$module``)."""
    for entry in source.iterdir():
        filled = entry.name.removesuffix(_SUFFIX).replace("__module__", names["module"])
        path = target / filled.replace("__component__", names["component"])
        if entry.is_dir():
            _write(entry, path, names)
        elif entry.name.endswith(_SUFFIX):
            path.parent.mkdir(parents=True, exist_ok=True)
            text = Template(entry.read_text(encoding="utf-8")).substitute(names)
            path.write_text(text, encoding="utf-8")
