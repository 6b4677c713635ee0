"""The receiver of weights in a vLLM worker: copies buckets into the served model in place, and reports what is served.

The receiver is registered with vLLM as a weight-transfer engine, so an update of the weights follows vLLM's own
protocol: start, calls that hand over weights, finish. A trainer in the engine's process makes one call for each bucket.
For a trainer in another process there is only one call, during which the worker reads all buckets from a link that it
joined before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from rlhf_weights import (
    Invitation,
    Place,
    ReceivingLink,
    TensorSlot,
    open_buffer,
    place_of,
)

from .checkpoint_names import CheckpointNames
from .held_weights import held_weights
from .joined_parts import joined
from .known_copies import KnownCopies
from .recorder import CopyRecorder, Placed
from .unread_layers import UnreadLayers

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Bucket = tuple[Sequence[TensorSlot], Tensor]
"""Places of the tensors in a bucket, and its bytes."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The way by which weights will come."""

    link: dict[str, Any] | None = None
    """Plain values of an ``Invitation`` to a link; None if buckets come from a trainer in the engine's process."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One bucket, or all buckets that come by the link."""

    buffer: dict[str, Any] | None = None
    """Description of the buffer that holds the bucket, for ``open_buffer``; None if buckets come by the link."""
    number: int = 0
    """Number of the bucket in its update, from 0."""
    slots: list[dict[str, Any]] | None = None
    """Fields of a ``TensorSlot`` for each weight of the bucket; None if they are those of the last bucket with this
    number, or buckets come by the link."""
    version: int | None = None
    """Version of the weights that come by the link; None for a bucket in a buffer."""


