"""Updates one after the other: the model's own loading code runs in the first only, and whenever it has to."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytest.importorskip("vllm")

from rlhf_weights import HostBuffer, aligned, slot_for

pytestmark = pytest.mark.scale

# vLLM is imported while a test runs: what its modules import warns.


class Model(nn.Module):
    """Two weights in one parameter, and a third; counts how often it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.stacked = nn.Parameter(torch.zeros(4, 3), requires_grad=False)
        self.norm = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.loads = 0

    def load_weights(self, weights):
        self.loads += 1
        places = {"q": self.stacked.data[:2], "k": self.stacked.data[2:], "norm": self.norm.data}
        for name, weight in weights:
            places[name].copy_(weight)


class ThroughALink:
    """Brings one bucket, the slots as a plan has them: in a tuple."""

    def __init__(self, slots, bucket) -> None:
        self.buckets = [(tuple(slots), bucket)]

    def update(self, version):
        return self

    def __enter__(self):
        return iter(self.buckets)

    def __exit__(self, *_):
        return None


@pytest.fixture
def receiver():
    from rlhf_plugin_vllm.worker.checkpoint_names import CheckpointNames
    from rlhf_plugin_vllm.worker.receiver import InitInfo, WeightReceiver
    from rlhf_plugin_vllm.worker.unread_layers import UnreadLayers

    # Without vLLM's own parts of a worker, which take a whole engine.
    made = WeightReceiver.__new__(WeightReceiver)
    made.model, made.device = Model(), torch.device("cpu")
    made.parallel_config = SimpleNamespace(pipeline_parallel_size=1)
    # No class of Transformers: weights keep their names.
    made._names, made._unread = CheckpointNames(None), UnreadLayers(None)
    made.init_transfer_engine(InitInfo())
    yield made
    made.shutdown()


@pytest.fixture
def update(receiver):
    """``update(weights)``: one update, by the description of a buffer or by a link."""
    from rlhf_plugin_vllm.worker.receiver import UpdateInfo

    buffers = []

    def send(weights, way="buffer"):
        slots, end = [], 0
        for name, weight in weights.items():
            slots.append(slot_for(name, weight, aligned(end)))
            end = slots[-1].offset + slots[-1].nbytes
        buffers.append(HostBuffer(4096))
        for slot in slots:
            slot.view(buffers[-1].bytes).copy_(weights[slot.name])
        receiver.start_weight_update()
        if way == "link":
            receiver._link = ThroughALink(slots, buffers[-1].bytes)
            receiver.receive_weights(UpdateInfo(version=1))
            receiver._link = None
        else:
            plain = [asdict(slot) for slot in slots]
            receiver.receive_weights(UpdateInfo(buffer=buffers[-1].description, slots=plain))

    yield send
    receiver.shutdown()
    for buffer in buffers:
        buffer.close()


def weights(seed=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    shapes = {"q": (2, 3), "k": (2, 3), "norm": (3,)}
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}


def assert_served(receiver, sent, also=()):
    model = receiver.model
    held = {"q": model.stacked[:2], "k": model.stacked[2:], "norm": model.norm}
    for name, weight in sent.items():
        torch.testing.assert_close(held[name], weight, rtol=0, atol=0)
    assert receiver.missing() == []
    assert sorted(held["name"] for held in receiver.served()) == sorted([*sent, *also])


@pytest.mark.parametrize("way", ["buffer", "link"])
def test_later_updates_do_without_the_models_own_code(receiver, update, way):
    for seed in range(3):
        update(weights(seed), way)
        assert_served(receiver, weights(seed))

    assert receiver.model.loads == 1


def test_other_shapes_and_types_are_loaded_anew(receiver, update):
    update(weights(1))
    halves = weights(2, torch.bfloat16)
    update(halves)

    assert_served(receiver, {name: weight.float() for name, weight in halves.items()})
    assert receiver.model.loads == 2


def test_a_parameter_that_was_replaced_is_found_again(receiver, update):
    update(weights(1))
    receiver.model.norm = nn.Parameter(torch.zeros(3), requires_grad=False)
    update(weights(2))

    assert_served(receiver, weights(2))
    assert receiver.model.loads == 2


def test_what_goes_nowhere_is_refused_again_and_again(receiver, update):
    """The first time nothing was learnt from it."""
    receiver.model.load_weights = lambda weights: list(weights)

    for _ in range(2):
        with pytest.raises(ValueError, match=r"weight q .* has no place"):
            update(weights())


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("moves_first", [False, True])
def test_weights_in_host_memory_reach_a_model_on_a_gpu(receiver, update, moves_first):
    """``head`` is tied; some of vLLM's code moves a weight before it copies it."""
    receiver.model, receiver.device = Model().cuda(), torch.device("cuda")
    load = receiver.model.load_weights

    def only_known(weights):
        found = ((name, w.cuda() if moves_first else w) for name, w in weights if name != "head")
        return load(found)

    receiver.model.load_weights = only_known
    for seed in range(3):
        sent = weights(seed)
        update(sent | {"head": sent["q"]})
        assert_served(receiver, {name: w.cuda() for name, w in sent.items()}, also=["head"])

    assert receiver.model.loads == 1
