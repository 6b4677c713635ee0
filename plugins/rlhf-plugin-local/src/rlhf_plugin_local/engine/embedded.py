"""The engine as the loop sees it: coroutines that wait for one synchronous batch to be stepped.

The model is the trainer's own, and the run holds generation before a pass or an update computes with it.
``beside.lanes`` says where the step runs: on a CPU in the thread of the event loop, which between two steps runs
whatever else is ready (rewards, environments, executors); on a GPU in a thread, and beside training, with weights of
its own, in a stream too. What changes the batch then waits for its turn, which comes between two steps; the queue and
the calls belong to the event loop alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from functools import partial

from rlhf_core import ConfigError, RequestError, RolloutError
from rlhf_core.contracts import Completion, EngineSpec, GenerationRequest, WeightSource
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.models.vision_lm import VisionLM

from .batch import Batch
from .beside.decision import is_beside_training
from .beside.lanes import EventLoopLane, driving, lane_of
from .config import EmbeddedEngineConfig
from .memory import keep_freed_memory
from .next_token.guides import Guide, GuideMaker
from .prefill import MOST_READ
from .resident.batch import ResidentBatch
from .resident.sizing import cache_pages
from .routes import choices_for
from .sequence import Finished, Prompt, Sequence, fewest_tokens
from .stop import Decode, StopWatcher, decoder_of
from .weights import ServedWeights, device_of


class EmbeddedState(StrEnum):
    """State of the engine. ``NEW`` -> ``SERVING`` <-> ``PAUSED``, ``ASLEEP``; ``CLOSED`` is final."""

    NEW = "not started"
    SERVING = "serving"
    PAUSED = "paused"
    ASLEEP = "asleep"
    CLOSED = "closed"


class EmbeddedEngine:
    """Continuous batching in this process; implements ``rlhf_core.contracts.Engine``.

    Tokens depend on seed, prompt and weights alone. On a CPU that holds to the bit for dense models, because the rows
    of every product are independent of their number (see ``prefill.ROW_MULTIPLE``). Log-probs of a mixture of
    experts, those behind an image, and everything on a GPU, may differ in their last bits with the batch, because
    kernels are chosen by size; a token then changes only if its uniform number falls within that rounding of a
    boundary.

    After weights are updated under running requests (``pause``, ``update_weights``, ``resume``), their keys and values
    in the cache stay those of the older weights.
    """

    def __init__(self, config: EmbeddedEngineConfig) -> None:
        self._config = config
        self._state = EmbeddedState.NEW
        self._spec: EngineSpec
        self._weights: ServedWeights
        self._batch: Batch | ResidentBatch
        self._decode: Decode | None = None
        self._guides: GuideMaker | None = None
        self._calls: dict[int, list[Sequence]] = {}
        """Sequences of each ``generate`` in flight, by number, in order of arrival."""
        self._num_calls = 0
        self._queue: deque[Sequence] = deque()
        """Not in the batch yet."""
        self._unwanted: set[int] = set()
        """Numbers of calls whose sequences are to leave the batch."""
        self._driver: asyncio.Task[None] | None = None
        self._lane = EventLoopLane()
        self._turn = asyncio.Lock()
        """Held while the batch is stepped or changed."""

    async def start(self, spec: EngineSpec, source: WeightSource) -> None:
        """Share or load the weights; see ``ServedWeights``.

        Raises:
            ConfigError: the model cannot be loaded, an end-of-sequence id is not in its vocabulary, sequences may
                outgrow its positions or reach where it rotates anew, or an adapter is to be served beside a copy.
            RolloutError: the engine was started before.
        """
        self._require("start", EmbeddedState.NEW)
        keep_freed_memory()
        self._spec = spec
        device = device_of(self._config, source.module())
        beside = is_beside_training(self._config, spec, source.module(), device)
        self._lane = lane_of(device, beside=beside)
        with self._lane.taking_over():
            self._weights = ServedWeights(spec, self._config, source, beside_training=beside)
        lm = self._weights.computing
        if wrong := [token for token in spec.eos_token_ids if not 0 <= token < lm.vocab_size]:
            raise ConfigError(
                f"end-of-sequence ids {wrong} are outside of the model's vocabulary of {lm.vocab_size}; the tokenizer "
                f"of {spec.model_path} does not belong to its weights",
                code="model/end-token-unknown",
            )
        lm.require_positions(spec.max_length)
        lm.ropes.require_constant(spec.max_length, spec.model_path)
        with self._lane.entered():
            self._batch = self._new_batch(lm)
        self._state = EmbeddedState.SERVING

    def _new_batch(self, lm: CausalLM) -> Batch | ResidentBatch:
        config, spec = self._config, self._spec
        num_slots = max(1, min(config.slots, spec.max_concurrency))
        if not config.is_resident(lm.device):
            return Batch(
                lm,
                spec.eos_token_ids,
                num_slots=num_slots,
                block=config.block,
                share_prefixes=config.share_prefixes,
                choices=choices_for(lm, spec),
            )
        return ResidentBatch(
            lm,
            spec.eos_token_ids,
            num_slots=num_slots,
            max_length=spec.max_length,
            num_pages=cache_pages(lm, spec, num_slots, config.kv_cache_gib),
            share_prefixes=config.share_prefixes,
            keeps_ends=config.share_prefixes and (spec.several_turns or not lm.recurrent),
            compile=config.compile,
            choices=choices_for(lm, spec),
        )

    @property
    def shares_weights(self) -> bool:
        return self._weights.is_shared

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, in the order of the seeds; while paused, wait.

        Where the model's maximal length leaves fewer tokens than asked for, the completions end there with
        ``Stop.LENGTH``. Cancelling the call frees its slots.

        Raises:
            RolloutError: the request cannot be served, the engine is not serving, or computing failed.
        """
        self._require(f"generate for {request.uid}", EmbeddedState.SERVING, EmbeddedState.PAUSED)
        limit = request.checked_limit(self._spec.max_length, self._weights.lm.vocab_size)
        if request.media and not isinstance(self._weights.lm, VisionLM):
            raise RolloutError(
                f"request {request.uid} has images, and the model reads text alone; set --model.vision",
                code="model/reads-text-alone",
            )
        guides = [self._guide(request) for _ in request.seeds]
        number = self._num_calls = self._num_calls + 1
        self._calls[number] = sequences = [
            Sequence(
                request=request,
                call=number,
                sample=sample,
                limit=limit,
                outcome=asyncio.get_running_loop().create_future(),
                watcher=self._watcher(request),
                guide=guide,
            )
            for sample, guide in enumerate(guides)
        ]
        self._queue.extend(sequences)
        self._drive()
        try:
            return await asyncio.gather(*(sequence.outcome for sequence in sequences))
        except asyncio.CancelledError:
            self._withdraw(number)
            raise
        finally:
            self._calls.pop(number, None)

    async def update_weights(self, version: int, source: WeightSource) -> None:
        """Label tokens with ``version`` from now on, and copy the weights unless they are shared.

        Raises:
            RolloutError: requests are running and ``pause`` was not called.
        """
        self._require(
            "update_weights", EmbeddedState.SERVING, EmbeddedState.PAUSED, EmbeddedState.ASLEEP
        )
        if self._state is EmbeddedState.SERVING and self._calls:
            problem = f"update_weights while {len(self._calls)} requests run ({self._uids()}); call pause first"
            raise RolloutError(problem, code="engine/wrong-state")
        async with self._turn:
            with self._lane.taking_over():
                self._weights.update(source)
                self._batch.set_version(version)

    async def pause(self) -> None:
        """Stop before the next token, keeping what is in flight; new requests wait."""
        self._require("pause", EmbeddedState.SERVING)
        self._state = EmbeddedState.PAUSED
        async with self._turn:  # a step that is under way ends
            pass

    async def resume(self) -> None:
        """Go on after ``pause``."""
        self._require("resume", EmbeddedState.PAUSED)
        self._state = EmbeddedState.SERVING
        self._drive()

    async def sleep(self) -> None:
        """Free the KV cache. Requests are refused until ``wake``."""
        self._require("sleep", EmbeddedState.SERVING, EmbeddedState.PAUSED)
        if self._calls:
            problem = f"sleep while {len(self._calls)} requests are in flight ({self._uids()}); wait for them first"
            raise RolloutError(problem, code="engine/wrong-state")
        self._state = EmbeddedState.ASLEEP
        async with self._turn:
            with self._lane.entered():
                self._batch.clear()

    async def wake(self) -> None:
        """Serve again; the cache grows anew with the first requests."""
        self._require("wake", EmbeddedState.ASLEEP)
        self._state = EmbeddedState.SERVING

    async def checksum(self) -> str:
        """Digest of the served weights; see ``rlhf_weights.weights_digest``."""
        self._require("checksum", EmbeddedState.SERVING, EmbeddedState.PAUSED, EmbeddedState.ASLEEP)
        return self._weights.checksum()

    async def close(self) -> None:
        """Fail what is in flight, free everything. Closing twice is fine."""
        before, self._state = self._state, EmbeddedState.CLOSED
        if before in (EmbeddedState.NEW, EmbeddedState.CLOSED):
            return
        self._lane.close()
        self._fail("the engine was closed", None)
        del self._batch, self._weights

    def _require(self, what: str, *states: EmbeddedState) -> None:
        if self._state not in states:
            expected = " or ".join(state.value for state in states)
            problem = f"{what}: the engine is {self._state.value}; expected it to be {expected}"
            raise RolloutError(problem, code="engine/wrong-state")

    def _is_closed(self) -> bool:
        return self._state is EmbeddedState.CLOSED

    def _watcher(self, request: GenerationRequest) -> StopWatcher | None:
        if not request.sampling.stop:
            return None
        if self._decode is None:
            self._decode = decoder_of(
                self._spec.model_path, trust_remote_code=self._spec.trust_remote_code
            )
        return StopWatcher(self._decode, request.sampling.stop, fewest_tokens(request.sampling))

    def _guide(self, request: GenerationRequest) -> Guide | None:
        grammar = request.sampling.grammar
        if grammar is None:
            return None
        if isinstance(self._batch, ResidentBatch):
            raise RequestError(
                f"request {request.uid} asks for an answer of a given form, which the embedded engine enforces only "
                "where the host looks at each token; run with --engine.embedded.decode stepwise",
                code="engine/form-on-device",
            )
        if self._guides is None:
            spec = self._spec
            self._guides = GuideMaker(
                spec.model_path,
                self._weights.lm.vocab_size,
                spec.eos_token_ids,
                trust_remote_code=spec.trust_remote_code,
            )
        return self._guides.make(grammar)

    def _drive(self) -> None:
        """Have the batch stepped as long as there is work."""
        if self._driver is None or self._driver.done():
            self._driver = driving(self._run())

    async def _run(self) -> None:
        while self._state is EmbeddedState.SERVING and self._calls:
            async with self._turn:
                if not await self._advance():
                    return
            await asyncio.sleep(0)

    async def _advance(self) -> bool:
        """Have a wave admitted or the batch stepped, and deliver what has finished; False if the engine stopped."""
        if self._state is not EmbeddedState.SERVING:
            return False
        try:
            if not self._batch.active:
                await self._lane.call(self._catch_up)
            with self._lane.entered():  # histories that give way are erased
                wave = self._next_wave()
            if (wave or self._batch.active) and self._batch.lm.training:
                self._batch.lm.eval()  # in this thread: training may follow a call that was cancelled
            finished = await self._lane.call(partial(self._step, wave))
        except Exception as error:
            # Whatever the model raises belongs to the requests that caused it.
            if not self._is_closed():
                self._fail(f"computing the next tokens failed: {error}", error)
            return False
        if self._is_closed():
            return False
        for sequence, outcome in finished:
            self._deliver(sequence, outcome)
        self._drop_unwanted()
        return True

    def _catch_up(self) -> None:
        """Take over weights that nobody announced, before a wave counts on histories."""
        if self._weights.catch_up():
            self._batch.forget_histories()

    def _step(self, wave: list[Sequence]) -> list[Finished]:
        if self._batch.active:
            self._weights.check_unchanged()
        if wave:
            # No token is drawn yet: a step for a part of the sequences takes about as long as one for all of them, and
            # the next wave may follow.
            return self._batch.admit(wave)
        return self._batch.step() if self._batch.active else []

    def _next_wave(self) -> list[Sequence]:
        """Take from the queue what is to be admitted now."""
        free, most = self._batch.num_free, self._config.prefill_tokens
        # A prefill for each slot that falls free would cost as much as a step of the whole batch; so some gather first.
        enough = min(len(self._queue), max(1, self._batch.num_slots // 16))
        if not self._queue or (self._batch.active and free < enough):
            return []
        wave: list[Sequence] = []
        prompts: set[Prompt] = set()
        num_new = num_read = pages = 0
        while self._queue and len(wave) < free:
            prompt = self._queue[0].prompt
            shared = len(prompt.token_ids)
            if prompt not in prompts or not self._config.share_prefixes:
                shared = self._batch.num_known(prompt)
                num_new += len(prompt.token_ids) - shared
                num_read += len(prompt.token_ids)
                if wave and (num_new > most or num_read > MOST_READ * most):
                    break
                prompts.add(prompt)
            pages += self._batch.pages_to_take(self._queue[0], shared)
            if not self._batch.has_room(pages):
                if wave or self._batch.active:
                    break
                # Not even one sequence fits beside the history that it goes on from.
                self._batch.forget_histories()
                return self._next_wave()
            wave.append(self._queue.popleft())
        return wave

    def _deliver(self, sequence: Sequence, outcome: Completion | RolloutError) -> None:
        if sequence.outcome.done():
            return
        if isinstance(outcome, RolloutError):
            self._withdraw(sequence.call)
            sequence.outcome.set_exception(outcome)
            return
        sequence.outcome.set_result(outcome)
        if all(one.outcome.done() for one in self._calls.get(sequence.call, ())):
            # Before the caller hears of it, so that no further step is made for it.
            self._calls.pop(sequence.call, None)

    def _withdraw(self, number: int) -> None:
        """Forget the sequences of one call."""
        self._queue = deque(sequence for sequence in self._queue if sequence.call != number)
        self._unwanted.add(number)
        if not self._turn.locked() and not self._is_closed():
            self._drop_unwanted()

    def _drop_unwanted(self) -> None:
        """Free the slots of withdrawn calls; no step is under way."""
        if self._unwanted:
            with self._lane.entered():
                self._batch.drop(lambda sequence: sequence.call in self._unwanted)
            self._unwanted.clear()

    def _fail(self, reason: str, cause: Exception | None) -> None:
        """Fail every request in flight; the engine takes new ones afterwards."""
        uids = self._uids()
        for sequence in (one for sequences in self._calls.values() for one in sequences):
            if not sequence.outcome.done():
                problem = f"request {sequence.request.uid}: {reason} (in flight: {uids})"
                error = RolloutError(problem, code="engine/request-failed")
                error.__cause__ = cause
                sequence.outcome.set_exception(error)
        self._queue.clear()
        self._unwanted.clear()
        with self._lane.entered():
            self._batch.clear()

    def _uids(self, most: int = 8) -> str:
        uids = [str(sequences[0].request.uid) for sequences in self._calls.values()]
        more = f" and {len(uids) - most} more" if len(uids) > most else ""
        return ", ".join(uids[:most]) + more
