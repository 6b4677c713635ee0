"""The command that starts a process around a sandboxed program, which sees Python's standard library and no package."""

from __future__ import annotations

import json
import sys
from types import ModuleType

# Packages need others that the process does not see, so their folders stand for them.
_START = """
import json, sys, types
from importlib import import_module
for name, folders in json.loads(sys.argv.pop(1)).items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = folders
import_module(sys.argv.pop(1)).main()
"""


def command_of(python: str, program: ModuleType, *arguments: str) -> tuple[str, ...]:
    """Return the command that calls a module's ``main``, as the leader of what an interpreter starts.

    The module may import the standard library, modules of its own package, and those of ``rlhf_tools.sandbox.inside``.

    Args:
        python: path of the interpreter.
        arguments: those that ``sys.argv`` has from its second entry on.
    """
    packages = {"rlhf_tools", program.__name__.partition(".")[0]}
    folders = {name: list(sys.modules[name].__path__) for name in sorted(packages)}
    return (python, "-I", "-S", "-c", _START, json.dumps(folders), program.__name__, *arguments)
