"""Between the contract's requests and vLLM's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlhf_core import RolloutError
from rlhf_core.contracts import Stop
from rlhf_plugin_vllm.requests import completion, request_failed
from rlhf_testing.errors import has_code


def output(num_tokens, *, reason="stop", stop_reason=None, logprobs=None):
    values = [-0.5 * index for index in range(2 * num_tokens)] if logprobs is None else logprobs
    flat = SimpleNamespace(start_indices=list(range(0, 2 * num_tokens, 2)), logprobs=values)
    return SimpleNamespace(
        token_ids=list(range(num_tokens)),
        logprobs=flat,
        finish_reason=reason,
        stop_reason=stop_reason,
    )


def test_a_completion_takes_the_first_log_prob_of_each_position(make_request):
    actual = completion(make_request((5,)), output(3), [(0, 4)])

    # Two entries a position, the sampled token's first: 0, -1, -2 of 0, -.5, -1, -1.5, -2, -2.5.
    assert actual.logprobs.tolist() == [0.0, -1.0, -2.0]
    assert actual.logprobs.dtype == np.float32
    assert actual.weight_version.tolist() == [4, 4, 4]


def test_every_token_has_the_version_that_wrote_it(make_request):
    actual = completion(make_request((5,)), output(6), [(0, 1), (2, 2), (2, 3), (5, 4)])

    assert actual.weight_version.tolist() == [1, 1, 3, 3, 3, 4]


@pytest.mark.parametrize(
    ("reason", "stop_reason", "expected"),
    [
        ("stop", 2, Stop.EOS),
        ("stop", "###", Stop.STRING),
        ("length", None, Stop.LENGTH),
        ("abort", None, Stop.ABORTED),
    ],
)
def test_the_reason_to_stop_is_kept(make_request, reason, stop_reason, expected):
    written = output(2, reason=reason, stop_reason=stop_reason)

    assert completion(make_request((5,)), written, [(0, 0)]).stop is expected


@pytest.mark.parametrize("values", [[-1.0, 0.0, float("nan"), 0.0], [float("-inf")] * 4])
def test_a_log_prob_that_is_no_number_is_an_error(make_request, values):
    with pytest.raises(RolloutError, check=has_code("vllm/log-probs")):
        completion(make_request((5,)), output(2, logprobs=values), [(0, 0)])


def test_a_request_without_an_answer_is_named(make_request):
    request = make_request((5,))

    error = request_failed(request, "vLLM returned nothing")

    assert has_code("engine/request-failed")(error)
    assert str(error) == f"request {request.uid}: vLLM returned nothing"
