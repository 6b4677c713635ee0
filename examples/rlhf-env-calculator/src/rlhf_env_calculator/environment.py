"""Computing by calls of a calculator.

    environment   What is 8312 * 4077? Use the calculator, and answer with the number alone.
    policy        calculate(left=8312, operator="*", right=4077)       0.1, once
    environment   33888024                                              (a tool message)
    policy        33888024                                              1; the episode ends

By default an answer earns nothing if no call succeeded before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.contracts import (
    Action,
    EnvironmentKind,
    EnvironmentManifest,
    Message,
    StepResult,
    Task,
    ToolCall,
)
from rlhf_tools import ToolEnvironment, ToolError, ToolLimits

from .config import CalculatorConfig, Operator
from .problems import SPLITS, Sums, applied

_MAX_DIGITS = 100


class Calculator(ToolEnvironment):
    """One episode."""

    manifest = EnvironmentManifest(
        kind=EnvironmentKind.TOOLS,
        reward_range=(0.0, 1.1),
        license="Apache-2.0",
        version="1",
    )

    def __init__(self, config: CalculatorConfig) -> None:
        super().__init__([self.calculate], ToolLimits(max_calls=config.calls))
        self._config = config
        self._problem, self._answer = "", ""
        self._successes = 0
        self._rewarded = False

    async def calculate(self, left: int, operator: Operator, right: int) -> int:
        """Compute with two whole numbers.

        Args:
            left: the first number
            operator: what to do
            right: the second number
        """
        if max(abs(left), abs(right)) >= 10**_MAX_DIGITS:
            raise ToolError(f"expected numbers of at most {_MAX_DIGITS} digits")
        self._successes += 1
        return applied(left, operator, right)

    def tasks(self, split: str) -> Sequence[Mapping[str, Any]]:
        """Return problems, a million in ``train`` and 256 others in ``eval``.

        Raises:
            KeyError: there is no such split.
        """
        if split not in SPLITS:
            raise KeyError(split)
        config = self._config
        return Sums(
            split=split,
            digits=config.digits,
            numbers=config.numbers,
            operators=config.operators,
        )

    async def begin(self, task: Task, seed: int) -> list[Message]:
        """Take the task's problem, or one by the seed, and return the question."""
        row = task.row if "problem" in task.row else self.tasks("train")[seed % SPLITS["train"]]
        self._problem, self._answer = str(row["problem"]), str(row["answer"])
        self._successes, self._rewarded = 0, False
        if self._config.style == "text":
            return [{"role": "user", "content": self._problem.replace(" ", "")}]
        question = f"What is {self._problem}? Use the calculator, and answer with the number alone."
        return [{"role": "user", "content": question}]

    async def called(self, action: Action, results: Sequence[Message]) -> StepResult:
        """Reward the first turn in which a call succeeded, and no other, so that calls are no income."""
        first = self._successes > 0 and not self._rewarded
        self._rewarded = self._rewarded or first
        return StepResult(rewards={"called": self._config.call_reward if first else 0.0})

    async def judge(self, action: Action) -> StepResult:
        """Compare the answer's last number."""
        text = action.text if action.content is None else action.content
        numbers = re.findall(r"-?\d+", text[-2_000:].replace(",", ""), flags=re.ASCII)
        right = bool(numbers) and numbers[-1] == self._answer
        earned = right and (self._successes > 0 or not self._config.must_call)
        return StepResult(rewards={"correct": float(earned)}, metrics={"right": float(right)})

    async def oracle(self) -> str | Sequence[ToolCall]:
        """Return the next call of the calculation, from left to right, or the answer after the last one."""
        numbers = [int(number) for number in re.findall(r"\d+", self._problem)]
        operators: list[Operator] = re.findall(r"[-+*]", self._problem)
        if self._successes >= len(operators):
            return f"It is {self._answer}"
        left = numbers[0]
        for operator, number in zip(operators[: self._successes], numbers[1:], strict=False):
            left = applied(left, operator, number)
        given = {
            "left": left,
            "operator": operators[self._successes],
            "right": numbers[self._successes + 1],
        }
        return [ToolCall(name="calculate", arguments=json.dumps(given))]
