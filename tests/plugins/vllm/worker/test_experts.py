"""The products of a mixture of experts on a CPU, and which layers the engine takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("vllm")

pytestmark = pytest.mark.scale

# Imported while a test runs: what vLLM's modules import warns.


def weighted_sum(*args):
    from rlhf_plugin_vllm.worker.experts import weighted_sum

    return weighted_sum(*args)


def keep_plain_experts(layer, *, on_cpu):
    from rlhf_plugin_vllm.worker.experts import keep_plain_experts

    return keep_plain_experts(layer, on_cpu=on_cpu)


N, K, E, D, SIZE = 7, 2, 5, 4, 3


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))


@pytest.fixture
def case():
    """Tokens, stacks, weights and ids; expert 3 is chosen by none."""
    ids = torch.tensor([[0, 1], [1, 4], [2, 0], [4, 1], [0, 2], [1, 2], [4, 0]])
    return drawn(N, D), drawn(E, 2 * SIZE, D), drawn(E, D, SIZE), drawn(N, K).softmax(-1), ids


def one_by_one(x, gate_up, down, weights, ids):
    total = torch.zeros(N, D)
    for token in range(N):
        for place in range(K):
            expert = int(ids[token, place])
            if expert >= 0:
                gate, up = gate_up[expert, :SIZE] @ x[token], gate_up[expert, SIZE:] @ x[token]
                total[token] += weights[token, place] * (down[expert] @ (F.silu(gate) * up))
    return total


def test_it_is_the_sum_over_tokens_and_their_experts(case):
    torch.testing.assert_close(weighted_sum(*case, "silu"), one_by_one(*case))


def test_experts_of_another_worker_add_nothing(case):
    """Two workers, with experts 0 and 1, and 2 to 4: their sums are the whole's."""
    x, gate_up, down, weights, ids = case
    first = torch.tensor([0, 1, -1, -1, -1])[ids]
    second = torch.tensor([-1, -1, 0, 1, 2])[ids]

    parts = weighted_sum(x, gate_up[:2], down[:2], weights, first, "silu") + weighted_sum(
        x, gate_up[2:], down[2:], weights, second, "silu"
    )

    torch.testing.assert_close(parts, one_by_one(*case))


def test_no_tokens_give_no_rows(case):
    x, gate_up, down, weights, ids = case

    assert weighted_sum(x[:0], gate_up, down, weights[:0], ids[:0], "silu").shape == (0, D)


def test_experts_of_gpt_oss_have_biases_and_gates_and_ups_in_turn():
    """By hand: one token, one expert of width 1. Gate 9 is cut to 7, up -9 to -7, so the hidden number is
    (-7 + 1) * 7 * sigmoid(1.702 * 7) = -42 * 0.9999933..., and the output twice that and 0.5 more."""
    x, weights, ids = torch.tensor([[1.0]]), torch.tensor([[1.0]]), torch.tensor([[0]])
    gate_up, biases = torch.tensor([[[8.0], [-8.0]]]), torch.tensor([[1.0, -1.0]])
    down, added = torch.tensor([[[2.0]]]), torch.tensor([[0.5]])

    total = weighted_sum(x, gate_up, down, weights, ids, "swigluoai", biases, added)

    expected = 2 * -42 * torch.sigmoid(torch.tensor(1.702 * 7)) + 0.5
    torch.testing.assert_close(total, expected.view(1, 1))


def layer(*, kernel="TRITON", activation="silu", limit=None, balanced=False, bias=False, shards=1):
    """What is looked at of vLLM's layer; to make a real one takes its whole configuration."""
    return SimpleNamespace(
        quant_method=SimpleNamespace(
            unquantized_backend=SimpleNamespace(name=kernel, value=kernel), is_monolithic=False
        ),
        moe_config=SimpleNamespace(
            moe_parallel_config=SimpleNamespace(enable_eplb=balanced, tp_size=shards),
            has_bias=bias,
        ),
        activation=SimpleNamespace(value=activation),
        swiglu_limit=limit,
        apply_router_weight_on_input=False,
    )


@pytest.mark.parametrize("kernel", ["TRITON", "BATCHED_TRITON"])
def test_on_a_gpu_kernels_in_triton_stay_as_they_are(kernel):
    one = layer(kernel=kernel)
    method = one.quant_method

    assert keep_plain_experts(one, on_cpu=False) is None
    assert one.quant_method is method


@pytest.mark.parametrize(
    ("options", "on_cpu", "reason"),
    [
        ({"kernel": "FlashInfer CUTLASS"}, False, "FlashInfer CUTLASS"),
        ({"balanced": True}, False, "enable_eplb"),
        ({"balanced": True}, True, "enable_eplb"),
        ({"activation": "relu2"}, True, "relu2"),
        ({"limit": 7.0}, True, "silu"),
        ({"bias": True, "shards": 2}, True, "biases"),
        ({"bias": True, "shards": 2}, False, "biases"),
    ],
)
def test_layers_that_would_compute_with_other_weights_are_refused(options, on_cpu, reason):
    assert reason in keep_plain_experts(layer(**options), on_cpu=on_cpu)


def test_the_names_are_those_of_vllm():
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend

    from rlhf_plugin_vllm.worker.experts import ACTIVATIONS, PLAIN_KERNELS

    assert set(PLAIN_KERNELS) <= {kernel.name for kernel in UnquantizedMoeBackend}
    assert set(ACTIVATIONS) <= {activation.value for activation in MoEActivation}
