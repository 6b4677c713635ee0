"""Engines with a model behind them, from their start to their end."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from rlhf_config import Selection
from rlhf_core import CapabilityError, ConfigError, RolloutError
from rlhf_core.contracts import (
    Completion,
    ControlWordUse,
    Engine,
    EngineSpec,
    GenerationRequest,
    WeightSource,
)
from rlhf_core.media import writing_of
from rlhf_data import (
    TokenizerRenderer,
    check_rows,
    describe_ends,
    eos_token_ids,
    load_tokenizer,
    vocabulary_of,
)

from . import gpus
from .adapter_form import AdapterForm, form_of
from .adapter_source import AdapterSource
from .model_source import ModelSource, dtype_of
from .options import ModelToServe
from .sight import Sight


def renderer_of(
    model: ModelToServe,
    control_words: ControlWordUse = "text",
    template_kwargs: Mapping[str, Any] | None = None,
    sight: Sight | None = None,
) -> TokenizerRenderer:
    """Return the renderer of a model's tokenizer.

    Args:
        control_words: use of control words in prompts and messages.
        template_kwargs: variables for the chat template.
        sight: the model's way to read images; None: it reads text alone.

    Raises:
        ConfigError: the tokenizer cannot be loaded.
        DataError: the chat template does not read such a variable.
    """
    path = model.tokenizer or model.path
    tokenizer = load_tokenizer(path, trust_remote_code=model.trust_remote_code)
    return TokenizerRenderer(
        tokenizer,
        control_words=control_words,
        template_kwargs=template_kwargs,
        writing=writing_of(None if sight is None else sight.images),
    )


@asynccontextmanager
async def serving(
    model: ModelToServe,
    engine: Selection,
    renderer: TokenizerRenderer,
    *,
    max_length: int,
    max_concurrency: int,
    sample_padding: bool = False,
    num_engines: int = 1,
    sight: Sight | None = None,
) -> AsyncIterator[EnginePool]:
    """Return a context with started engines, which are closed at its end. Lines on stderr say which tokens end a
    turn, and where an adapter is.

    Args:
        engine: the selected engine with its options.
        max_length: prompt and response tokens of the longest sequence.
        max_concurrency: largest number of completions in flight.
        sample_padding: sample rows of the output head that no token has, too.
        num_engines: engines that are started, one after the other, each with an equal share of the GPUs.
        sight: the model's way to read images; None: it reads text alone.

    Raises:
        ConfigError: the model or the adapter cannot be used, there are fewer GPUs than engines, or the engine refuses
            its options.
    """
    ends = eos_token_ids(renderer.tokenizer, model.path, trust_remote_code=model.trust_remote_code)
    print(describe_ends(renderer.tokenizer, ends), file=sys.stderr, flush=True)
    check_rows(
        renderer.tokenizer,
        model.path,
        "--model",
        resize=None,
        trust_remote_code=model.trust_remote_code,
    )
    spec = EngineSpec(
        model_path=model.path,
        dtype=dtype_of(model),
        max_length=max_length,
        max_concurrency=max_concurrency,
        eos_token_ids=ends,
        vocabulary=None if sample_padding else vocabulary_of(renderer.tokenizer),
        trust_remote_code=model.trust_remote_code,
        vision=None if sight is None else sight.spec,
    )
    places = gpus.shares(gpus.visible_gpus() if num_engines > 1 else [], num_engines)
    form = form_of(model, engine)
    async with AsyncExitStack() as stack:
        try:
            first = await _started(stack, engine, spec, model, form, places[0], sight)
        except CapabilityError as error:
            if form is None or form.rank is None or model.serve == "adapter":
                raise
            form = replace(form, rank=None, why=f"the engine refuses it: {error}")
            first = await _started(stack, engine, spec, model, form, places[0], sight)
        if form is not None:
            print(form, file=sys.stderr, flush=True)
        others = [
            await _started(stack, engine, spec, model, form, place, sight) for place in places[1:]
        ]
        yield EnginePool([first, *others])


async def _started(
    stack: AsyncExitStack,
    engine: Selection,
    spec: EngineSpec,
    model: ModelToServe,
    form: AdapterForm | None,
    place: gpus.Gpus,
    sight: Sight | None,
) -> Engine:
    """Return a started engine, which the stack closes."""
    source: WeightSource = ModelSource(model, spec.dtype, sight)
    if form is not None and form.rank is not None:
        spec = replace(spec, adapter_rank=form.rank)
        source = AdapterSource(model, spec.dtype, form.folder)
    built: Engine = engine.build()
    stack.push_async_callback(built.close)
    with gpus.only(place):
        await built.start(spec, source)
    return built


class EnginePool:
    """Implements ``Generator``: engines with the same weights, of which the one with the fewest completions in flight
    gets a request.

    An engine that fails a request which another one answers gets no more requests: it has died, since a request that
    cannot be served fails everywhere.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        if not engines:
            raise ConfigError(
                "a pool of engines: expected at least one engine; got none", code="engine/none"
            )
        self.engines = tuple(engines)
        self._in_flight = [0] * len(engines)
        """Number of completions in flight with each engine."""
        self._lost: set[int] = set()

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, in the order of the seeds, from the first engine that gives them.

        Raises:
            RolloutError: all engines failed; the error is that of the first one.
        """
        errors: dict[int, RolloutError] = {}
        while (index := self._next(errors)) is not None:
            self._in_flight[index] += len(request.seeds)
            try:
                completions = await self.engines[index].generate(request)
            except RolloutError as error:
                errors[index] = error
            else:
                self._lose(errors)
                return completions
            finally:
                self._in_flight[index] -= len(request.seeds)
        first, *others = errors.values()
        for other in others:
            first.add_note(f"Another engine: {other}")
        raise first

    def _next(self, failed: dict[int, RolloutError]) -> int | None:
        """Return the engine that is asked next; None if all that live have failed."""
        left = set(range(len(self.engines))) - failed.keys() - self._lost
        return min(sorted(left), key=lambda index: self._in_flight[index], default=None)

    def _lose(self, failed: dict[int, RolloutError]) -> None:
        for index in failed.keys() - self._lost:
            self._lost.add(index)
            left = len(self.engines) - len(self._lost)
            print(
                f"engine {index} of {len(self.engines)} is lost, {left} left: {failed[index]}",
                file=sys.stderr,
                flush=True,
            )
