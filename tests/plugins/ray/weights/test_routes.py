"""Which way weights take, for placements that no test machine has."""

import pytest

from rlhf_core import ConfigError
from rlhf_plugin_ray.weights.routes import route_to, wants_direct
from rlhf_testing.errors import has_code
from rlhf_weights import Place


def gpu(name, machine="m"):
    return Place(machine=machine, device=name)


def cpu(machine="m"):
    return Place(machine=machine, device=None)


def way(receivers, ranks, choice):
    route = route_to(receivers, ranks, choice, "engine 0")
    return None if route is None else (route.rank, route.path)


@pytest.mark.parametrize(
    ("ranks", "receivers", "expected"),
    [
        ([gpu("0")], [gpu("0")], (0, "memory")),
        ([gpu("0"), gpu("1")], [gpu("1")], (1, "memory")),
        ([gpu("0")], [gpu("1")], (0, "collective")),
        ([gpu("0"), gpu("1")], [gpu("2"), gpu("3")], (0, "collective")),
        ([gpu("0")], [gpu("1", "other machine")], (0, "collective")),
        # Two containers of one host, which have no memory in common.
        ([gpu("0")], [gpu("0", "other container")], None),
        # NCCL refuses a group that has a GPU twice.
        ([gpu("0"), gpu("1")], [gpu("0"), gpu("2")], None),
        ([gpu("0")], [cpu()], None),
        ([gpu("0")], [], None),
    ],
)
def test_memory_on_the_same_gpu_and_a_broadcast_to_others(ranks, receivers, expected):
    assert way(receivers, ranks, "auto") == expected


def test_without_a_gpu_the_object_store_is_the_default():
    assert not wants_direct("auto", [cpu()])
    assert wants_direct("auto", [gpu("0")])
    assert wants_direct("memory", [cpu()])
    assert not wants_direct("store", [gpu("0")])


@pytest.mark.parametrize(
    ("choice", "ranks", "receivers"),
    [
        ("memory", [gpu("0")], [gpu("1")]),
        ("memory", [cpu()], [cpu("other machine")]),
        ("collective", [gpu("0")], [gpu("0")]),
        ("collective", [cpu()], [gpu("0")]),
    ],
)
def test_a_chosen_way_that_does_not_lead_there_is_refused(choice, ranks, receivers):
    with pytest.raises(
        ConfigError, match=f"'{choice}'.*engine 3", check=has_code("weights/no-route")
    ):
        route_to(receivers, ranks, choice, "engine 3")


def test_a_chosen_way_is_taken_without_gpus():
    assert way([cpu()], [cpu()], "memory") == (0, "memory")
    assert way([cpu("far")], [cpu()], "collective") == (0, "collective")