class WeightReceiver(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Copies weights with the model's own ``load_weights`` into the parameters that vLLM computes with.

    The parameters have to be in the layout of a checkpoint, except that several weights may be stacked in one
    parameter; ``loader`` ensures this. The only memory beside the parameters is the bucket, on the model's device. The
    parameters' addresses do not change, since CUDA graphs contain them.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _link: ReceivingLink | None = None
    _placed: dict[str, Placed]
    """Weights that the last update has copied, by name."""
    _ties: dict[str, str]
    """For each weight that the model does not have itself, the name of the weight that the model uses instead."""
    _tied_heads: set[str]
    _names: CheckpointNames | None = None
    """The names by which the model loads the trainer's weights; None before the first of them."""
    _unread: UnreadLayers
    _aside: dict[str, Tensor]
    """Weights that vLLM's model has no place for because nothing reads them, by name."""
    _known: dict[str, KnownCopies]
    """Copies out of each bucket of an earlier update, by the first name in the bucket."""
    _live: set[int]
    """Addresses of the parameters' storages when ``_known`` was recorded."""
    _opened: dict[str, Any]
    """Description of the buffer that ``_bucket`` is in."""
    _bucket: Tensor | None
    _slots: dict[int, list[TensorSlot]] | None = None
    """Slots of each bucket that came in a buffer, by its number in an update. A link that is joined does not change
    what the sender of buffers knows of them."""
    _staged: Tensor | None = None
    """Copy, on the model's device, of a bucket that came in the host's memory."""

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Prepare for updates. With an invitation, join its link, which replaces an older link.

        Raises:
            LinkBroken: another end of the link did not join.
        """
        self._known, self._live, self._aside = {}, set(), {}
        if init_info.link is None:
            self._placed, self._ties, self._opened, self._bucket = {}, {}, {}, None
            return
        if self._link is not None:
            self._link.close()
            self._link = (
                None  # frees the old link's buffers, which may be large, before new ones are made
            )
        invitation = Invitation.from_plain(init_info.link)
        self._link = ReceivingLink(invitation, self.parallel_config.rank, self.device)
        self._link.connect()

    def start_weight_update(self) -> None:
        """Begin an update, and forget the recorded copies if a parameter's storage has changed."""
        self._placed = {}
        self._ties = {}
        self._tied_heads = _tied_heads(self.model)
        if (live := _storages(self.model)) != self._live:
            self._known, self._live = {}, live

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Copy one bucket, or all buckets that the link brings, into the model.

        Raises:
            ValueError: a weight does not fit the model, or has no place in it.
            LinkBroken: another end of the link is gone or late.
        """
        with self.buckets(update_info) as buckets:
            for slots, bucket in buckets:
                self._load(slots, bucket)

    @contextmanager
    def buckets(self, update_info: UpdateInfo) -> Iterator[Iterator[Bucket]]:
        """Give slots and bytes of each bucket, on the model's device. An error in the body ends the link's update.

        The bytes of a bucket may change when the next one is asked for.

        Raises:
            LinkBroken: another end of the link is gone or late.
        """
        if update_info.version is not None:
            assert self._link is not None, "a link is joined first"
            with self._link.update(update_info.version) as buckets:
                yield ((slots, self._on_device(slots, bucket)) for slots, bucket in buckets)
            return
        assert update_info.buffer is not None
        if self._slots is None:
            self._slots = {}
        if update_info.slots is not None:
            self._slots[update_info.number] = [TensorSlot(**slot) for slot in update_info.slots]
        found = self._slots[update_info.number]
        yield iter([(found, self._on_device(found, self._open(update_info.buffer)))])

    def _load(self, slots: Sequence[TensorSlot], bucket: Tensor) -> None:
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
            # Otherwise another pipeline stage may have the weight; the digest of all workers' ``served`` shows this.

    def _on_device(self, slots: Sequence[TensorSlot], bucket: Tensor) -> Tensor:
        """Return the bucket on the model's device, copied in one piece if it came in the host's memory.

        Tied heads are compared on the device. Besides, vLLM's code would move single weights to the device first, and
        ``CopyRecorder`` could not recognize copies of the moved weights.
        """
        if bucket.device.type == self.device.type:
            return bucket
        if self._staged is None or len(self._staged) < len(bucket):
            self._staged = (
                None  # frees the old buffer before the new one is made: both may be large
            )
            self._staged = torch.empty(len(bucket), dtype=bucket.dtype, device=self.device)
        end = max((slot.offset + slot.nbytes for slot in slots), default=0)
        self._staged[:end].copy_(bucket[:end])
        return self._staged

    def _copied(self, slots: Sequence[TensorSlot], bucket: Tensor) -> Mapping[str, Placed]:
        """Copy a bucket's weights into the parameters, and return the copied parts of each weight, by name."""
        if not slots:
            return {}
        known = self._known.get(slots[0].name)
        if known is not None and known.slots == list(slots):
            known.repeat(bucket)
            return known.placed
        recorder = CopyRecorder(bucket, slots)
        if self._names is None:
            config = _config_of(self.model_config)
            self._names, self._unread = CheckpointNames(config), UnreadLayers(config)
        # vLLM 0.32 refuses a tied head in a bucket without the embeddings, and some models refuse it in any. ``_load``
        # compares the head with them.
        tied = self._tied_heads | self._names.tied
        untied = [slot for slot in slots if slot.name not in tied]
        loaded = self._names.of({slot.name: slot.view(bucket) for slot in untied})
        # vLLM's models have this method, torch's modules do not
        load_weights: Any = self.model.load_weights
        with torch.no_grad(), recorder:
            load_weights(iter(loaded.items()))
            self._set_aside(slots, bucket, recorder.placed)
        for placed in recorder.placed.values():
            placed.parts = joined(placed.parts)
        self._known[slots[0].name] = KnownCopies(slots, recorder.placed)
        return recorder.placed

    def _set_aside(
        self, slots: Sequence[TensorSlot], bucket: Tensor, placed: Mapping[str, Placed]
    ) -> None:
        """Copy the weights that vLLM's model leaves out because nothing reads them, so that the digest has them."""
        for slot in slots:
            if not placed[slot.name].parts and self._unread.has(slot.name):
                weight = slot.view(bucket)
                kept = self._aside.setdefault(slot.name, torch.empty_like(weight))
                kept.copy_(weight)

    def unread(self) -> list[str]:
        """Return the names of the weights that the model leaves out because nothing reads them."""
        return sorted(self._aside)

    def finish_weight_update(self) -> None:
        """Do nothing, since weights are copied as they come. ``missing`` tells which parameters received nothing."""

    def missing(self) -> list[str]:
        """Return the names of the parameters that received nothing in the last update and kept their old weights."""
        served = {
            parameter.untyped_storage().data_ptr(): name
            for name, parameter in self.model.named_parameters()
        }
        for placed in self._placed.values():
            for part in placed.parts:
                served.pop(part.kept.untyped_storage().data_ptr(), None)
        return sorted(served.values())

    def served(self) -> list[dict[str, Any]]:
        """Return the fields of ``HeldWeight`` for each weight of which this worker holds a part.

        The weights are read back from the parameters.

        Raises:
            ValueError: a parameter was replaced by another tensor since the last update.
        """
        names = sorted([*self._placed, *self._ties])
        return self.held({name: self._placed[self._ties.get(name, name)] for name in names})

    def held(self, weights: Mapping[str, Placed]) -> list[dict[str, Any]]:
        """Return the fields of ``HeldWeight`` for weights whose places in the parameters are known.

        Raises:
            ValueError: a parameter was replaced by another tensor since the weights were copied.
        """
        live = _storages(self.model)
        live |= {kept.untyped_storage().data_ptr() for kept in self._aside.values()}
        for name, placed in weights.items():
            if any(part.kept.untyped_storage().data_ptr() not in live for part in placed.parts):
                raise ValueError(f"the parameter of {name} was replaced since the last update")
        return held_weights(weights)

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Refuse: ``transfer.sender`` sends weights. vLLM 0.26 requires this method, and later versions lack it."""
        raise NotImplementedError("weights are sent by rlhf_plugin_vllm.weights.sender")

    def place(self) -> Place:
        """Return machine and device of this worker."""
        return place_of(self.device)

    def shutdown(self) -> None:
        """Close the link, and free the buffers and the recorded copies."""
        if self._link is not None:
            self._link.close()
        self._placed, self._ties, self._opened, self._bucket = {}, {}, {}, None
        self._known, self._link, self._staged = {}, None, None

    def _open(self, description: dict[str, Any]) -> Tensor:
        if self._bucket is None or description != self._opened:
            self._bucket = (
                None  # frees the old buffer before the new one is opened: both may be large
            )
            self._bucket = open_buffer(description, self.device)
            self._opened = description
        return self._bucket

    def _tied_to(self, weight: Tensor) -> str | None:
        """Return the name of a copied weight with equal values, which the model uses instead; None if there is none."""
        for other, placed in self._placed.items():
            if placed.slot.shape == list(weight.shape) and placed.equals(weight):
                return other
        return None


def _config_of(model_config: Any) -> PretrainedConfig:
    """Return a model's configuration as Transformers has it; vLLM changes its own copy."""
    from transformers import AutoConfig

    config: PretrainedConfig = AutoConfig.from_pretrained(
        model_config.model, trust_remote_code=model_config.trust_remote_code
    )
    return config


def _storages(model: nn.Module) -> set[int]:
    """Return the addresses of parameters and buffers: a trainer's parameter may be a buffer of vLLM's model."""
    held = chain(model.parameters(), model.buffers())
    return {tensor.untyped_storage().data_ptr() for tensor in held}


def _tied_heads(model: nn.Module) -> set[str]:
    """Return the names of output heads that are the same parameter as the embeddings."""
    first: dict[int, str] = {}
    again = set()
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, VocabParallelEmbedding):
            for name, parameter in module.named_parameters(path, remove_duplicate=False):
                if first.setdefault(id(parameter), name) != name:
                    again.add(name)
    return again
