"""Weights & Biases: metrics over the run's own steps, samples and images, the configuration, and how the run ended.

W&B's own step only rises, so that a resumed run, which does some steps again, would lose these. Rows are therefore
logged without it and carry ``step``, which is the x axis of every chart. A step that was done twice has two rows.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rlhf_core import ConfigError

from .config import WandbConfig
from .group_table import GROUP_COLUMNS, group_rows
from .remembered import remember, remembered
from .sample_table import COLUMNS, rows, shown_images

if TYPE_CHECKING:
    from types import ModuleType

    from wandb import Run as WandbRun
    from wandb import Settings as WandbSettings

    from rlhf_core.contracts import RolloutSample, RunInfo, RunResult

log = logging.getLogger(__name__)

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 130}
"""Exit codes of ``rlhf train``. W&B shows a run with another one than 0 as failed; ``status`` has the word."""


class WandbLogger:
    """A run of ``wandb``, whose files are in ``RUN/wandb``."""

    def __init__(self, config: WandbConfig) -> None:
        self.config = config
        # Any: the environment may have any word, and wandb says which ones there are.
        self._mode: Any = config.mode or os.environ.get("WANDB_MODE", "online")
        if self._mode == "online" and not _has_credentials():
            raise ConfigError(
                "--log.to wandb: expected a key in the environment, and WANDB_API_KEY is not set. Set it, run wandb "
                "login, or write files alone with --log.wandb.mode offline.",
                code="logger/no-key",
            )
        self._run: WandbRun | None = None
        self._num_images = 0

    def start(self, run: RunInfo) -> None:
        import wandb

        self._num_images = run.config["log"]["images"]
        identity = remembered(run.output, "wandb")
        if identity is None:
            identity = secrets.token_hex(4)
            remember(run.output, "wandb", identity)
        options = self.config
        self._run = wandb.init(
            id=identity,
            resume="allow",
            project=options.project or os.environ.get("WANDB_PROJECT", "rlhf"),
            entity=options.entity,
            name=options.name or run.output.resolve().name,
            group=options.group,
            tags=options.tags,
            mode=self._mode,
            config=dict(run.config),
            allow_val_change=True,
            dir=run.output,
            reinit="create_new",
            settings=_settings(wandb, run, options.start_s),
        )
        if self._run.disabled and self._mode != "disabled":
            raise RuntimeError("wandb found no key for its server, and logs nothing")
        self._run.define_metric("*", step_metric="step")
        self._run.summary.update({"status": "running", "message": ""})
        log.info("wandb: %s", f"files in {self._run.dir}" if self._run.offline else self._run.url)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._run is not None
        self._run.log({"step": step, **metrics})

    def log_samples(self, step: int, samples: Sequence[RolloutSample]) -> None:
        import wandb

        assert self._run is not None
        table = wandb.Table(columns=list(COLUMNS), data=rows(step, samples))
        pictures = {
            shown.name: wandb.Image(str(shown.file), caption=shown.uid)
            for shown in shown_images(samples, self._num_images)
        }
        tables = {"samples": table}
        if groups := group_rows(step, samples):
            tables["groups"] = wandb.Table(columns=list(GROUP_COLUMNS), data=groups)
        self._run.log({"step": step, **tables, **pictures})

    def finish(self, result: RunResult) -> None:
        assert self._run is not None
        self._run.summary.update({"status": result.status, "message": result.message})
        self._run.finish(exit_code=EXIT_CODES[result.status])


def _has_credentials() -> bool:
    """Return whether wandb will find a key. Without one it would ask the terminal, while the run is training."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    written_by_login = [os.environ.get("NETRC", "~/.netrc"), "~/_netrc"]
    files = [path for name in written_by_login if (path := Path(name).expanduser()).is_file()]
    return any(_has_entry(file) for file in files)


def _has_entry(file: Path) -> bool:
    """Return whether a netrc file has an entry for W&B's server."""
    import wandb

    server = os.environ.get("WANDB_BASE_URL") or wandb.setup().settings.base_url
    try:
        return netrc(file).authenticators(urlsplit(server).hostname or "") is not None
    except NetrcParseError as error:
        raise ConfigError(
            f"--log.to wandb: {file} cannot be read: {error}. Correct it, or give the key in the variable "
            "WANDB_API_KEY, which goes before it",
            code="logger/key-unreadable",
        ) from error


def _settings(wandb: ModuleType, run: RunInfo, start_s: float) -> WandbSettings:
    settings: WandbSettings = wandb.Settings(
        # Progress and run.log are the run's own; wandb would write between them, and into stdout of all threads.
        silent=True,
        console="off",
        # Should wandb ask the terminal for a key after all, the run is not to wait for an answer.
        login_timeout=1.0,
        # The interpreter's end waits for a server that does not answer as long as the start does.
        init_timeout=start_s,
        # Also at the interpreter's end, where wandb waits once more; 0 would mean for ever.
        finish_timeout=max(1.0, run.config["log"]["wait_s"]),
    )
    return settings
