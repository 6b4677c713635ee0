"""Versions of an adapter in one worker: factors go from buckets into vLLM's slots for adapters, and are read back.

vLLM computes with slots: each adapted layer has for each slot a matrix A (R, in) and B (out, R), where R is the largest
rank. Rows of A and columns of B beyond the adapter's rank are zero. vLLM's own code copies factors into a slot, cut for
tensor parallelism and beside the others of a packed layer (query, key and value). ``CopyRecorder`` sees each copy, so
that the factors can be read back from where vLLM computes with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.lora.model_manager import LoRAModelManager

from rlhf_weights import TensorSlot, read_sums, views

from .. import compat
from ..names import MERGED_INSTEAD
from .held_weights import held_weights
from .known_copies import KnownCopies
from .receiver import Bucket
from .recorder import CopiedPart, CopyRecorder, Placed

FACTORS = ("lora_A", "lora_B")
FIX = f"Leave this module out of the adapter, or {MERGED_INSTEAD}."


@dataclass(frozen=True, slots=True)
class _Room:
    """The matrices of one layer, or of one part of a packed layer, for the factors of one module."""

    a: Tensor
    """(slots, 1, R, in) for all slots, with this worker's share of the inputs."""
    b: Tensor
    """(slots, 1, out, R) for all slots, with this worker's share of the outputs."""
    num_workers: int
    """Number of workers that share the layer."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where vLLM put the factors of one version. The next version has the same places in another slot, if its buckets
    are laid out alike."""

    buckets: list[Sequence[TensorSlot]]
    modules: dict[str, str]
    """Names of the modules with factors, and vLLM's names of them."""
    factors: Mapping[str, Placed]
    slot: int

    def in_slot(self, slot: int, strides: Mapping[int, int]) -> dict[str, Placed]:
        """Return the factors' places in another slot.

        Args:
            strides: number of elements from one slot to the next, by the address of the matrix of all slots.
        """

        def moved(part: CopiedPart) -> CopiedPart:
            kept = part.kept
            distance = (slot - self.slot) * strides[kept.untyped_storage().data_ptr()]
            offset = kept.storage_offset() + distance
            return replace(part, kept=kept.as_strided(kept.shape, kept.stride(), offset))

        return {
            name: Placed(placed.slot, [moved(part) for part in placed.parts])
            for name, placed in self.factors.items()
        }


@dataclass(frozen=True, slots=True)
class _Filled:
    """A slot into which vLLM has copied a version."""

    factors: Mapping[str, Placed]
    copies: list[KnownCopies]
    """Copies out of each bucket into this slot."""

    @classmethod
    def by(cls, layout: _Layout, factors: Mapping[str, Placed]) -> _Filled:
        copies = [
            KnownCopies(slots, {slot.name: factors[slot.name] for slot in slots})
            for slots in layout.buckets
        ]
        return cls(factors, copies)


