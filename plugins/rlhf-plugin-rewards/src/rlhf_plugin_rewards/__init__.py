"""Rewards: a user's function, exact match, regular expression, math equivalence, and scores from a server."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import ExactMatchConfig, FunctionConfig, HttpConfig, MathConfig, RegexConfig


@hookimpl
def rlhf_rewards() -> list[Component[Any]]:
    return [
        Component(
            name="function",
            factory="rlhf_plugin_rewards.function:make_function_reward",
            config=FunctionConfig,
            summary="a function in a file of yours, as FILE.py:NAME",
            provides=frozenset({"wraps_code"}),
        ),
        Component(
            name="exact_match",
            factory="rlhf_plugin_rewards.exact_match:ExactMatch",
            config=ExactMatchConfig,
            summary="1 if the response, or an answer extracted from it, equals the row's answer",
        ),
        Component(
            name="regex",
            factory="rlhf_plugin_rewards.pattern:Pattern",
            config=RegexConfig,
            summary="1 if a regular expression matches the response",
        ),
        Component(
            name="math",
            factory="rlhf_plugin_rewards.equivalence:MathEquivalence",
            config=MathConfig,
            summary="1 if the final answer is mathematically equal to the row's answer (math-verify)",
        ),
        Component(
            name="http",
            factory="rlhf_plugin_rewards.remote.reward:HttpReward",
            config=HttpConfig,
            summary="scores from reward servers that speak OpenRLHF's JSON protocol",
            provides=frozenset({"reads_text_alone"}),
            extra="http",
        ),
    ]
