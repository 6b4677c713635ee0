"""vLLM's scheduler, which tells the client of new tokens in portions. vLLM's core imports this module.

vLLM sends its client each token of each running request as soon as it is sampled, which a person at a terminal wants.
Rollouts are read when they are complete, and what is sent costs both ends: with log-probs a message for each token
takes the client about 25 us, so that with 256 running requests the client, and not the GPU, sets the pace of a small
model. Portions of 32 tokens take it a sixth of that (`benchmarks/vllm_client.py`).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists

from .names import PORTION_VARIABLE

MERGED = {"request_id", "new_token_ids", "new_logprobs"}
OTHERS = [
    (name, getattr(EngineCoreOutput("", []), name))
    for name in EngineCoreOutput.__struct_fields__
    if name not in MERGED
]
"""What else an output can have, and the value that means nothing."""


class InPortions:
    """Mixed into a scheduler of vLLM: holds tokens back until there are enough of a request, or it ends.

    Whatever is more than tokens and log-probs goes at once, with the tokens held before it. So do the tokens of
    requests with stop strings, which the client looks for. While the scheduler is paused nothing is held, so that the
    client can count how many tokens the old weights wrote.
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
            message.outputs = [due for output in message.outputs if (due := self._due(output))]
        self._forget_aborted()
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

    def _due(self, output: EngineCoreOutput) -> EngineCoreOutput | None:
        """Return what to send now: nothing, or the output with what was held before it."""
        name = output.request_id
        if self._may_wait(output):
            held = self._held.setdefault(name, [])
            held.append(output)
            return self._release(name) if len(held) >= self._portion else None
        if name in self._held:
            self._held[name].append(output)
            return self._release(name)
        return output

    def _may_wait(self, output: EngineCoreOutput) -> bool:
        request = self.requests.get(output.request_id)
        if request is None or request.sampling_params is None:
            return False
        if request.sampling_params.detokenize:
            return False
        return all(getattr(output, name) == nothing for name, nothing in OTHERS)

    def _release(self, name: str) -> EngineCoreOutput:
        return joined(self._held.pop(name))

    def _release_all(self, messages: dict[int, EngineCoreOutputs]) -> None:
        for name in list(self._held):
            client = self.requests[name].client_index
            messages.setdefault(client, EngineCoreOutputs()).outputs.append(self._release(name))

    def _forget_aborted(self) -> None:
        for name in self._held.keys() - self.requests.keys():
            del self._held[name]


class PortionScheduler(InPortions, Scheduler):
    """Where each step waits for the one before."""


class AsyncPortionScheduler(InPortions, AsyncScheduler):
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
