"""Where vLLM's two model runners lay the masks of grammars: there a worker measures what the masks leave.

Each runner knows the rows of a step in its own way. A row's place in its answer is the number of tokens that the model
has read after the step, less those of the prompt. No tokens are speculative, so each request has one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ..names import ANSWER
from .masked_mass import Masked, MaskedMasses


def measure_masks(runner: Any, masses: MaskedMasses) -> None:
    """Have a worker's model runner keep the masses of the answers that come from now on."""
    if getattr(runner, "structured_outputs_worker", None) is not None:
        SecondRunner(runner, masses)
        return
    from vllm.v1.worker import gpu_model_runner

    FirstRunner(runner, gpu_model_runner, masses)


class FirstRunner:
    """The runner of ``vllm.v1.worker.gpu_model_runner``, which workers on a CPU have, too.

    It takes the function that lays masks from its own module, where a step finds ours from now on.
    """

    def __init__(self, runner: Any, module: Any, masses: MaskedMasses) -> None:
        self._requests, self._masses = runner.requests, masses
        self._mask = module.apply_grammar_bitmask
        module.apply_grammar_bitmask = self.apply

    def apply(self, scheduled: Any, grammars: Any, batch: Any, logits: Tensor) -> None:
        """Lay the masks of a step on its logits (N, V) as vLLM does, and keep the masses.

        Args:
            scheduled: vLLM's schedule of the step.
            grammars: the masks, with the names of their requests, of which some may have left the batch.
            batch: the batch of the step, whose rows are those of the logits.
        """
        row_of = {name: row for row, name in enumerate(batch.req_ids)}
        masked = []
        for name in grammars.structured_output_request_ids:
            if name in row_of:
                row, state = row_of[name], self._requests[name]
                read = (
                    int(batch.num_computed_tokens_cpu[row]) + scheduled.num_scheduled_tokens[name]
                )
                wanted = _Wanted.of(state.sampling_params)
                masked.append(wanted.at(row, read - state.num_prompt_tokens))
        self._masses.measure(logits, masked, lambda: self._mask(scheduled, grammars, batch, logits))


class SecondRunner:
    """The runner of ``vllm.v1.worker.gpu``, which keeps numbers of a request, and not what it asked for."""

    def __init__(self, runner: Any, masses: MaskedMasses) -> None:
        self._states, self._masses = runner.req_states, masses
        self._wanted: dict[str, _Wanted] = {}
        self._add, runner.add_requests = runner.add_requests, self.add
        worker = runner.structured_outputs_worker
        self._mask, worker.apply_grammar_bitmask = worker.apply_grammar_bitmask, self.apply

    def add(self, scheduled: Any) -> None:
        """Take the new requests of a step as vLLM does, and keep what those below a grammar asked for."""
        self._add(scheduled)
        present = self._states.req_id_to_index
        self._wanted = {name: each for name, each in self._wanted.items() if name in present}
        for request in scheduled.scheduled_new_reqs:
            params = request.sampling_params
            if params is not None and ANSWER in (params.extra_args or {}):
                self._wanted[request.req_id] = _Wanted.of(params)

    def apply(
        self, logits: Tensor, batch: Any, names: Sequence[str], masks: Any, *others: Any
    ) -> None:
        """Lay the masks of a step on its logits (N, V) as vLLM does, and keep the masses.

        Args:
            batch: the batch of the step.
            names: requests below a grammar, in the order of their masks.
            masks: the masks in bits.
            others: what newer versions of vLLM give besides.
        """
        row_of = {name: row for row, name in enumerate(batch.req_ids)}
        masked = []
        for name in names:
            if name in self._wanted:
                row = row_of[name]
                prompt = int(self._states.prompt_len.np[self._states.req_id_to_index[name]])
                # A bound for speculative tokens alone, and exact without them.
                read = int(batch.seq_lens_cpu_upper_bound[row])
                logit = int(batch.cu_num_logits_np[row])
                masked.append(self._wanted[name].at(logit, read - prompt))
        self._masses.measure(
            logits, masked, lambda: self._mask(logits, batch, names, masks, *others)
        )


class _Wanted(NamedTuple):
    """A request's wishes below a grammar."""

    answer: str
    temperature: float

    @classmethod
    def of(cls, params: Any) -> _Wanted:
        return cls(params.extra_args[ANSWER], params.temperature or 1.0)

    def at(self, row: int, place: int) -> Masked:
        return Masked(row, self.answer, place, self.temperature)
