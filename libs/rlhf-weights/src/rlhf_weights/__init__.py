"""Transfer of weights from a trainer's process to the processes of engines, in buckets.

``layout`` has the places of tensors in a bucket. ``places`` describes processes and the path between them. ``memory``
and ``group`` are the two paths: memory that both processes map, and a broadcast, whose members meet at a ``store``. On
one machine the store is a file that goes through a ``door``, and ``local_gloo`` compares users by ``connections``.
``link`` joins all of these. A runtime holds the sending end of a link, an engine the receiving end (``linked_engine``).
"""

from .connections import ForeignConnection as ForeignConnection
from .digest import WeightSum as WeightSum
from .digest import bits_digest as bits_digest
from .digest import digest_of_sums as digest_of_sums
from .digest import held_bits_digest as held_bits_digest
from .digest import num_words as num_words
from .digest import read_sums as read_sums
from .digest import weight_sums as weight_sums
from .digest import weights_digest as weights_digest
from .group import LinkBroken as LinkBroken
from .layout import ALIGNMENT as ALIGNMENT
from .layout import TensorSlot as TensorSlot
from .layout import WeightPlan as WeightPlan
from .layout import aligned as aligned
from .layout import numbers_of as numbers_of
from .layout import plan_weights as plan_weights
from .layout import slot_for as slot_for
from .layout import torch_dtype as torch_dtype
from .layout import views as views
from .link import Invitation as Invitation
from .link import ReceivingLink as ReceivingLink
from .link import SendingLink as SendingLink
from .linked_engine import LinkedEngine as LinkedEngine
from .local_gloo import form_all_locally as form_all_locally
from .memory import CudaBuffer as CudaBuffer
from .memory import Description as Description
from .memory import HostBuffer as HostBuffer
from .memory import buffer_for as buffer_for
from .memory import open_buffer as open_buffer
from .places import Path as Path
from .places import Place as Place
from .places import can_meet as can_meet
from .places import place_of as place_of
from .places import same_memory as same_memory
from .store import MeetingStore as MeetingStore
from .store import is_loopback as is_loopback
from .store import open_store as open_store
from .store import reach_store as reach_store
