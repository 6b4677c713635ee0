"""vLLM's scheduler, which tells the client of tokens with log-probs in portions. vLLM's core imports this module.

vLLM sends its client each token of each running request as soon as it is sampled, which a person at a terminal wants.
Rollouts are read when they are complete, and what is sent costs both ends: a token with its log-prob takes the client
about 25 us, so that with 256 running requests the client, and not the GPU, sets the pace of a small model. Portions of
32 tokens take it a sixth of that (`benchmarks/vllm_client.py`). Tokens alone take it 5 us, and to hold them would take
the core longer than to send them.
"""

from __future__ import annotations

import os
from operator import attrgetter
from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists

from .kv_blocks import BetweenBlocks
from .names import PORTION_VARIABLE

MERGED = {"request_id", "new_token_ids", "new_logprobs"}
OTHERS = [name for name in EngineCoreOutput.__struct_fields__ if name not in MERGED]
others_of = attrgetter(*OTHERS)
NOTHING = others_of(EngineCoreOutput("", []))
"""What else an output can have, and what that is when it has nothing else."""


class InPortions:
    """Mixed into a scheduler of vLLM: holds tokens with log-probs back until there are enough of a request, or it ends.

    Whatever is more than that goes at once, with the tokens held before it. So do the tokens of requests with stop
    strings, which the client looks for. While the scheduler is paused nothing is held, so that the client can count how
    many tokens the old weights wrote.
    """

    requests: dict[str, Any]
    pause_state: PauseState

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._portion = int(os.environ[PORTION_VARIABLE])
        self._held: dict[str, list[EngineCoreOutput]] = {}

    def update_from_output(self, *args: Any, **kwargs: Any) -> dict[int, EngineCoreOutputs]:
        messages: dict[int, EngineCoreOutputs] = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        for message in messages.values():
            message.outputs = self._due(message.outputs)
        if self._is_paused:
            self._release_all(messages)
        return messages

    def get_num_unfinished_requests(self) -> int:
        """Of a paused scheduler too, as long as tokens are held: then the core makes one more, empty step."""
        unfinished: int = super().get_num_unfinished_requests()  # type: ignore[misc]
        return unfinished or (self._is_paused and len(self._held))

    @property
    def _is_paused(self) -> bool:
        return self.pause_state is PauseState.PAUSED_ALL

    def _due(self, outputs: list[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """Return what to send now. Of every running request there is an output in each step: microseconds count."""
        held, due = self._held, []
        for output in outputs:
            name = output.request_id
            waiting = held.get(name)
            if waiting is None:
                if self._may_wait(output):
                    held[name] = [output]
                else:
                    due.append(output)
                continue
            waiting.append(output)
            if len(waiting) >= self._portion or others_of(output) != NOTHING:
                due.append(joined(held.pop(name)))
        return due

    def _may_wait(self, output: EngineCoreOutput) -> bool:
        if others_of(output) != NOTHING:
            return False
        request = self.requests.get(output.request_id)
        params = request.sampling_params if request is not None else None
        return params is not None and params.logprobs is not None and not params.detokenize

    def _release_all(self, messages: dict[int, EngineCoreOutputs]) -> None:
        held, self._held = self._held, {}
        for name, outputs in held.items():
            if (request := self.requests.get(name)) is not None:  # else it was aborted
                client = request.client_index
                messages.setdefault(client, EngineCoreOutputs()).outputs.append(joined(outputs))

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        finished = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        for name in self._held.keys() - self.requests.keys():
            del self._held[name]
        return finished


class PortionScheduler(InPortions, BetweenBlocks, Scheduler):
    """Where each step waits for the one before."""


class AsyncPortionScheduler(InPortions, BetweenBlocks, AsyncScheduler):
    """Where a step is prepared while the one before is computed."""


def joined(outputs: list[EngineCoreOutput]) -> EngineCoreOutput:
    """Return the last output with the tokens and log-probs of all."""
    last = outputs[-1]
    if len(outputs) > 1:
        last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
        parts = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
        last.new_logprobs = _joined_logprobs(parts) if parts else None
    return last


def _joined_logprobs(parts: list[LogprobsLists]) -> LogprobsLists:
    return LogprobsLists(
        np.concatenate([part.logprob_token_ids for part in parts]),
        np.concatenate([part.logprobs for part in parts]),
        np.concatenate([part.sampled_token_ranks for part in parts]),
    )
