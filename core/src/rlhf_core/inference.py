"""Public parts of a command of a plugin that uses a trained model without training it.

Prompts as tasks, environments, episodes that are played and scored, rewards, signals, and files that survive a kill.
Importing this module imports no torch.
"""

from .concurrency import run_to_its_end
from .config.checks.eval_names import samples_at
from .config.checks.features import environment_shares
from .data.chat.template_kwargs import renderer_of
from .data.forms.showing import shown_forms
from .data.made.players import Players
from .data.made.prompts import PromptReader
from .data.made.splits import evaluation_sets
from .data.made.tasks import MadePart, MadeTasks
from .data.rows import PromptFormat
from .data.task_set import TaskSet
from .data.tasks import WantedSets, load_prompts, load_sets
from .durable.appending import AppendedFile
from .durable.atomic import remove, sync_folder, sync_tree
from .durable.faults import fault_point
from .durable.run_folder import RunFolder, claim
from .durable.writing import write_text_atomically, writing
from .loop.evaluation import EPOCH, pass_at_k
from .loop.interrupts import LEAVE_S, Interrupts, leave_within
from .loop.measuring.eval_metrics import NamedMetric, measured, metrics_of
from .rewards.panel import RewardPanel, SampleScore
from .rng import eval_seed, seed_of
from .rollouts.environments import Environments, TaskMakers, environments_of, label_of
from .rollouts.episodes import EpisodeRunner
from .rollouts.reward_queue import RewardQueue

__all__ = [
    "EPOCH",
    "LEAVE_S",
    "AppendedFile",
    "Environments",
    "EpisodeRunner",
    "Interrupts",
    "MadePart",
    "MadeTasks",
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