class AdapterSlots:
    """The versions that one worker holds. ``begin``, ``take`` for each bucket and ``finish`` bring a new one.

    Args:
        manager: vLLM's manager of the model's adapters.
    """

    def __init__(self, manager: LoRAModelManager) -> None:
        # Its classes differ between versions of vLLM and have few types.
        self._manager: Any = manager
        self._rooms = dict(_rooms(manager))
        self._number = 0
        self._buckets: list[Bucket] = []
        """Buckets of the version that is coming, or came last."""
        self._factors: Mapping[str, Placed] = {}
        """Factors of the last version, with the parts of vLLM's matrices that they were copied to."""
        self._slot = -1
        """Slot that ``_factors`` were copied to."""
        self._names: set[str] = set()
        """Names of the factors of the first version."""
        self._layout: _Layout | None = None
        """Layout of the version of which vLLM's copies were last recorded."""
        self._filled: dict[int, _Filled] = {}
        """Slots that hold, or held, a version in this layout, by index."""

    def begin(self, number: int, keep: Sequence[int]) -> None:
        """Begin a version, and drop the other versions but ``keep``.

        Raises:
            ValueError: vLLM can hold no further version.
        """
        for older in self._manager.list_adapters().keys() - set(keep):
            self._manager.remove_adapter(older)
        held = len(self._manager.list_adapters())
        if held >= self._manager.capacity:
            raise ValueError(
                f"requests in flight use {held} versions of the adapter, as many as vLLM holds; set max_cpu_loras in "
                "[engine.vllm.args] to a larger number"
            )
        self._number, self._buckets = number, []

    def take(self, slots: Sequence[TensorSlot], bucket: Tensor) -> None:
        """Copy the factors of a bucket; its bytes may change after this call."""
        end = max((slot.offset + slot.nbytes for slot in slots), default=0)
        self._buckets.append((slots, bucket[:end].clone()))
        if bucket.is_cuda:  # the sender writes the next bucket as soon as this call is answered
            torch.cuda.current_stream(bucket.device).synchronize()

    def finish(self) -> None:
        """Make vLLM ready to compute with the version.

        Raises:
            ValueError: there are no factors or other ones than before, or a factor does not fit the model.
        """
        factors = {
            slot.name: factor
            for slots, store in self._buckets
            for slot, factor in zip(slots, views(slots, store), strict=True)
        }
        modules = self._vllm_names(factors)
        layers = {}
        for module, name in modules.items():
            a, b = (factors[f"{module}.{factor}"] for factor in FACTORS)
            layers[name] = LoRALayerWeights(name, len(a), len(a), a, b, scaling=1.0)
        rank = max(layer.rank for layer in layers.values())
        self._manager.add_adapter(LoRAModel(self._number, rank, layers))
        self._activate(modules)
        self._names = self._names or set(factors)

    def _vllm_names(self, factors: Mapping[str, Tensor]) -> dict[str, str]:
        """Return vLLM's name of each module that has factors.

        Raises:
            ValueError: see ``finish``.
        """
        if (known := self._known_layout()) is not None:
            return known.modules
        self._check_names(factors)
        modules = {}
        for module in dict.fromkeys(name.rpartition(".")[0] for name in factors):
            name = compat.adapted_module(self._manager.model, module)
            a, b = (factors[f"{module}.{factor}"] for factor in FACTORS)
            self._check_fits(module, self._rooms.get(name), a, b)
            modules[module] = name
        return modules

    def _known_layout(self) -> _Layout | None:
        """Return the recorded layout if the last version's buckets have it: the same names, shapes and dtypes."""
        layout = self._layout
        if layout is None or layout.buckets != [slots for slots, _ in self._buckets]:
            return None
        return layout

    def served(self, number: int) -> list[dict[str, Any]]:
        """Return the fields of ``HeldWeight`` for each factor of the last version, read back from vLLM's slot for it.

        Raises:
            ValueError: the worker does not hold this version, or the slot holds more than the factors.
        """
        if number != self._number or number not in self._manager.list_adapters():
            raise ValueError(f"the worker does not hold version {number} of the adapter")
        if self._slot not in self._slots_of(number):  # vLLM needed the slot for an older version
            assert self._layout is not None
            self._activate(self._layout.modules)
        self._check_nothing_else()
        return held_weights(self._factors)

    def _slots_of(self, number: int) -> list[int]:
        """Return the index of the slot that vLLM has the version in, or nothing."""
        return [slot for slot, held in enumerate(self._manager.lora_index_to_id) if held == number]

    def _activate(self, modules: dict[str, str]) -> None:
        """Have vLLM copy the factors into a slot, and note where they went."""
        self._manager.deactivate_adapter(self._number)
        if (known := self._known_layout()) is not None:
            self._activate_again(known)
            return
        self._filled = {}
        with ExitStack() as stack:
            recorders = [
                stack.enter_context(CopyRecorder(store, slots)) for slots, store in self._buckets
            ]
            self._manager.activate_adapter(self._number)
        self._factors = {
            name: placed for recorder in recorders for name, placed in recorder.placed.items()
        }
        (self._slot,) = self._slots_of(self._number)
        for name, placed in self._factors.items():
            if not placed.parts:
                raise ValueError(
                    f"vLLM left out the factor {name}, or keeps it in a form in which it cannot be read back. {FIX}"
                )
        buckets = [slots for slots, _ in self._buckets]
        self._layout = _Layout(buckets, modules, self._factors, self._slot)
        self._filled[self._slot] = _Filled.by(self._layout, self._factors)

    def _activate_again(self, known: _Layout) -> None:
        """Have the factors copied into a slot by a layout that was recorded.

        vLLM's code takes the host longer than all copies take a GPU. It is left out for a slot that holds an older
        version in this layout: its rows and columns beyond the adapter's are zero already.
        """
        modules, self._manager.modules = self._manager.modules, {}
        try:
            self._manager.activate_adapter(self._number)  # chooses a slot, and copies nothing
        finally:
            self._manager.modules = modules
        (self._slot,) = self._slots_of(self._number)
        filled = self._filled.get(self._slot)
        if filled is None:
            self._manager.deactivate_adapter(self._number)
            self._manager.activate_adapter(self._number)
            (self._slot,) = self._slots_of(self._number)
            placed = known.in_slot(self._slot, self._strides())
            filled = self._filled[self._slot] = _Filled.by(known, placed)
        else:
            for copies, (_, store) in zip(filled.copies, self._buckets, strict=True):
                copies.repeat(store)
        self._factors = filled.factors

    def _strides(self) -> dict[int, int]:
        """Return the number of elements from one slot to the next, by the address of each matrix of all slots."""
        return {
            stack.untyped_storage().data_ptr(): stack.stride(0)
            for layer in self._manager.modules.values()
            for stack in (*layer.lora_a_stacked, *layer.lora_b_stacked)
        }

    def _check_names(self, factors: Mapping[str, Tensor]) -> None:
        if not factors:
            raise ValueError("the trainer sent no factors of its adapter")
        for name in factors:
            module, _, factor = name.rpartition(".")
            if factor not in FACTORS:
                raise ValueError(
                    f"{name} is no factor of an adapter: expected a name with {FACTORS}"
                )
            if missing := {f"{module}.{each}" for each in FACTORS} - factors.keys():
                raise ValueError(f"the trainer sent {name} without {missing.pop()}")
        if lost := sorted(self._names - factors.keys()):
            raise ValueError(
                f"the trainer sent nothing for {lost[0]} ({len(lost)} factors of the first version are missing)"
            )

    def _check_fits(self, module: str, room: _Room | None, a: Tensor, b: Tensor) -> None:
        if room is None:
            raise ValueError(
                f"vLLM does not serve an adapter of {module}: it serves adapters of linear layers, and not of the "
                f"output head, embeddings, experts or layers that it splits in its own way. {FIX}"
            )
        largest, dtype = room.a.shape[2], room.a.dtype
        rank, inputs, outputs = a.shape[0], a.shape[-1], b.shape[0]
        fits = a.dim() == b.dim() == 2 and b.shape[1] == rank <= largest
        whole = _is_share(room.a.shape[3], inputs, room) and _is_share(
            room.b.shape[2], outputs, room
        )
        if not (fits and whole):
            raise ValueError(
                f"the factors of {module} have shapes {tuple(a.shape)} and {tuple(b.shape)}; vLLM's layer has "
                f"{room.a.shape[3]} inputs and {room.b.shape[2]} outputs in each of {room.num_workers} workers, and "
                f"room for rank {largest}. Trainer and engine were started from different models or ranks"
            )
        if a.dtype != dtype or b.dtype != dtype:
            raise ValueError(
                f"the factors of {module} are {a.dtype} and {b.dtype}; vLLM computes adapters in {dtype}, so it would "
                "not serve the trainer's bits"
            )

    def _check_nothing_else(self) -> None:
        """Compare the numbers other than zero in the slot with those of the factors."""
        beside: dict[int, tuple[str, Tensor]] = {}
        for name, layer in self._manager.modules.items():
            for stack in (*layer.lora_a_stacked, *layer.lora_b_stacked):
                where = stack.untyped_storage().data_ptr()
                beside[where] = name, stack[self._slot].count_nonzero()
        for factor, placed in self._factors.items():
            for part in placed.parts:
                where = part.kept.untyped_storage().data_ptr()
                if where not in beside:
                    raise ValueError(
                        f"vLLM's matrix of {factor} was replaced since the last update"
                    )
                layer, number = beside[where]
                beside[where] = layer, number - part.kept.count_nonzero()
        found = read_sums([number for _, number in beside.values()])
        for (layer, _), numbers in zip(beside.values(), found, strict=True):
            if numbers:
                raise ValueError(
                    f"vLLM's slot holds {numbers} numbers beside the adapter's factors, in layer {layer}"
                )


def _is_share(held: int, whole: int, room: _Room) -> bool:
    """Return True if a worker with ``held`` rows or columns has its share of ``whole``, or all of them."""
    return held <= whole <= held * room.num_workers and whole % held == 0


def _rooms(manager: Any) -> Iterator[tuple[str, _Room]]:
    """Yield vLLM's name of each module that a factor may be for, and the room for its factors.

    Layers that vLLM splits into more parts than they have modules are left out: a factor would be copied several times.
    """
    for name, layer in manager.modules.items():
        modules = manager.packed_modules.get(name, [name])
        if len(modules) == len(layer.lora_a_stacked):
            for module, a, b in zip(
                modules, layer.lora_a_stacked, layer.lora_b_stacked, strict=True
            ):
                yield module, _Room(a, b, layer.tp_size)
