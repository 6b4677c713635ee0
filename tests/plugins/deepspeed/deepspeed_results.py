"""Files of what a rank found in a scenario: tensors as safetensors, facts as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from deepspeed_scenarios import Found
from safetensors.torch import load_file, save_file


def write(found: Found, path: Path) -> None:
    save_file(found.tensors, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps(found.facts))


def read(path: Path) -> Found:
    found = Found()
    found.facts = json.loads(path.with_suffix(".json").read_text())
    found.tensors = load_file(path.with_suffix(".safetensors"))
    return found
