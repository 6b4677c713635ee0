"""Public parts of a command of a plugin that trains: the loop around its steps, and what such steps are made of.

A command describes its options as an ``OptionTree`` (``rlhf_config``) and its steps as a ``RunKind`` with a
``Course``; ``drive`` gives it run folder, records, checkpoints, exact resume, evaluation, observers and exports.
Importing this module imports torch.
"""

from rlhf_core.batch.metric import metric_values
from rlhf_core.media.reader import ImageReader
from rlhf_core.rng import generator_of, seed_of
from rlhf_core.storage.faults import fault_point
from rlhf_core.storage.run_folder import RunFolder
from rlhf_data.mixing import epoch_counts, epoch_order

from .durable.records import RecordFile
from .learning.minibatches import count_skipped, normalizers_of
from .learning.schedules import schedule_of
from .loop.control import Control
from .loop.course import Course, Export, Exportable, FinishedStep, OwnRecord, RunKind
from .loop.driver import drive
from .loop.old_objects import OldObjects
from .loop.restore import restore_roles
from .loop.resume import ResumePoint, ResumeRules
from .loop.state import RatedState, RunState
from .rollouts.images import image_reader, vision_spec
from .rollouts.reports import images_entry

__all__ = [
    "Control",
    "Course",
    "Export",
    "Exportable",
    "FinishedStep",
    "ImageReader",
    "OldObjects",
    "OwnRecord",
    "RatedState",
    "RecordFile",
    "ResumePoint",
    "ResumeRules",
    "RunFolder",
    "RunKind",
    "RunState",
    "count_skipped",
    "drive",
    "epoch_counts",
    "epoch_order",
    "fault_point",
    "generator_of",
    "image_reader",
    "images_entry",
    "metric_values",
    "normalizers_of",
    "restore_roles",
    "schedule_of",
    "seed_of",
    "vision_spec",
]
