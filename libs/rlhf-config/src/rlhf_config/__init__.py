"""Configuration: layers of options in, one validated tree out. Imports nothing heavy.

Example: ``resolved = resolve([read_toml("run.toml"), parse_flags(["--train.steps", "10"])], plugins)``
"""

from .automatic.accelerators import visible_accelerators
from .checks.cautions import blind_rewards, small_adapter_rates
from .checks.effects import (
    error_values_without_effect,
    images_without_effect,
    refuse_typed,
    schedule_without_effect,
    shared_without_effect,
)
from .checks.features import check_dtypes
from .checks.held_out import (
    held_out_paths,
    held_out_problems,
    held_out_without_effect,
    splits_without_effect,
)
from .checks.installed import check_installed
from .checks.mixes import mix_problems
from .checks.output_folder import folder_problem
from .checks.rules import no_reader
from .common import (
    AnswerSampling,
    CommandOptions,
    PaddingSampling,
    RunOptions,
    SamplingOptions,
)
from .described import described
from .files import read_toml, write_toml
from .flag_parser import FlagParser
from .flags import parse_flags
from .help import render_help
from .layers import Layer, Origin, leaves
from .memory_options import with_memory_options
from .option_tree import NamedPaths, OptionTree, Selector
from .paths import check_paths, path_problems
from .problems import Labels
from .resolve import resolve, resolve_options
from .resolved import (
    EnvironmentOptions,
    PreferenceTermOptions,
    Resolved,
    ResolvedOptions,
    RewardOptions,
    Selection,
    Selections,
)
from .run import PromptData, RunConfig
from .train import TRAIN
from .trained_roles import OPTIONS_OF_PARTS

__all__ = [
    "OPTIONS_OF_PARTS",
    "TRAIN",
    "AnswerSampling",
    "CommandOptions",
    "EnvironmentOptions",
    "FlagParser",
    "Labels",
    "Layer",
    "NamedPaths",
    "OptionTree",
    "Origin",
    "PaddingSampling",
    "PreferenceTermOptions",
    "PromptData",
    "Resolved",
    "ResolvedOptions",
    "RewardOptions",
    "RunConfig",
    "RunOptions",
    "SamplingOptions",
    "Selection",
    "Selections",
    "Selector",
    "blind_rewards",
    "check_dtypes",
    "check_installed",
    "check_paths",
    "described",
    "error_values_without_effect",
    "folder_problem",
    "held_out_paths",
    "held_out_problems",
    "held_out_without_effect",
    "images_without_effect",
    "leaves",
    "mix_problems",
    "no_reader",
    "parse_flags",
    "path_problems",
    "read_toml",
    "refuse_typed",
    "render_help",
    "resolve",
    "resolve_options",
    "schedule_without_effect",
    "shared_without_effect",
    "small_adapter_rates",
    "splits_without_effect",
    "visible_accelerators",
    "with_memory_options",
    "write_toml",
]
