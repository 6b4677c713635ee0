"""Options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rlhf_core.component import Config
from rlhf_core.contracts.engine import SamplingParams
from rlhf_core.contracts.functions.eval_metric import is_falling
from rlhf_core.media.desk import MediaOptions
from rlhf_core.media.inspecting import MediaLimits
from rlhf_core.media.reference import PixelLimits
from rlhf_core.typed_table import TypedTable

from .trained_roles import ActorConfig as ActorConfig
from .trained_roles import SeeingActor as SeeingActor
from .trained_roles import TrainedRole as TrainedRole

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]

CONTROL_WORDS = (
    "what a control token's name (<|im_end|>, <tool_call>) is in a row's prompt, a message or an observation: ordinary "
    "text, or the control token"
)
"""Description of the option ``data.control_words``."""
TOKEN_CACHE = (
    "folder that keeps rows as tokens, mapped into memory, for the next start with the same rows, options and "
    "tokenizer; auto: tokens in $RLHF_CACHE, or rlhf/tokens in $XDG_CACHE_HOME or ~/.cache; off: rows are read again, "
    "and all their tokens are in memory"
)
"""Description of the option ``data.cache``."""

TEMPLATE_KWARGS = (
    "variables for the model's chat template, such as {enable_thinking = false}; a row's column chat_template_kwargs "
    "goes before"
)
"""Description of the option ``data.chat_template_kwargs``."""


TemplateVariables = TypedTable
"""Variables of a chat template. A template asks whether a variable *is false*, which the text ``false`` is not."""

SETS = (
    "JSONL, JSON, CSV, Parquet or text files, packed ones (.jsonl.gz), patterns (part-*.jsonl), save_to_disk "
    "folders, or hub names (NAME or NAME:CONFIG)"
)
"""Description of the option ``data.train``."""
FormName = Literal[
    "columns",
    "sharegpt",
    "messages",
    "alpaca",
    "chat_completion",
    "response",
    "completion",
    "text",
    "hh_rlhf",
    "sharegpt_pair",
    "alpaca_pair",
    "pair",
    "labeled_chat",
    "labeled",
    "steps",
    "prompt",
    "chat_prompt",
]
FORM = "form of the rows; unset: recognized by the first rows of each set; columns: as the options of columns say"
"""Description of the option ``data.form``."""


class ModelPath(Config):
    path: str = Field(min_length=1, description="folder or hub name of the causal language model")
    tokenizer: str | None = Field(
        None, description="folder or hub name of the tokenizer, if not the model's"
    )
    trust_remote_code: bool = Field(False, description="run Python code that comes with the model")


class ModelConfig(ModelPath):
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="parameters; with float32 the backend may still compute in bfloat16"
    )


class SeeingModel(ModelConfig):
    """A model that is trained, and that may read images."""

    vision: str | None = Field(
        None, description="what reads images for the model; unset: the model reads text alone"
    )
    resize_embeddings: bool = Field(
        False,
        description="add rows to embeddings and output head where the tokenizer has more tokens, each the mean of the "
        "model's own; they are trained and exported",
    )


class ImageData(Config):
    """Images of data sets, in a column beside the texts and within messages."""

    image_key: str | None = Field(
        None,
        description="column with a row's image, or a list of them: paths, bytes or base64; <image> in the prompt's "
        "texts and image parts of its messages are their places; unset: images or image; '': none, <image> is text",
    )
    max_pixels: Positive | None = Field(
        None,
        description="larger images of rows are reduced to this area; a row or an image may say another",
    )
    min_pixels: Positive | None = Field(
        None, description="smaller images of rows are enlarged to this area"
    )
    max_images: Positive = Field(
        16,
        description="images of one sequence, frames of videos and images of later turns included",
    )
    max_image_pixels: Positive = Field(4096 * 4096, description="width times height of an image")
    max_image_bytes: Positive = Field(20 * 2**20, description="size of an image's file")
    allow_image_urls: bool = Field(
        False, description="fetch images that are http or https URLs; without it they are bad rows"
    )
    copy_images: bool = Field(
        False,
        description="copy images that are files into the run folder, not links to them: for files that move or change",
    )

    def kept_in(self, folder: str) -> MediaOptions:
        """Return the options as those who take images in need them, with the folder of the store."""
        limits = MediaLimits(
            max_images=self.max_images,
            max_pixels=self.max_image_pixels,
            max_bytes=self.max_image_bytes,
        )
        return MediaOptions(
            folder=folder,
            limits=limits,
            allow_urls=self.allow_image_urls,
            copies=self.copy_images,
            pixels=PixelLimits(min_pixels=self.min_pixels, max_pixels=self.max_pixels),
        )


class PaddingSampling(Config):
    """Base of sections that say what an engine may sample."""

    sample_padding: bool = Field(
        False,
        description="sample the output head's rows that no token of the tokenizer has, too; without it they have no "
        "probability, in engine and trainer alike",
    )


class AnswerSampling(Config):
    """Base of sections of sampling options without a temperature."""

    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus sampling; 1 keeps all tokens")
    top_k: NotNegative = Field(0, description="keep this many tokens; 0 keeps all")
    min_p: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="drop tokens below this share of the best one's probability",
    )
    stop: tuple[str, ...] = Field((), description="strings that end an answer")
    min_new_tokens: NotNegative = Field(0, description="tokens of the shortest answer")
    max_new_tokens: Positive = Field(256, description="tokens of the longest answer")

    def at(self, temperature: float) -> SamplingParams:
        """Return the options and a temperature as an engine takes them."""
        return SamplingParams(
            temperature=temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop=self.stop,
            min_new_tokens=self.min_new_tokens,
            max_new_tokens=self.max_new_tokens,
        )


class SamplingOptions(AnswerSampling):
    """Base of sections of sampling options; a subclass may say more about an option, or allow less."""

    temperature: float = Field(
        1.0, ge=0.0, le=10.0, description="sampling temperature; 0 takes the most probable token"
    )

    def params(self) -> SamplingParams:
        """Return the options as an engine takes them."""
        return self.at(self.temperature)


class EvalSchedule(Config):
    """Base of the options of evaluations: when they take place."""

    if TYPE_CHECKING:
        every: int
        at_start: bool


class HeldOutRows(EvalSchedule):
    """Rows to evaluate on: sets of their own, or a share of the training rows."""

    data: tuple[str, ...] = Field(
        (), description="held-out sets, as in data.train; NAME=PATH names one"
    )
    fraction: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="hold out this share of data.train instead, by a hash of what a row asks",
    )
    split: str = Field("test", description="split of folders and hub sets that have several")
    max_samples: Positive | None = Field(None, description="use only the first rows of each set")

    @property
    def holds_rows_out(self) -> bool:
        """Whether there are rows to evaluate on."""
        return bool(self.data or self.fraction)


class CheckpointConfig(Config):
    every: NotNegative = Field(0, description="steps between checkpoints; 0: by every_minutes")
    every_minutes: float = Field(
        10.0,
        ge=0.0,
        description="minutes between checkpoints, where every is 0; 0: only at the end, and when the run is stopped or "
        "fails",
    )
    at_end: bool = Field(
        True, description="write one after the last step, from which a longer run can go on"
    )
    keep: Positive = Field(
        2, description="newest checkpoints to keep; the best one is kept besides"
    )
    best_metric: str | None = Field(
        "auto",
        description="evaluation metric to keep the best checkpoint of; auto: the reward of the first held-out set, or "
        "the loss of held-out rows; none: no best one is kept",
    )
    best_mode: Literal["auto", "max", "min"] = Field(
        "auto",
        description="whether the best is the largest or the smallest; auto: the smallest of a loss, nll or perplexity, "
        "the largest of others",
    )
    on_write_error: Literal["stop", "skip"] = Field(
        "stop", description="a checkpoint that cannot be written ends the run, or is left out"
    )
    export: bool = Field(True, description="write a Transformers folder at the end")
    undo_gib: float = Field(
        1.0,
        ge=0.0,
        description="host memory, per role and rank, for a copy of weights and optimizer state before a step's first "
        "update, from which the step before is saved if this one fails after that; a larger role, and 0: no copy",
    )

    @property
    def named_metric(self) -> str | None:
        """The metric that ``best_metric`` names; None for ``auto`` and ``none``."""
        return None if self.best_metric == "auto" else self.best_metric

    def best(self, headline: str | None) -> tuple[str, Literal["max", "min"]] | None:
        """Return the metric by which a checkpoint is the best, and whether more of it is better; None: none is kept.

        Args:
            headline: the metric that ``auto`` means; None: the run evaluates nothing.
        """
        metric = headline if self.best_metric == "auto" else self.best_metric
        if metric is None:
            return None
        if self.best_mode != "auto":
            return metric, self.best_mode
        return metric, "min" if is_falling(metric) else "max"

    def described(self, *, evaluates: bool) -> str:
        """Return when checkpoints are written and which of them stay."""
        times = []
        if self.every:
            times.append(f"every {self.every} steps")
        elif self.every_minutes:
            times.append(f"every {self.every_minutes:g} minutes")
        if self.at_end:
            times.append("at the end")
        times.append("when the run is stopped or fails")
        best = " and the best one" if evaluates and self.best_metric is not None else ""
        return f"checkpoints {', '.join(times)}; the newest {self.keep}{best} are kept"


class LogConfig(Config):
    progress: Literal["auto", "live", "plain", "off"] = Field(
        "auto", description="auto: live on a terminal, else plain"
    )
    summary: bool = Field(True, description="print the run's results and files at its end")
    tensorboard: bool = Field(True, description="write TensorBoard events into the run folder")
    curve: bool = Field(True, description="draw learning_curve.png at the end")
    samples: NotNegative = Field(
        4,
        description="rollouts, or rows and pairs of examples, to keep per step and evaluation, for rlhf show",
    )
    to: tuple[str, ...] = Field((), description="loggers, which copy the run to other places")
    samples_every: NotNegative = Field(
        10,
        description="steps between the samples that loggers get as tables, and TensorBoard as images; 0: none",
    )
    images: NotNegative = Field(
        4,
        description="images of samples that TensorBoard and each logger get every samples_every steps; 0: none",
    )
    wait_s: float = Field(
        60.0, ge=0.0, description="wait at the end of the run for loggers that are still sending"
    )


class ObserversConfig(Config):
    use: tuple[str, ...] = Field(
        (),
        description="observers, which watch the run and may end it, each with its own section of options",
    )


class ResumeConfig(Config):
    checkpoint: str | None = Field(
        None,
        description="auto: the newest valid checkpoint in the run folder; or a checkpoint's path; restart: none, the "
        "files of the run that was there are kept in a folder beside those of the new one",
    )
    strict: bool = Field(
        False,
        description="refuse a checkpoint that was made with other plugins, plugin files or libraries, or with other "
        "content of data and model files, instead of reporting them",
    )
    damaged_records: Literal["refuse", "set-aside"] = Field(
        "refuse",
        description="when metrics.jsonl, samples.jsonl or ledger.jsonl has lost or changed lines that the checkpoint "
        "knows: do not go on, or rename the file to NAME.damaged and begin a new one",
    )
    past_end: bool = Field(
        False,
        description="go on with a run that an observer ended; that observer begins anew, the others go on",
    )


class EngineSelection(Config):
    name: str = Field(
        description="who generates; auto: the engine that suits model and machine best, said at the start"
    )


class BackendSelection(Config):
    name: str = Field(description="who trains")


class RuntimeSelection(Config):
    name: str = Field(description="who places the roles")


class SleepingRuntime(RuntimeSelection):
    """Choice of a runtime in which an engine and trained roles may take turns on the same accelerators."""

    sleep: Literal["auto", "never", "engine", "state", "always"] = Field(
        "auto",
        description="let the engine give back its memory while roles compute. engine: and roles stay in their place; "
        "state: and their training state is in host memory while it generates; always: and so are their weights. auto: "
        "the first of never, engine, state and always with which rlhf plan says that the run fits",
    )


class CommandOptions(Config):
    """Base of the options of each command that has an ``OptionTree``. What is read of every command is here by type
    alone: a subclass declares these options, in the order in which its help shows them."""

    if TYPE_CHECKING:
        model: ModelPath


class RunOptions(CommandOptions):
    """Base of the options of each command that trains, by type alone as in ``CommandOptions``: what the loop around
    every kind of run reads."""

    if TYPE_CHECKING:
        seed: int
        output: str
        model: ModelConfig
        eval: EvalSchedule
        checkpoint: CheckpointConfig
        observers: ObserversConfig
        log: LogConfig
        resume: ResumeConfig
        backend: BackendSelection
        runtime: RuntimeSelection
