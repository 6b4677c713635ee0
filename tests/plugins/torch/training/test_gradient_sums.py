"""Sums of gradients: to the bit those of torch's addition; with the kernel on a GPU, or with TRITON_INTERPRET=1."""

import os

import pytest
import torch

from rlhf_torch.training import gradient_sums

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"


@pytest.fixture
def parts():
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randn(shape, generator=draw).to(DEVICE), torch.randn(shape, generator=draw))
        for shape in [(7, 5), (3,), (0,), (2500, 2)]
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gradient_is_added_in_float32(parts, dtype):
    for total, part in parts:
        half = part.to(DEVICE, dtype)
        expected = total + half.float()

        gradient_sums.add_gradient(total, half)

        assert torch.equal(total, expected)


@pytest.mark.skipif(
    not HAS_GPU and os.environ.get("TRITON_INTERPRET") != "1",
    reason="without a GPU Triton needs TRITON_INTERPRET=1 from the start",
)
def test_the_kernel_adds_as_torch_does(parts):
    pytest.importorskip("triton")
    from rlhf_torch.training import sum_kernel

    for total, part in parts:
        half = part.to(DEVICE, torch.bfloat16)
        expected = total + half.float()

        sum_kernel.add_(total, half)

        assert torch.equal(total, expected)


def test_where_no_kernel_can_be_built_a_warning_says_so(caplog):
    if HAS_GPU:
        pytest.skip("the kernel is built here")
    gradient_sums._kernels.cache_clear()

    assert gradient_sums._kernels() is None

    assert "gradients are added by a slower kernel" in caplog.text
