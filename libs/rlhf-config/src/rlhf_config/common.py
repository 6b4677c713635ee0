"""Options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field

from rlhf_core.component import Config
from rlhf_core.contracts.engine import SamplingParams
from rlhf_core.media.inspecting import MediaLimits
from rlhf_core.media.loader import MediaOptions
from rlhf_core.media.reference import PixelLimits
from rlhf_core.typed_table import TypedTable

from .bounds import NotNegative as NotNegative
from .bounds import Positive as Positive
from .bounds import Probability as Probability
from .checkpoint import CheckpointConfig as CheckpointConfig
from .passes import MICRO_BATCH as MICRO_BATCH
from .passes import with_room as with_room
from .pinned_models import HubModel
from .trained_roles import ActorConfig as ActorConfig
from .trained_roles import ReferenceSync as ReferenceSync
from .trained_roles import SeeingActor as SeeingActor
from .trained_roles import TrainedRole as TrainedRole

CONTROL_WORDS = (
    "how the name of a control token (<|im_end|>, <tool_call>) in a prompt, message or observation "
    "is read: as ordinary text, or as the token"
)
"""Description of the option ``data.control_words``."""
TOKEN_CACHE = (
    "folder that keeps rows as tokens for the next start with the same rows, options and tokenizer; "
    "auto: tokens in $RLHF_CACHE, or rlhf/tokens in $XDG_CACHE_HOME or ~/.cache; off: all tokens are made again, "
    "and are in memory"
)
"""Description of the option ``data.cache``."""

TEMPLATE_KWARGS = (
    "variables for the model's chat template, such as {enable_thinking = false}; those in a row's "
    "column chat_template_kwargs win"
)
"""Description of the option ``data.chat_template_kwargs``."""


TemplateVariables = TypedTable
"""Variables of a chat template. A template asks whether a variable *is false*, which the text ``false`` is not."""

SETS = (
    "JSONL, JSON, CSV, Parquet or text files (.gz too), patterns (part-*.jsonl), save_to_disk "
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
    "messages_pair",
    "alpaca_pair",
    "pair",
    "labeled_chat",
    "labeled",
    "labeled_response",
    "steps",
    "prompt",
    "chat_prompt",
    "verl",
]
FORM = (
    "form of the rows; columns: only options that name columns say where texts are; unset: the first "
    "rows of each set tell the form"
)
"""Description of the option ``data.form``."""


class TrainSets(Config):
    train: tuple[str, ...] = Field((), description=SETS)


class ModelPath(Config):
    path: HubModel = Field(
        min_length=1,
        description="folder or hub name of the causal language model; NAME@REVISION takes a branch, a tag or a commit",
    )
    tokenizer: HubModel | None = Field(
        None,
        description="folder or hub name (also NAME@REVISION) of the tokenizer; unset: the model's own",
    )
    trust_remote_code: bool = Field(
        False, description="run Python code that comes with the model; read the code first"
    )


class ModelConfig(ModelPath):
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="number type in which parameters are stored; with float32 the backend may still compute in "
        "bfloat16",
    )


class SeeingModel(ModelConfig):
    """A model that is trained, and that may read images."""

    vision: str | None = Field(
        None,
        description="component that reads images for the model; unset: the model reads text only",
    )
    resize_embeddings: bool = Field(
        False,
        description="add a trained row to embeddings and output head for each token that only the tokenizer has; "
        "each starts as the mean of the model's rows",
    )


class ImageData(Config):
    """Images of data sets, in a column beside the texts and within messages."""

    image_key: str | None = Field(
        None,
        description="column with a row's image or list of images (paths, bytes or base64), which go where texts have "
        "<image> or messages have image parts; unset: images or image; '': none, and <image> is text",
    )
    max_pixels: Positive | None = Field(
        None,
        description="area in pixels to which larger images of rows are reduced, unless the row or image sets its "
        "own; unset: model.vision decides",
    )
    min_pixels: Positive | None = Field(
        None,
        description="area in pixels to which smaller images of rows are enlarged, unless the row or image sets its "
        "own; unset: model.vision decides",
    )
    max_images: Positive = Field(
        16,
        description="largest number of images in one sequence, including frames of videos and images of later turns",
    )
    max_image_pixels: Positive = Field(
        4096 * 4096,
        description="largest area of an image in pixels, width times height; a larger image is refused",
    )
    max_image_bytes: Positive = Field(
        20 * 2**20,
        description="largest size of an image's file, in bytes; a larger file is refused",
    )
    allow_image_urls: bool = Field(
        False,
        description="fetch images that are given as http or https URLs; false: their rows are bad",
    )
    copy_images: bool = Field(
        False,
        description="copy image files into the run folder, for files that move or change later; false: the run "
        "folder has links to them",
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
        description="let the policy sample rows of the output head that stand for no token of the tokenizer; false: "
        "they have probability 0, in engine and trainer",
    )


class AnswerSampling(Config):
    """Base of sections of sampling options without a temperature."""

    top_p: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="sample from the most probable tokens that together have this probability; 1 keeps all tokens",
    )
    top_k: NotNegative = Field(
        0, description="sample from this many of the most probable tokens; 0 keeps all tokens"
    )
    min_p: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="leave out tokens with less than this share of the most probable token's probability; 0 keeps "
        "all tokens",
    )
    stop: tuple[str, ...] = Field((), description="texts that end an answer")
    min_new_tokens: NotNegative = Field(
        0,
        description="number of first tokens of an answer without end-of-sequence, in which texts of stop are ignored",
    )
    max_new_tokens: Positive = Field(256, description="largest number of tokens in an answer")

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
        (), description="held-out sets, named as in data.train; NAME=PATH gives a set a name"
    )
    fraction: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="share of data.train to hold out instead of eval.data, from 0 to below 1; a hash of what a row "
        "asks decides",
    )
    split: str = Field(
        "test", description="split to read from folders and hub sets that have several"
    )
    max_samples: Positive | None = Field(
        None, description="number of rows to use, the first ones of each set; unset: all rows"
    )

    @property
    def holds_rows_out(self) -> bool:
        """Whether there are rows to evaluate on."""
        return bool(self.data or self.fraction)


class LogConfig(Config):
    progress: Literal["auto", "live", "plain", "off"] = Field(
        "auto", description="form of the progress line; auto: live on a terminal, else plain"
    )
    summary: bool = Field(True, description="print the run's results and files at its end")
    tensorboard: bool = Field(True, description="write TensorBoard events into the run folder")
    curve: bool = Field(True, description="draw learning_curve.png at the end")
    samples: NotNegative = Field(
        4,
        description="number of rollouts, or of training rows, to keep per step and evaluation, for rlhf show",
    )
    to: tuple[str, ...] = Field(
        (), description="loggers, which send the run to other places; unset: none"
    )
    samples_every: NotNegative = Field(
        10,
        description="number of steps between samples for loggers (tables) and TensorBoard (images); 0: no samples",
    )
    images: NotNegative = Field(
        4,
        description="number of images of samples that TensorBoard and each logger get every samples_every steps; 0: "
        "none",
    )
    wait_s: float = Field(
        60.0,
        ge=0.0,
        description="seconds to wait at the end of the run for loggers that are still sending",
    )


class ObserversConfig(Config):
    use: tuple[str, ...] = Field(
        (),
        description="components that watch the run and may end it, each with a section of its own; unset: none",
    )


class ResumeConfig(Config):
    checkpoint: str | None = Field(
        None,
        description="checkpoint to continue from: auto (the newest valid one of the run folder) or a path; restart: "
        "start over, and keep the files of the earlier run in a folder beside. Unset: a new run",
    )
    strict: bool = Field(
        False,
        description="refuse a checkpoint that was made with other plugins, plugin files, libraries, data or model "
        "files; false: report the differences",
    )
    damaged_records: Literal["refuse", "set-aside"] = Field(
        "refuse",
        description="if metrics.jsonl, samples.jsonl or ledger.jsonl lacks lines that the checkpoint knows, or has "
        "others: refuse to continue, or rename it to NAME.damaged and begin a new one",
    )
    past_end: bool = Field(
        False,
        description="continue a run that an observer ended; that observer starts over; false: such a run stays ended",
    )


class EngineSelection(Config):
    name: str = Field(
        description="component that generates; auto: the one that suits model and machine best, which the run names "
        "at its start"
    )


class BackendSelection(Config):
    name: str = Field(description="component that trains")


class RuntimeSelection(Config):
    name: str = Field(description="component that places the run's processes on machines")


class SleepingRuntime(RuntimeSelection):
    """Choice of a runtime in which an engine and trained roles may take turns on the same accelerators."""

    sleep: Literal["auto", "never", "engine", "state", "always"] = Field(
        "auto",
        description="memory given back while the other side works. never: none; engine: the engine's; state: the "
        "roles' training state too; always: their weights too; auto: the first with which the run fits (rlhf plan)",
    )


class CommandOptions(Config):
    """Base of the options of each command that has an ``OptionTree``. What is read of every command is here by type
    alone: a subclass declares these options, in the order in which its help shows them."""

    if TYPE_CHECKING:
        model: ModelPath

    def settled(self) -> Self:
        """Return the options, with values for unset ones that depend on others."""
        return self


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
