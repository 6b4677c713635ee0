"""Transfer of weights from a trainer's process to the processes of engines, in buckets.

``layout`` has the places of tensors in a bucket. ``places`` describes processes and the path between them. ``memory``
and ``group`` are the two paths: memory that both processes map, and a broadcast, whose members meet at a ``store``. On
one machine the store is a file that goes through a ``door``, and ``local_gloo`` compares users by ``connections``.
``link`` joins all of these. A runtime holds the sending end of a link, an engine the receiving end (``linked_engine``).
"""

from .connections import ForeignConnection
from .digest import (
    WeightSum,
    bits_digest,
    digest_of_sums,
    held_bits_digest,
    num_words,
    read_sums,
    weight_sums,
    weights_digest,
)
from .group import LinkBroken
from .layout import (
    ALIGNMENT,
    TensorSlot,
    WeightPlan,
    aligned,
    numbers_of,
    plan_weights,
    slot_for,
    torch_dtype,
    views,
)
from .link import Invitation, ReceivingLink, SendingLink
from .linked_engine import LinkedEngine
from .local_gloo import form_all_locally
from .memory import CudaBuffer, Description, HostBuffer, buffer_for, open_buffer
from .places import Path, Place, can_meet, place_of, same_memory
from .store import MeetingStore, is_loopback, open_store, reach_store

__all__ = [
    "ALIGNMENT",
    "CudaBuffer",
    "Description",
    "ForeignConnection",
    "HostBuffer",
    "Invitation",
    "LinkBroken",
    "LinkedEngine",
    "MeetingStore",
    "Path",
    "Place",
    "ReceivingLink",
    "SendingLink",
    "TensorSlot",
    "WeightPlan",
    "WeightSum",
    "aligned",
    "bits_digest",
    "buffer_for",
    "can_meet",
    "digest_of_sums",
    "form_all_locally",
    "held_bits_digest",
    "is_loopback",
    "num_words",
    "numbers_of",
    "open_buffer",
    "open_store",
    "place_of",
    "plan_weights",
    "reach_store",
    "read_sums",
    "same_memory",
    "slot_for",
    "torch_dtype",
    "views",
    "weight_sums",
    "weights_digest",
]
