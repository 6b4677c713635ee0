"""A random policy behind an episode's address, whose every answer is kept with the grammar that it was drawn below.

The model is random but for a bias toward the tokens that end a string, an object and an answer, without which it would
fill a form of any length until its tokens are used up, and toward the one that begins a call.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from httpx2 import Request
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tests.libs.data.chat.zoo import renderer_of, tokenizer_of
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf_core.contracts import (
    Completion,
    Engine,
    EngineSpec,
    GenerationRequest,
    Renderer,
    RolloutContext,
    SamplingParams,
    Task,
    Trajectory,
    Uid,
)
from rlhf_core.rng import seed_of
from rlhf_plugin_endpoint.agents.context import AgentContext
from rlhf_plugin_endpoint.config import EndpointConfig
from rlhf_plugin_endpoint.executor import Endpoint
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.fakes import FakeEngine, FakeRenderer
from rlhf_testing.tiny import tiny_config

from .cases import Policy

KIND = "hermes"
"""Template of the policy, whose calls begin with a control word."""
TEMPERATURE = 1.0
"""Of the run."""
MAX_LENGTH = 8000
"""Tokens of an episode: the prompts of smolagents have some thousand."""
MAX_NEW_TOKENS = 96
"""Tokens of an answer: a call has about 50."""
LIKELY = {'"': 8.0, "}": 8.0, "<|im_end|>": 9.5, "<tool_call>": 18.0}
"""What is added to the logits of the tokens that end something, or begin a call."""
SPACE = -8.0
"""Added to the logits of white space, of which a form allows any amount."""


@cache
def biased_model() -> PreTrainedModel:
    """Return the policy's model.

    The first hidden channel is the same large number everywhere, so its weight in the head is a bias.
    """
    tokenizer = tokenizer_of(KIND)
    config = tiny_config(
        "qwen3",
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        initializer_range=0.2,
        tied=False,
    )
    config.max_position_embeddings = MAX_LENGTH
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    constant = 40.0
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = constant
        model.lm_head.weight[:, 0] = 0.0
        likely = tokenizer.convert_tokens_to_ids(list(LIKELY))
        texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        spaces = [token for token, text in enumerate(texts) if text.isspace()]
        # What the last norm leaves of a channel that is much larger than the others.
        channel = config.hidden_size**0.5
        model.lm_head.weight[likely, 0] = torch.tensor(list(LIKELY.values())) / channel
        model.lm_head.weight[spaces, 0] = SPACE / channel
    return model


class Source:
    """Weights of a model, as an engine takes them."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def module(self) -> None:
        return None

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        yield dict(self.model.state_dict())


class KeptEngine(EmbeddedEngine):
    """Keeps what it was asked and what it answered."""

    def __init__(self) -> None:
        super().__init__(EmbeddedEngineConfig(decode="stepwise"))
        self.answered: list[tuple[GenerationRequest, Completion]] = []

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        found = await super().generate(request)
        self.answered += [(request, completion) for completion in found]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What an episode left."""

    rows: list[Trajectory]
    answered: list[tuple[GenerationRequest, Completion]]
    """Requests of the engine with its answers; the first is of no form."""


def asking(
    ask: Callable[[Policy], Awaitable[object]],
    temperature: float | None,
    found: list[object],
    sent: list[Mapping[str, object]],
) -> Callable[[AgentContext], Awaitable[None]]:
    """Return an agent that asks the policy, and keeps what its framework makes of the answers and what it sent."""

    async def keep(request: Request) -> None:
        route = "/v1/" + request.url.path.partition("/v1/")[2]
        sent.append({"route": route, "body": json.loads(request.content)})

    async def agent(context: AgentContext) -> None:
        http = DefaultAsyncHttpxClient(event_hooks={"request": [keep]})
        async with AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, max_retries=0, http_client=http
        ) as client:
            policy = Policy(client=client, model=context.model, temperature=temperature)
            found.append(await ask(policy))

    return agent


def play(agent: Callable[[AgentContext], Awaitable[object]], folder: Path) -> Played:
    """Play an episode of an agent in front of the random policy.

    Before the agent asks, the policy is asked for free text: an episode whose every token a form or temperature 0
    decided has nothing to train on, and is refused.

    Args:
        folder: where the model lies; written if it is not there.
    """
    if not folder.exists():
        biased_model().save_pretrained(folder)
        tokenizer_of(KIND).save_pretrained(folder)

    async def whole(context: AgentContext) -> float:
        await _ask_freely(context)
        await agent(context)
        return 1.0

    return asyncio.run(_play(whole, folder))


def play_written(
    agent: Callable[[AgentContext], Awaitable[object]], written: Callable[[str], str]
) -> Played:
    """Play an episode of an agent in front of a policy that writes what follows from what it reads."""

    async def whole(context: AgentContext) -> float:
        await agent(context)
        return 1.0

    renderer = FakeRenderer()
    engine = FakeEngine(lambda request, index: written(renderer.decode(request.prompt_ids)))
    context = _context(engine, renderer, SamplingParams(max_new_tokens=1000))
    rows = asyncio.run(_rows(whole, context))
    return Played(rows=rows, answered=[])


async def _ask_freely(context: AgentContext) -> None:
    async with AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        said = [{"role": "user", "content": "Hello?"}]
        await client.chat.completions.create(model=context.model, messages=said, max_tokens=8)


async def _play(agent: Callable[[AgentContext], Awaitable[float]], folder: Path) -> Played:
    engine = KeptEngine()
    spec = EngineSpec(
        model_path=str(folder),
        dtype="float32",
        max_length=MAX_LENGTH,
        max_concurrency=4,
        eos_token_ids=(tokenizer_of(KIND).convert_tokens_to_ids("<|im_end|>"),),
    )
    await engine.start(spec, Source(biased_model()))
    sampling = SamplingParams(max_new_tokens=MAX_NEW_TOKENS, temperature=TEMPERATURE)
    try:
        rows = await _rows(agent, _context(engine, renderer_of(KIND), sampling))
    finally:
        await engine.close()
    return Played(rows=rows, answered=engine.answered)


def _context(engine: Engine, renderer: Renderer, sampling: SamplingParams) -> RolloutContext:
    return RolloutContext(
        engine=engine,
        renderer=renderer,
        sampling=sampling,
        max_length=MAX_LENGTH,
        seed=lambda sample, turn: seed_of(7, "sample", 0, 3, sample, turn),
    )


async def _rows(
    agent: Callable[[AgentContext], Awaitable[float]], context: RolloutContext
) -> list[Trajectory]:
    said = ({"role": "user", "content": "?"},)
    task = Task(uid=Uid(0, 3), prompt_ids=(), messages=said, row={})
    with _module_of(agent) as name:
        return await Endpoint(EndpointConfig(agent=f"{name}:agent")).run(task, [0], context)


@contextmanager
def _module_of(agent: Callable[[AgentContext], Awaitable[float]]) -> Iterator[str]:
    """Give the name of a module in which the agent is ``agent``."""
    module = type(sys)("agent_of_a_client")
    module.agent = agent  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        yield module.__name__
    finally:
        del sys.modules[module.__name__]
