"""Public parts of a command of a plugin that uses a trained model without training it.

Prompts as tasks, environments, episodes that are played and scored, rewards, signals, and files that survive a kill.
Importing this module imports no torch.
"""

from rlhf_config.checks.eval_names import samples_at
from rlhf_config.checks.features import environment_shares
from rlhf_core.rng import eval_seed, seed_of
from rlhf_core.storage.atomic import remove, sync_folder, sync_tree
from rlhf_core.storage.faults import fault_point
from rlhf_core.storage.run_folder import RunFolder, claim
from rlhf_core.storage.writing import write_text_atomically, writing
from rlhf_data.chat.template_kwargs import renderer_of
from rlhf_data.checked.lacking_prompts import check_prompts
from rlhf_data.forms.showing import shown_forms
from rlhf_data.made.players import Players
from rlhf_data.made.prompts import PromptReader
from rlhf_data.made.splits import evaluation_sets
from rlhf_data.made.tasks import MadePart, MadeTasks
from rlhf_data.rows import PromptFormat
from rlhf_data.task_set import TaskSet
from rlhf_data.tasks import WantedSets, load_prompts, load_sets
from rlhf_guard.concurrency import run_to_its_end
from rlhf_guard.environments.chosen import Environments, TaskMakers, environments_of, label_of
from rlhf_guard.parts import NamedExecutor
from rlhf_guard.rewards.panel import RewardPanel, SampleScore

from .durable.records import AppendedFile
from .loop.evaluation import EPOCH, NamedMetric, measured, metrics_of, pass_at_k
from .loop.interrupts import LEAVE_S, Interrupts, leave_within
from .rollouts.episodes import EpisodeRunner
from .rollouts.pool import RewardQueue

__all__ = [
    "EPOCH",
    "LEAVE_S",
    "AppendedFile",
    "Environments",
    "EpisodeRunner",
    "Interrupts",
    "MadePart",
    "MadeTasks",
    "NamedExecutor",
    "NamedMetric",
    "Players",
    "PromptFormat",
    "PromptReader",
    "RewardPanel",
    "RewardQueue",
    "RunFolder",
    "SampleScore",
    "TaskMakers",
    "TaskSet",
    "WantedSets",
    "check_prompts",
    "claim",
    "environment_shares",
    "environments_of",
    "eval_seed",
    "evaluation_sets",
    "fault_point",
    "label_of",
    "leave_within",
    "load_prompts",
    "load_sets",
    "measured",
    "metrics_of",
    "pass_at_k",
    "remove",
    "renderer_of",
    "run_to_its_end",
    "samples_at",
    "seed_of",
    "shown_forms",
    "sync_folder",
    "sync_tree",
    "write_text_atomically",
    "writing",
]
