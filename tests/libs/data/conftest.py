"""What the data tests share: files of rows, the character tokenizer, and run options."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_config.run import RunConfig
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_testing.tiny import tiny_tokenizer


@pytest.fixture(scope="session")
def renderer() -> TokenizerRenderer:
    return TokenizerRenderer(tiny_tokenizer())


@pytest.fixture
def write_rows(tmp_path) -> Callable[..., str]:
    """Writes rows as JSON lines; a ``str`` row goes into the file as it stands. Returns the path."""

    def write(rows: list, name: str = "rows.jsonl") -> str:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def run_config() -> Callable[..., RunConfig]:
    """Makes a run's options from those of ``data`` and ``eval``."""

    def make(*, seed: int = 0, batch_size: int = 4, eval: dict | None = None, **data) -> RunConfig:
        return RunConfig.model_validate(
            {
                "seed": seed,
                "model": {"path": "model"},
                "data": data,
                "eval": eval or {},
                "rollout": {"executor": "x", "batch_size": batch_size},
                "algo": {
                    "advantage": {"estimator": "x"},
                    "loss": {"policy": "x"},
                    "kl": {"estimator": "x"},
                },
                "actor": {"optim": "x"},
                "critic": {"optim": "x"},
                "engine": {"name": "x"},
                "backend": {"name": "x"},
                "runtime": {"name": "x"},
            }
        )

    return make


@pytest.fixture
def datasets_cache(tmp_path, monkeypatch) -> Path:
    """Keeps what ``datasets`` writes inside the test's folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"
