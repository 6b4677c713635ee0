"""Public parts of a command of a plugin that trains: the loop around its steps, and what such steps are made of.

A command describes its options as an ``OptionTree`` (``rlhf_config``) and its steps as a ``RunKind`` with a
``Trainer``; ``drive`` gives it run folder, records, checkpoints, exact resume, evaluation, observers and exports.
Importing this module imports torch.
"""

from rlhf_core.batch.metric import metric_values as metric_values
from rlhf_core.media.reader import ImageReader as ImageReader
from rlhf_core.rng import generator_of as generator_of
from rlhf_core.rng import seed_of as seed_of
from rlhf_core.storage.faults import fault_point as fault_point
from rlhf_core.storage.run_folder import RunFolder as RunFolder
from rlhf_data.mixing import epoch_counts as epoch_counts
from rlhf_data.mixing import epoch_order as epoch_order

from .durable.records import RecordFile as RecordFile
from .learning.minibatches import count_skipped as count_skipped
from .learning.minibatches import normalizers_of as normalizers_of
from .learning.schedules import schedule_of as schedule_of
from .loop.driver import drive as drive
from .loop.old_objects import OldObjects as OldObjects
from .loop.restore import restore_roles as restore_roles
from .loop.resume import ResumePoint as ResumePoint
from .loop.resume import ResumeRules as ResumeRules
from .loop.run_kind import Control as Control
from .loop.run_kind import Export as Export
from .loop.run_kind import Exportable as Exportable
from .loop.run_kind import FinishedStep as FinishedStep
from .loop.run_kind import OwnRecord as OwnRecord
from .loop.run_kind import RunKind as RunKind
from .loop.run_kind import Trainer as Trainer
from .loop.state import RatedState as RatedState
from .loop.state import RunState as RunState
from .rollouts.images import image_reader as image_reader
from .rollouts.images import vision_spec as vision_spec
from .rollouts.reports import images_entry as images_entry

Course = Trainer
"""Old name, for one release."""
