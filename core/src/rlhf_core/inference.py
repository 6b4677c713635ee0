"""Public parts of a command of a plugin that uses a trained model without training it.

Prompts as tasks, rewards that score, signals, and files that survive a kill. Importing this module imports no torch.
"""

from .data.rows import PromptFormat
from .data.tasks import TaskSet, load_prompts
from .durable.appending import AppendedFile
from .durable.atomic import remove, sync_folder, sync_tree, write_text_atomically
from .durable.faults import fault_point
from .durable.run_folder import RunFolder, claim
from .loop.interrupts import Interrupts
from .rewards.panel import RewardPanel, SampleScore
from .rng import seed_of
from .rollouts.reward_queue import RewardQueue

__all__ = [
    "AppendedFile",
    "Interrupts",
    "PromptFormat",
    "RewardPanel",
    "RewardQueue",
    "RunFolder",
    "SampleScore",
    "TaskSet",
    "claim",
    "fault_point",
    "load_prompts",
    "remove",
    "seed_of",
    "sync_folder",
    "sync_tree",
    "write_text_atomically",
]
