"""Options of the loggers, under the names that the libraries have for them. None holds a key: keys come from the
environment."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlhf_core import Config
from rlhf_core.capabilities import HEARS_TOKENS

_USER_OF_URL = re.compile(r"://[^/@\s]+@")


class WandbConfig(Config):
    """Names of a run at Weights & Biases, and the way it goes there."""

    project: str | None = Field(None, description="project; none: WANDB_PROJECT, else rlhf")
    entity: str | None = Field(None, description="user or team; none: WANDB_ENTITY, else your own")
    name: str | None = Field(None, description="name of the run; none: that of the run folder")
    group: str | None = Field(
        None, description="word by which the site groups runs; none: no group"
    )
    tags: tuple[str, ...] = Field((), description="words to find the run by")
    mode: Literal["online", "offline"] | None = Field(
        None,
        description="online: send to the server; offline: write files for wandb sync into the run folder; none: "
        "WANDB_MODE, else online",
    )
    start_s: float = Field(
        30.0, gt=0, description="seconds that the server has to answer at the start of the run"
    )

    @model_validator(mode="after")
    def _waits_for_a_server(self) -> WandbConfig:
        if self.mode == "offline" and self.start_s != type(self).model_fields["start_s"].default:
            raise ValueError(
                f"mode offline asks no server, so start_s {self.start_s:g} would change nothing; leave one of them out"
            )
        return self


class TrackioConfig(Config):
    """Names of a run in trackio, and the place where trackio keeps it."""

    project: str = Field(
        "rlhf", min_length=1, description="project, which has a file of its own in TRACKIO_DIR"
    )
    name: str | None = Field(
        None,
        description="name of the run, by which a resume finds it, so no other run of the project may have it; none: "
        "that of the run folder with a random end",
    )
    group: str | None = Field(
        None, description="word by which the dashboard groups runs; none: no group"
    )
    space_id: str | None = Field(
        None,
        description="Hugging Face Space to send the run to; none: TRACKIO_SPACE_ID, else this machine",
    )
    private: bool = Field(True, description="make a new Space private")
    server_url: str | None = Field(
        None,
        description="address of a trackio server of your own, whose token is in TRACKIO_WRITE_TOKEN",
    )
    traces: int = Field(
        0,
        ge=0,
        le=256,
        description="number of samples, of each step whose samples are logged, to send as traces with tokens, at "
        "most 20 000 tokens of a step; above 0 it needs an observer that hears tokens",
    )

    def needed_by_options(self) -> frozenset[str]:
        """Return the need of tokens, where samples are to be traces."""
        return frozenset({HEARS_TOKENS}) if self.traces else frozenset()

    @field_validator("server_url")
    @classmethod
    def _holds_no_token(cls, url: str | None) -> str | None:
        if url is not None and "write_token=" in url:
            raise ValueError(
                "the URL has a write_token, which would be recorded with the options; leave it out and set "
                "TRACKIO_WRITE_TOKEN"
            )
        return url

    @model_validator(mode="after")
    def _goes_to_one_place(self) -> TrackioConfig:
        if self.space_id is not None and self.server_url is not None:
            raise ValueError("space_id and server_url are two places; leave one of them out")
        return self


class MlflowConfig(Config):
    """Names of a run in MLflow, and the place where MLflow keeps it."""

    tracking_uri: str | None = Field(
        None,
        description="server or database; none: MLFLOW_TRACKING_URI, else mlflow.db in the current folder",
    )
    experiment_name: str | None = Field(
        None, description="name of the experiment; none: MLFLOW_EXPERIMENT_NAME, else rlhf"
    )
    run_name: str | None = Field(None, description="name of the run; none: that of the run folder")

    @field_validator("tracking_uri")
    @classmethod
    def _holds_no_password(cls, uri: str | None) -> str | None:
        if uri is not None and _USER_OF_URL.search(uri):
            raise ValueError(
                "the URI has a user or password, which would be recorded with the options; set MLFLOW_TRACKING_URI "
                "instead, or leave them out and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return uri
