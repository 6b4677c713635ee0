"""What the plugin layer costs in one training step, in microseconds.

    python benchmarks/plugin_overhead.py

A step calls components directly and observers through their hooks. So three things are measured: a component that was
chosen by name against the same class made by hand; one observer hook with plugins that do nothing; and looking a
component up and building it, which happens once a run.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint

import torch

from rlhf_core import Component, hookimpl
from rlhf_core.contracts import Advantages, RewardBatch
from rlhf_core.plugins import GROUP, Candidate, Plugins, empty, register
from rlhf_trainer.loop.listeners import observe

ROUNDS, CALLS = 7, 2000
OBSERVERS = (0, 1, 5, 20)
ESTIMATORS = "rlhf_advantage_estimators"


class Nothing:
    """An estimator whose work is as small as can be, so that what is around it shows."""

    def __init__(self, config: object) -> None:
        self.config = config

    def __call__(self, batch: RewardBatch) -> Advantages:
        return Advantages(advantages=batch.token_rewards)


def plugins_with(observers: int) -> Plugins:
    """One component, and ``observers`` plugins whose hooks do nothing."""
    plugins = empty()
    for number in range(max(1, observers)):
        module = types.ModuleType(f"plugin_{number}")
        if number < observers:
            module.rlhf_step_end = hookimpl(_does_nothing())  # type: ignore[attr-defined]
        if number == 0:
            module.rlhf_advantage_estimators = hookimpl(_one_component())  # type: ignore[attr-defined]
        name = f"p{number}"
        plugins_module = EntryPoint(name, module.__name__, GROUP)
        _register(plugins, Candidate(name, plugins_module, None), module)
    return plugins


def _register(plugins: Plugins, candidate: Candidate, module: types.ModuleType) -> None:
    import sys

    sys.modules[module.__name__] = module
    register(plugins, candidate)


def _does_nothing() -> Callable[..., None]:
    def rlhf_step_end(step: int, metrics: dict[str, float]) -> None:
        return None

    return rlhf_step_end


def _one_component() -> Callable[[], list[Component[Nothing]]]:
    def rlhf_advantage_estimators() -> list[Component[Nothing]]:
        return [Component(name="nothing", factory=Nothing)]

    return rlhf_advantage_estimators


def microseconds(action: Callable[[], object]) -> float:
    """Median over rounds of the mean time of one call."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            action()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(times)


def main() -> None:
    mask = torch.ones(4, 3, dtype=torch.bool)
    index = torch.zeros(4, dtype=torch.int64)
    batch = RewardBatch(
        token_rewards=torch.zeros(4, 3),
        rewards=torch.zeros(4),
        action_mask=mask,
        group=index,
        episode=torch.arange(4),
        turn=torch.zeros(4, 3, dtype=torch.int64),
        truncated=torch.zeros(4, dtype=torch.bool),
    )
    plugins = plugins_with(1)
    chosen, by_hand = plugins.get(ESTIMATORS, "nothing").build(), Nothing(None)
    metrics = {f"metric/{number}": float(number) for number in range(40)}
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}"
    )
    direct = microseconds(lambda: by_hand(batch))
    through = microseconds(lambda: chosen(batch))
    print(f"a component by hand               {direct:8.2f} us")
    print(f"the same, chosen by name          {through:8.2f} us   ({through - direct:+.2f})")
    for count in OBSERVERS:
        watched = plugins_with(count)
        took = microseconds(lambda: observe(watched, "rlhf_step_end", step=1, metrics=metrics))  # noqa: B023
        print(f"a hook with {count:2} observers          {took:8.2f} us")
    lookup = microseconds(lambda: plugins.get(ESTIMATORS, "nothing").build())
    print(f"lookup and build, once a run      {lookup:8.2f} us")


if __name__ == "__main__":
    main()
