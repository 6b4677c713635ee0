"""Rows of a step that are below a grammar, as each of vLLM's model runners knows them; the runners are stand-ins."""

from __future__ import annotations

import inspect
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_plugin_vllm.names import ANSWER
from rlhf_plugin_vllm.worker.mask_places import FirstRunner, SecondRunner
from rlhf_plugin_vllm.worker.masked_mass import MaskedMasses

NAMES = ["below-x", "free-z", "other-y"]
PROMPTS = {"below-x": 3, "free-z": 1, "other-y": 5}
COMPUTED, SCHEDULED = [0, 4, 5], [3, 1, 1]
LOGITS = [[2.0, 0.0, -2.0]] * 3
MASKED = [[2.0, 0.0, -math.inf], [2.0, 0.0, -2.0], [-math.inf, -math.inf, -2.0]]
"""The answer ``below`` may go on with tokens 0 and 1, ``other`` with token 2."""


def params(name):
    answers = {"below-x": ("below", 2.0), "other-y": ("other", 0.0)}
    if name not in answers:
        return SimpleNamespace(temperature=1.0, extra_args=None)
    answer, temperature = answers[name]
    return SimpleNamespace(temperature=temperature, extra_args={ANSWER: answer})


def lay(logits):
    logits.copy_(torch.tensor(MASKED))


def first_step(masses, logits):
    states = {
        name: SimpleNamespace(sampling_params=params(name), num_prompt_tokens=PROMPTS[name])
        for name in NAMES
    }
    module = SimpleNamespace(apply_grammar_bitmask=lambda *arguments: lay(arguments[3]))
    FirstRunner(SimpleNamespace(requests=states), module, masses)
    module.apply_grammar_bitmask(
        SimpleNamespace(num_scheduled_tokens=dict(zip(NAMES, SCHEDULED, strict=True))),
        # A request that has left the batch keeps its mask for a step.
        SimpleNamespace(structured_output_request_ids=["other-y", "gone", "below-x"]),
        SimpleNamespace(req_ids=NAMES, num_computed_tokens_cpu=np.array(COMPUTED)),
        logits,
    )


def second_step(masses, logits):
    states = SimpleNamespace(
        req_id_to_index={}, prompt_len=SimpleNamespace(np=np.zeros(8, dtype=np.int32))
    )

    def add(scheduled):
        # From the end, as vLLM takes free places.
        for index, request in zip((7, 6, 5), scheduled.scheduled_new_reqs, strict=True):
            states.req_id_to_index[request.req_id] = index
            states.prompt_len.np[index] = PROMPTS[request.req_id]

    worker = SimpleNamespace(apply_grammar_bitmask=lambda *arguments: lay(arguments[0]))
    runner = SimpleNamespace(req_states=states, structured_outputs_worker=worker, add_requests=add)
    SecondRunner(runner, masses)
    new = [SimpleNamespace(req_id=name, sampling_params=params(name)) for name in NAMES]
    runner.add_requests(SimpleNamespace(scheduled_new_reqs=new))
    read = torch.tensor(COMPUTED) + torch.tensor(SCHEDULED)
    batch = SimpleNamespace(
        req_ids=NAMES, seq_lens_cpu_upper_bound=read, cu_num_logits_np=np.arange(4)
    )
    worker.apply_grammar_bitmask(logits, batch, ["other-y", "below-x"], np.zeros((2, 1)))


@pytest.mark.parametrize("step", [first_step, second_step])
def test_masses_are_those_of_each_answers_next_token_and_the_masks_are_vllms(step):
    masses, logits = MaskedMasses([]), torch.tensor(LOGITS)

    step(masses, logits)

    assert logits.tolist() == MASKED
    # The prompt of 3 is read: place 0, at temperature 2. (exp(1) + exp(0)) of exp(1) + exp(0) + exp(-1).
    assert masses.take("below", 1, ["other"]) == pytest.approx([0.90997], rel=1e-4)
    # Of a prompt of 5, 5 are computed and 1 is read: place 1, at temperature 1. exp(-2) of exp(2) + 1 + exp(-2).
    first, second = masses.take("other", 2, [])
    assert math.isnan(first)
    assert second == pytest.approx(0.015876, rel=1e-3)


@pytest.mark.scale
def test_vllms_own_runners_have_what_is_replaced():
    pytest.importorskip("vllm")
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu import model_runner, structured_outputs
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.states import RequestState

    laid = inspect.signature(gpu_model_runner.apply_grammar_bitmask).parameters
    assert list(laid) == ["scheduler_output", "grammar_output", "input_batch", "logits"]
    worker = structured_outputs.StructuredOutputsWorker
    laid = inspect.signature(worker.apply_grammar_bitmask).parameters
    assert list(laid)[1:5] == ["logits", "input_batch", "grammar_req_ids", "grammar_bitmask"]
    runner = model_runner.GPUModelRunner
    assert list(inspect.signature(runner.add_requests).parameters) == ["self", "scheduler_output"]
    assert {"req_ids", "seq_lens_cpu_upper_bound", "cu_num_logits_np"} <= set(
        InputBatch.__dataclass_fields__
    )
    source = inspect.getsource(RequestState.__init__)
    assert "self.req_id_to_index" in source
    assert "self.prompt_len" in source
