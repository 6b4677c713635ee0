import subprocess
import sys

from rlhf_core.capabilities import EXECUTOR_READS_FRAMES, EXECUTOR_SEES, SEVERAL_TURNS
from rlhf_core.plugins import load


def test_the_components_are_registered_with_what_they_need_and_provide():
    plugins = load()

    multi = plugins.get("rlhf_rollout_executors", "agents:multi_turn").component
    single = plugins.get("rlhf_rollout_executors", "agents:single_turn").component

    assert (multi.needs, multi.provides) == (
        {"environment"},
        {SEVERAL_TURNS, EXECUTOR_SEES, EXECUTOR_READS_FRAMES},
    )
    assert single.conflicts == {"environment"}
    for hook, name in (
        ("rlhf_rollout_executors", "single_turn"),
        ("rlhf_rollout_executors", "multi_turn"),
        ("rlhf_environments", "echo_after_hint"),
        ("rlhf_environments", "echo_digits"),
    ):
        plugins.get(hook, name).build()


def test_registering_imports_nothing_heavy():
    code = "import sys, rlhf_plugin_agents; print(sorted({'torch', 'transformers', 'datasets'} & {*sys.modules}))"

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
