"""Old name of what ``rlhf_plugin_algorithms`` has now; it works until the next minor version."""

from rlhf_core.moved import moved_package
from rlhf_plugin_algorithms import *  # noqa: F403

moved_package(
    __name__,
    "rlhf_plugin_algorithms.shapers",
    "rlhf_plugin_algorithms.filters",
    "rlhf_plugin_algorithms.samplers",
    kl_estimators="rlhf_plugin_algorithms.kl",
    sources="rlhf_plugin_sources",
)
