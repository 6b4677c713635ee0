"""Engines: they turn a prompt into tokens under the current weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..batch.trajectory import Stop, Uid
from ..batch.vocabulary import Vocabulary
from ..errors import RequestError, UnknownTokenError
from ..lazy import NDArray, np
from ..media.spans import MediaSpan
from ..media.vision import VisionSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of sampling. Ranges are checked where the options are declared (``rollout.*``, ``eval.*``)."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most probable token."""
    top_p: float = 1.0
    """Keep the smallest set of most probable tokens whose probabilities reach this sum; 1 keeps all."""
    top_k: int = 0
    """Keep this many of the most probable tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less probable than this share of the most probable one; 0 keeps all."""
    stop: tuple[str, ...] = ()
    """Strings that end the turn as soon as its decoded text contains one. Their tokens stay in the sequence."""
    min_new_tokens: int = 0
    """Number of first tokens among which nothing ends the turn: end-of-sequence has no probability there, and a stop
    string that is complete within them is text like any other."""
    max_new_tokens: int = 256
    """Tokens of an answer at most, its end included."""
    logprobs: bool = True
    """False: nobody reads ``Completion.logprobs``, so an engine may fill them with NaN to save work."""
    grammar: str | None = None
    """Grammar in the form of Lark, as llguidance reads it, that the text of the answer has to match; tokens that would
    leave it have no probability. An engine that cannot enforce it raises ``RequestError``. None: any text."""

    @property
    def truncates(self) -> bool:
        """True when improbable tokens are cut off."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @property
    def renormalizes(self) -> bool:
        """True when some log-probs refer to a distribution that a trainer does not have: a truncated one, or one
        without end-of-sequence."""
        return self.truncates or self.min_new_tokens > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt, sampled once per seed."""

    uid: Uid
    """Names the request in errors; completion i belongs to sample ``uid.sample + i``."""
    turn: int = 0
    """Number of the answer in its episode, from 0."""
    prompt_ids: tuple[int, ...]
    """All tokens that the answer goes on from."""
    seeds: tuple[int, ...]
    """One 64-bit seed per completion. A completion's tokens depend on its seed, the prompt and the weights
    alone: not on what else is in the batch, the number of slots, or the order of arrival."""
    sampling: SamplingParams
    """Temperature and limits."""
    media: tuple[MediaSpan, ...] = ()
    """Images of the prompt; their tokens are in ``prompt_ids`` already, all of them."""

    def checked_limit(self, max_length: int, vocab_size: int) -> int:
        """Return how many tokens each completion may have: ``max_new_tokens``, or fewer if ``max_length`` leaves fewer.

        Args:
            max_length: prompt and response tokens of the longest sequence that the engine serves.

        Raises:
            UnknownTokenError: a token id is none of the model's.
            RequestError: no engine could serve the request; the message says why and names the uid.
        """
        length = len(self.prompt_ids)
        problem, error = "", RequestError
        if not self.prompt_ids:
            problem = "the prompt is empty; at least one token is needed to predict the next from"
        elif min(self.prompt_ids) < 0 or max(self.prompt_ids) >= vocab_size:
            wrong = next(token for token in self.prompt_ids if not 0 <= token < vocab_size)
            problem = f"token id {wrong} is outside of the model's vocabulary of {vocab_size}"
            error = UnknownTokenError
        elif length >= max_length:
            problem = (
                f"the prompt has {length} tokens, which leaves no room for an answer within the engine's max_length of "
                f"{max_length}"
            )
        elif not self.seeds:
            problem = "there are no seeds; one is needed for each completion"
        elif self.sampling.max_new_tokens < 1:
            problem = f"max_new_tokens is {self.sampling.max_new_tokens}; expected at least 1"
        elif "" in self.sampling.stop:
            problem = "a stop string is empty, which every text contains"
        if problem:
            raise error(f"request {self.uid}: {problem}")
        return min(self.sampling.max_new_tokens, max_length - length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The tokens sampled with one seed."""

    token_ids: NDArray[np.int32]
    """(A,) including the end-of-sequence token, if one was written."""
    logprobs: NDArray[np.float32]
    """(A,) natural log-probability under the sampling distribution (after temperature, and after top-p/top-k/
    min-p where those are on). At temperature 0: under the distribution of temperature 1. Where
    ``SamplingParams.logprobs`` is off: these numbers, or all NaN."""
    weight_version: NDArray[np.int32]
    """(A,) version of the weights that sampled each token."""
    stop: Stop
    """Reason for its end."""
    allowed_mass: NDArray[np.float32] | None = None
    """(A,) share of the probability, after temperature, that the tokens had which the request's grammar allowed at each
    place; ``logprobs`` are those of these tokens alone. None: the request had no grammar."""
    expert_routes: NDArray[np.signedinteger] | None = None
    """(P + A - 1, L, k) experts that each token went to in the L layers with experts, in the order of the layers: of
    the prompt's P tokens and of all sampled ones but the last, which nothing has read yet. -1 where the engine does not
    know. None: ``EngineSpec.returns_routes`` is off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """Size and duration of one transfer of weights to engines."""

    num_bytes: int
    """Bytes of all weights, counted once however many engines got them."""
    seconds: float
    """Duration of the transfer."""


class WeightSource(Protocol):
    """The side that an engine gets its weights from: the training backend of the policy."""

    def module(self) -> torch.nn.Module | None:
        """Return the live module if it is in this process (the engine may share it), else None."""

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the weights by Hugging Face names, a few hundred MiB at a time; for an engine whose spec has an
        ``adapter_rank``, the factors of the adapter alone (``ModelAdapter.factors``)."""


class Engine(Protocol):
    """Generates; called from one asyncio loop. ``update_weights`` is only called while nothing is in flight,
    unless ``pause`` was called first.

    A factory is called as ``factory(config)``; the runtime then calls ``start`` once.
    """

    @property
    def shares_weights(self) -> bool:
        """True when the engine computes with the trainer's own tensors, so that nothing may run while those change.
        Known once the engine has started."""

    async def start(self, spec: EngineSpec, source: WeightSource) -> None:
        """Load or share the weights of ``source``, which are version 0, and get ready to serve."""

    async def generate(self, request: GenerationRequest) -> list[Completion]:
        """Return one completion per seed, in the order of the seeds.

        Raises:
            RequestError: no engine could serve the request, so whoever sent it is to blame; others are not affected.
            RolloutError: the engine failed, or does not serve; the message names the request's uid.
        """

    async def update_weights(self, version: int, source: WeightSource) -> WeightSync | None:
        """Serve the weights of ``source``, which are ``version``, from now on; return size and time if measured.

        A sleeping engine takes the memory of its weights back for it, and nothing else."""

    async def pause(self) -> None:
        """Stop between two tokens, keeping the requests in flight."""

    async def resume(self) -> None:
        """Go on after ``pause``."""

    async def sleep(self) -> None:
        """Release as much memory as possible, where ``EngineSpec.sleeps`` asked for it also that of the weights, which
        may be lost. Illegal while a request is in flight."""

    async def wake(self) -> None:
        """Undo ``sleep``, and serve the weights of the last update.

        Raises:
            RolloutError: sleep lost the weights, and no ``update_weights`` has come since.
        """

    async def checksum(self) -> str | None:
        """Return the digest of the weights being served (``rlhf_weights.weights_digest``), comparable with
        ``TrainBackend.checksum``; asleep, once an update has come, of those that will be. It is computed from the
        tensors in use, not remembered. None where no process holds whole weights."""

    async def close(self) -> None:
        """Free everything; the engine is not used afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Settings that every engine gets beside its own options."""

    model_path: str
    """Folder or hub name of the model at the start."""
    dtype: str
    """``float32`` or ``bfloat16``."""
    max_length: int
    """Prompt and response tokens of the longest sequence that will be asked for."""
    max_concurrency: int
    """Maximum number of completions in flight at once."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an answer."""
    vocabulary: Vocabulary | None = None
    """Token ids that have a probability, for the sampler and its log-probs alike; None: each row of the output head."""
    embedding_rows: int | None = None
    """As in ``RoleSpec``: rows that the embeddings get where the files have fewer."""
    trust_remote_code: bool = False
    """True: Python code that comes with the model may run."""
    adapter_rank: int | None = None
    """Rank of the low-rank adapter that is served beside the base's weights; None: updates are whole weights. The base
    is that of ``model_path``, and each update is a set of factors that replaces the one before for new requests."""
    vision: VisionSpec | None = None
    """Reading of the requests' images; None: requests have none."""
    quantization: Mapping[str, Any] | None = None
    """The ``quantization_config`` by which the trainer quantizes the base as it loads it; None: it does not. An engine
    with an ``adapter_rank`` serves what that base computes with, in ``dtype``. Unless it shares the trainer's tensors,
    its ``checksum`` has those weights (``ModelAdapter.unpacked_weights``) beside the factors."""
    sleeps: bool = False
    """True: the loop calls ``sleep`` in each step to have memory for its roles, so the engine has to be started in the
    way that lets it give memory back."""
    overlaps: bool = False
    """True: the run generates while its roles compute, unless the engine says that it ``shares_weights``."""
    returns_routes: bool = False
    """True: completions have ``expert_routes``. The model is a mixture of experts then."""
    several_turns: bool = True
    """False: no request begins with an earlier one and its answer, so keeping either is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU that a run may use."""

    name: str
    """Name that its driver gives, such as ``NVIDIA H200``."""
    memory_gib: float | None = None
    """Memory in GiB; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSetting:
    """Facts by which ``auto`` chooses a component (``Component.suits``), before options are validated."""

    accelerators: tuple[Accelerator, ...]
    """GPUs that are visible; none: the run computes on CPUs."""
    components: Mapping[str, tuple[str, ...]]
    """Selector -> qualified names of what the run has chosen there; no entry: the command has no such selector."""
    provides: frozenset[str]
    """Capabilities that these components provide."""
    needs: frozenset[str] = frozenset()
    """Capabilities that these components need with the defaults of their options."""
    options: Mapping[str, str]
    """Options as they are written, by path; what nobody wrote has no entry."""
    model: Mapping[str, Any]
    """``config.json`` of the policy's model; empty where it is not on this machine, and where there is no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suitability:
    """Fitness of a component for a setting."""

    rank: float | None
    """0: it works; 1: it is made for such settings; 2: measured as the fastest there. The highest is chosen. None: it
    does not work."""
    reason: str
    """Reason for it, without a full stop; it is shown at the start of the run."""
