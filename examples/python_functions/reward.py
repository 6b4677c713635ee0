"""The reward of a function: 1 if it passes the hidden tests, in the sandbox of ``rlhf-tools``.

The sandbox gets the function and the inputs. What is expected never enters it: outputs come back as JSON, and are
compared here.
"""

from __future__ import annotations

import json
import re

from rlhf_tools.sandbox.limits import SandboxLimits
from rlhf_tools.sandbox.python import PythonSandbox

SANDBOX = PythonSandbox(SandboxLimits(wall_s=5.0, cpu_s=2, memory_mib=256, concurrency=16))
BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", flags=re.DOTALL)
PROGRAM = """\
import contextlib, io, json, sys
solution, outputs = {{"__name__": "solution"}}, []
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    exec(compile({code!r}, "solution.py", "exec"), solution)
    for numbers in json.loads({inputs!r}):
        try:
            outputs.append(solution["transform"](numbers))
        except Exception:
            outputs.append(None)
print("\\n" + json.dumps(outputs))
"""


async def unit_tests(response: str, tests: list[list[list[int]]]) -> dict[str, float]:
    """Return 1 for a function that gives what is expected for all inputs; and the share of inputs for which it does."""
    code = last_block(response)
    if code is None:
        return {"reward": 0.0, "passed": 0.0, "has_code": 0.0}
    inputs = json.dumps([numbers for numbers, _ in tests])
    program = await SANDBOX.run(PROGRAM.format(code=code, inputs=inputs))
    found = outputs_of(program.output, len(tests))
    passed = sum(got == wanted for got, (_, wanted) in zip(found, tests, strict=True))
    return {
        "reward": float(passed == len(tests)),
        "passed": passed / len(tests),
        "has_code": 1.0,
    }


def last_block(response: str) -> str | None:
    """Return the code between the last pair of fences; None if there is none."""
    blocks = BLOCK.findall(response)
    return blocks[-1] if blocks else None


def outputs_of(text: str, count: int) -> list[object]:
    """Return what the function gave for each input: the last line of the program's output. None stands for nothing."""
    last = text.strip().rpartition("\n")[2]
    try:
        found = json.loads(last)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, list) and len(found) == count else [None] * count
