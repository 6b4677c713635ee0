"""MLflow: metrics by step, samples and images as files, the configuration as parameters and as a file, and the status.

MLflow keeps every value that it gets: of a step that was done twice, because its process was killed, both. Parameters
cannot change, so they are those of the first start; ``config.json`` is that of the latest.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .config import MlflowConfig
from .group_table import GROUP_COLUMNS, group_rows
from .remembered import remember, remembered
from .sample_table import COLUMNS, rows, shown_images

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from rlhf_core.contracts import RolloutSample, RunInfo, RunResult

log = logging.getLogger(__name__)

STATUSES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
"""MLflow's word for each status of a run."""
MAX_METRICS, MAX_PARAMS = 1000, 100
"""Most metrics and parameters of one request."""

_NOT_IN_NAMES = re.compile(r"[^\w.\-/ ]")


class MlflowLogger:
    """A run of ``mlflow``, written by its client alone, so that no global run of the process is touched."""

    def __init__(self, config: MlflowConfig) -> None:
        self.config = config
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._num_images = 0

    def start(self, run: RunInfo) -> None:
        from mlflow import MlflowClient

        self._num_images = run.config["log"]["images"]
        client = self._client = MlflowClient(tracking_uri=self.config.tracking_uri)
        identity = remembered(run.output, "mlflow")
        if identity is not None:
            client.update_run(identity, status="RUNNING")
            self._run_id = identity
        else:
            name = self.config.run_name or run.output.resolve().name
            created = client.create_run(self._experiment_id(client), run_name=name)
            self._run_id = created.info.run_id
            remember(run.output, "mlflow", self._run_id)
            self._log_params(client, run.config)
        client.log_dict(self._run_id, dict(run.config), "config.json")
        # Without the URI, which has a password in it where MLFLOW_TRACKING_URI is that of a database server.
        log.info("mlflow: run %s", self._run_id)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        assert self._client is not None
        now_ms = time.time_ns() // 1_000_000
        found = [
            Metric(mlflow_name(name), float(value), now_ms, step) for name, value in metrics.items()
        ]
        for start in range(0, len(found), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=found[start : start + MAX_METRICS])

    def log_samples(self, step: int, samples: Sequence[RolloutSample]) -> None:
        assert self._client is not None
        table = {"columns": list(COLUMNS), "data": rows(step, samples)}
        self._client.log_dict(self._run_id, table, f"samples/step_{step:08d}.json")
        if groups := group_rows(step, samples):
            table = {"columns": list(GROUP_COLUMNS), "data": groups}
            self._client.log_dict(self._run_id, table, f"groups/step_{step:08d}.json")
        pictures = shown_images(samples, self._num_images)
        if pictures:
            # Without Pillow no sample has an image.
            from PIL import Image
        for shown in pictures:
            with Image.open(shown.file) as image:
                self._client.log_image(
                    self._run_id, image, key=shown.name, step=step, synchronous=True
                )

    def finish(self, result: RunResult) -> None:
        assert self._client is not None
        self._client.set_tag(self._run_id, "message", result.message)
        self._client.set_terminated(self._run_id, STATUSES[result.status])

    def _experiment_id(self, client: MlflowClient) -> str:
        name = self.config.experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME", "rlhf")
        experiment = client.get_experiment_by_name(name)
        found: str = experiment.experiment_id if experiment else client.create_experiment(name)
        return found

    def _log_params(self, client: MlflowClient, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(mlflow_name(path), text) for path, text in params_of(config)]
        for start in range(0, len(params), MAX_PARAMS):
            client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS])


def mlflow_name(name: str) -> str:
    """Return a name as MLflow takes it: ``pass@1`` becomes ``pass_at_1``, another special character ``_``."""
    return _NOT_IN_NAMES.sub("_", name.replace("@", "_at_"))


def params_of(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted path of each option and its value as text: strings as they are, other values as JSON."""
    for key, value in config.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping) and value:
            yield from params_of(value, path)
        else:
            yield path, value if isinstance(value, str) else json.dumps(value)
