"""Checks of engines (``contracts.Engine``) against the same model as Transformers runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_core.batch.task import Uid
from rlhf_core.batch.trajectory import Stop
from rlhf_core.contracts.engine import Completion, EngineSpec, GenerationRequest, SamplingParams
from rlhf_core.errors import RolloutError

from .. import routes
from ..comparing import assert_equal
from ..subject import HANGS_AFTER_S, Subject, checks_in
from ..tiny_policy import PlainModel, tiny_model
from ..weight_source import WeightSource
from .placing import suits

PROMPTS = ((5, 9, 12), (7,), (30, 31, 32, 33, 34, 35, 36), (5, 9, 12, 40))
SEEDS = (11, 2**63 + 5, 3)
MAX_LENGTH = 64


Work = Callable[[Any, PlainModel], Awaitable[None]]


def _with_engine(subject: Subject, work: Work, *, eos: tuple[int, ...] = ()) -> None:
    """Start an engine on a tiny model, do the work and close the engine; an engine that hangs fails."""

    async def bounded(folder: Path) -> None:
        plain = PlainModel(folder)
        engine = subject.make()
        spec = EngineSpec(
            model_path=str(folder),
            dtype="float32",
            max_length=MAX_LENGTH,
            max_concurrency=32,
            eos_token_ids=eos,
        )
        async with asyncio.timeout(HANGS_AFTER_S):
            await engine.start(spec, WeightSource(plain.state()))
            try:
                await work(engine, plain)
            finally:
                await engine.close()

    with tiny_model() as folder:
        asyncio.run(bounded(folder))


def _request(
    prompt: tuple[int, ...], seeds: tuple[int, ...] = SEEDS, number: int = 0, **sampling: Any
) -> GenerationRequest:
    return GenerationRequest(
        uid=Uid(0, number),
        prompt_ids=prompt,
        seeds=seeds,
        sampling=SamplingParams(**{"max_new_tokens": 8, **sampling}),
    )


def check_a_seed_decides_its_tokens(subject: Subject) -> None:
    """The same prompt and seed give the same tokens alone, beside other requests, and in another order of seeds."""

    async def work(engine: Any, plain: PlainModel) -> None:
        requests = [_request(prompt, number=index) for index, prompt in enumerate(PROMPTS)]
        together = await asyncio.gather(*(engine.generate(request) for request in requests))
        for request, expected in zip(requests, together, strict=True):
            backwards = await engine.generate(_request(request.prompt_ids, SEEDS[::-1]))
            for first, second in zip(expected, backwards[::-1], strict=True):
                one, other = first.token_ids.tolist(), second.token_ids.tolist()
                assert one == other, f"prompt {request.prompt_ids}: {one} in a batch, {other} alone"
        distinct = {tuple(row.token_ids.tolist()) for row in together[0]}
        assert len(distinct) > 1, f"three seeds gave the same tokens: {distinct}"

    _with_engine(subject, work)


def check_logprobs_equal_a_plain_forward(subject: Subject) -> None:
    """The log-prob of every token is that of the distribution it was drawn from: the plain model's, after the
    temperature."""

    async def work(engine: Any, plain: PlainModel) -> None:
        for temperature in (1.0, 0.6):
            for prompt in PROMPTS:
                rows = await engine.generate(_request(prompt, temperature=temperature))
                for row in rows:
                    expected = _plain_logprobs(plain, prompt, row, temperature)
                    what = f"log-probs at temperature {temperature}"
                    assert_equal(torch.from_numpy(row.logprobs), expected, what, atol=2e-3)

    _with_engine(subject, work)


def check_zero_temperature_takes_the_best(subject: Subject) -> None:
    """At temperature 0 each token is the most probable one, with its log-prob at temperature 1."""

    async def work(engine: Any, plain: PlainModel) -> None:
        for prompt in PROMPTS:
            (row,) = await engine.generate(_request(prompt, (1,), temperature=0.0))
            tokens = np.concatenate([prompt, row.token_ids])
            with torch.no_grad():
                best = plain.logits(tokens)[len(prompt) - 1 : -1].argmax(-1).tolist()
            assert row.token_ids.tolist() == best, f"{row.token_ids.tolist()}, expected {best}"
            expected = _plain_logprobs(plain, prompt, row, 1.0)
            assert_equal(torch.from_numpy(row.logprobs), expected, "log-probs", atol=2e-3)

    _with_engine(subject, work)


def check_stops_are_right(subject: Subject) -> None:
    """A turn ends with the first end-of-sequence token, which is kept, or at the limit, and says which."""
    eos = tuple(range(2, 60, 3))

    async def work(engine: Any, plain: PlainModel) -> None:
        seen = set()
        for limit in (1, 3, 8):
            for prompt in PROMPTS:
                for row in await engine.generate(_request(prompt, max_new_tokens=limit)):
                    tokens = row.token_ids.tolist()
                    ended = tokens[-1] in eos
                    assert not set(tokens[:-1]) & set(eos), f"{tokens} goes on after its end"
                    wanted = Stop.EOS if ended else Stop.LENGTH
                    assert row.stop == wanted, f"{tokens}: {row.stop}, expected {wanted}"
                    assert ended or len(tokens) == limit, f"{len(tokens)} tokens of {limit}"
                    seen.add(row.stop)
        assert seen == {Stop.EOS, Stop.LENGTH}, f"only {seen} was seen"

    _with_engine(subject, work, eos=eos)


def check_versions_are_recorded(subject: Subject) -> None:
    """Every token carries the version of the weights that made it; new weights are served at once."""

    async def work(engine: Any, plain: PlainModel) -> None:
        (before,) = await engine.generate(_request(PROMPTS[0], (1,), temperature=0.0))
        digest = await engine.checksum()
        with torch.no_grad():
            for parameter in plain.model.parameters():
                parameter.mul_(-1.0 if parameter.dim() > 1 else 1.0)
        await engine.update_weights(3, WeightSource(plain.state()))
        (after,) = await engine.generate(_request(PROMPTS[0], (1,), temperature=0.0))
        count = len(after.token_ids)
        for name, column in (("log-probs", after.logprobs), ("versions", after.weight_version)):
            assert len(column) == count, f"{len(column)} {name} for {count} tokens"
        assert set(after.weight_version.tolist()) == {3}, f"versions {after.weight_version}"
        assert 3 not in before.weight_version, f"versions {before.weight_version} before"
        assert await engine.checksum() != digest, "the checksum of new weights is the old one"
        expected = _plain_logprobs(plain, PROMPTS[0], after, 1.0)
        assert_equal(torch.from_numpy(after.logprobs), expected, "after an update", atol=2e-3)

    _with_engine(subject, work)


def check_what_cannot_be_served_is_refused(subject: Subject) -> None:
    """A prompt that is empty or leaves no room raises a RolloutError that names its uid."""

    async def work(engine: Any, plain: PlainModel) -> None:
        for prompt in ((), (5,) * (MAX_LENGTH + 1)):
            message = None
            try:
                await engine.generate(_request(prompt, number=77))
            except RolloutError as error:
                message = str(error)
            assert message is not None, f"a prompt of {len(prompt)} tokens was served"
            assert "0.77" in message, f"the message does not name the uid: {message}"

    _with_engine(subject, work)


@torch.no_grad()
def _plain_logprobs(
    plain: PlainModel, prompt: tuple[int, ...], row: Completion, temperature: float
) -> Tensor:
    tokens = np.concatenate([prompt, row.token_ids])
    logprobs = (plain.logits(tokens)[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.from_numpy(row.token_ids.astype(np.int64))[:, None])[:, 0]


CHECKS = (suits.CHECK, *checks_in(__name__), *routes.OF_ENGINES)
