"""Checks of routes to experts: engines that tell them, and training backends that follow them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlhf_core.batch.task import Uid
from rlhf_core.capabilities import EXPERT_ROUTES, REPLAYS_ROUTES
from rlhf_core.contracts.engine import EngineSpec, GenerationRequest, SamplingParams
from rlhf_core.errors import ConfigError

from .comparing import assert_equal
from .running_backend import running
from .subject import HANGS_AFTER_S, Check, Subject
from .tiny_policy import PlainModel, tiny_model, train_batch
from .weight_source import WeightSource

PROMPT = (5, 9, 12, 30)
LAYERS = 2
"""Layers of the tiny mixture."""
EXPERTS = 4
"""Experts of a layer."""
TOP_K = 2
"""Experts of a token."""


class _Routers:
    """The routers of the plain mixture: what they chose, and experts to choose in its place."""

    def __init__(self, plain: PlainModel) -> None:
        self.chosen: list[Tensor] = []
        self.given: Tensor | None = None
        """(T, L, k); -1: the router chooses."""
        for layer, block in enumerate(plain.model.model.layers):
            block.mlp.gate.register_forward_hook(partial(self._route, layer))

    def _route(self, layer: int, module: nn.Module, inputs: Any, output: Any) -> Any:
        logits, weights, experts = output
        self.chosen.append(experts)
        if self.given is None:
            return None
        given = self.given[:, layer]
        given = torch.where(given < 0, experts, given)
        taken = F.softmax(logits.float(), dim=-1).gather(1, given)
        if module.norm_topk_prob:
            taken = taken / taken.sum(-1, keepdim=True)
        return logits, taken.to(weights.dtype), given


def check_routes_are_those_of_the_model(subject: Subject) -> None:
    """An engine that is asked for routes tells the experts of each token that it read, those that the model's routers
    choose, in the order of the layers. Where it cannot tell them it raises a ``ConfigError`` as it starts."""

    async def work() -> None:
        plain = PlainModel(folder)
        engine = subject.make()
        spec = EngineSpec(
            model_path=str(folder),
            dtype="float32",
            max_length=32,
            max_concurrency=4,
            eos_token_ids=(),
            returns_routes=True,
        )
        async with asyncio.timeout(HANGS_AFTER_S):
            try:
                await engine.start(spec, WeightSource(plain.state()))
            except ConfigError:
                return
            try:
                request = GenerationRequest(
                    uid=Uid(0, 0),
                    prompt_ids=PROMPT,
                    seeds=(3, 4),
                    sampling=SamplingParams(max_new_tokens=6),
                )
                found = await engine.generate(request)
            finally:
                await engine.close()
        routers = _Routers(plain)
        for row in found:
            routes = row.expert_routes
            wanted = (len(PROMPT) + len(row.token_ids) - 1, LAYERS, TOP_K)
            assert routes is not None, "no routes, though they were asked for"
            assert routes.shape == wanted, f"routes of shape {routes.shape}, expected {wanted}"
            routers.chosen.clear()
            with torch.no_grad():
                plain.logits([*PROMPT, *row.token_ids[:-1].tolist()])
            expected = torch.stack(routers.chosen, dim=1).sort(-1).values
            actual = torch.from_numpy(routes.astype(np.int64)).sort(-1).values
            assert_equal(actual, expected, "experts", atol=0.0)

    with tiny_model(family="qwen3_moe") as folder:
        asyncio.run(work())


def check_given_routes_are_followed(subject: Subject) -> None:
    """A role with ``replays_routes`` computes each token with the given experts, weighted by its own router; where none
    are given, and without the setting, with those that its router chooses."""
    rows = train_batch().trajectories
    columns = rows.tokens.read()
    drawn = np.random.default_rng(0).random((len(columns.token_ids), LAYERS, EXPERTS))
    routes = drawn.argsort(-1)[..., :TOP_K].astype(np.int8)
    routes[columns.token_offsets[:-1]] = -1
    routed = replace(rows, tokens=replace(columns, routes=routes))
    with tiny_model(family="qwen3_moe") as folder:
        plain = PlainModel(folder)
        own = plain.outputs(rows).logprobs.detach()
        routers, parts = _Routers(plain), []
        for row in range(len(rows)):
            span = slice(*columns.token_offsets[row : row + 2])
            routers.given = torch.from_numpy(routes[span].astype(np.int64))
            parts.append(plain.outputs(rows.select(np.array([row]))).logprobs.detach())
        for follows, expected in ((True, torch.cat(parts)), (False, own)):
            with running(subject, folder, replays_routes=follows) as backend:
                found = torch.from_numpy(backend.logprobs(routed))
            assert_equal(found, expected, f"log-probs with replays_routes {follows}", atol=2e-4)


def _tells(subject: Subject) -> bool:
    return EXPERT_ROUTES in subject.provides


def _follows(subject: Subject) -> bool:
    return REPLAYS_ROUTES in subject.provides


OF_ENGINES = (Check(check_routes_are_those_of_the_model, applies=_tells),)
OF_BACKENDS = (Check(check_given_routes_are_followed, applies=_follows),)
