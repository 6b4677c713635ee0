"""Who starts processes: what may outlive its starter, or runs the code of users, is below the keeper of rlhf_guard."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("core", "cli", "libs", "plugins", "contrib")
SPAWNING = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "os": {"fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp"},
    "multiprocessing": {"Process", "Pool", "get_context", "set_start_method"},
    "pty": {"spawn", "fork"},
}  # fmt: skip
CALLED = re.compile(
    r"\b(?:Popen|run|call|check_\w+|get\w*output|create_subprocess_\w+|fork\w*|system|p?open|posix_spawnp?|"
    r"Process|Pool|get_context|set_start_method|exec[lv]\w*|spawn\w*)\("
)
"""What most files have nothing of, and need no parser."""
PREFIXES = ("os.exec", "os.spawn")

SHORT = (
    "it asks a program of the system a question, with a limit of seconds, and waits for the answer"
)
OWN_SUPERVISOR = (
    "what it starts is a supervisor itself: it has the orphans of what it runs, kills all of it at the end of its "
    "input, which the starter's death is, and costs a call 20 ms less than a keeper above it"
)
ALLOWED = {
    "rlhf_guard/processes/kept.py": "the supervisor's own room: a command under the keeper",
    "rlhf_guard/processes/keeper.py": "the supervisor's own room: the keeper",
    "rlhf_guard/processes/guarded.py": "the supervisor's own room: a worker under the keeper",
    "rlhf_guard/processes/program.py": "the supervisor's own room: a server under the keeper",
    "rlhf_tools/sandbox/python.py": OWN_SUPERVISOR,
    "rlhf_tools/sandbox/inside/supervisor.py": "the sandbox's supervisor",
    "rlhf_bridge_harbor/host.py": OWN_SUPERVISOR,
    "rlhf_bridge_harbor/inside.py": "the sandbox's supervisor",
    "rlhf_bridge_harbor/containers.py": "the client of a container engine, with a limit of seconds",
    "rlhf_plugin_ray/cluster/reaper.py": "it outlives its starter on purpose, to end what Ray leaves",
    "rlhf_plugin_ray/processes/process.py": "cat, which holds the id of a process group, and ends with its input",
    "rlhf_plugin_ray/cluster/node_report.py": SHORT,
    "rlhf_config/automatic/accelerators.py": SHORT,
    "rlhf_testing/conformance/deadline.py": "a check ends it at its deadline; it belongs to no run",
    "rlhf_testing/checks.py": "a check waits for it, with a limit of seconds; it belongs to no run",
    "rlhf_testing/conformance/kinds/placing/suits.py": "a check waits for it; it belongs to no run",
    "rlhf_testing/conformance/environments/elsewhere.py": "a check waits for it; it belongs to no run",
}
"""File -> why it may start a process."""


def starts(source):
    """Return the names by which a source starts processes, as ``subprocess.Popen``."""
    aliases, found = {}, []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {name.asname or name.name: name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            aliases |= {n.asname or n.name: f"{node.module}.{n.name}" for n in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = ast.unparse(node.func).split(".")
            name = ".".join([aliases.get(words[0], words[0]), *words[1:]])
            module, _, called = name.rpartition(".")
            # asyncio.subprocess and the like are below their package.
            if called in SPAWNING.get(module.partition(".")[0], ()) or name.startswith(PREFIXES):
                found.append(name)
    return found


def test_no_file_starts_a_process_but_those_with_a_reason():
    found = set()
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("src/**/*.py")):
            text = file.read_text("utf-8")
            if CALLED.search(text) and starts(text):
                found.add(str(file.relative_to(ROOT)).partition("src/")[2])

    assert found - ALLOWED.keys() == set(), "start it with rlhf_guard.processes"
    assert ALLOWED.keys() - found == set(), "these start none any more"


def test_another_name_is_seen_through():
    assert starts("from subprocess import Popen as P\nP(['x'])") == ["subprocess.Popen"]
    assert starts("import asyncio as a\na.create_subprocess_exec('x')")
    assert starts("import os\nos.execv('x', [])") == ["os.execv"]
    assert starts("import subprocess\nsubprocess.PIPE\nsubprocess.TimeoutExpired('x', 1)") == []
