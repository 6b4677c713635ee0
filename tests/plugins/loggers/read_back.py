"""What the libraries themselves left behind, read from their files: rows by step, configuration, samples, the end."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deadlines import HANG_S

Row = tuple[int, dict[str, float]]


@dataclass
class Logged:
    """All that was logged in one project or experiment, of all its runs."""

    runs: list[str] = field(default_factory=list)
    """Identities of the runs, each once, in the order of their beginning."""
    rows: list[Row] = field(default_factory=list)
    """Step and metrics, in the order in which they came, over all runs."""
    config: dict[str, Any] = field(default_factory=dict)
    """Of the latest start."""
    tables: dict[int, list[list[Any]]] = field(default_factory=dict)
    """Step -> rows of its samples."""
    groups: dict[int, list[list[Any]]] = field(default_factory=dict)
    """Step -> rows of its groups."""
    images: dict[tuple[int, str], Path] = field(default_factory=dict)
    """Step and name -> the file of an image of samples."""
    status: str = ""
    """The library's own word, of the latest end."""
    message: str = ""

    def values(self, name: str) -> list[tuple[int, float]]:
        """Step and value of one metric, in the order in which they came."""
        return [(step, metrics[name]) for step, metrics in self.rows if name in metrics]


def read_wandb(output: Path, *, ended: bool = True) -> Logged:
    """Read the offline files of a run folder.

    Args:
        ended: the newest file has an end, which is waited for.
    """
    found = Logged()
    files = sorted(output.glob("wandb/*-run-*/run-*.wandb"))
    if ended:
        wait_for_end(files[-1])
    for file in files:
        _read_wandb_file(file, found)
    return found


def wait_for_end(file: Path) -> None:
    """Wait for a ``.wandb`` file to be complete: wandb-core goes on writing it when ``finish`` has returned."""
    give_up = time.monotonic() + HANG_S
    while not any(record.WhichOneof("record_type") == "exit" for record in wandb_records(file)):
        assert time.monotonic() < give_up, f"{file} has no end"
        time.sleep(0.02)


def _read_wandb_file(file: Path, found: Logged) -> None:
    for record in wandb_records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            if record.run.run_id not in found.runs:
                found.runs.append(record.run.run_id)
            updates = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            found.config = {key: value for key, value in updates.items() if key != "_wandb"}
        elif kind == "history":
            items = {
                (*item.nested_key,) or (item.key,): json.loads(item.value_json)
                for item in record.history.item
            }
            step = items[("step",)]
            for name, tables in (("samples", found.tables), ("groups", found.groups)):
                if (name, "path") in items:
                    table = json.loads((file.parent / "files" / items[name, "path"]).read_text())
                    tables[step] = table["data"]
            for key in [
                key for key in items if key[0].startswith("samples/image") and key[-1] == "path"
            ]:
                found.images[step, key[0]] = file.parent / "files" / items[key]
            metrics = {
                key[0]: float(value)
                for key, value in items.items()
                if len(key) == 1 and key[0] != "step" and not key[0].startswith("_")
            }
            if metrics:
                found.rows.append((step, metrics))
        elif kind == "summary":
            for item in record.summary.update:
                if item.key == "status":
                    found.status = json.loads(item.value_json)
                elif item.key == "message":
                    found.message = json.loads(item.value_json)


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the records of a ``.wandb`` file: LevelDB's log format after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left_in_block = 32768 - place % 32768
        if left_in_block < 7:
            place += left_in_block
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        if place + 7 + length > len(data) or kind == 0:
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def read_trackio(folder: Path, project: str) -> Logged:
    """Read a project's database in ``TRACKIO_DIR``."""
    found = Logged()
    with _connected(folder / f"{project}.db") as database:
        for run, step, text in database.execute("select run_id, step, metrics from metrics"):
            if run not in found.runs:
                found.runs.append(run)
            values = json.loads(text)
            for name, tables in (("samples", found.tables), ("groups", found.groups)):
                if name in values:
                    table = values.pop(name)["_value"]
                    tables[step] = [list(row.values()) for row in table]
            for name in [name for name in values if name.startswith("samples/image")]:
                picture = values.pop(name)
                found.images[step, name] = folder / "media" / picture["file_path"]
            if values:
                found.rows.append((step, {name: float(value) for name, value in values.items()}))
        for (text,) in database.execute("select config from configs"):
            found.config = {k: v for k, v in json.loads(text).items() if not k.startswith("_")}
        for title, text in database.execute("select title, text from alerts"):
            found.status, found.message = title, text or ""
    return found


def read_mlflow(uri: str) -> Logged:
    """Read the one experiment of a database, through MLflow's own client."""
    from mlflow import MlflowClient

    client, found = MlflowClient(uri), Logged()
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
    for run in runs:
        found.runs.append(run.info.run_id)
        found.status = run.info.status
        found.message = run.data.tags.get("message", "")
        points = sorted(
            (point.timestamp, point.step, name, point.value)
            for name in run.data.metrics
            for point in client.get_metric_history(run.info.run_id, name)
        )
        rows: dict[tuple[int, int], dict[str, float]] = {}
        for time_ms, step, name, value in points:
            rows.setdefault((time_ms, step), {})[name] = value
        found.rows += [(step, metrics) for (_, step), metrics in rows.items()]
        artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
        found.config = json.loads((artifacts / "config.json").read_text())
        for file in artifacts.glob("images/*.png"):
            name, _, step, *_ = file.stem.split("+")
            found.images[int(step), name.replace("~", "/")] = file
        for name, tables in (("samples", found.tables), ("groups", found.groups)):
            for file in sorted(artifacts.glob(f"{name}/step_*.json")):
                step = int(file.stem.removeprefix("step_"))
                tables[step] = json.loads(file.read_text())["data"]
    return found


def same(first: float, second: float) -> bool:
    """Whether two numbers are the same, NaN included."""
    return first == second or (math.isnan(first) and math.isnan(second))


class _connected:
    """A connection that is closed at the end; ``sqlite3``'s own context only ends a transaction."""

    def __init__(self, file: Path) -> None:
        # A database that nobody has made yet must not come into being by being looked at.
        self._database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)

    def __enter__(self) -> sqlite3.Connection:
        return self._database

    def __exit__(self, *error: object) -> None:
        self._database.close()
