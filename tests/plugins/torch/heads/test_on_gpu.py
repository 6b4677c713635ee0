"""The head's way to its kernels: what happens where they cannot be built."""

import pytest
import torch

from rlhf_torch.heads import fused_head, on_gpu
from rlhf_torch.models.modeling import LogitForm


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(on_gpu, "compiled", lambda function: function)


def test_where_no_kernel_can_be_built_a_warning_says_so(caplog):
    if torch.cuda.is_available():
        pytest.skip("the kernels are built here")
    on_gpu.kernels.cache_clear()

    assert on_gpu.kernels() is None

    assert "kernels of the output head cannot be built" in caplog.text


@pytest.mark.usefixtures("uncompiled")
def test_gradients_that_are_none_are_zeros():
    raw, action = torch.randn(5, 11), torch.tensor([0, 3, 10, 2, 2])
    _, entropies, logsumexp = fused_head.head_scores(raw, action[:, None], LogitForm())
    known, grad = (raw, action, LogitForm(), logsumexp), torch.randn(5)
    zeros = torch.zeros(5)

    for of_logprob, of_entropy in ((grad, None), (None, grad)):
        made = on_gpu.head_grad_(*known, of_logprob, of_entropy, entropies)
        filled = (zeros if part is None else part for part in (of_logprob, of_entropy))
        torch.testing.assert_close(made, fused_head.head_grad(*known, *filled, entropies))
