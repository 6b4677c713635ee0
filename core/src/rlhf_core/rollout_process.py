"""What a process that runs episodes builds from the names and values that it was sent.

A runtime that has such processes calls ``open_rollouts`` in each, with the process's own plugins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .contracts.backend import ComponentRef
from .contracts.environment import Environment
from .contracts.executor import Renderer, RolloutExecutor
from .contracts.runtime import RolloutSpec
from .plugins import Plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutParts:
    """What turns a task into trajectories, the engine aside."""

    executor: RolloutExecutor
    renderer: Renderer
    environment: Callable[[], Environment] | None
    """Makes a fresh one; None when the run has none."""


def open_rollouts(spec: RolloutSpec, plugins: Plugins) -> RolloutParts:
    """Build executor and renderer, and get ready to build environments.

    Raises:
        ConfigError: the tokenizer cannot be loaded here.
        RLHFError: a component cannot be built.
    """
    # The tokenizer's library is heavy, and a process that imports this module may have another task.
    from .data.renderer import TokenizerRenderer
    from .data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(spec.tokenizer_path, trust_remote_code=spec.trust_remote_code)
    return RolloutParts(
        executor=plugins.build(spec.executor),
        renderer=TokenizerRenderer(tokenizer),
        environment=_environments(spec.environment, plugins) if spec.environment else None,
    )


def _environments(reference: ComponentRef, plugins: Plugins) -> Callable[[], Environment]:
    registered = plugins.get(reference.kind, reference.name)
    options = registered.validate(reference.options)
    factory = registered.load()

    def make() -> Environment:
        environment: Environment = factory(options)
        return environment

    return make
