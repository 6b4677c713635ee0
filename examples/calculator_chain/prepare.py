"""Write demonstrations of calls of the calculator, for a pretrained model whose chat template knows tools.

    python examples/calculator_chain/prepare.py

The demonstrations show the form of calls, and that a chain goes on. They have problems of two, three and four numbers,
which take one to three calls; training asks for seven.
It downloads nothing. The same flags write the same files.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_env_calculator.config import CalculatorConfig
from rlhf_env_calculator.environment import Calculator
from rlhf_env_calculator.problems import applied
from rlhf_tools import Toolbox


def main() -> None:
    parser = argparse.ArgumentParser(description="Write demonstrations of calls.")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "data", help="folder for the files"
    )
    parser.add_argument("--demonstrations", type=int, default=384, help="number of demonstrations")
    arguments = parser.parse_args()
    rows = [demonstration(index) for index in range(arguments.demonstrations)]
    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / "demonstrations.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{file}: {len(rows)} conversations")


def demonstration(index: int) -> dict[str, Any]:
    """Return a conversation in which each operation is a call, and the last result the answer."""
    environment = Calculator(CalculatorConfig(numbers=2 + index % 3, digits=3))
    row = environment.tasks("train")[index]
    question = f"What is {row['problem']}? Use the calculator, and answer with the number alone."
    return {
        "messages": [
            {"role": "user", "content": question},
            *calls(row),
            {"role": "assistant", "content": row["answer"]},
        ],
        "tools": [dict(tool) for tool in Toolbox([environment.calculate]).schemas],
    }


def calls(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls of a problem and their results, from left to right."""
    first, *others = map(int, re.findall(r"\d+", row["problem"]))
    messages: list[dict[str, Any]] = []
    left = first
    for operator, right in zip(re.findall(r"[-+*]", row["problem"]), others, strict=True):
        given = {"left": left, "operator": operator, "right": right}
        call = {"type": "function", "function": {"name": "calculate", "arguments": given}}
        left = applied(left, operator, right)
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "calculate", "content": str(left)},
        ]
    return messages


if __name__ == "__main__":
    main()
