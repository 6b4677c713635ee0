"""The worker's side: copy buckets into the model that is served, in place, and answer what is served.

Registered with vLLM as a weight-transfer engine, so that an update is vLLM's own protocol: start, calls that hand over
weights, finish. A trainer in the engine's process makes one call for each bucket. For one in another process there is
one call in all, during which the worker takes the buckets from a link that it joined before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from rlhf_core.weights import (
    Invitation,
    Place,
    ReceivingLink,
    Slot,
    bits_digest,
    held_bits_digest,
    num_words,
    open_buffer,
    place_of,
    read_sums,
)

from .known_copies import KnownCopies
from .recorder import CopyRecorder, Placed


@dataclass
class InitInfo(WeightTransferInitInfo):
    """What the worker gets weights through."""

    link: dict[str, Any] | None = None
    """An ``Invitation``; None: each bucket describes itself."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One bucket, or all that come by the link."""

    buffer: dict[str, Any] | None = None
    slots: list[dict[str, Any]] | None = None
    version: int | None = None
    """Of the weights that come by the link."""


class WeightReceiver(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads by the model's own ``load_weights``, into the parameters that are computed with.

    That needs parameters in the layout of a checkpoint, apart from being stacked; ``loader`` sees to it. Nothing is
    allocated beside the bucket, which is on the model's device, and addresses stay, as CUDA graphs need.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _link: ReceivingLink | None = None
    _placed: dict[str, Placed]
    _ties: dict[str, str]
    _tied_heads: set[str]
    _known: dict[str, KnownCopies]
    """By the first name in the bucket."""
    _live: set[int]
    """Storages of the parameters that ``_known`` is about."""
    _opened: dict[str, Any]
    _bucket: Tensor | None
    _staged: Tensor | None = None
    """On the model's device, what came in host memory."""

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Get ready; with an invitation, join its link in the place of an older one."""
        self._known, self._live = {}, set()
        if init_info.link is None:
            self._placed, self._ties, self._opened, self._bucket = {}, {}, {}, None
            return
        if self._link is not None:
            self._link.close()
            self._link = None  # before the new one: its buffers may be large
        invitation = Invitation.from_plain(init_info.link)
        self._link = ReceivingLink(invitation, self.parallel_config.rank, self.device)
        self._link.connect()

    def start_weight_update(self) -> None:
        self._placed = {}
        self._ties = {}
        self._tied_heads = _tied_heads(self.model)
        if (live := _storages(self.model)) != self._live:
            self._known, self._live = {}, live

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Copy one bucket, or all that the link brings.

        Raises:
            ValueError: a weight does not fit the model, or went nowhere.
            LinkBroken: the link's other ends are gone or late.
        """
        if update_info.version is not None:
            assert self._link is not None, "a link is joined first"
            with self._link.update(update_info.version) as buckets:
                for slots, bucket in buckets:
                    self._load(slots, bucket)
            return
        assert update_info.buffer is not None
        assert update_info.slots is not None
        slots = [Slot(**slot) for slot in update_info.slots]
        self._load(slots, self._open(update_info.buffer))

    def _load(self, slots: Sequence[Slot], bucket: Tensor) -> None:
        bucket = self._on_device(slots, bucket)
        placed_of = self._copied(slots, bucket)
        for slot in slots:
            placed = placed_of[slot.name]
            if placed.parts:
                self._placed[slot.name] = placed
            elif tie := self._tied_to(slot.view(bucket)):
                self._ties[slot.name] = tie
            elif self.parallel_config.pipeline_parallel_size == 1:
                raise ValueError(
                    f"weight {slot.name} of shape {tuple(slot.shape)} has no place in the engine's model: trainer "
                    "and engine were started from different models, or vLLM ties it to a weight that the trainer has "
                    "changed apart from it"
                )
            # Else another stage has it, which ``served`` of all workers tells.

    def _on_device(self, slots: Sequence[Slot], bucket: Tensor) -> Tensor:
        """Return the bucket where the model is. From host memory it goes there in one piece: a tied head is compared
        there, and a copy of a weight that vLLM's code moves first would not be one out of the bucket."""
        if bucket.device.type == self.device.type:
            return bucket
        if self._staged is None or len(self._staged) < len(bucket):
            self._staged = None  # the old one first: both may be large
            self._staged = torch.empty(len(bucket), dtype=bucket.dtype, device=self.device)
        end = max((slot.offset + slot.nbytes for slot in slots), default=0)
        self._staged[:end].copy_(bucket[:end])
        return self._staged

    def _copied(self, slots: Sequence[Slot], bucket: Tensor) -> Mapping[str, Placed]:
        """Copy the weights to where they belong, and return where that is."""
        if not slots:
            return {}
        known = self._known.get(slots[0].name)
        if known is not None and known.slots == list(slots):
            known.repeat(bucket)
            return known.placed
        recorder = CopyRecorder(bucket, slots)
        # vLLM 0.32 refuses a tied head in a bucket without the embeddings; it is compared with them afterwards.
        untied = [slot for slot in slots if slot.name not in self._tied_heads]
        with torch.no_grad(), recorder:
            self.model.load_weights((slot.name, slot.view(bucket)) for slot in untied)
        self._known[slots[0].name] = KnownCopies(slots, recorder.placed)
        return recorder.placed

    def finish_weight_update(self) -> None:
        """Nothing is left to do: weights were copied as they came. ``missing`` says whether they were all of them."""

    def missing(self) -> list[str]:
        """Names of the parameters that got nothing in the last update and kept their old weights."""
        served = {
            parameter.untyped_storage().data_ptr(): name
            for name, parameter in self.model.named_parameters()
        }
        for placed in self._placed.values():
            for part in placed.parts:
                served.pop(part.kept.untyped_storage().data_ptr(), None)
        return sorted(served.values())

    def served(self) -> list[dict[str, Any]]:
        """Return ``HeldWeight`` as plain values of everything that this process serves, read back from the parameters.

        Raises:
            ValueError: a parameter is not the one that the last update wrote to.
        """
        live = _storages(self.model)
        found = []
        for name in sorted([*self._placed, *self._ties]):
            placed = self._placed[self._ties.get(name, name)]
            if any(part.kept.untyped_storage().data_ptr() not in live for part in placed.parts):
                raise ValueError(f"the parameter of {name} was replaced since the last update")
            weight = placed.read()
            sums = (
                [bits_digest(weight)]
                if placed.is_whole()
                else [*held_bits_digest(weight, placed.held())]
            )
            found.append((name, weight.dtype, placed, sums))
        read = iter(read_sums([one for *_, sums in found for one in sums]))
        return [
            _held_weight(name, dtype, placed, *(next(read) for _ in sums))
            for name, dtype, placed, sums in found
        ]

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Abstract in vLLM 0.26 and gone since; ``transfer.sender`` does it."""
        raise NotImplementedError("weights are sent by rlhf_plugin_vllm.transfer.sender")

    def place(self) -> Place:
        """Where this worker is."""
        return place_of(self.device)

    def shutdown(self) -> None:
        if self._link is not None:
            self._link.close()
        self._placed, self._ties, self._opened, self._bucket = {}, {}, {}, None
        self._known, self._link, self._staged = {}, None, None

    def _open(self, description: dict[str, Any]) -> Tensor:
        if self._bucket is None or description != self._opened:
            self._bucket = None  # the old one first: both may be large
            self._bucket = open_buffer(description, self.device)
            self._opened = description
        return self._bucket

    def _tied_to(self, weight: Tensor) -> str | None:
        """Return the name whose weight the model uses in this one's place, if there is one."""
        for other, placed in self._placed.items():
            if placed.slot.shape == list(weight.shape) and placed.equals(weight):
                return other
        return None


def _held_weight(
    name: str, dtype: torch.dtype, placed: Placed, total: int, words: int | None = None
) -> dict[str, Any]:
    """``HeldWeight`` as plain values; without ``words`` all of them are held."""
    all_words = num_words(placed.num_elements * dtype.itemsize)
    return {
        "name": name,
        "dtype": str(dtype),
        "shape": list(placed.slot.shape),
        "region": placed.region,
        "elements": placed.num_copied,
        "all_elements": placed.num_elements,
        "total": total,
        "words": all_words if words is None else words,
        "all_words": all_words,
    }


def _storages(model: nn.Module) -> set[int]:
    return {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}


def _tied_heads(model: nn.Module) -> set[str]:
    """Names under which the model has embeddings once more."""
    first: dict[int, str] = {}
    again = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, VocabParallelEmbedding):
            for name, parameter in module.named_parameters(path, remove_duplicate=False):
                if first.setdefault(id(parameter), name) != name:
                    again.add(name)
    return again
