"""AdamW with 8-bit state. What it computes is bitsandbytes' and needs a GPU."""

import copy

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from rlhf_core import ConfigError
from rlhf_plugin_optim.adam8bit import Adam8bit
from rlhf_plugin_optim.config import Adam8bitConfig

HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")


@pytest.mark.skipif(HAS_GPU, reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu_is_refused_with_what_to_choose_instead():
    with pytest.raises(ConfigError, match=r"CUDA GPU, and torch sees none; choose --optim adam"):
        Adam8bit(Adam8bitConfig())


@pytest.mark.gpu
@needs_gpu
def test_parameters_on_the_cpu_are_refused_by_name():
    adam = Adam8bit(Adam8bitConfig())
    groups = adam.parameter_groups(nn.Linear(2, 2).named_parameters())

    with pytest.raises(ConfigError, match="weight is on cpu"):
        adam.create(groups)


@pytest.mark.gpu
@needs_gpu
def test_a_quadratic_falls_with_one_byte_per_moment_and_goes_on_after_loading():
    pytest.importorskip("bitsandbytes")
    adam = Adam8bit(Adam8bitConfig(lr=0.05))

    def started():
        torch.manual_seed(0)
        model = nn.Linear(128, 128, device="cuda")
        return model, adam.create(adam.parameter_groups(model.named_parameters()))

    def learn(model, optimizer):
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = model.weight.square().sum() + model.bias.square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model, optimizer = started()
    losses = learn(model, optimizer)
    resumed, other = started()
    resumed.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    assert losses[-1] < losses[0]
    assert optimizer.state[model.weight]["state1"].dtype == torch.uint8
    assert optimizer.state[model.bias]["state1"].dtype == torch.float32
    assert learn(resumed, other) == learn(model, optimizer)


@pytest.mark.parametrize("wrong", [{"min_8bit_size": -1}, {"lr": 2.0}, {"bits": 4}])
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        Adam8bitConfig(**wrong)
