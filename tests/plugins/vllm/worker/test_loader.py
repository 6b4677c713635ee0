"""Which layers are refused before anything is served."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("vllm")

pytestmark = pytest.mark.scale


# vLLM is imported while a test runs: what its modules import warns.


def keep_plain(name, layer):
    from rlhf_plugin_vllm.worker.loader import _keep_plain

    _keep_plain(name, layer)


def test_a_layer_with_a_method_of_its_own_is_refused_by_name():
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    class Packed(UnquantizedLinearMethod):
        """One that keeps something beside the weights."""

    layer = nn.Linear(2, 2)
    layer.quant_method = Packed()

    with pytest.raises(ValueError, match=r"layer model\.some: Linear keeps weights in a form"):
        keep_plain("model.some", layer)


def test_latent_attention_is_refused():
    from vllm.model_executor.layers.attention import MLAAttention

    layer = MLAAttention.__new__(MLAAttention)
    nn.Module.__init__(layer)

    with pytest.raises(ValueError, match="Latent attention"):
        keep_plain("model.some", layer)


def test_experts_that_join_two_gates_are_refused():
    """The joined one would stay that of older weights."""
    runner = nn.Module()
    runner._fse_fuse_gate = True

    with pytest.raises(ValueError, match="keeps weights in a form"):
        keep_plain("model.some", runner)


def test_a_plain_layer_is_taken():
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    layer = nn.Linear(2, 3, bias=False)
    layer.quant_method = UnquantizedLinearMethod()

    keep_plain("model.some", layer)

    x = torch.tensor([[1.0, 2.0]])
    torch.testing.assert_close(layer.quant_method.apply(layer, x), layer(x))
