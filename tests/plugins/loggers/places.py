"""Where a logger writes in a test, with which options and environment, and how that is read back."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from tests.deadlines import HANG_S
from tests.libs.trainer.loop.small_run import SmallRun
from tests.plugins.loggers.read_back import Logged, read_mlflow, read_trackio, read_wandb

from rlhf_core.contracts import RunInfo, RunResult
from rlhf_core.plugins import load

NAMES = ("wandb", "trackio", "mlflow")

NO_SERVER = "http://127.0.0.1:9"
"""Nothing listens on the port ``discard``."""

ENVIRONMENT = {
    # wandb-core is a process of its own, where no test can replace sockets: what it would send has no way out.
    "WANDB_BASE_URL": NO_SERVER,
    "HTTPS_PROXY": NO_SERVER,
    "HTTP_PROXY": NO_SERVER,
    "NO_PROXY": "127.0.0.1,localhost",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "0.05",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_OFFLINE": "1",
}

UNSET = (
    "WANDB_API_KEY",
    "WANDB_MODE",
    "WANDB_PROJECT",
    "WANDB_ENTITY",
    "WANDB_IDENTITY_TOKEN_FILE",
    "TRACKIO_SPACE_ID",
    "TRACKIO_SERVER_URL",
    "TRACKIO_WRITE_TOKEN",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_EXPERIMENT_NAME",
    "HF_TOKEN",
)


class Place:
    """One logger whose files are all below ``folder``, but for trackio's, which are in ``TRACKIO_DIR``."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        # trackio looks at TRACKIO_DIR once in a process, so that its tests have a project each.
        self.project = f"p-{folder.parent.name}-{folder.name}".replace("_", "-").lower()

    @property
    def options(self) -> dict[str, Any]:
        """The logger's own options."""
        return {
            "wandb": {"mode": "offline", "project": "p"},
            "trackio": {"project": self.project},
            "mlflow": {"tracking_uri": f"sqlite:///{self.folder}/mlflow.db"},
        }[self.name]

    @property
    def log(self) -> dict[str, Any]:
        """Options of a run that logs here alone, and samples every second step."""
        return {"log": {"to": [self.name], self.name: self.options, "samples_every": 2}}

    def read(self, output: Path, *, ended: bool = True) -> Logged:
        """What the run in the folder ``output`` has logged; of trackio and MLflow, all runs of the test.

        Args:
            ended: the run was told its end, other than one that was killed.
        """
        if self.name == "wandb":
            return read_wandb(output, ended=ended)
        if self.name == "trackio":
            return read_trackio(Path(os.environ["TRACKIO_DIR"]), self.project)
        return read_mlflow(self.options["tracking_uri"])

    def made(self, **options: Any) -> Any:
        """The logger by itself, as a run would build it, with further options."""
        registered = load("").get("rlhf_loggers", self.name)
        return registered.build(registered.validate(self.options | options))

    def metric(self, name: str) -> str:
        """The name under which a metric stands there."""
        return name.replace("@", "_at_") if self.name == "mlflow" else name


def run_info(output: Path, start_step: int = 0, **config: Any) -> RunInfo:
    """What a logger is told of a run in the folder ``output``, which is made."""
    output.mkdir(exist_ok=True)
    config = {"log": {"wait_s": HANG_S, "images": 2}, **config}
    return RunInfo(output=output, config=config, total_steps=9, start_step=start_step)


def end(status: str = "finished", steps: int = 1) -> RunResult:
    """The end of a run."""
    return RunResult(status=status, steps=steps, seconds=1.0)


def run_until_killed(folder: Path, name: str, event: str, logged_step: int) -> None:
    """Run until ``event``, wait there until a step is in the logger's files, and die as by ``kill -9``."""
    place, small_run = Place(name, folder), SmallRun(folder)

    def is_logged() -> bool:
        try:
            rows = place.read(folder / "run", ended=False).rows
        except (OSError, ValueError, sqlite3.Error):  # its files are not there yet
            return False
        return any(step == logged_step and "reward/mean" in metrics for step, metrics in rows)

    def die() -> None:
        give_up = time.monotonic() + HANG_S
        while not is_logged() and time.monotonic() < give_up:
            time.sleep(0.05)
        os.kill(os.getpid(), 9)

    small_run.diary.on(event, die)
    small_run(place.log, {"checkpoint": {"every": 2}, "train": {"steps": 5}})


if __name__ == "__main__":
    run_until_killed(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
