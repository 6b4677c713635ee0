"""Options of the DeepSpeed backend. Defaults that are not DeepSpeed's own are explained in docs/deepspeed.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from rlhf_core.capabilities import (
    BFLOAT16_WEIGHTS,
    FOUR_BIT_BASE,
    UNSHARED_STATE,
    WHOLE_PARAMETERS,
)
from rlhf_core.typed_table import TypedTable
from rlhf_torch.options import ComputeOptions

OURS = {
    "train_batch_size": "nothing: the run cuts batches itself",
    "train_micro_batch_size_per_gpu": "the option for the tokens of a micro-batch",
    "gradient_accumulation_steps": "nothing: it differs from step to step",
    "managed_gradient_accumulation": "nothing: the backend says which micro-batch is the last",
    "gradient_clipping": "the role's max_grad_norm",
    "optimizer": "the role's optimizer",
    "scheduler": "the role's schedule",
    "fp16": "nothing: parameters are float32 or bfloat16",
    "bf16": "--model.dtype",
    "torch_autocast": "--backend.deepspeed.compute_dtype",
    "data_types": "nothing: gradients add up in float32",
    "communication_data_type": "nothing: gradients are summed in float32",
    "prescale_gradients": "nothing: it would scale the gradient",
    "gradient_predivide_factor": "nothing: it would scale the gradient",
    "zero_allow_untested_optimizer": "nothing: it is on",
    "zero_force_ds_cpu_optimizer": "nothing: it is off",
    "tensor_parallel": "--backend.deepspeed.tensor_parallel",
    "sequence_parallel_size": "--backend.deepspeed.sequence_parallel",
    "expert_parallel": "nothing: every rank computes all experts",
    "compile.deepcompile": "--backend.deepspeed.deep_compile",
    "compile.passes": "nothing: they follow from the stage",
    "compile.offload_activation": "nothing: it would replace the passes that the backend needs",
    "compile.offload_opt_states": "--backend.deepspeed.offload_optimizer, without deep_compile",
    "compile.offload_parameters": "--backend.deepspeed.offload_param, without deep_compile",
    "zero_optimization.stage": "--backend.deepspeed.zero_stage",
    "zero_optimization.offload_optimizer": "--backend.deepspeed.offload_optimizer",
    "zero_optimization.offload_param": "--backend.deepspeed.offload_param",
    "zero_optimization.leaf_module": "--backend.deepspeed.leaf_modules",
    "zero_optimization.reduce_bucket_size": "--backend.deepspeed.reduce_bucket_size",
    "zero_optimization.allgather_bucket_size": "nothing: DeepSpeed collects all updated elements at once",
    "zero_optimization.contiguous_gradients": "--backend.deepspeed.contiguous_gradients",
    "zero_optimization.overlap_comm": "--backend.deepspeed.overlap_comm",
    "zero_optimization.round_robin_gradients": "nothing: checkpoints rely on the order of the parameters",
}
"""Keys of DeepSpeed's configuration that the backend sets, each with the option to use instead."""


