"""Runs that go on or are resumed: their checkpoints, weights, samples and rows, as the loop looks at them."""

import asyncio
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
from tests.core.conftest import trajectory
from tests.libs.trainer.loop.test_restore import Role, point
from tests.libs.trainer.rollouts.test_served_weights import engine_with

from rlhf_cli.train import DEFAULTS
from rlhf_config import Layer, read_toml, resolve_options
from rlhf_config.train import TRAIN
from rlhf_core.batch.trajectory_columns import TrajectoryColumns
from rlhf_core.contracts import Task, Uid
from rlhf_core.plugins import load
from rlhf_core.storage.run_folder import RunFolder
from rlhf_guard.rewards.panel import SampleScore
from rlhf_plugin_lab.replay.command import held
from rlhf_plugin_loggers.wandb_logger import WandbConfig, WandbLogger
from rlhf_plugin_sources.jsonl_stream import JsonlStream, JsonlStreamConfig
from rlhf_plugin_supervised.training.command import sft
from rlhf_plugin_supervised.training.drawn import with_drawn_rows
from rlhf_plugin_supervised.training.imitation.sft_options import SFT
from rlhf_plugin_supervised.training.trainer import ExampleState, check_sizes
from rlhf_trainer.durable import checkpoint
from rlhf_trainer.loop.restore import check_epoch, restore_roles
from rlhf_trainer.loop.state import LoopState
from rlhf_trainer.rollouts.episodes import PlayedGroup, rewarded
from rlhf_trainer.rollouts.reports import staleness_metrics
from rlhf_trainer.rollouts.source import check_served_weights

from .advised_case import Advised
from .advised_requests import changed_environment


def resumed(schema, folder):
    """Read a checkpoint whose manifest names a schema."""

    async def fill(made):
        (made / "model.bin").write_bytes(b"weights")

    saved = asyncio.run(checkpoint.save(Path(folder), 1, {"step": 1}, fill))
    if folder == "older":
        manifest = saved / "manifest.json"
        text = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(text | {"schema": schema or text["schema"]}))
    checkpoint.read(saved)


def served(digest):
    asyncio.run(check_served_weights(engine_with(digest), engine_with("abc"), version=3))


def train_options(**values):
    given = {"model.path": "model", "data.train": ("rows.jsonl",), "reward.use": ("exact_match",)}
    layers = [read_toml(DEFAULTS, defaults=True), Layer.of_paths(given | values, "words")]
    return resolve_options(layers, load(), TRAIN)


def restored(roles, folders):
    for name in folders:
        Path(name).mkdir()
    given = {name: Role() for name in roles}
    asyncio.run(restore_roles(point(Path()), train_options(), given))


def epoch(was, now):
    check_epoch(LoopState(num_prompts=was), now)


def sizes(was, now):
    check_sizes(ExampleState(sizes=was), now)


def stale(oldest):
    rows = [trajectory(Uid(0, 3, number), "pAA") for number in range(2)]
    batch = dataclasses.replace(
        TrajectoryColumns.from_trajectories(rows),
        oldest_version=np.array([oldest, 6]),
        version_counts=np.array([[2], [2]]),
    )
    staleness_metrics(batch, 6, 1)


def named_rewards(of_environment):
    row = dataclasses.replace(trajectory(Uid(0, 3), "pAA"), rewards={of_environment: 1.0})
    group = PlayedGroup(task=Task(uid=Uid(0, 3)), trajectories=(row,), left_out={})
    rewarded(group, [SampleScore(reward=1.0, rewards={"exact": 1.0})])


def streamed(text, wait_s):
    Path("rows.jsonl").write_text(text)
    if wait_s:  # the rest comes while the source waits
        Path("rows.jsonl").write_text(f"{text}1}}\n")
    list(JsonlStream(JsonlStreamConfig(path="rows.jsonl", wait_s=min(wait_s, 0.1))).rows(0))


def drawn(is_resumed, is_there):
    """Begin or resume a run whose rows were drawn of a source."""
    Path("given.jsonl").write_text('{"prompt": "1", "response": "2"}\n' * 8)
    folder = RunFolder(Path("run"))
    folder.root.mkdir()
    if is_there:
        shutil.copy("given.jsonl", folder.rows)
    values = {
        "model.path": "model",
        "data.source": "jsonl_stream",
        "data.jsonl_stream.path": "given.jsonl",
        "data.max_samples": 4,
    }
    layers = [read_toml(sft.defaults, defaults=True), Layer.of_paths(values, "words")]
    with_drawn_rows(resolve_options(layers, load(), SFT), folder, is_resumed=is_resumed)


