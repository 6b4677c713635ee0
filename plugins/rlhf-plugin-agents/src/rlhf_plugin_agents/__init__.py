"""Rollout executors for one turn and many turns, and toy environments."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl
from rlhf_core.capabilities import (
    ENDLESS_TASKS,
    EXECUTOR_READS_FRAMES,
    EXECUTOR_SEES,
    SEVERAL_TURNS,
)
from rlhf_core.contracts.external import ExternalConfig

from .config import EchoAfterHintConfig, EchoDigitsConfig, MultiTurnConfig


@hookimpl
def rlhf_rollout_executors() -> list[Component[Any]]:
    return [
        Component(
            name="single_turn",
            factory="rlhf_plugin_agents.single_turn:SingleTurn",
            summary="asks for one response per prompt; the whole group is one request",
            conflicts=frozenset({"environment"}),
            provides=frozenset({EXECUTOR_SEES, EXECUTOR_READS_FRAMES}),
        ),
        Component(
            name="multi_turn",
            factory="rlhf_plugin_agents.multi_turn:MultiTurn",
            config=MultiTurnConfig,
            summary="lets policy and environment take turns, with a reward per turn",
            needs=frozenset({"environment"}),
            provides=frozenset({SEVERAL_TURNS, EXECUTOR_SEES, EXECUTOR_READS_FRAMES}),
        ),
    ]


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="echo_after_hint",
            factory="rlhf_plugin_agents.echo_after_hint:EchoAfterHint",
            config=EchoAfterHintConfig,
            summary="toy: a digit is shown after the first turn and has to be written in the second",
            provides=frozenset({ENDLESS_TASKS}),
        ),
        Component(
            name="echo_digits",
            factory="rlhf_plugin_agents.echo_digits:EchoDigits",
            config=EchoDigitsConfig,
            summary="toy: in each turn a digit has to be echoed; its reward comes with the turn or at the end",
            provides=frozenset({ENDLESS_TASKS}),
        ),
        Component(
            name="external",
            factory="rlhf_core.contracts.external:refuse_here",
            config=ExternalConfig,
            summary="an environment that only another interpreter, or a server, has installed",
        ),
    ]
