"""Checks of a plugin's registration: light imports, and components that are described as the core needs them.

A plugin tests its whole registration with ``check_plugin("rlhf_plugin_mine")``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

from pydantic import ValidationError

from rlhf_config.train import SLOTS, TRAIN
from rlhf_core.component import Component, Config, Registered
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.plugins import GROUP, Candidate, Plugins, empty, register

HEAVY = ("torch", "transformers", "datasets", "vllm", "ray", "deepspeed", "matplotlib", "pandas")
"""Modules that no plugin may import before a run chooses one of its components."""


def check_plugin(module: str) -> Plugins:
    """Register the plugin in ``module`` alone, check its imports and components, and return the set of plugins.

    Raises:
        PluginError: a hook returned something else than components.
        AssertionError: importing the module imports one of ``HEAVY``, or a component breaks a promise.
    """
    assert_imports_stay_light(module)
    plugins = load_alone(module)
    for hook, registry in plugins.registries.items():
        for entry in registry:
            check_component(entry.component, hook)
    return plugins


def load_alone(module: str) -> Plugins:
    """Return a set of plugins with only the plugin in ``module``, which need not be installed."""
    plugins = empty()
    register(plugins, Candidate(module, EntryPoint(module, module, GROUP), None))
    return plugins


def assert_imports_stay_light(module: str) -> None:
    """Assert, in a fresh interpreter, that importing ``module`` imports none of ``HEAVY``.

    ``rlhf --help`` imports every installed plugin; one import of torch would cost each call more than a second.
    """
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
        timeout=300,
    )
    assert done.returncode == 0, f"importing {module} failed:\n{done.stderr}"
    heavy = done.stdout.split()
    assert not heavy, (
        f"importing {module} imports {', '.join(heavy)}; import them where they are used"
    )


def check_component(component: Component[Any], hook: str | None = None) -> None:
    """Assert the properties of a component that the core relies on; imports its factory.

    The properties are a summary, descriptions of all options, options that survive JSON, refused unknown options, a
    callable factory, and answers of the options as ``Config`` has them.

    Args:
        hook: hook that returns the component, such as ``rlhf_rewards``; its kind may have options of its own, whose
            names are taken. None: these are not looked at.
    """
    model, name = component.config, component.name
    assert component.summary, f"{name}: expected a summary, one line for rlhf plugins and help"
    required = sorted(key for key, info in model.model_fields.items() if info.is_required())
    undescribed = sorted(key for key, info in model.model_fields.items() if not info.description)
    assert not undescribed, f"{name}: options without a description: {', '.join(undescribed)}"
    shared = [
        TRAIN.shared.get(slot.path, Config).model_fields for slot in SLOTS if slot.hook == hook
    ]
    taken = sorted({key for fields in shared for key in fields} & model.model_fields.keys())
    assert not taken, (
        f"{name}: {', '.join(taken)}: expected other names, since every {COMPONENT_HOOKS[hook or '']} has these options"
    )
    if not required:
        config = model()
        _check_answers(config, name)
        again = model.model_validate_json(config.model_dump_json())
        assert again == config, f"{name}: its options change on the way through JSON"
    try:
        model.model_validate({"no_such_option": 1})
    except ValidationError as error:
        kinds = {item["type"] for item in error.errors()}
        assert "extra_forbidden" in kinds, f"{name}: its config accepts unknown options"
    else:
        raise AssertionError(f"{name}: its config accepts unknown options")
    factory = Registered(component, "checked").load()
    assert callable(factory), f"{name}: its factory {component.factory!r} is not callable"


def _check_answers(config: Config, name: str) -> None:
    """Assert that what options say of the rows and of other components has the types that a run relies on."""
    for method in ("needed_by_options", "excluded_by_options"):
        words = getattr(config, method)()
        assert isinstance(words, frozenset), (
            f"{name}: {method}() is {words!r}; expected a frozenset"
        )
    columns, fields = config.columns_needed(), type(config).model_fields
    assert isinstance(columns, Mapping), (
        f"{name}: columns_needed() is {columns!r}; expected a mapping of columns to the options that name them"
    )
    named = {option for option in columns.values() if option is not None}
    rewards = config.rewards_named()
    assert isinstance(rewards, Mapping), (
        f"{name}: rewards_named() is {rewards!r}; expected a mapping of rewards to the options that name them"
    )
    metrics = config.metrics_named()
    assert isinstance(metrics, Mapping), (
        f"{name}: metrics_named() is {metrics!r}; expected a mapping of metrics to the options that name them"
    )
    for method, options in (
        ("columns_needed", named),
        ("metrics_named", set(metrics.values())),
        ("rewards_named", set(rewards.values())),
        ("without_effect", set(config.without_effect())),
    ):
        unknown = sorted(options - fields.keys())
        assert not unknown, (
            f"{name}: {method}() names the options {', '.join(unknown)}; expected some of its own, "
            f"{', '.join(fields)}, without a section, or None"
        )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
