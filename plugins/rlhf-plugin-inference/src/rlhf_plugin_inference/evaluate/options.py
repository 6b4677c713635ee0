"""The options of ``rlhf eval``. Sections that ``rlhf train`` has too have the same names there."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_config import AnswerSampling, CommandOptions, HubModel, PaddingSampling
from rlhf_config.common import EngineSelection, NotNegative, Positive
from rlhf_core import Config

from ..serving.options import ModelToServe
from ..worklist.options import Display, PromptsWithImages, Scores

EPISODES, SECONDS, SUMMARY = "episodes.jsonl", "seconds.jsonl", "summary.json"
"""Files of the output folder."""
_IN_FLIGHT = 1024
"""Episodes in flight with each engine, unless an option says how many tasks are."""
_IN_FLIGHT_REMOTE = 16


class EvaluatedModel(ModelToServe):
    path: HubModel = Field(
        "",
        description="folder or hub name of the causal language model, folder of a run that exported one, or PEFT "
        "folder; empty with remote.url",
    )


class Episodes(PaddingSampling, AnswerSampling):
    executor: str = Field(
        description="component that plays a task with the model and returns its episodes"
    )
    max_length: Positive | None = Field(
        None,
        description="largest number of tokens of an episode: prompt, answers and environment together; unset: "
        "max_prompt_tokens + max_new_tokens",
    )
    concurrency: Positive | None = Field(
        None,
        description="largest number of tasks that are played at the same time; unset: as many as make 1024 episodes "
        "for each engine, or 16 with remote.url",
    )


class EvaluationOptions(Config):
    n_samples: Positive = Field(
        1,
        description="number of episodes of a task at each temperature; gives pass@k for k up to it",
    )
    temperatures: tuple[float, ...] = Field(
        (0.0,),
        min_length=1,
        description="sampling temperatures, at each of which the run evaluates; 0 is greedy",
    )
    metrics: tuple[str, ...] = Field(
        (),
        description="further metrics of evaluation episodes, each with a section of its own for its options",
    )
    pass_threshold: float = Field(
        1.0, description="an episode passes if its reward is at least this"
    )
    environment_split: str = Field(
        "eval",
        min_length=1,
        description="split of the environments' own tasks to evaluate on, without data",
    )
    max_samples: Positive | None = Field(
        None,
        description="number of tasks to use, the first ones of each environment's split, or number of seeds for an "
        "environment that makes no tasks; unset: all tasks, or 100 seeds",
    )


class EnvironmentsToPlay(Config):
    use: tuple[str, ...] = Field(
        (),
        description="environments that answer the model between its turns: NAME or FILE.py:CLASS; LABEL=NAME gives "
        "another section for the options. Without data each plays its own tasks",
    )


class ReportOptions(Config):
    level: float = Field(0.95, gt=0.5, lt=1.0, description="confidence of the intervals")
    by_task: bool = Field(False, description="also print a line for each task")
    table: Literal["text", "markdown", "csv", "json"] = Field(
        "text",
        description="form of the results on stdout: text, or a table for other tools with a line for each set at "
        "each temperature (with by_task for each task)",
    )


class RemoteModel(Config):
    url: str | None = Field(
        None,
        description="base address of an OpenAI-compatible server that answers instead of the model, such as "
        "http://localhost:8000/v1; unset: the model answers",
    )
    model: str | None = Field(None, description="name of the model at the server")
    key_variable: str = Field(
        "OPENAI_API_KEY",
        min_length=1,
        description="environment variable with the server's key; if it is not set, no key is sent",
    )
    concurrency: Positive = Field(
        16, le=4096, description="largest number of requests at the same time"
    )
    timeout_s: float = Field(120.0, gt=0.0, description="seconds for the answer to one request")
    retries: NotNegative = Field(
        5,
        le=100,
        description="number of times that a request is repeated if the server could not answer it",
    )
    retry_wait_s: float = Field(
        1.0,
        gt=0.0,
        description="seconds of the pause before the first repetition, doubled with each further one; a server may "
        "ask for a longer one",
    )
    max_turns: Positive = Field(
        8, description="largest number of the model's answers in an episode with an environment"
    )
    environment_timeout_s: float = Field(
        300.0, gt=0.0, description="seconds for each reset, step and close of an environment"
    )
    on_error: Literal["fail", "drop"] = Field(
        "fail",
        description="what happens if an environment fails: fail ends the evaluation, drop leaves out the episode",
    )


class Continuation(Config):
    checkpoint: Literal["auto", "restart"] = Field(
        "auto",
        description="auto: continue with the results in the folder; restart: start over, and keep the old results in "
        "a folder beside the new ones",
    )


class EvalOptions(CommandOptions):
    """All options of ``rlhf eval`` but those of components."""

    seed: int = Field(42, ge=0, lt=2**63, description="seed of all random draws of the run")
    output: str = Field("runs/eval", min_length=1, description="folder for the results")
    overwrite: bool = Field(False, description="start over and replace the results in the folder")
    resume: Continuation = Continuation()
    model: EvaluatedModel = EvaluatedModel()
    remote: RemoteModel = RemoteModel()
    data: PromptsWithImages = PromptsWithImages()
    env: EnvironmentsToPlay = EnvironmentsToPlay()
    rollout: Episodes
    reward: Scores = Scores()
    eval: EvaluationOptions = EvaluationOptions()
    report: ReportOptions = ReportOptions()
    log: Display = Display()
    engine: EngineSelection
    engines: int = Field(
        1,
        ge=1,
        le=64,
        description="number of engines, which share the tasks; each gets an equal share of the GPUs",
    )

    def going_on(self) -> str:
        """Return the words that say which command goes on with what this one has begun."""
        anew = " without --overwrite" if self.overwrite else ""
        if self.resume.checkpoint == "restart":
            anew = " without --resume restart"
        return f"the same command{anew} continues"

    def tasks_in_flight(self) -> int:
        """Return how many tasks are in work at most."""
        most = _IN_FLIGHT_REMOTE if self.remote.url else _IN_FLIGHT * self.engines
        return self.rollout.concurrency or max(1, most // self.eval.n_samples)

    def max_length(self) -> int:
        """Return the tokens of the longest sequence."""
        return self.rollout.max_length or (
            self.data.max_prompt_tokens + self.rollout.max_new_tokens
        )
