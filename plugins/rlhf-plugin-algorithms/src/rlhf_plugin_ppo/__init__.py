"""Old name of what ``rlhf_plugin_algorithms`` has now; it works until the next minor version."""

from rlhf_core.moved import moved_package
from rlhf_plugin_algorithms import *  # noqa: F403

moved_package(__name__, "rlhf_plugin_algorithms.advantages", "rlhf_plugin_algorithms.losses")
