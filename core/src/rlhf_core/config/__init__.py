"""Configuration: layers of options in, one validated tree out. Imports nothing heavy.

Example: ``resolved = resolve([read_toml("run.toml"), parse_flags(["--train.steps", "10"])], plugins)``
"""

from .files import read_toml, write_toml
from .flags import parse_flags
from .help import render_help
from .layers import Layer, Origin
from .paths import check_paths, path_problems
from .resolve import resolve
from .resolved import Resolved, RewardOptions, Selection
from .run import RunConfig

__all__ = [
    "Layer",
    "Origin",
    "Resolved",
    "RewardOptions",
    "RunConfig",
    "Selection",
    "check_paths",
    "parse_flags",
    "path_problems",
    "read_toml",
    "render_help",
    "resolve",
    "write_toml",
]
