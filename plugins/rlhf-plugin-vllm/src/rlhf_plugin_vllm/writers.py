"""Requests that write, and tokens of theirs that have not left vLLM's core. vLLM's core imports this."""

from __future__ import annotations

import numpy as np
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request


class StepLogprobs:
    """Log-probs of a step's tokens: lists of numbers, since these cost less to take one by one than arrays do."""

    __slots__ = ("ids", "logprobs", "ranks", "width")

    def __init__(self, lists: LogprobsLists) -> None:
        self.width = lists.logprobs.shape[1]
        self.ids: list[int] = lists.logprob_token_ids.ravel().tolist()
        self.logprobs: list[float] = lists.logprobs.ravel().tolist()
        self.ranks: list[int] = lists.sampled_token_ranks.tolist()


class Writer:
    """A request whose tokens may wait for each other.

    ``last`` is the number of tokens with which it ends at the latest, ``stops`` are the tokens that end it before, and
    ``is_plain`` says that nothing else happens to its tokens than that they are appended and checked for these.
    """

    __slots__ = (
        "is_plain",
        "last",
        "num_logprobs",
        "num_preemptions",
        "request",
        "rows",
        "steps",
        "stops",
        "tokens",
    )

    def __init__(self, request: Request, max_model_len: int) -> None:
        params = request.sampling_params
        assert params is not None
        self.request = request
        self.tokens: list[int] = []
        # Of each token: its step, and its row there. Two lists, as pairs would be work for the garbage collector.
        self.steps: list[StepLogprobs] = []
        self.rows: list[int] = []
        self.num_preemptions = request.num_preemptions
        self.num_logprobs = params.num_logprobs
        self.last = min(request.max_tokens, max_model_len - request.num_prompt_tokens)
        self.stops = frozenset((*(params.stop_token_ids or ()), params.eos_token_id))
        self.is_plain = not (
            params.repetition_detection
            or request.structured_output_request
            or request.has_encoder_inputs
            or request.trace_headers
            or request.resumable
        )

    def hold(self, output: EngineCoreOutput) -> None:
        """Keep what vLLM would have sent."""
        self.tokens += output.new_token_ids
        if output.new_logprobs is not None:
            step = StepLogprobs(output.new_logprobs)
            self.rows += range(len(step.ranks))
            self.steps += [step] * len(step.ranks)

    def release(self, output: EngineCoreOutput | None = None) -> EngineCoreOutput:
        """Return all that was kept, in ``output`` if there is one."""
        output = output or EngineCoreOutput(self.request.request_id, [])
        output.new_token_ids, self.tokens = self.tokens, []
        if self.rows:
            output.new_logprobs = self._logprobs()
            self.steps, self.rows = [], []
        return output

    def _logprobs(self) -> LogprobsLists:
        """Return those that the request asked for: a step has more columns if another request asked for more."""
        width = 1 + (self.num_logprobs or 0)
        where = list(zip(self.steps, self.rows, strict=True))
        rows = [(step, slice(row * step.width, row * step.width + width)) for step, row in where]
        ids = [number for step, row in rows for number in step.ids[row]]
        logprobs = [number for step, row in rows for number in step.logprobs[row]]
        return LogprobsLists(
            np.array(ids).reshape(-1, width),
            np.array(logprobs, dtype=np.float32).reshape(-1, width),
            np.array([step.ranks[row] for step, row in where]),
        )
