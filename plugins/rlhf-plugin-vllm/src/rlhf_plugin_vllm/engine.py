"""The engine ``vllm``, with vLLM's ``AsyncLLM`` in this process and vLLM's workers in processes of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import Completion, EngineSpec, GenerationRequest, WeightSource, WeightSync
from rlhf_weights import Invitation, Place

from . import compat, processes
from .arguments import engine_args, environment
from .config import VllmEngineConfig
from .grammars import Grammars
from .images.measuring import images_measured
from .length_limit import check_length
from .requests import (
    cancel_all,
    completion,
    padding,
    request_failed,
    require_idle,
    require_same_prompt,
    sampling_params,
)
from .routes import ToldRoutes
from .sleeping import VllmSleep, sleep_level
from .sockets import SocketFolder
from .weights.adapter_versions import AdapterVersions
from .weights.model_updates import ModelUpdates
from .weights.sender import WeightSender
from .weights.served_digest import HeldWeight, served_digest
from .weights.updates import Updates
from .weights.workers import Workers, worker_failed

if TYPE_CHECKING:
    import psutil
    from vllm.v1.engine.async_llm import AsyncLLM

    from .images.prompts import ImagePrompts

MIB = 1 << 20
Result = TypeVar("Result")


class VllmState(StrEnum):
    """State of an engine: ``NEW`` -> ``INCOMPLETE`` -> ``SERVING`` <-> ``PAUSED`` or ``ASLEEP``.

    An engine is ``INCOMPLETE`` while it lacks a whole set of weights. ``CLOSED`` is final.
    """

    NEW = "not started"
    SERVING = "serving"
    PAUSED = "paused"
    ASLEEP = "asleep"
    INCOMPLETE = "without a whole set of weights, after a failed update"
    CLOSED = "closed"


class VllmEngine:
    """Implements ``rlhf_weights.LinkedEngine``.

    Each seed is a request of its own, so that its tokens depend on seed, prompt and weights. vLLM chooses kernels by
    the size of the batch. Therefore log-probs may differ in their last bits between batches of different size, and a
    token changes only if the log-probs of two candidates are that close.

    When new weights come while requests are running, vLLM computes the keys and values of their tokens again with the
    new weights. With an adapter (``EngineSpec.adapter_rank``) requests go on with the version with which they began.
    """

    shares_weights = False

    def __init__(self, config: VllmEngineConfig) -> None:
        compat.require_vllm()
        self._config = config
        self._state = VllmState.NEW
        self._spec: EngineSpec
        self._llm: AsyncLLM
        self._workers: Workers
        self._updates: Updates
        self._sleep: VllmSleep
        self._family: list[psutil.Process] = []
        self._vocab_size = 0
        self._version = 0
        self._sender = WeightSender(config.bucket_mib * MIB)
        self._images: ImagePrompts | None = None
        self._versions: dict[str, list[tuple[int, int]]] = {}
        """For each request in flight, by name: pairs (index of the first token, version of the weights from there)."""
        self._num_requests = 0
        self._tasks: set[asyncio.Task[Completion]] = set()
        self._sockets = SocketFolder()

    async def start(self, spec: EngineSpec, source: WeightSource) -> None:
        """Start vLLM's processes, and give them the weights of ``source``.

        Raises:
            ConfigError: vLLM refuses an argument, the model or the memory.
            RolloutError: the engine was started before, or the weights do not fit the model.
        """
        await self.start_empty(spec)
        try:
            await self.update_weights(0, source)
        except BaseException:
            await self.close()
            raise

    async def start_empty(self, spec: EngineSpec) -> None:
        """Start vLLM's processes without weights. ``update_weights`` or ``receive_weights`` has to follow.

        Raises:
            ConfigError: vLLM refuses an argument, the model or the memory, or it would rotate long sequences otherwise
                than a trainer does.
            RolloutError: the engine was started before.
        """
        self._require("start", VllmState.NEW)
        self._spec = spec
        if spec.vision is not None:
            compat.require_torchvision()
            # Brings torch, which an engine of texts leaves to vLLM's processes.
            from .images.prompts import ImagePrompts

            self._images = ImagePrompts(spec, spec.vision)
        level = sleep_level(spec, self._config)
        self._llm = self._launch(spec)
        self._workers = Workers(self._llm)
        self._grammars = Grammars(self._llm, self._workers, spec)
        self._routes = ToldRoutes(self._workers, spec)
        self._sleep = VllmSleep(self._workers, level)
        if spec.adapter_rank is None:
            self._updates = ModelUpdates(self._workers, self._sender)
        else:
            packed = spec.quantization is not None
            self._updates = AdapterVersions(self._workers, self._sender, base_is_packed=packed)
        # Children of a dead process cannot be found any more, so all of vLLM's processes are noted at the start.
        self._family = processes.family(self._llm)
        self._state = VllmState.INCOMPLETE
        try:
            self._check_tokens(spec)
            await self._workers.init_transfer({})
            await self._routes.start()
        except BaseException:
            await self.close()
            raise

    async def receivers(self) -> Sequence[Place]:
        """Return the places of vLLM's workers, each of which receives all weights.

        The result is empty with data parallelism, whose engines one call does not all reach.
        """
        if self._llm.vllm_config.parallel_config.data_parallel_size > 1:
            return []
        return [
            Place(machine=machine, device=device)
            for machine, device in await self._workers.ask("rlhf_place")
        ]

    async def join(self, invitation: Invitation) -> None:
        """Have the workers join the link of a trainer in another process, which replaces an older link.

        Raises:
            RolloutError: another end of the link did not join.
        """
        try:
            await self._workers.init_transfer({"link": invitation.to_plain()})
        except Exception as error:  # vLLM wraps a worker's error in various classes
            raise worker_failed("joining the trainer's link", error) from error

    async def receive_weights(self, version: int) -> None:
        """Serve the weights that come by the link, as ``update_weights`` serves those of a source.

        Raises:
            RolloutError: requests are running and ``pause`` was not called, the link broke, or the weights do not fit.
        """
        await self._replace_weights(version, lambda: self._updates.receive(version))

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, in the order of the seeds. A paused engine answers after ``resume``.

        If the call is cancelled, vLLM drops its requests.

        Raises:
            RolloutError: the request or its form cannot be served, the engine is not serving, or vLLM failed.
        """
        self._require(f"generate for {request.uid}", VllmState.SERVING, VllmState.PAUSED)
        limit = request.checked_limit(self._spec.max_length, self._vocab_size)
        tasks: list[asyncio.Task[Completion]] = []
        try:
            await self._grammars.require(request, self._never_sampled)
            prompt = await self._prompt(request)
            if self._state is VllmState.CLOSED:
                raise request_failed(request, "the engine was closed")
            tasks += [
                asyncio.create_task(self._complete(request, prompt, seed, limit))
                for seed in request.seeds
            ]
            self._tasks.update(tasks)
            return list(await asyncio.gather(*tasks))
        except asyncio.CancelledError:
            if self._state is VllmState.CLOSED:
                raise request_failed(request, "the engine was closed") from None
            raise
        finally:
            await cancel_all(tasks)
            self._tasks.difference_update(tasks)

    async def update_weights(self, version: int, source: WeightSource) -> WeightSync:
        """Copy the weights of ``source`` into the served model, and label tokens with ``version`` from now on.

        Return the size of the weights and the duration. With an adapter, ``version`` is that of new requests only, and
        requests may be running without ``pause``.

        Raises:
            RolloutError: requests are running and ``pause`` was not called, or the weights do not fit the model.
        """
        begin = time.perf_counter()
        num_bytes = await self._replace_weights(version, lambda: self._updates.send(source))
        return WeightSync(num_bytes=num_bytes, seconds=time.perf_counter() - begin)

    async def _replace_weights(
        self, version: int, update: Callable[[], Awaitable[Result]]
    ) -> Result:
        """Make an update, and return what it returns."""
        states = VllmState.SERVING, VllmState.PAUSED, VllmState.ASLEEP, VllmState.INCOMPLETE
        self._require("update_weights", *states)
        changes_running = self._updates.changes_running
        if changes_running and self._state is VllmState.SERVING:
            require_idle("update_weights", self._versions, "call pause first")
        state = VllmState.SERVING if self._state is VllmState.INCOMPLETE else self._state
        self._state = VllmState.INCOMPLETE
        try:
            await self._sleep.take_weights_back()
            changed = await update()
        except Exception as error:  # vLLM wraps a worker's error in various classes
            raise worker_failed("update_weights", error) from error
        self._version = version
        self._sleep.was_updated()
        if changes_running:
            await self._forget_prefixes()
        self._state = state
        return changed

    async def pause(self) -> None:
        """Stop all requests between two tokens. These requests and new ones wait for ``resume``."""
        self._require("pause", VllmState.SERVING)
        await self._llm.pause_generation(mode="keep", clear_cache=False)
        self._state = VllmState.PAUSED

    async def resume(self) -> None:
        """Go on with all requests after ``pause``."""
        self._require("resume", VllmState.PAUSED)
        self._state = VllmState.SERVING
        await self._llm.resume_generation()

    async def sleep(self) -> None:
        """Give memory back if ``EngineSpec.sleeps`` asked for it, and refuse requests until ``wake``.

        Raises:
            RolloutError: requests are running, or the engine is not serving.
        """
        self._require("sleep", VllmState.SERVING)
        require_idle("sleep", self._versions, "wait for them first")
        await self._sleep.fall_asleep()
        self._state = VllmState.ASLEEP

    async def wake(self) -> None:
        """Undo ``sleep``.

        Raises:
            RolloutError: sleep dropped the weights, and no update has come since.
        """
        self._require("wake", VllmState.ASLEEP)
        await self._sleep.wake()
        self._state = VllmState.SERVING

    async def checksum(self) -> str | None:
        """Return a digest of the served weights, read back from the parameters that vLLM computes with.

        With an adapter it is the digest of the newest version's factors, read back from vLLM's slot for them, and of a
        base that the trainer holds in 4 bits. The digest combines the parts that the workers hold. It is None if these
        parts cannot be combined.

        Raises:
            RolloutError: a parameter was replaced since the last update, workers serve different weights, or the slot
                of an adapter holds more than its factors.
        """
        self._require("checksum", VllmState.SERVING, VllmState.PAUSED, VllmState.ASLEEP)
        self._sleep.require_weights("checksum")
        try:
            reports = await self._updates.served()
        except Exception as error:  # vLLM wraps a worker's error in various classes
            raise worker_failed("checksum", error) from error
        return served_digest([[HeldWeight(**held) for held in report] for report in reports])

    async def close(self) -> None:
        """End vLLM's processes. Requests in flight fail. A second call does nothing."""
        started = self._state not in (VllmState.NEW, VllmState.CLOSED)
        self._state = VllmState.CLOSED
        if started:
            await cancel_all(self._tasks)
            self._llm.shutdown(timeout=processes.GRACE_S)
            processes.end(self._family)
            del self._llm, self._workers, self._updates, self._sleep, self._grammars
        self._sockets.remove()
        self._sender.close()
        if self._images is not None:
            self._images.close()

    def _launch(self, spec: EngineSpec) -> AsyncLLM:
        with environment(self._config, self._sockets), processes.deaf_to_the_terminal():
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.async_llm import AsyncLLM

            args = engine_args(spec, self._config, on_cpu=current_platform.is_cpu())
            if self._images is not None:
                self._images.require_attention(spec.model_path, on_cpu=current_platform.is_cpu())
            try:
                config = args.create_engine_config(UsageContext.ENGINE_CONTEXT)
                check_length(config.model_config.hf_text_config, spec.max_length, spec.model_path)
                if self._config.portion > 1 or spec.vision is not None:
                    compat.choose_scheduler(config.scheduler_config)
                with images_measured(config.model_config) if spec.vision else nullcontext():
                    return AsyncLLM.from_vllm_config(
                        config,
                        enable_log_requests=args.enable_log_requests,
                        disable_log_stats=args.disable_log_stats,
                    )
            except ConfigError:
                raise
            except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
                raise ConfigError(
                    f"vLLM could not start with {spec.model_path}: {error}\nMessages of vLLM's processes are on the "
                    "terminal; set VLLM_LOGGING_LEVEL=INFO to see more of them.",
                    code="vllm/not-started",
                ) from error

    def _check_tokens(self, spec: EngineSpec) -> None:
        self._vocab_size = self._llm.model_config.get_vocab_size()
        images = self._images.never_sampled if self._images is not None else ()
        self._never_sampled = (*images, *padding(spec, self._vocab_size))

    async def _prompt(self, request: GenerationRequest) -> Any:
        if self._images is not None:
            return await self._images.of(request, self._llm)
        return {"prompt_token_ids": list(request.prompt_ids)}

    async def _complete(
        self, request: GenerationRequest, prompt: Any, seed: int, limit: int
    ) -> Completion:
        self._num_requests += 1
        name = f"{request.uid}-{request.turn}-{self._num_requests}"
        versions = self._versions[name] = [(0, self._version)]
        final = None
        try:
            params = sampling_params(request, seed, limit, self._spec, self._never_sampled, name)
            with self._updates.for_request() as adapter:
                written = self._llm.generate(prompt, params, name, lora_request=adapter)
                async for output in written:
                    final = output
            count = 0 if final is None else len(final.outputs[0].token_ids)
            masses = await self._grammars.masses(request, name, count, self._versions)
        except Exception as error:  # errors of any class that vLLM raises belong to this request
            problem = f"vLLM failed: {error or type(error).__name__}"
            raise request_failed(request, problem) from error
        finally:
            del self._versions[name]
        if final is None:
            raise request_failed(request, "vLLM returned nothing")
        require_same_prompt(request, final.prompt_token_ids)
        last = final.outputs[0]
        answer = completion(request, last, versions, self._routes.of(request, last))
        return self._grammars.finished(request, answer, masses)

    async def _forget_prefixes(self) -> None:
        """Drop what older weights computed, keys, values and features of images, and note each request's tokens so far.

        vLLM computes all of it again for paused requests.
        """
        for name, count in compat.tokens_so_far(self._llm).items():
            if name in self._versions:
                self._versions[name].append((count, self._version))
        if not await self._llm.reset_prefix_cache(reset_running_requests=True):
            problem = "vLLM kept keys and values of older weights in its prefix cache"
            raise RolloutError(problem, code="vllm/stale-prefixes")
        if self._images is not None:
            await self._llm.reset_encoder_cache()

    def _require(self, what: str, *states: VllmState) -> None:
        if self._state not in states:
            expected = " or ".join(state.value for state in states)
            problem = f"{what}: the engine is {self._state.value}; expected it to be {expected}"
            raise RolloutError(problem, code="engine/wrong-state")
