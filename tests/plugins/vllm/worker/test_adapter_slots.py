"""Versions that a worker keeps, and the layers of which it knows where a factor belongs. The rest needs an engine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("vllm")

pytestmark = pytest.mark.scale

# vLLM is imported while a test runs: what its modules import warns.


class Manager:
    """vLLM's manager of adapters, as far as it only counts them."""

    def __init__(self, capacity=2, modules=None, packed_modules=None) -> None:
        self.capacity = capacity
        self.modules = modules or {}
        self.packed_modules = packed_modules or {}
        self.held = {}

    def list_adapters(self):
        return dict(self.held)

    def remove_adapter(self, number):
        del self.held[number]


def layer(parts, *, inputs=6, outputs=4, workers=1):
    """One of vLLM's layers with two slots of rank 8."""
    return SimpleNamespace(
        lora_a_stacked=tuple(torch.zeros(2, 1, 8, inputs) for _ in range(parts)),
        lora_b_stacked=tuple(torch.zeros(2, 1, outputs, 8) for _ in range(parts)),
        tp_size=workers,
    )


@pytest.fixture
def slots_of():
    from rlhf_plugin_vllm.worker.adapter_slots import AdapterSlots

    return AdapterSlots


def test_versions_that_nobody_keeps_are_dropped(slots_of):
    manager = Manager()
    manager.held = {1: "old", 2: "in use", 3: "old"}

    slots_of(manager).begin(4, keep=[2])

    assert manager.held == {2: "in use"}


def test_more_versions_in_use_than_vllm_holds_are_refused_with_the_option(slots_of):
    manager = Manager(capacity=2)
    manager.held = {1: "in use", 2: "in use"}

    with pytest.raises(ValueError, match=r"use 2 versions .* max_cpu_loras in \[engine\.vllm"):
        slots_of(manager).begin(3, keep=[1, 2])


def test_each_module_of_a_packed_layer_has_its_part(slots_of):
    packed = {"a.qkv_proj": ["a.q_proj", "a.k_proj", "a.v_proj"]}
    modules = {"a.qkv_proj": layer(3), "a.o_proj": layer(1)}

    rooms = slots_of(Manager(modules=modules, packed_modules=packed))._rooms

    assert sorted(rooms) == ["a.k_proj", "a.o_proj", "a.q_proj", "a.v_proj"]
    assert rooms["a.k_proj"].a is modules["a.qkv_proj"].lora_a_stacked[1]
    assert rooms["a.k_proj"].b is modules["a.qkv_proj"].lora_b_stacked[1]


def test_a_layer_with_other_parts_than_modules_is_left_out(slots_of):
    packed = {"a.in_proj": ["a.in_proj_qkv", "a.in_proj_z"]}
    modules = {"a.in_proj": layer(4), "a.joined": layer(3), "a.out_proj": layer(1)}

    assert list(slots_of(Manager(modules=modules, packed_modules=packed))._rooms) == ["a.out_proj"]


@pytest.mark.parametrize(
    ("workers", "held", "whole", "is_share"),
    [
        (1, 6, 6, True),
        (1, 6, 5, False),
        (1, 6, 12, False),
        (2, 6, 12, True),
        (2, 6, 6, True),  # all of it in each worker
        (4, 6, 12, True),  # two workers have the same keys and values
        (2, 6, 9, False),
        (2, 6, 18, False),
    ],
)
def test_a_worker_has_its_share_of_a_factor(workers, held, whole, is_share):
    from rlhf_plugin_vllm.worker.adapter_slots import _is_share, _Room

    made = layer(1, workers=workers)
    room = _Room(made.lora_a_stacked[0], made.lora_b_stacked[0], made.tp_size)

    assert _is_share(held, whole, room) == is_share


class CopyingManager(Manager):
    """vLLM's manager, which copies the factors of a version into the next of its slots."""

    model = None

    def __init__(self, modules) -> None:
        super().__init__(capacity=4, modules=modules)
        self.lora_index_to_id = [None, None]
        self.forgets = ()
        """Names of modules that it leaves as they are."""

    def add_adapter(self, adapter):
        self.held[adapter.id] = adapter

    def deactivate_adapter(self, number):
        self.lora_index_to_id = [None if held == number else held for held in self.lora_index_to_id]

    def activate_adapter(self, number):
        slot = number % 2
        self.lora_index_to_id[slot] = number
        for name, module in self.modules.items():
            weights = self.held[number].loras[name]
            if name in self.forgets:
                continue
            for stack, factor in (
                (module.lora_a_stacked[0], weights.lora_a),
                (module.lora_b_stacked[0], weights.lora_b),
            ):
                stack[slot] = 0.0
                stack[slot, 0, : factor.shape[0], : factor.shape[1]].copy_(factor)


def version(number, *, rank=2):
    """The bucket of one version: its slots and bytes, by names of factors."""
    from rlhf_weights import aligned, slot_for

    factors = {
        f"{module}.{factor}": torch.arange(float(a * b)).view(a, b) + number * 100 + at
        for at, module in enumerate(("x", "y"))
        for factor, (a, b) in {"lora_A": (rank, 6), "lora_B": (4, rank)}.items()
    }
    slots, end = [], 0
    for name, tensor in factors.items():
        slots.append(slot_for(name, tensor, aligned(end)))
        end = slots[-1].offset + slots[-1].nbytes
    store = torch.zeros(end, dtype=torch.uint8)
    for slot in slots:
        slot.view(store).copy_(factors[slot.name])
    return slots, store


@pytest.fixture
def updated(slots_of, monkeypatch):
    """``updated(version)``: slots and manager after that version came as the next one."""
    from rlhf_plugin_vllm import compat

    monkeypatch.setattr(compat, "adapted_module", lambda model, name: name)
    manager = CopyingManager({"x": layer(1), "y": layer(1)})
    held = slots_of(manager)

    def update(bucket):
        number = held._number + 1
        held.begin(number, keep=[number - 1])
        held.take(*bucket)
        held.finish()
        return held.served(number)

    update.manager = manager
    return update


def test_each_version_is_read_back_from_the_slot_that_vllm_put_it_in(updated, slots_of):
    for number in range(1, 5):
        fresh = slots_of(CopyingManager({"x": layer(1), "y": layer(1)}))
        fresh.begin(1, keep=[])
        fresh.take(*version(number))
        fresh.finish()

        assert updated(version(number)) == fresh.served(1)


def test_only_the_first_version_of_a_layout_is_recorded(updated, monkeypatch):
    from rlhf_plugin_vllm.worker import adapter_slots

    updated(version(1))
    monkeypatch.setattr(adapter_slots, "CopyRecorder", None)

    updated(version(2))

    with pytest.raises(TypeError):  # other shapes have other places
        updated(version(3, rank=1))


def test_a_later_version_that_vllm_did_not_copy_has_another_digest(updated, slots_of):
    fresh = slots_of(CopyingManager({"x": layer(1), "y": layer(1)}))
    fresh.begin(1, keep=[])
    fresh.take(*version(2))
    fresh.finish()
    right = fresh.served(1)
    updated(version(1))
    updated.manager.forgets = ("y",)

    wrong = updated(version(2))

    changed = [a["name"] for a, b in zip(right, wrong, strict=True) if a["total"] != b["total"]]
    assert changed == ["y.lora_A", "y.lora_B"]


def test_into_a_slot_that_held_the_layout_vllm_copies_nothing(updated):
    versions = [updated(version(number)) for number in range(4)]
    updated.manager.forgets = ("x", "y")

    assert [updated(version(number)) for number in range(4)] == versions
