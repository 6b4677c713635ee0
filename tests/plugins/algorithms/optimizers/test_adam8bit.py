"""AdamW with 8-bit state. What it computes is bitsandbytes'."""

import copy
import importlib.util

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from rlhf_core import ConfigError, MissingDependency
from rlhf_plugin_algorithms.optimizers import Adam8bitConfig, AdamConfig
from rlhf_plugin_algorithms.optimizers.adam import Adam
from rlhf_plugin_algorithms.optimizers.adam8bit import Adam8bit
from rlhf_testing.errors import has_code

HAS_LIBRARY = importlib.util.find_spec("bitsandbytes") is not None
needs_library = pytest.mark.skipif(not HAS_LIBRARY, reason="needs bitsandbytes")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
        ],
    ),
]


def started(component, device):
    """A layer of 128 x 128 and its optimizer."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(128, 128)
    with torch.no_grad():
        model.weight.copy_(torch.randn(128, 128, generator=generator))
        model.bias.copy_(torch.randn(128, generator=generator))
    model.to(device)
    return model, component.create(component.parameter_groups(model.named_parameters()))


def learn(model, optimizer, steps=20):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.weight.square().sum() + model.bias.square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.skipif(HAS_LIBRARY, reason="needs bitsandbytes to be missing")
def test_without_the_library_it_is_refused_with_what_to_install():
    with pytest.raises(
        MissingDependency,
        match=r"pip install 'rlhf-plugin-algorithms\[bnb\]'",
        check=has_code("plugin/missing-dependency"),
    ):
        Adam8bit(Adam8bitConfig())


@needs_library
@pytest.mark.parametrize("device", DEVICES)
def test_a_quadratic_falls_with_one_byte_per_moment_and_goes_on_after_loading(device):
    adam = Adam8bit(Adam8bitConfig(lr=0.05))
    model, optimizer = started(adam, device)
    losses = learn(model, optimizer)
    resumed, other = started(adam, device)
    resumed.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    assert losses[-1] < losses[0]
    assert optimizer.state[model.weight]["state1"].dtype == torch.uint8
    assert optimizer.state[model.bias]["state1"].dtype == torch.float32
    assert learn(resumed, other) == learn(model, optimizer)


@needs_library
@pytest.mark.parametrize("device", DEVICES)
def test_its_weights_stay_near_those_of_adam(device):
    exact, in_8_bits = (
        started(component, device)
        for component in (Adam(AdamConfig(lr=0.01)), Adam8bit(Adam8bitConfig(lr=0.01)))
    )
    for model, optimizer in (exact, in_8_bits):
        learn(model, optimizer)

    # Twenty updates of about 0.01 move a weight by 0.2. In a block of 256, small moments are rounded the most.
    apart = (in_8_bits[0].weight - exact[0].weight).abs()
    assert float(apart.mean().detach()) < 0.01
    assert float(apart.max().detach()) < 0.1
    # Small parameters have moments in float32.
    torch.testing.assert_close(in_8_bits[0].bias, exact[0].bias, atol=1e-5, rtol=0.0)


@needs_library
def test_state_that_moves_between_gpu_and_host_needs_a_gpu():
    adam = Adam8bit(Adam8bitConfig(paged=True))
    groups = adam.parameter_groups(nn.Linear(2, 2).named_parameters())

    with pytest.raises(ConfigError, match="weight is on cpu", check=has_code("gpu/not-visible")):
        adam.create(groups)


@pytest.mark.parametrize("wrong", [{"min_8bit_size": -1}, {"lr": 2.0}, {"bits": 4}])
def test_options_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        Adam8bitConfig(**wrong)
