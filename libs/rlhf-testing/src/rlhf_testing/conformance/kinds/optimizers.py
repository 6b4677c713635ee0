"""Checks of optimizers (``contracts.Optimizer``)."""

from __future__ import annotations

import copy

import torch
from torch import nn

from ..subject import Subject, checks_in, traits

STEPS = 60


class _Model(nn.Module):
    """Return the parameters of a small language model: embeddings tied to the head, matrices, gains, a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator) * 0.3 + 0.5)

        self.embed_tokens = nn.ParameterDict({"weight": drawn(12, 8)})
        self.layer = nn.ParameterDict({"q_proj": drawn(8, 8), "up_proj": drawn(16, 8)})
        self.norm = nn.ParameterDict({"weight": drawn(8)})
        self.bias = drawn(3)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def loss(self) -> torch.Tensor:
        """Return the squared distance from 0, which any optimizer decreases."""
        return torch.stack([p.square().sum() for p in self.parameters() if p.requires_grad]).sum()


def _made(subject: Subject) -> tuple[_Model, torch.optim.Optimizer]:
    model, component = _Model(), subject.make()
    groups = component.parameter_groups(list(model.named_parameters()))
    optimizer = component.create(groups)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    return model, optimizer


def _step(model: _Model, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model.loss().backward()
    optimizer.step()


def check_every_parameter_is_in_one_group(subject: Subject) -> None:
    """Each trainable parameter is in one parameter group, under its own name; frozen ones in none; names are unique."""
    model = _Model()
    named = dict(model.named_parameters())
    groups = subject.make().parameter_groups(list(named.items()))
    placed = [name for group in groups for name, _ in group.named_parameters]
    wanted = sorted(name for name, parameter in named.items() if parameter.requires_grad)
    assert sorted(placed) == wanted, f"groups hold {sorted(placed)}, expected {wanted}"
    for group in groups:
        for name, parameter in group.named_parameters:
            assert parameter is named[name], f"{name} in group {group.name} is another parameter"
    labels = [group.name for group in groups]
    assert len(set(labels)) == len(labels), f"groups of one name: {labels}"


def check_the_optimizer_holds_every_parameter(subject: Subject) -> None:
    """The torch optimizer that ``create`` returns holds each trainable parameter once."""
    model, optimizer = _made(subject)
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    wanted = {id(p) for p in model.parameters() if p.requires_grad}
    assert len(held) == len(set(held)), "a parameter is in two groups of the torch optimizer"
    assert set(held) == wanted, (
        f"{len(set(held) & wanted)} of {len(wanted)} trainable parameters are held, "
        f"and {len(set(held) - wanted)} others"
    )


def check_groups_have_a_learning_rate(subject: Subject) -> None:
    """Each torch parameter group carries ``lr``, which the schedule scales."""
    component = subject.make()
    groups = component.parameter_groups(list(_Model().named_parameters()))
    for group in component.create(groups).param_groups:
        assert "lr" in group, f"a group without lr: {sorted(group)}"


def check_no_learning_rate_no_change(subject: Subject) -> None:
    """With ``lr`` 0 a step changes no weight, by weight decay neither: the schedule is in full control."""
    model, optimizer = _made(subject)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _step(model, optimizer)
    for name, parameter in model.named_parameters():
        moved = float((parameter.detach() - before[name]).abs().max())
        assert moved == 0.0, f"{name} moved by {moved:.4g} at a learning rate of 0"


def check_the_loss_falls(subject: Subject) -> None:
    """On a quadratic every trainable parameter comes closer to its minimum; frozen ones stay."""
    model, optimizer = _made(subject)
    before = {name: float(p.detach().square().sum()) for name, p in model.named_parameters()}
    for _ in range(STEPS):
        _step(model, optimizer)
    for name, parameter in model.named_parameters():
        now = float(parameter.detach().square().sum())
        if parameter.requires_grad:
            assert now < before[name], f"{name}: {before[name]:.4g} became {now:.4g}"
        else:
            assert now == before[name], f"{name} is frozen but was changed"


def check_state_continues(subject: Subject) -> None:
    """Saved and loaded, an optimizer goes on to the bit as if it had not been."""
    model, optimizer = _made(subject)
    for _ in range(3):
        _step(model, optimizer)
    again, other = _made(subject)
    again.load_state_dict(model.state_dict())
    # A copy: a state that is still shared would follow the first optimizer's steps.
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        _step(model, optimizer)
        _step(again, other)
    for (name, first), second in zip(model.named_parameters(), again.parameters(), strict=True):
        apart = float((first - second).detach().abs().max())
        assert apart == 0.0, f"{name} is {apart:.4g} apart after loading the state"


@traits(usual=True)
def check_weight_decay_spares_small_parameters(subject: Subject) -> None:
    """Gains and biases (one axis) have no weight decay, whatever the component's default is for matrices."""
    groups = subject.make().parameter_groups(list(_Model().named_parameters()))
    for group in groups:
        small = [name for name, p in group.named_parameters if p.dim() < 2]
        if small and "weight_decay" in group.options:
            decay = group.options["weight_decay"]
            assert decay == 0.0, f"{small[0]} has a weight decay of {decay}"


CHECKS = checks_in(__name__)
