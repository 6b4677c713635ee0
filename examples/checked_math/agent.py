"""Two agents of openai-agents: the solver answers a question, and the checker reads its solution and answers anew.

Both are the policy that trains. Nothing in here knows of training but the last line: what the episode earned.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

if TYPE_CHECKING:
    from rlhf_plugin_endpoint.agents.context import AgentContext

BOXED = re.compile(r"\\boxed\{([^{}]*)\}")

set_tracing_disabled(True)


async def agent(context: AgentContext) -> dict[str, Any]:
    """Return 1 where the checker's answer is right; and, as metrics, whether the solver's was."""
    # The policy is asked over plain HTTP on this machine; to load certificates takes 30 ms an episode.
    web = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(
        base_url=context.base_url, api_key=context.api_key, http_client=web
    ) as client:
        model = OpenAIChatCompletionsModel(model=context.model, openai_client=client)
        solver = Agent(name="solver", instructions=None, model=model)
        checker = Agent(name="checker", instructions=None, model=model)
        solution = (await Runner.run(solver, context.prompt)).final_output
        verdict = (await Runner.run(checker, asked(context.prompt, solution))).final_output
    answer = context.row["answer"]
    first, last = is_right(solution, answer), is_right(verdict, answer)
    metrics = {
        "solver_right": float(first),
        "mended": float(last and not first),
        "spoiled": float(first and not last),
    }
    return {"reward": float(last), "metrics": metrics}


def asked(question: str, solution: str) -> str:
    """Return what the checker reads."""
    return (
        f"{question}\n\nThis is a proposed solution:\n\n{solution}\n\nCheck each step of it. Then give the right final "
        "answer within \\boxed{}, whether it is the proposed one or not."
    )


def is_right(text: str, answer: str) -> bool:
    """Return whether the last boxed number is the answer, whatever its commas, spaces and mark of a currency."""
    boxed = BOXED.findall(text)
    if not boxed:
        return False
    try:
        return float(re.sub(r"[,\s$%\\]", "", boxed[-1])) == float(answer)
    except ValueError:
        return False
