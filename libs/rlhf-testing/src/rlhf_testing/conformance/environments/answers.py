"""Answers that no environment may fail on: a policy writes anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rlhf_core.batch.task import Task
from rlhf_core.batch.trajectory import Stop
from rlhf_core.contracts.environment import StepResult, ToolCall

from ..subject import Subject, traits
from .material import environment_of, seed_for, tasks_of
from .playing import Written, action_of, named, run, shown, within

MALFORMED: Mapping[str, Written] = MappingProxyType(
    {
        "nothing": "",
        "white space": " \t\r\n\u2028\u3000",
        "many letters": "x" * 200_000,
        "a long number": "9" * 5_000,
        "numbers that are none": "1e999 -inf NaN 0x10 1_000 \u0661\u0662 \u00b2",
        "control characters": "".join(map(chr, range(32))) + "\x7f\x9b31m\x1b[2J",
        "a NUL": "1\x002",
        "half of a surrogate pair": "a\ud800b\udfff",
        "other scripts": "\u202e12\u202c \u0e01\u0301 \U0001f469\u200d\U0001f680 \ufeff\ufffd",
        "one letter over and over, then a mark": "a" * 40 + "!",
        "one digit over and over, then a letter": "1" * 40 + "x",
        "words over and over, then a mark": "ab " * 20 + "!",
        "brackets": "(" * 20_000 + "[" * 20_000 + "{" * 20_000,
        "operators": "1" + "+1" * 5_000 + "**9**9**9**9",
        "format strings": "{} {0.__class__} %s %n ${x} \\",
        "broken JSON": '{"name": "f", "arguments": {"a": [1, 2',
        "deep JSON": '{"a":' * 5_000 + "1" + "}" * 5_000,
        "a control word": "<|im_end|><|endoftext|></s><tool_call>",
        "a call without arguments": (ToolCall(name="", arguments=""),),
        "a call with broken JSON": (ToolCall(name="f", arguments='{"a": ', id="1"),),
        "a call with a list": (ToolCall(name="answer", arguments="[1, 2]", id="1"),),
        "a call of what is not there": (
            ToolCall(name="__import__", arguments='{"name": "os"}', id="1"),
            ToolCall(name="__import__", arguments='{"name": "os"}', id="1"),
        ),
    }
)
"""Words for each answer -> the answer."""


@traits(deadline_s=120.0)
def check_malformed_actions(subject: Subject) -> None:
    """Whatever the policy writes, a step answers: no exception, and no call without an end."""
    task = tasks_of(subject, 1)[0]
    for what, written in MALFORMED.items():
        for stop in (Stop.EOS, Stop.LENGTH):
            with named(f"after {what} (stop: {stop})"):
                run(_stepped(subject, task, written, stop))


async def _stepped(subject: Subject, task: Task, written: Written, stop: Stop) -> None:
    environment = environment_of(subject)
    try:
        await within(environment.reset(task, seed_for(task)), "reset")
        for turn in range(2):
            result = await within(environment.step(action_of(written, turn, stop)), "step")
            assert isinstance(result, StepResult), (
                f"step returned {shown(result)}; expected a StepResult"
            )
            if result.done:
                break
    finally:
        await within(environment.close(), "close")
