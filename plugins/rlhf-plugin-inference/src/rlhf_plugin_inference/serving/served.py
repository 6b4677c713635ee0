"""An engine with a model behind it, from its start to its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rlhf_core.config import Selection
from rlhf_core.contracts import Engine, EngineSpec
from rlhf_core.data import TokenizerRenderer, eos_token_ids, load_tokenizer

from .model_source import ModelSource, dtype_of
from .options import ModelToServe


def renderer_of(model: ModelToServe) -> TokenizerRenderer:
    """Return the renderer of a model's tokenizer.

    Raises:
        ConfigError: the tokenizer cannot be loaded.
    """
    path = model.tokenizer or model.path
    return TokenizerRenderer(load_tokenizer(path, trust_remote_code=model.trust_remote_code))


@asynccontextmanager
async def serving(
    model: ModelToServe,
    engine: Selection,
    renderer: TokenizerRenderer,
    *,
    max_length: int,
    max_concurrency: int,
) -> AsyncIterator[Engine]:
    """Return a context with a started engine, which is closed at its end.

    Args:
        engine: the selected engine with its options.
        max_length: prompt and response tokens of the longest sequence.
        max_concurrency: largest number of completions in flight.

    Raises:
        ConfigError: the model or the adapter cannot be used, or the engine refuses its options.
    """
    spec = EngineSpec(
        model_path=model.path,
        dtype=dtype_of(model),
        max_length=max_length,
        max_concurrency=max_concurrency,
        eos_token_ids=eos_token_ids(
            renderer.tokenizer, model.path, trust_remote_code=model.trust_remote_code
        ),
        trust_remote_code=model.trust_remote_code,
    )
    built: Engine = engine.registered.build(engine.options)
    try:
        await built.start(spec, ModelSource(model, spec.dtype))
        yield built
    finally:
        await built.close()
