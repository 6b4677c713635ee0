"""Where and how precisely a role computes."""

import pytest
import torch

from rlhf_core import ConfigError
from rlhf_testing.errors import has_code
from rlhf_torch.models import device
from rlhf_torch.models.device import choose_compute_dtype, choose_device

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fast_bfloat16(monkeypatch):
    monkeypatch.setattr(device, "_is_fast_in_bfloat16", lambda _: True)


@pytest.mark.parametrize(
    ("wanted", "dtype", "size", "expected"),
    [
        ("auto", torch.float32, 999_999, torch.float32),
        ("auto", torch.float32, 1_000_000, torch.bfloat16),
        ("float32", torch.float32, 10**9, torch.float32),
        ("bfloat16", torch.float32, 10, torch.bfloat16),
        ("auto", torch.bfloat16, 10, torch.bfloat16),
    ],
)
def test_the_compute_dtype_follows_size_and_wish(wanted, dtype, size, expected):
    assert choose_compute_dtype(wanted, dtype, size, CPU) == expected


def test_auto_stays_in_float32_where_bfloat16_is_slow(monkeypatch):
    monkeypatch.setattr(device, "_is_fast_in_bfloat16", lambda _: False)

    assert choose_compute_dtype("auto", torch.float32, 10**9, CPU) == torch.float32


def test_float32_compute_on_bfloat16_weights_is_refused():
    with pytest.raises(
        ConfigError, match=r"--model\.dtype float32", check=has_code("config/float32-of-bfloat16")
    ):
        choose_compute_dtype("float32", torch.bfloat16, 10, CPU)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    with pytest.raises(
        ConfigError, match=r"--backend\.torch\.device cpu", check=has_code("gpu/not-visible")
    ):
        choose_device("cuda")
    assert choose_device("auto") == CPU
