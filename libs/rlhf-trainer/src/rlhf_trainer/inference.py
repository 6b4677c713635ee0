"""Public parts of a command of a plugin that uses a trained model without training it.

Prompts as tasks, environments, episodes that are played and scored, rewards, signals, and files that survive a kill.
Importing this module imports no torch.
"""

from rlhf_config.checks.eval_names import samples_at as samples_at
from rlhf_config.checks.features import environment_shares as environment_shares
from rlhf_core.rng import eval_seed as eval_seed
from rlhf_core.rng import seed_of as seed_of
from rlhf_core.storage.atomic import remove as remove
from rlhf_core.storage.atomic import sync_folder as sync_folder
from rlhf_core.storage.atomic import sync_tree as sync_tree
from rlhf_core.storage.faults import fault_point as fault_point
from rlhf_core.storage.run_folder import RunFolder as RunFolder
from rlhf_core.storage.run_folder import claim as claim
from rlhf_core.storage.writing import write_text_atomically as write_text_atomically
from rlhf_core.storage.writing import writing as writing
from rlhf_data.chat.template_kwargs import renderer_of as renderer_of
from rlhf_data.checked.lacking_prompts import check_prompts as check_prompts
from rlhf_data.forms.opened_sets import WantedSets as WantedSets
from rlhf_data.made.players import Players as Players
from rlhf_data.made.prompts import PromptReader as PromptReader
from rlhf_data.made.splits import evaluation_sets as evaluation_sets
from rlhf_data.made.tasks import MadePart as MadePart
from rlhf_data.made.tasks import MadeTasks as MadeTasks
from rlhf_data.reading_log import shown_forms as shown_forms
from rlhf_data.rows import PromptFormat as PromptFormat
from rlhf_data.task_set import TaskSet as TaskSet
from rlhf_data.tasks import load_prompts as load_prompts
from rlhf_data.tasks import load_sets as load_sets
from rlhf_guard.concurrency import run_to_its_end as run_to_its_end
from rlhf_guard.environments.chosen import Environments as Environments
from rlhf_guard.environments.chosen import TaskMakers as TaskMakers
from rlhf_guard.environments.chosen import environments_of as environments_of
from rlhf_guard.environments.chosen import label_of as label_of
from rlhf_guard.parts import NamedExecutor as NamedExecutor
from rlhf_guard.rewards.panel import RewardPanel as RewardPanel
from rlhf_guard.rewards.panel import SampleScore as SampleScore

from .durable.records import AppendedFile as AppendedFile
from .loop.evaluation import EPOCH as EPOCH
from .loop.evaluation import NamedMetric as NamedMetric
from .loop.evaluation import measured as measured
from .loop.evaluation import metrics_of as metrics_of
from .loop.evaluation import pass_at_k as pass_at_k
from .loop.interrupts import LEAVE_S as LEAVE_S
from .loop.interrupts import Interrupts as Interrupts
from .loop.interrupts import leave_within as leave_within
from .rollouts.episodes import EpisodeRunner as EpisodeRunner
from .rollouts.pool import RewardQueue as RewardQueue
