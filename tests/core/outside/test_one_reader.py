"""JSON is read by ``rlhf_core.outside.json_reader``, but where this process itself has just written it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOMS = ("core/src", "cli/src", "libs", "plugins", "contrib")
READERS = {("json", "load"), ("json", "loads"), ("orjson", "loads")}

WRITTEN_HERE = {
    # The reader, and what is as strict as the reader and adds its limit of depth.
    "rlhf_core/outside/json_reader.py": 1,
    "rlhf_plugin_endpoint/dialects/fields.py": 1,
    # A round trip of a value, which says that JSON holds it.
    "rlhf_trainer/learning/roles.py": 1,
    "rlhf_trainer/loop/driver.py": 1,
    "rlhf_guard/parts.py": 1,
    # Arguments and options that this process wrote as text a moment before.
    "rlhf_bridge_reasoning_gym/environment.py": 1,
    "rlhf_bridge_verifiers/rollouts.py": 2,
    "rlhf_bridge_verifiers/setting.py": 1,
    "rlhf_core/contracts/executor.py": 1,
    "rlhf_data/chat/parsing/json_calls.py": 1,
    "rlhf_data/chat/spelling.py": 1,
    "rlhf_plugin_endpoint/episode/forms.py": 2,
    "rlhf_plugin_inference/evaluate/run.py": 1,
    "rlhf_plugin_plan/model/measured.py": 1,
    "rlhf_plugin_vllm/worker/four_bits.py": 1,
    # Between this process and one that it started, with errors of its own and without the package.
    "rlhf_bridge_harbor/inside.py": 1,
    "rlhf_guard/processes/marked_json.py": 1,
    "rlhf_tools/sandbox/inside/supervisor.py": 1,
    "rlhf_tools/sandbox/python.py": 1,
}
"""Number of calls, by file below the package's ``src``. Checks of components (``testing``, ``conformance``) read what
they have made, and end with a broken promise otherwise."""


def calls_of_other_readers(text):
    """Lines with a call of a library's reader, by whatever name the module was imported."""
    tree = ast.parse(text)
    modules = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    functions = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        if isinstance(node, ast.Name):
            found = functions.get(node.id)
        else:
            found = isinstance(node.value, ast.Name) and (modules.get(node.value.id), node.attr)
        if found in READERS:
            yield node.lineno


def test_only_what_this_process_has_written_is_read_by_another_reader():
    found = {}
    for room in ROOMS:
        for path in (ROOT / room).rglob(
            "src/**/*.py" if room in ("libs", "plugins", "contrib") else "**/*.py"
        ):
            if {"rlhf_testing", "conformance", ".venv"} & set(path.parts):
                continue
            text = path.read_text()
            if "json" in text and "load" in text and (lines := list(calls_of_other_readers(text))):
                found[str(path).rpartition("/src/")[2]] = len(lines)

    assert found == WRITTEN_HERE


@pytest.mark.parametrize(
    "text",
    [
        "import json\njson.loads(x)",
        "import orjson as o\nread = o.loads",
        "from json import load as r\nr(f)",
    ],
)
def test_a_call_is_found_by_whatever_name(text):
    assert list(calls_of_other_readers(text)) == [2]
