"""Bugs in engines, executors and rewards: what was sampled is not what is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .mutant import Mutant

ENGINE, EXECUTOR, REWARD = "rlhf_engines", "rlhf_rollout_executors", "rlhf_rewards"
EMBEDDED = "rlhf_plugin_local.engine.embedded:EmbeddedEngine"
Function = Callable[..., Any]


def _each_completion(change: Function) -> Function:
    """Change every completion that an engine returns."""

    def wrap(right: Function) -> Function:
        async def wrong(self: Any, request: Any) -> Any:
            return [change(row) for row in await right(self, request)]

        return wrong

    return wrap


def without_end(row: Any) -> Any:
    if row.stop != "eos" or len(row.token_ids) < 2:
        return row
    return replace(
        row,
        token_ids=row.token_ids[:-1],
        logprobs=row.logprobs[:-1],
        weight_version=row.weight_version[:-1],
    )


def shifted_logprobs(row: Any) -> Any:
    return replace(row, logprobs=np.roll(row.logprobs, 1))


def version_zero(row: Any) -> Any:
    return replace(row, weight_version=np.zeros_like(row.weight_version))


def never_truncated(row: Any) -> Any:
    return replace(row, stop=type(row.stop)("eos"))


def global_randomness(right: Function) -> Function:
    """The numbers depend on what else is drawn in this process."""
    generator = torch.Generator().manual_seed(0)

    def wrong(seeds: Any, index: Any) -> Any:
        return torch.rand(len(seeds), generator=generator, dtype=torch.float64)

    return wrong


def logprobs_before_temperature(right: Function) -> Function:
    """The recorded log-prob is of a distribution that is flatter than the one that was drawn from."""

    def wrong(logits: Any, seeds: Any, index: Any) -> Any:
        tokens, _ = right(logits, seeds, index)
        flat = (logits * 0.6).log_softmax(-1)
        return tokens, flat.gather(1, tokens[:, None]).squeeze(1)

    return wrong


def stale_weights(right: Function) -> Function:
    """The new version is announced, the old weights are served."""

    def wrong(self: Any, source: Any) -> None:
        return None

    return wrong


def tokenised_again(right: Function) -> Function:
    """The text of a turn is tokenised again, which loses its end-of-sequence."""

    def wrong(self: Any, prompt_ids: Any, completion: Any, **named: Any) -> Any:
        if completion.stop == "eos":
            tokens = completion.token_ids.copy()
            tokens[-1] = 13
            completion = replace(completion, token_ids=tokens)
        return right(self, prompt_ids, completion, **named)

    return wrong


def separator_lost(right: Function) -> Function:
    def wrong(observation: Any, context: Any) -> Any:
        text = observation.text.strip() if observation.text else observation.text
        return right(replace(observation, text=text), context)

    return wrong


def reward_on_the_first_turn(right: Function) -> Function:
    def wrong(self: Any, node: Any, value: float) -> None:
        right(self, self.nodes[0], value)

    return wrong


def one_seed_for_all(right: Function) -> Function:
    """A sample's seed depends on how many samples are asked for."""

    def wrong(self: Any, task: Any, samples: Any, context: Any) -> Any:
        return right(
            self, task, samples, replace(context, seed=lambda sample, turn: len(samples) + turn)
        )

    return wrong


def cut_is_an_end(right: Function) -> Function:
    """What hit the token limit is recorded as finished."""

    def wrong(self: Any, prompt_ids: Any, completion: Any, **named: Any) -> Any:
        finished = replace(completion, stop=type(completion.stop)("eos"))
        return right(self, prompt_ids, finished, **named)

    return wrong


def one_failure_wipes_its_neighbors(right: Function) -> Function:
    async def wrong(self: Any, requests: Any) -> Any:
        results = await right(self, requests)
        if any(not request.response.strip() for request in requests):
            return [ValueError("a response was empty") for _ in requests]
        return results

    return wrong


def failures_are_left_out(right: Function) -> Function:
    async def wrong(self: Any, requests: Any) -> Any:
        results = await right(self, requests)
        return [
            result
            for request, result in zip(requests, results, strict=True)
            if request.response.strip()
        ]

    return wrong


def _engine(bug: str, source: str, target: str, wrap: Function) -> Mutant:
    return Mutant(
        bug=bug, source=source, hook=ENGINE, component="embedded", target=target, wrap=wrap
    )


def _executor(bug: str, source: str, target: str, wrap: Function) -> Mutant:
    return Mutant(
        bug=bug,
        source=source,
        hook=EXECUTOR,
        component="multi_turn",
        target=f"rlhf_plugin_agents.{target}",
        wrap=wrap,
    )


def _reward(bug: str, source: str, wrap: Function) -> Mutant:
    return Mutant(
        bug=bug,
        source=source,
        hook=REWARD,
        component="exact_match",
        target="rlhf_plugin_rewards.exact_match:ExactMatch.score",
        wrap=wrap,
    )


MUTANTS = (
    _engine(
        "the engine's log-probs are of another temperature",
        "the class of verl#6935 and TRL#4873, drifting log-probs",
        "rlhf_plugin_local.engine.next_token.sampling:draw",
        logprobs_before_temperature,
    ),
    _engine(
        "tokens depend on what else is generated",
        "the class of verl#3005, sync and async rollouts differ",
        "rlhf_plugin_local.engine.next_token.sampling:uniforms",
        global_randomness,
    ),
    _engine(
        "the end-of-sequence token is cut off the response",
        "the class of TRL#6357, the end is not trained",
        f"{EMBEDDED}.generate",
        _each_completion(without_end),
    ),
    _engine(
        "the engine's log-probs are one token off",
        "TRL#4857, wrong log-probs in the off-policy mask",
        f"{EMBEDDED}.generate",
        _each_completion(shifted_logprobs),
    ),
    _engine(
        "the version of the weights is not recorded",
        "no issue cited: stale samples cannot be told from fresh ones",
        f"{EMBEDDED}.generate",
        _each_completion(version_zero),
    ),
    _engine(
        "a response at the limit counts as finished",
        "no issue cited: truncation that nobody sees",
        f"{EMBEDDED}.generate",
        _each_completion(never_truncated),
    ),
    _engine(
        "an update leaves the old weights in the engine",
        "SkyRL#1737, #1725, corrupt weights after a sync",
        "rlhf_plugin_local.engine.weights:ServedWeights.update",
        stale_weights,
    ),
    _executor(
        "the policy's turn is tokenised again",
        "TRL#5224, #5242; verl#7322",
        "episode:EpisodeGraph.add",
        tokenised_again,
    ),
    _executor(
        "the separator after a turn is lost",
        "verl#6501",
        "observing:_plain_tokens",
        separator_lost,
    ),
    _executor(
        "all turn rewards are on the first turn",
        "no issue cited: rewards of several turns added up too early",
        "episode:EpisodeGraph.reward",
        reward_on_the_first_turn,
    ),
    _executor(
        "a sample depends on how many are asked for",
        "OpenRLHF#1355, a seed that is ignored",
        "multi_turn:MultiTurn.run",
        one_seed_for_all,
    ),
    _executor(
        "a turn that was cut off is recorded as finished",
        "no issue cited: truncation that nobody sees",
        "episode:EpisodeGraph.add",
        cut_is_an_end,
    ),
    _reward(
        "one sample without a score wipes its neighbors'",
        "OpenRLHF 0.11.2, reward None in a merged micro-batch",
        one_failure_wipes_its_neighbors,
    ),
    _reward(
        "samples without a score shift the others'",
        "verl#5635, failures that become silent",
        failures_are_left_out,
    ),
)
