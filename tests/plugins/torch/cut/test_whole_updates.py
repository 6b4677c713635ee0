"""Parameters that several ranks hold parts of, updated whole, against the optimizer that has them whole: to the bit."""

import socket
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rlhf_core.contracts import ParameterGroup
from rlhf_plugin_algorithms.optimizers import MuonConfig
from rlhf_plugin_algorithms.optimizers.muon import Muon
from rlhf_torch.cut.fragment import Fragment
from rlhf_torch.cut.whole_updates import WholeUpdates
from rlhf_torch.ranks.ranks import Ranks

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
SHAPES = {"a.weight": (6, 4), "b.weight": (3, 9), "norm.weight": (5,), "c.weight": (8, 2)}
MATRICES = ["a.weight", "b.weight", "c.weight"]
STEPS = 4
CUTS = {
    1: [0, 67],
    2: [0, 40, 67],
    3: [0, 13, 13, 67],  # the second has nothing
    5: [0, 1, 25, 26, 60, 67],
}
"""Where the matrices, end to end, are cut between ranks."""


def parameters() -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in SHAPES.items()
    }


def gradients(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step + 1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def muon_groups(named: dict[str, torch.nn.Parameter]) -> tuple[Any, list[ParameterGroup]]:
    component = Muon(MuonConfig(lr=0.1, weight_decay=0.1))
    groups = component.parameter_groups(named.items())
    return component.create(groups), groups


def adamw_groups(named: dict[str, torch.nn.Parameter]) -> tuple[Any, list[ParameterGroup]]:
    """An optimizer that counts its updates. Nobody would need whole parameters for it."""
    groups = [
        ParameterGroup(name="matrices", named_parameters=tuple((n, named[n]) for n in MATRICES)),
        ParameterGroup(name="rest", named_parameters=(("norm.weight", named["norm.weight"]),)),
    ]
    made = [{"params": [p for _, p in group.named_parameters]} for group in groups]
    return torch.optim.AdamW(made, lr=0.1), groups


MADE = {"muon": muon_groups, "adamw": adamw_groups}


def uncut(make: Any) -> dict[str, torch.Tensor]:
    named = parameters()
    optimizer, _ = make(named)
    for step in range(STEPS):
        for name, gradient in gradients(step).items():
            named[name].grad = gradient
        optimizer.step()
    return {name: parameter.detach() for name, parameter in named.items()}


def cut(tensors: dict[str, torch.Tensor], bounds: list[int], rank: int) -> torch.Tensor:
    flat = torch.cat([tensors[name].detach().flatten() for name in MATRICES])
    padding = torch.full((3,), 7.0)
    return torch.cat([flat[bounds[rank] : bounds[rank + 1]], padding])


def held(bounds: list[int], rank: int) -> list[Fragment]:
    found, at = [], 0
    for name in MATRICES:
        numel = torch.Size(SHAPES[name]).numel()
        start, stop = max(bounds[rank], at), min(bounds[rank + 1], at + numel)
        if start < stop:
            found.append(
                Fragment(
                    name=name,
                    vector=0,
                    offset=start - bounds[rank],
                    start=start - at,
                    length=stop - start,
                )
            )
        at += numel
    return found


def on_rank(make: Any, rank: int, world_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """What is left in this rank's vector, and the keys and numbers of its state."""
    bounds = CUTS[world_size]
    named = parameters()
    inner, groups = make(named)
    optimizer = WholeUpdates(inner, [p for _, p in groups[0].named_parameters])
    vector, norm = cut(named, bounds, rank), named["norm.weight"].detach().clone()
    for group, content in zip(optimizer.param_groups, (vector, norm), strict=True):
        group["params"] = [content]
    shapes = {name: torch.Size(shape) for name, shape in SHAPES.items()}
    optimizer.attach([vector, norm], held(bounds, rank), shapes, Ranks(rank, world_size, CPU))
    for step in range(STEPS):
        if step == 2 and not held(bounds, rank):
            optimizer.state.pop(vector)  # as after loading, which brings nothing for such a rank
        vector.grad, norm.grad = cut(gradients(step), bounds, rank), gradients(step)["norm.weight"]
        optimizer.step()
    kept = optimizer.state[vector]
    facts = {key: float(value) for key, value in kept.items() if value.dim() == 0}
    assert all(value.shape == vector.shape for value in kept.values() if value.dim())
    assert len(optimizer.state) == 2  # of vectors, and of no parameter that was whole for a while
    return torch.cat([vector, norm]), facts


def work(rank: int, world_size: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size
    )
    torch.save(
        {name: on_rank(make, rank, world_size) for name, make in MADE.items()}, f"{folder}/{rank}"
    )
    dist.barrier()  # a rank that ends while another still exchanges may take gloo's threads with it
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    """What each of some ranks has in the end."""

    def run(world_size):
        if world_size == 1:
            return [{name: on_rank(make, 0, 1) for name, make in MADE.items()}]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        folder = tmp_path_factory.mktemp("ranks")
        mp.spawn(work, (world_size, port, str(folder)), nprocs=world_size)
        return [torch.load(folder / str(rank)) for rank in range(world_size)]

    return run


@pytest.mark.parametrize("world_size", CUTS)
def test_however_matrices_are_cut_they_are_updated_as_if_they_were_whole(of_ranks, world_size):
    ranks = of_ranks(world_size)

    for name, make in MADE.items():
        wanted = uncut(make)
        for rank, found in enumerate(ranks):
            vector = torch.cat([cut(wanted, CUTS[world_size], rank), wanted["norm.weight"]])
            torch.testing.assert_close(found[name][0], vector, atol=0, rtol=0)
            assert found[name][1] == ({"step": STEPS} if name == "adamw" else {})