class DeepSpeedConfig(ComputeOptions):
    """Options of one role's training: which state the ranks share and where they keep it."""

    zero_stage: int = Field(
        2,
        ge=0,
        le=3,
        description="state that the ranks share. 0: none; 1: float32 weights and optimizer state; 2: gradients too; "
        "3: the weights too",
    )
    compile: bool = Field(
        False,
        description="use torch.compile for each layer, in stages 0 to 2; rlhf plan turns it on for runs of 50 steps "
        "or more",
    )
    deep_compile: bool = Field(
        False,
        description="compile all layers as one graph with DeepSpeed's sums of gradients and collections of weights in "
        "it (DeepCompile); NVIDIA GPUs with nvcc, stages 1 to 3, one role per process",
    )
    share_prompts: bool = Field(
        True,
        description="compute what sequences of a group begin with (a prompt, turns before a fork) once in a "
        "micro-batch of a rank; results differ by rounding only; not with sequence_parallel",
    )
    sequence_parallel: int = Field(
        1,
        ge=1,
        le=1024,
        description="number of ranks that compute each sequence together, a slice of its tokens each; a micro-batch "
        "holds as many times more tokens. It divides the number of ranks and of attention heads",
    )
    tensor_parallel: int = Field(
        1,
        ge=1,
        le=1024,
        description="number of ranks that share every matrix of a trained role and compute the same tokens; divides "
        "the number of ranks and of the model's attention and key heads; stages 1 and 2",
    )
    leaf_modules: tuple[str, ...] = Field(
        (),
        description="classes of modules whose weights, inner modules included, are collected at once; blocks of "
        "experts need not be named; stage 3",
    )
    offload_optimizer: bool = Field(
        False,
        description="keep float32 weights and optimizer state in host memory and update both there; stages 1 to 3",
    )
    offload_param: bool = Field(
        False,
        description="keep this rank's share of the weights in host memory; stage 3",
    )
    pin_memory: bool = Field(
        False, description="page-locked host memory for offloaded state: faster copies, on a GPU"
    )
    reduce_bucket_size: int = Field(
        50_000_000,
        ge=1,
        le=2**31,
        description="number of gradient elements that are summed over ranks at once; stages 1 to 3. At stage 2 eight "
        "times as many are on their way",
    )
    contiguous_gradients: bool = Field(
        True,
        description="copy each gradient into one buffer as soon as it is computed: less fragmentation; stages 1 and 3, "
        "and 2 where DeepSpeed sums gradients (offload_optimizer, tensor_parallel)",
    )
    overlap_comm: bool = Field(
        False,
        description="sum gradients over ranks while the backward pass goes on; takes a second buffer; stages 1 and 3, "
        "and 2 where DeepSpeed sums gradients; elsewhere stage 2 always does",
    )
    args: TypedTable = Field(
        {},
        description="any other part of DeepSpeed's JSON configuration, such as "
        "{zero_optimization = {stage3_prefetch_bucket_size = 1000000}}",
    )

    def excluded_by_options(self) -> frozenset[str]:
        """Return what compute, optimizers and adapters must not be, with the state that ranks share and the matrices
        they do, and what DeepCompile does not support."""
        shared = {UNSHARED_STATE, FOUR_BIT_BASE} if self.zero_stage else set[str]()
        sharded = {WHOLE_PARAMETERS} if self.tensor_parallel > 1 else set[str]()
        compiled = {"model_adapter"} if self.deep_compile else set[str]()
        if self.deep_compile and self.zero_stage == 1:
            compiled.add(BFLOAT16_WEIGHTS)
        return super().excluded_by_options() | shared | sharded | compiled

    def without_effect(self) -> Mapping[str, str]:
        names = ("reduce_bucket_size", "contiguous_gradients") if self.zero_stage == 0 else ()
        return dict.fromkeys(names, "zero_stage is 0. Set zero_stage 1, 2 or 3.")

    @field_validator("args")
    @classmethod
    def _leave_ours_alone(cls, args: dict[str, Any]) -> dict[str, Any]:
        for key in _paths(args):
            if key in OURS:
                raise ValueError(f"{key} is set by the backend; use instead: {OURS[key]}")
        if not isinstance(args.get("zero_optimization", {}), Mapping):
            raise ValueError("zero_optimization: expected a table")
        return args

    @model_validator(mode="after")
    def _is_consistent(self) -> DeepSpeedConfig:
        if self.offload_optimizer and self.zero_stage == 0:
            raise ValueError(
                "offload_optimizer true with zero_stage 0: DeepSpeed offloads only state that ranks share. Set "
                "zero_stage 1, 2 or 3."
            )
        if self.overlap_comm and self.zero_stage == 0:
            raise ValueError(
                "overlap_comm true with zero_stage 0: this stage sums gradients once, after the backward passes. Set "
                "zero_stage 1, 2 or 3."
            )
        if self.offload_param and self.zero_stage != 3:
            raise ValueError(
                f"offload_param true with zero_stage {self.zero_stage}: only stage 3 shares the weights. Set "
                "zero_stage 3."
            )
        if self.tensor_parallel > 1 and self.zero_stage not in (1, 2):
            raise ValueError(
                f"tensor_parallel {self.tensor_parallel} with zero_stage {self.zero_stage}: only stages 1 and 2 can "
                "share matrices as well. Set zero_stage 1 or 2, or tensor_parallel 1."
            )
        if self.tensor_parallel > 1 and self.sequence_parallel > 1:
            raise ValueError(
                f"tensor_parallel {self.tensor_parallel} and sequence_parallel {self.sequence_parallel}: a rank that "
                "has a part of the heads cannot trade heads for tokens. Set one of the two options to 1."
            )
        if self.compile and self.zero_stage == 3:
            raise ValueError(
                "compile true with zero_stage 3: this stage collects weights inside of the layers, which cuts their "
                "graphs at every matrix. Set zero_stage 0, 1 or 2, or compile false."
            )
        if self.leaf_modules and self.zero_stage != 3:
            raise ValueError(
                f"leaf_modules with zero_stage {self.zero_stage}: only stage 3 collects weights module by module. Set "
                "zero_stage 3, or leave leaf_modules out."
            )
        if self.pin_memory and not (self.offload_optimizer or self.offload_param):
            raise ValueError(
                "pin_memory true, but nothing is offloaded: set offload_optimizer or offload_param, or leave "
                "pin_memory out"
            )
        self._check_deep_compile()
        if self.args and self.zero_stage == 0:
            raise ValueError(
                "args with zero_stage 0: this stage does not start DeepSpeed's engine, so nothing would read args. Set "
                "zero_stage 1, 2 or 3."
            )
        return self

    def _check_deep_compile(self) -> None:
        if not self.deep_compile:
            if "compile" in self.args:
                raise ValueError(
                    "args.compile without deep_compile: nothing would read args.compile. Set deep_compile true."
                )
            return
        if self.zero_stage == 0:
            raise ValueError(
                "deep_compile true with zero_stage 0: this stage does not start DeepSpeed's engine. Set zero_stage 1, "
                "2 or 3, or compile true instead."
            )
        fields = type(self).model_fields
        besides = [n for n in _NOT_WITH_DEEP_COMPILE if getattr(self, n) != fields[n].default]
        if besides:
            raise ValueError(
                f"deep_compile true with {', '.join(besides)}: DeepSpeed's graph of all layers does not support this. "
                f"Leave out deep_compile or {', '.join(besides)}."
            )


_NOT_WITH_DEEP_COMPILE = (
    "compile",
    "gradient_checkpointing",
    "sequence_parallel",
    "tensor_parallel",
    "offload_optimizer",
    "offload_param",
)


def _paths(table: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted paths of a table's keys, inner tables included."""
    found = []
    for key, value in table.items():
        found.append(f"{prefix}{key}")
        if isinstance(value, Mapping):
            found += _paths(value, f"{prefix}{key}.")
    return found
