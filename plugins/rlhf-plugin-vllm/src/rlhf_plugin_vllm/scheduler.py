"""Schedulers for vLLM that send tokens to the client in portions, and append plain tokens with less work.

vLLM sends each token of each running request as soon as it is sampled, for a person who reads along. Rollouts are read
when they are complete, and each message costs both its sender and its reader. One token with its log-prob takes the
client about 25 us. With 256 running requests, the client and not the GPU then limits the speed of a small model.
Portions of 32 tokens take a fifth of this time (`benchmarks/vllm_client.py`).

With portions, vLLM's core is the next limit. For each token the core checks everything that can happen to a request,
and builds a message. Most tokens are plain: they are appended to their request, and nothing else happens. The mix-in
``InPortions`` appends plain tokens itself (`benchmarks/vllm_scheduler.py`).

vLLM's core imports this module.
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

from .images.measuring import measure_where_told
from .kv_blocks import BetweenBlocks
from .names import PORTION_VARIABLE
from .writers import StepLogprobs, Writer

measure_where_told()

MERGED = {"request_id", "new_token_ids", "new_logprobs", "routed_experts"}
"""Fields of an output that ``Writer`` merges over several outputs of a request."""
OTHERS = [name for name in EngineCoreOutput.__struct_fields__ if name not in MERGED]
"""All other fields of an output, such as its finish reason."""
others_of = attrgetter(*OTHERS)
NOTHING = others_of(EngineCoreOutput("", []))
"""Values of the fields ``OTHERS`` in an output that holds tokens only."""

FOR_EACH_TOKEN = (
    "connector",
    "num_spec_tokens",
    "perf_metrics",
    "aux_output_connector",
    "enable_return_routed_experts",
    "return_sampling_mask",
)
"""Attributes of vLLM's schedulers, in any supported version, whose owners have to see every token."""
ALL = -1
"""Number of log-probs by which a request asks for the whole vocabulary's."""


class InPortions:
    """Mix-in for a scheduler of vLLM, which holds a request's tokens until a portion is full or the request ends.

    An output with more than tokens is sent at once, together with the tokens held before it. The tokens of a request
    with stop strings are sent at once, too, since the client looks for the strings. A paused scheduler holds no tokens,
    so that the client can count the tokens that the old weights wrote.
    """

    # The types of vLLM's own attributes, outputs and steps differ between its versions, so they are Any here.
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
        """Return the messages of one step by client, as vLLM's method does, but with tokens in portions.

        Args:
            scheduled: vLLM's schedule of the step.
            computed: vLLM's result of the step, with the sampled tokens.
        """
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
        """Return the number of unfinished requests; for a paused scheduler, at least the number that hold tokens.

        vLLM's core then makes one more, empty step, which sends the held tokens.
        """
        unfinished: int = super().get_num_unfinished_requests()  # type: ignore[misc]
        if unfinished or not self._is_paused:
            return unfinished
        return sum(bool(writer.tokens) for writer in self._writers.values())

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """Finish requests as vLLM's method does, and drop their held tokens."""
        finished = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        for name in self._writers.keys() - self.requests.keys():
            del self._writers[name]
        return finished

    @property
    def _is_paused(self) -> bool:
        return self.pause_state is PauseState.PAUSED_ALL

    def _may_append(self, computed: Any) -> bool:
        """Return True if no part of vLLM has to see every token of the step, and log-probs have one row a request."""
        if self._is_watched or computed.num_nans_in_logits is not None:
            return False
        return computed.logprobs is None or computed.logprobs.cu_num_generated_tokens is None

    def _append_plain(self, scheduled: Any, computed: Any, complete: list[Writer]) -> Any:
        """Append the plain tokens of a step, and return the schedule of the requests that are left to vLLM.

        The loop body runs once for each running request in each step, so it has to take few microseconds.

        Args:
            complete: list to which writers with a whole portion are added.
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
                # A token that was being computed when its request was preempted does not count; vLLM discards it.
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
        """Return the outputs to send now, out of those that vLLM would send, and hold the tokens of the others."""
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
        """Return the writer of a request; None if the request's tokens must not wait."""
        writer = self._writers.get(name)
        if writer is None and (request := self.requests.get(name)) is not None:
            params = request.sampling_params
            if params is not None and not params.detokenize and params.num_logprobs != ALL:
                writer = self._writers[name] = Writer(request, self.max_model_len)
        return writer

    def _release(self, writers: Iterable[Writer], messages: dict[int, EngineCoreOutputs]) -> None:
        for writer in writers:
            request = writer.request
            if request.request_id not in self.requests:  # the client has aborted the request
                self._writers.pop(request.request_id, None)
                continue
            message = messages.setdefault(request.client_index, EngineCoreOutputs())
            message.outputs.append(writer.release())


class PortionScheduler(InPortions, BetweenBlocks, Scheduler):
    """vLLM's synchronous scheduler, in which each step waits for the one before, with both mix-ins."""


class AsyncPortionScheduler(InPortions, BetweenBlocks, AsyncScheduler):
    """vLLM's asynchronous scheduler, which prepares a step while the one before is computed, with both mix-ins."""
