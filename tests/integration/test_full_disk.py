"""Commands whose files may not grow beyond a limit, as on a disk that is full at that point: an error or a message by
name, never a traceback, and nothing half-written."""

import io
import logging
import resource
import sys

import pytest

from .forked_runs import told_by_a_fork

KIB = 1024
FLAGS = (
    *("--model", "model", "--data", "mine.jsonl", "--reward", "vary.py:vary", "--steps", "2"),
    *("--rollout.batch_size", "2", "--rollout.n_samples_per_prompt", "2"),
    *("--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "8"),
    *("--engine", "embedded", "--output", "run"),
)
WITHOUT_CHECKPOINTS = ("--checkpoint.every", "0", "--checkpoint.at_end", "false")
LORA = ("--actor.adapter", "lora", "--actor.lora.rank", "32")


@pytest.fixture
def limited(workspace):
    """Runs ``rlhf WORDS`` in a process whose files may have so many bytes; returns its exit code and stderr."""

    def run(max_bytes, *words):
        def limit():
            sys.stdout = io.StringIO()
            # Those of pytest would take the warnings that a process of its own shows.
            logging.getLogger().handlers.clear()
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, hard))

        code, told = told_by_a_fork(workspace, list(words), prepare=limit)
        assert "Traceback" not in told, told
        left = [path.name for path in workspace.rglob("*") if path.suffix in {".tmp", ".part"}]
        assert left == []
        return code, told

    return run


@pytest.mark.parametrize(
    "kib",
    [
        24,
        *(pytest.param(kib, marks=pytest.mark.slow) for kib in (1, 4, 8, 12, 20, 36, 44)),
    ],
)
def test_a_run_without_room_ends_by_name(limited, kib):
    code, told = limited(kib * KIB, "train", *FLAGS, "--checkpoint.every", "1")

    assert code == 1, told
    assert "error: " in told
    assert "File too large" in told


@pytest.mark.slow
def test_a_curve_without_room_is_named_and_ends_nothing(limited, workspace):
    """The curve has about 40 KiB, and everything else has room."""
    code, told = limited(
        32 * KIB, "train", *FLAGS, *WITHOUT_CHECKPOINTS, "--checkpoint.export", "false"
    )

    assert code == 0, told
    assert told.count("LearningCurve failed and is switched off for the rest of this run: ") == 1
    assert "run/learning_curve.png could not be written: File too large" in told
    assert not (workspace / "run/learning_curve.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [(), LORA])
def test_an_export_without_room_is_named_and_not_there(limited, workspace, adapter):
    """The model has 23 KiB, the adapter more."""
    code, told = limited(20 * KIB, "train", *FLAGS, *WITHOUT_CHECKPOINTS, *adapter)

    assert code == 1, told
    assert "error: run/model could not be written: File too large. Make room there" in told
    assert "The last checkpoint has the model: --resume auto exports it" in told
    assert not (workspace / "run/model").exists()


@pytest.mark.slow
def test_a_merged_model_without_room_is_named_and_not_there(limited, workspace):
    assert limited(resource.RLIM_INFINITY, "train", *FLAGS, *LORA)[0] == 0

    code, told = limited(20 * KIB, "merge", "model", "run/model", "merged")

    assert code == 1, told
    assert "error: merged could not be written: File too large. Make room there" in told
    assert not (workspace / "merged").exists()
