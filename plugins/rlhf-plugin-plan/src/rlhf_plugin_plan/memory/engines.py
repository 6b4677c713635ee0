"""The run's engine as the prediction sees it: the numbers on which its memory and its work depend."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError

from ..machine import assumptions as assumed
from ..machine.hardware import GIB, GpuSpec
from ..model.shapes import ModelShape
from .engine_memory import BYTES, EngineMemory, VllmMemoryOptions, embedded_memory, vllm_memory

EMBEDDED, VLLM = "local:embedded", "vllm:vllm"
MODELED_ARGS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_dtype",
    "max_loras",
)
"""Arguments of vLLM on which the prediction depends; other arguments get a note in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    """One of the run's engines, which are all alike."""

    name: str
    """Qualified name of the component."""
    dtype: str
    """Type of the weights."""
    compute: str
    """Type of the matmuls."""
    kv_width: float
    """Bytes of one number in the KV cache."""
    max_sequences: int
    """Largest number of sequences that one copy of the model decodes together."""
    shares_prefixes: bool
    """Whether the prompt of several samples is prefilled once."""
    length: int
    """Number of tokens of the longest sequence of the run."""
    copies_weights: bool
    """Whether the engine has weights of its own instead of the trainer's."""
    vllm: VllmMemoryOptions | None
    """Options of vLLM; None for the embedded engine and for an engine that is not modeled."""
    resident: bool = False
    """Whether sequences of the embedded engine stay on the GPU between tokens."""
    kv_cache_gib: float | None = None
    """Largest KV cache of the embedded engine in GiB; None: a share of the GPU."""
    joins: bool = False
    """Whether the embedded engine has joined copies of weights that read the same input."""
    overlap: str = "never"
    """Option of the embedded engine in a run whose engine and trainer share a process and may compute at once."""
    prefill_tokens: int = 0
    """Tokens of one prefill pass of the embedded engine."""
    conversations: int = 0
    """Number of conversations of several turns in flight; 0: episodes have one turn."""

    @property
    def embedded(self) -> bool:
        """Whether the engine is the embedded engine of the package ``local``."""
        return self.name == EMBEDDED

    def beside_training(self, shape: ModelShape) -> bool:
        """Return whether the embedded engine generates beside training, from a copy of the weights of its own."""
        gains = self.resident and shape.parameters <= assumed.EMBEDDED_BESIDE_TRAINING
        return self.overlap == "always" or (self.overlap == "auto" and gains)

    @property
    def modeled(self) -> bool:
        """Whether the engine's memory and speed are predicted."""
        return self.embedded or self.vllm is not None

    @property
    def tensor_parallel(self) -> int:
        """Number of GPUs that share every matrix."""
        return self.vllm.tensor_parallel if self.vllm else 1

    @property
    def pipeline_parallel(self) -> int:
        return self.vllm.pipeline_parallel if self.vllm else 1

    @property
    def copies(self) -> int:
        """Number of copies of the model in one engine."""
        return self.vllm.data_parallel if self.vllm else 1

    @property
    def gpus_of_copy(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def gpus(self) -> int:
        return self.gpus_of_copy * self.copies

    def memory(self, shape: ModelShape, gpu: GpuSpec, factors: int = 0) -> EngineMemory:
        """Return the memory of one engine on one of its GPUs; no parts for an engine that is not modeled.

        Args:
            factors: number of weights in the factors of an adapter that the engine serves.
        """
        if self.vllm is not None:
            return vllm_memory(shape, self.dtype, self.vllm, gpu, factors)
        if not self.embedded:
            return EngineMemory(parts={}, kv_tokens=self.max_sequences * self.length, in_trainer={})
        share = assumed.EMBEDDED_CACHE_SHARE * gpu.memory
        limit = share if self.kv_cache_gib is None else self.kv_cache_gib * GIB
        return embedded_memory(
            shape,
            self.dtype,
            self.compute,
            slots=self.max_sequences,
            length=self.length,
            copies_weights=self.copies_weights,
            cache_bytes=limit if self.resident else None,
            joins=self.joins,
            conversations=self.conversations,
            prefill_tokens=self.prefill_tokens if self.beside_training(shape) else None,
            copies_rest=self.joins,
        )


def planned_engine(planned: PlannedRun, notes: list[str]) -> PlannedEngine:
    """Return the engine that the run would start.

    Args:
        notes: list to which a note on every option that is not modeled is appended.

    Raises:
        ConfigError: an argument of vLLM is not a positive integer.
    """
    ref, spec = planned.spec.engine, planned.spec.engine_spec
    assert ref is not None
    assert spec is not None
    options = ref.options
    if ref.name == EMBEDDED:
        compute = "bfloat16"
        return PlannedEngine(
            name=ref.name,
            dtype=spec.dtype,
            compute=compute,
            kv_width=BYTES[compute],
            max_sequences=min(options["slots"], spec.max_concurrency),
            shares_prefixes=options["share_prefixes"],
            length=spec.max_length,
            copies_weights=options["weights"] == "copy" or planned.runtime.name != "local:local",
            vllm=None,
            resident=options["decode"] != "stepwise",
            kv_cache_gib=options["kv_cache_gib"],
            joins=spec.adapter_rank is None,
            overlap=options["overlap"] if _may_overlap(planned) else "never",
            prefill_tokens=options["prefill_tokens"],
            conversations=spec.max_concurrency if spec.several_turns else 0,
        )
    vllm = None
    if ref.name == VLLM:
        args = options["args"]
        sequences = min(spec.max_concurrency, assumed.SERVED_AT_ONCE)
        brings_all = spec.adapter_rank is None and spec.quantization is None
        vllm = VllmMemoryOptions(
            memory_share=options["memory_share"],
            kv_cache_gib=options["kv_cache_gib"],
            sleep_level=options["sleep_level"] or (2 if brings_all else 1),
            bucket_mib=options["bucket_mib"],
            tensor_parallel=_count(args, "tensor_parallel_size"),
            pipeline_parallel=_count(args, "pipeline_parallel_size"),
            data_parallel=_count(args, "data_parallel_size"),
            batched_tokens=_count(args, "max_num_batched_tokens", assumed.ENGINE_BATCHED_TOKENS),
            graphs=options["compile"] is not False,
            max_sequences=_count(args, "max_num_seqs", sequences),
            adapter_rank=spec.adapter_rank,
            adapter_slots=_count(args, "max_loras", assumed.ADAPTER_SLOTS),
            adapter_versions=2 + planned.run.rollout.max_staleness,
            kv_width=1 if "fp8" in str(args.get("kv_cache_dtype", "")) else BYTES[spec.dtype],
        )
        if others := sorted(set(args) - set(MODELED_ARGS)):
            notes.append(f"engine.vllm.args: {', '.join(others)} not modeled")
    else:
        notes.append(f"--engine {ref.name} is not modeled: its memory and speed are left out")
    return PlannedEngine(
        name=ref.name,
        dtype=spec.dtype,
        compute=spec.dtype,
        kv_width=vllm.kv_width if vllm else BYTES[spec.dtype],
        max_sequences=vllm.max_sequences if vllm else spec.max_concurrency,
        shares_prefixes=bool(options.get("prefix_caching", False)),
        length=spec.max_length,
        copies_weights=True,
        vllm=vllm,
    )


def _may_overlap(planned: PlannedRun) -> bool:
    spec = planned.spec.engine_spec
    assert spec is not None
    return spec.overlaps and spec.quantization is None and planned.runtime.name == "local:local"


def _count(args: dict[str, object], name: str, unset: int = 1) -> int:
    value = args.get(name)
    if value is None:
        return unset
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"engine.vllm.args.{name} is {value!r}; expected a positive integer",
            code="plan/engine-argument",
        )
    return value
