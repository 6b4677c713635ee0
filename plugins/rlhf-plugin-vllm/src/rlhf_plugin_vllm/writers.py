"""Writers: running requests with the tokens that vLLM's core has not sent yet. vLLM's core imports this module."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request


class StepLogprobs:
    """Log-probs of the tokens of one step, as flat lists: reading a single number costs less from a list than an array.

    ``width`` is the number of columns of ``ids`` and ``logprobs``; ``ranks`` has one entry a row.
    """

    __slots__ = ("ids", "logprobs", "ranks", "width")

    def __init__(self, lists: LogprobsLists) -> None:
        self.width = lists.logprobs.shape[1]
        self.ids: list[int] = lists.logprob_token_ids.ravel().tolist()
        self.logprobs: list[float] = lists.logprobs.ravel().tolist()
        self.ranks: list[int] = lists.sampled_token_ranks.tolist()


class Writer:
    """A request whose tokens may wait for each other.

    ``last`` is the number of output tokens with which the request ends at the latest. ``stops`` are the tokens that end
    the request earlier. ``is_plain`` is True if vLLM does nothing with the request's tokens but append them and compare
    them with ``stops`` and ``last``.
    """

    __slots__ = (
        "is_plain",
        "last",
        "num_logprobs",
        "num_preemptions",
        "request",
        "routes",
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
        # Step of each token, and the token's row in the step. A list of pairs would burden the garbage collector.
        self.steps: list[StepLogprobs] = []
        self.rows: list[int] = []
        self.routes: list[NDArray[np.signedinteger]] = []
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
        """Keep the tokens, log-probs and routes of an output that vLLM would have sent."""
        self.tokens += output.new_token_ids
        if output.routed_experts is not None:
            self.routes.append(output.routed_experts)
        if output.new_logprobs is not None:
            step = StepLogprobs(output.new_logprobs)
            self.rows += range(len(step.ranks))
            self.steps += [step] * len(step.ranks)

    def release(self, output: EngineCoreOutput | None = None) -> EngineCoreOutput:
        """Return an output with all tokens, log-probs and routes that were kept; ``output`` itself if it is given."""
        output = output or EngineCoreOutput(self.request.request_id, [])
        output.new_token_ids, self.tokens = self.tokens, []
        if self.rows:
            output.new_logprobs = self._logprobs()
            self.steps, self.rows = [], []
        if self.routes:
            output.routed_experts = np.concatenate(self.routes)
            self.routes = []
        return output

    def _logprobs(self) -> LogprobsLists:
        """Return the log-probs that the request asked for; a step has more columns if another one asked for more."""
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
