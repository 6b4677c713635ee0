"""A tiny model behind the embedded engine, for answers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rlhf_config import Layer, resolve_options
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import SamplingParams
from rlhf_plugin_inference.chat.options import CHAT
from rlhf_plugin_inference.chat.speaker import Speaker
from rlhf_plugin_inference.serving.served import renderer_of, serving

QUESTION = ({"role": "user", "content": "hello"},)


@pytest.fixture
def speaking(base) -> Callable:
    """``speaking(use, piece=..., max_length=..., **sampling)``: the result of ``use(speaker)`` with a served model."""

    def run(use, *, piece=4, max_length=256, **sampling):
        values = {"model": {"path": str(base)}, "engine": {"name": "embedded"}}
        resolved = resolve_options([Layer.of(values)], plugin_loader.load(), CHAT)

        async def main():
            renderer = renderer_of(resolved.run.model)
            async with serving(
                resolved.run.model,
                resolved.one("engine.name"),
                renderer,
                max_length=max_length,
                max_concurrency=1,
            ) as engine:
                speaker = Speaker(
                    engine,
                    renderer,
                    sampling=SamplingParams(**{"max_new_tokens": 24, **sampling}),
                    seed=3,
                    piece=piece,
                    max_length=max_length,
                )
                return await use(speaker)

        return asyncio.run(main())

    return run