def logged_in(written, key):
    """Make the logger, which looks for a key."""
    Path("netrc").write_text(written)
    where = {"NETRC": str(Path("netrc").resolve()), "WANDB_BASE_URL": "https://api.wandb.ai"}
    with changed_environment(**where, WANDB_API_KEY=key):
        WandbLogger(WandbConfig())


def checkpoint_held(removed, start):
    """Hold the checkpoint from which a span is reached; the run removes its first one meanwhile."""
    for step in (1, 2):
        made = Path(f"step-{step:08d}")
        made.mkdir()
        (made / "model.bin").write_bytes(b"weights")
        (made / "manifest.json").write_text(json.dumps({"files": {"model.bin": ""}}))
    if removed:
        shutil.rmtree(removed)
    Path("kept").mkdir()
    held(Path(start), Path("kept"))


CUT = '{"prompt": "0"}\n{"prompt": '

RUNS_GOING_ON = {
    "rlhf_trainer/durable/checkpoint.py:read": [
        Advised(
            call=resumed,
            wrong={"schema": 999, "folder": "older"},
            told={
                "Resume with the rlhf-core that wrote it": {"schema": None},
                "start a new run in another --output": {"folder": "newer"},
            },
        )
    ],
    "rlhf_trainer/rollouts/source.py:check_served_weights": [
        Advised(
            call=served,
            wrong={"digest": "old"},
            told={"Continue from the newest checkpoint with --resume auto": {"digest": "abc"}},
            given=("--rollout.check_weights",),
        )
    ],
    "rlhf_trainer/loop/restore.py:restore_roles": [
        Advised(
            call=restored,
            wrong={"roles": ("policy", "critic"), "folders": ("policy",)},
            told={
                "Choose the components of that run": {"roles": ("policy",)},
                "start a new run in another --output": {"folders": ("policy", "critic")},
            },
        )
    ],
    "rlhf_trainer/loop/restore.py:check_epoch": [
        Advised(
            call=epoch,
            wrong={"was": 8, "now": 9},
            told={"put them back": {"now": 8}, "start a new run in another --output": {"was": 0}},
        )
    ],
    "rlhf_plugin_supervised/training/trainer.py:check_sizes": [
        Advised(
            call=sizes,
            wrong={"was": [8, 2], "now": [9, 2]},
            told={
                "Put the rows back": {"now": [8, 2]},
                "start a new run in another --output": {"was": []},
            },
        )
    ],
    "rlhf_trainer/rollouts/reports.py:staleness_metrics": [
        Advised(
            call=stale,
            wrong={"oldest": 4},
            told={"Continue from the newest checkpoint with --resume auto": {"oldest": 5}},
            given=("--rollout.max_staleness",),
        )
    ],
    "rlhf_trainer/rollouts/episodes.py:rewarded": [
        Advised(
            call=named_rewards,
            wrong={"of_environment": "exact"},
            told={"Rename the environment's": {"of_environment": "won"}},
            given=("--reward",),
        )
    ],
    "rlhf_plugin_sources/jsonl_stream.py:_next_line": [
        Advised(
            call=streamed,
            wrong={"text": CUT, "wait_s": 0.0},
            told={
                "Write rows with a newline at their end": {"text": '{"prompt": "0"}\n'},
                "wait for the rest with --data.jsonl_stream.wait_s 60": {"wait_s": 60.0},
            },
        )
    ],
    "rlhf_plugin_supervised/training/drawn.py:with_drawn_rows": [
        Advised(
            call=drawn,
            wrong={"is_resumed": True, "is_there": False},
            told={
                "Put it back": {"is_there": True},
                "start over with --resume restart": {"is_resumed": False},
            },
            given=("--data.source",),
        )
    ],
    "rlhf_plugin_loggers/wandb_logger.py:_has_entry": [
        Advised(
            call=logged_in,
            wrong={"written": "machine", "key": None},
            told={
                "Correct it": {"written": "machine api.wandb.ai login user password 0123\n"},
                "or give the key in the variable WANDB_API_KEY": {"key": "0" * 40},
            },
            given=("--log.to",),
        )
    ],
    "rlhf_plugin_lab/replay/command.py:held": [
        Advised(
            call=checkpoint_held,
            wrong={"removed": "step-00000001", "start": "step-00000001"},
            told={
                "Choose a later --from": {"start": "step-00000002"},
                "have the next run keep more with --checkpoint.keep": {"removed": None},
            },
        )
    ],
}
"""Place -> calls, one for each message."""
