"""vLLM's scheduler, which tells the client of tokens in portions. vLLM's core imports this module.

vLLM sends its client each token of each running request as soon as it is sampled, which a person at a terminal wants.
Rollouts are read when they are complete, and what is sent costs both ends: a token with its log-prob takes the client
about 25 us, so that with 256 running requests the client, and not the GPU, sets the pace of a small model. Portions of
32 tokens take it a fifth of that (`benchmarks/vllm_client.py`).

The core itself is next: it walks through all that can have happened to each request, and writes a message about it. A
token in the midst of a response is only appended, which is done here (`benchmarks/vllm_scheduler.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from copy import copy
from operator import attrgetter
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from .kv_blocks import BetweenBlocks
from .names import PORTION_VARIABLE
from .writers import StepLogprobs, Writer

MERGED = {"request_id", "new_token_ids", "new_logprobs"}
OTHERS = [name for name in EngineCoreOutput.__struct_fields__ if name not in MERGED]
others_of = attrgetter(*OTHERS)
NOTHING = others_of(EngineCoreOutput("", []))
"""What else an output can have, and what that is when it has nothing else."""

FOR_EACH_TOKEN = (
    "connector",
    "num_spec_tokens",
    "perf_metrics",
    "aux_output_connector",
    "enable_return_routed_experts",
    "return_sampling_mask",
)
"""Parts of vLLM's schedulers, in one version or another, that want to see every token."""
ALL = -1
"""As a number of log-probs: those of the whole vocabulary."""


class InPortions:
    """Mixed into a scheduler of vLLM: holds tokens back until there are enough of a request, or it ends.

    Whatever is more than tokens goes at once, with the tokens held before it. So do the tokens of requests with stop
    strings, which the client looks for. While the scheduler is paused nothing is held, so that the client can count how
    many tokens the old weights wrote.
    """

    requests: dict[str, Any]
    pause_state: PauseState
    max_model_len: int
    kv_cache_manager: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._portion = int(os.environ[PORTION_VARIABLE])
        self._writers: dict[str, Writer] = {}
        self._is_watched = any(getattr(self, name, None) for name in FOR_EACH_TOKEN)
        self._in_advance = isinstance(self, AsyncScheduler)

    def update_from_output(self, scheduled: Any, computed: Any) -> dict[int, EngineCoreOutputs]:
        complete: list[Writer] = []
        if self._writers and self._may_append(computed):
            scheduled = self._append_plain(scheduled, computed, complete)
        messages: dict[int, EngineCoreOutputs] = super().update_from_output(scheduled, computed)  # type: ignore[misc]
        for message in messages.values():
            message.outputs = self._due(message.outputs)
        if self._is_paused:
            complete = [writer for writer in self._writers.values() if writer.tokens]
        self._release(complete, messages)
        return messages

    def get_num_unfinished_requests(self) -> int:
        """Of a paused scheduler too, as long as tokens are held: then the core makes one more, empty step."""
        unfinished: int = super().get_num_unfinished_requests()  # type: ignore[misc]
        if unfinished or not self._is_paused:
            return unfinished
        return sum(bool(writer.tokens) for writer in self._writers.values())

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        finished = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        for name in self._writers.keys() - self.requests.keys():
            del self._writers[name]
        return finished

    @property
    def _is_paused(self) -> bool:
        return self.pause_state is PauseState.PAUSED_ALL

    def _may_append(self, computed: Any) -> bool:
        """Whether nobody looks at each token of the step, and log-probs have one row for each request."""
        if self._is_watched or computed.num_nans_in_logits is not None:
            return False
        return computed.logprobs is None or computed.logprobs.cu_num_generated_tokens is None

    def _append_plain(self, scheduled: Any, computed: Any, complete: list[Writer]) -> Any:
        """Append the tokens to which nothing else happens, and return the step with what is left for vLLM to do.

        Of every running request there is a token in each step: microseconds count.
        """
        writers, portion, in_advance = self._writers, self._portion, self._in_advance
        index_of, sampled = computed.req_id_to_index, computed.sampled_token_ids
        cache_blocks, running = self.kv_cache_manager.cache_blocks, RequestStatus.RUNNING
        logprobs = StepLogprobs(computed.logprobs) if computed.logprobs else None
        left = {}
        for name, number in scheduled.num_scheduled_tokens.items():
            writer = writers.get(name)
            if writer is None or not writer.is_plain:
                left[name] = number
                continue
            request, index = writer.request, index_of[name]
            new = sampled[index]
            if (
                len(new) != 1
                or new[0] in writer.stops
                or request.num_output_tokens + 1 >= writer.last
                or request.status is not running
                # What is on its way of before a preemption is not to be counted, which vLLM takes care of.
                or request.num_preemptions != writer.num_preemptions
            ):
                left[name] = number
                continue
            request.num_in_flight_tokens -= number
            request.append_output_token_ids(new[0])
            if in_advance:
                request.num_output_placeholders -= 1
                cache_blocks(request, request.num_computed_tokens - request.num_output_placeholders)
            writer.tokens.append(new[0])
            if logprobs is not None and writer.num_logprobs is not None:
                writer.steps.append(logprobs)
                writer.rows.append(index)
            if len(writer.tokens) >= portion:
                complete.append(writer)
        rest = copy(scheduled)
        rest.num_scheduled_tokens = left
        return rest

    def _due(self, outputs: list[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """Return what to send now of what vLLM would send."""
        due = []
        for output in outputs:
            writer = self._writer_of(output.request_id)
            if writer is None:
                due.append(output)
                continue
            writer.hold(output)
            writer.num_preemptions = writer.request.num_preemptions
            if len(writer.tokens) >= self._portion or others_of(output) != NOTHING:
                due.append(writer.release(output))
            if output.finish_reason is not None:
                del self._writers[output.request_id]
        return due

    def _writer_of(self, name: str) -> Writer | None:
        """Return the request if its tokens may wait."""
        writer = self._writers.get(name)
        if writer is None and (request := self.requests.get(name)) is not None:
            params = request.sampling_params
            if params is not None and not params.detokenize and params.num_logprobs != ALL:
                writer = self._writers[name] = Writer(request, self.max_model_len)
        return writer

    def _release(self, writers: Iterable[Writer], messages: dict[int, EngineCoreOutputs]) -> None:
        for writer in writers:
            request = writer.request
            if request.request_id not in self.requests:  # aborted meanwhile
                self._writers.pop(request.request_id, None)
                continue
            message = messages.setdefault(request.client_index, EngineCoreOutputs())
            message.outputs.append(writer.release())


class PortionScheduler(InPortions, BetweenBlocks, Scheduler):
    """Where each step waits for the one before."""


class AsyncPortionScheduler(InPortions, BetweenBlocks, AsyncScheduler):
    """Where a step is prepared while the one before is computed."""
