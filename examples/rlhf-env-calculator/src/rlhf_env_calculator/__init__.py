"""Environment `calculator`: results too large for the head, with a calculator as a tool."""

from __future__ import annotations

from typing import Any

from rlhf_core import Component, hookimpl

from .config import CalculatorConfig


@hookimpl
def rlhf_environments() -> list[Component[Any]]:
    return [
        Component(
            name="calculator",
            factory="rlhf_env_calculator.environment:Calculator",
            config=CalculatorConfig,
            summary="compute with whole numbers, by calls of a calculator",
        )
    ]
