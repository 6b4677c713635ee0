"""A GPU kernel of the delta rule is taken only where it computes what plain torch does."""

from __future__ import annotations

from itertools import pairwise

import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as family

from rlhf_torch.recurrent.kernels import packed_kernel, problem_of

CPU = torch.device("cpu")
SIZES = (64, 64)
PLAIN = family.torch_chunk_gated_delta_rule


def knows_sequences(*row, cu_seqlens, g, beta, **options):
    """What a kernel is to compute: each sequence alone."""
    bounds = cu_seqlens.tolist()
    parts = [
        PLAIN(
            *(part[:, begin:end] for part in row),
            g=g[:, begin:end],
            beta=beta[:, begin:end],
            **options,
        )[0]
        for begin, end in pairwise(bounds)
    ]
    return torch.cat(parts, dim=1), None


def test_a_kernel_that_computes_each_sequence_alone_has_no_problem():
    assert problem_of(knows_sequences, PLAIN, CPU, *SIZES) is None


def test_a_kernel_that_takes_the_row_for_one_sequence_is_found_out():
    problem = problem_of(PLAIN, PLAIN, CPU, *SIZES)

    assert problem.startswith("differs from plain torch by")


def test_a_kernel_with_wrong_gradients_is_found_out():
    def wrong(query, *row, **options):
        outputs, state = knows_sequences(query, *row, **options)
        return outputs + 0.5 * (query - query.detach()), state

    assert problem_of(wrong, PLAIN, CPU, *SIZES).startswith("differs from plain torch by")


def test_a_kernel_that_raises_in_its_backward_pass_is_found_out():
    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part):
            return part.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("Triton produces incorrect results\nmore")

    def kernel(query, *row, **options):
        outputs, state = knows_sequences(query, *row, **options)
        return Raising.apply(outputs), state

    assert problem_of(kernel, PLAIN, CPU, *SIZES) == "raises: Triton produces incorrect results"


def test_a_kernel_is_probed_with_the_sizes_of_the_models_own_heads():
    shapes = []

    def kernel(*row, **options):
        shapes.append([part.shape[-1] for part in row])
        return knows_sequences(*row, **options)

    assert problem_of(kernel, PLAIN, CPU, 128, 64) is None
    assert shapes == [[128, 128, 64]]


def test_a_cpu_has_no_kernel():
    assert packed_kernel(PLAIN, CPU, *SIZES) is None
