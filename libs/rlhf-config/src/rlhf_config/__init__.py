"""Configuration: layers of options in, one validated tree out. Imports nothing heavy.

Example: ``resolved = resolve([read_toml("run.toml"), parse_flags(["--train.steps", "10"])], plugins)``
"""

from .automatic.accelerators import visible_accelerators as visible_accelerators
from .checks.cautions import blind_rewards as blind_rewards
from .checks.cautions import small_adapter_rates as small_adapter_rates
from .checks.effects import images_without_effect as images_without_effect
from .checks.effects import length_without_effect as length_without_effect
from .checks.effects import refuse_typed as refuse_typed
from .checks.effects import schedule_without_effect as schedule_without_effect
from .checks.effects import shared_without_effect as shared_without_effect
from .checks.features import check_dtypes as check_dtypes
from .checks.held_out import held_out_paths as held_out_paths
from .checks.held_out import held_out_problems as held_out_problems
from .checks.held_out import held_out_without_effect as held_out_without_effect
from .checks.held_out import splits_without_effect as splits_without_effect
from .checks.installed import check_installed as check_installed
from .checks.mixes import mix_problems as mix_problems
from .checks.output_folder import folder_problem as folder_problem
from .checks.rules import no_reader as no_reader
from .common import AnswerSampling as AnswerSampling
from .common import CommandOptions as CommandOptions
from .common import PaddingSampling as PaddingSampling
from .common import RunOptions as RunOptions
from .common import SamplingOptions as SamplingOptions
from .described import described as described
from .files import read_toml as read_toml
from .files import write_toml as write_toml
from .flag_parser import FlagParser as FlagParser
from .flags import parse_flags as parse_flags
from .help import render_help as render_help
from .layers import Layer as Layer
from .layers import Origin as Origin
from .layers import leaves as leaves
from .memory_options import with_memory_options as with_memory_options
from .option_tree import NamedPaths as NamedPaths
from .option_tree import OptionTree as OptionTree
from .option_tree import Selector as Selector
from .paths import check_paths as check_paths
from .paths import path_problems as path_problems
from .problems import Labels as Labels
from .resolve import resolve as resolve
from .resolve import resolve_options as resolve_options
from .resolved import EnvironmentOptions as EnvironmentOptions
from .resolved import PreferenceTermOptions as PreferenceTermOptions
from .resolved import Resolved as Resolved
from .resolved import ResolvedOptions as ResolvedOptions
from .resolved import RewardOptions as RewardOptions
from .resolved import Selection as Selection
from .resolved import Selections as Selections
from .run import PromptData as PromptData
from .run import RunConfig as RunConfig
from .train import TRAIN as TRAIN
from .trained_roles import OPTIONS_OF_PARTS as OPTIONS_OF_PARTS
