"""Families of models behind vLLM on a CPU: log-probs and digest are the trainer's, before and after an update."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.plugins.vllm.families import SERVED
from tests.plugins.vllm.torchvision_path import search_path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "vllm.md"
WAIT_S = 3600.0
"""That of a hang."""
TOLERANCE = 1e-4
"""Nats, float32: measured are 8e-6. The update moves log-probs by 0.4 and more."""
COVERING = ("llava", "mixtral", "gpt_oss", "olmo3")
"""Of them those that have each part of the mechanism; the others are in the full matrix."""
REFUSED: Mapping[str, str] = {
    "gemma3": "see each other in both directions",
    "qwen3_5": "layers of the kind linear_attention carry a state",
    "lfm2": "layers of the kind conv carry a state",
    "cohere2": "sees 8 tokens .* and one more in vLLM",
}
"""Family -> what the message says that refuses it at the start."""


def compared(tmp_path: Path, family: str) -> dict:
    """What ``benchmarks/engine_families.py`` finds."""
    lines = tmp_path / "found.jsonl"
    words = [sys.executable, "benchmarks/engine_families.py", "--device", "cpu", "--family", family]
    words += ["--timeout", str(WAIT_S), "--json", str(lines), "--verbose"]
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = lines.read_text().splitlines()
    return json.loads(line)


@pytest.mark.scale
@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [name if name in COVERING else pytest.param(name, marks=pytest.mark.matrix) for name in SERVED],
)
def test_the_engine_serves_what_the_trainer_computes(tmp_path, family):
    pytest.importorskip("vllm")

    found = compared(tmp_path, family)

    assert found["error"] is None
    assert found["digest"]
    assert found["moved"] > 0.1
    assert max(found["largest"], found["largest_after"]) < TOLERANCE


@pytest.mark.scale
@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("family", REFUSED)
def test_what_vllm_cannot_compute_is_refused_with_the_reason(tmp_path, family):
    pytest.importorskip("vllm")

    assert re.search(REFUSED[family], compared(tmp_path, family)["error"])


def test_the_page_has_the_families_that_are_tried_here():
    section = PAGE.read_text().split("## Families\n")[1].split("\n**On a GPU**")[0]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
    kinds = {name: kind for names, kind, _ in rows for name in re.findall(r"`(\w+)`", names)}
    del kinds["model_type"]

    assert {name for name, kind in kinds.items() if "refused" in kind} == set(REFUSED)
    assert {name for name, kind in kinds.items() if "refused" not in kind} == set(SERVED)
