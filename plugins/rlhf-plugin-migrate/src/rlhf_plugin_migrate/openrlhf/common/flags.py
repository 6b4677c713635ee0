"""Lines of tables that several programs share. The lines of one program are in the folder of that program.

A line has the flag, its kind, its default, what becomes of it, and its flat names of OpenRLHF 0.10.1. ``To`` is a
counterpart of the same meaning; ``Rule`` lists the options that a function may set from the flag and others.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...table.entries import Fate, OptionEntry, Rule, To
from ...table.kinds import NUMBER, PAIR, SWITCH, TEXT, TEXTS, WHOLE, Kind, Value, choice
from . import reasons as why
from .model_adapter import OPTIONS

Line = tuple[str, Kind, Value, Fate, *tuple[str, ...]]

# fmt: off
DEEPSPEED: tuple[Line, ...] = (
    ("ds.zero_stage", WHOLE, 2, To("backend.deepspeed.zero_stage"), "zero_stage"),
    ("ds.param_dtype", choice("bf16", "fp16"), "bf16", Rule("model.dtype"), "param_dtype"),
    ("ds.zpg", WHOLE, 1, Rule("backend.deepspeed.args.zero_optimization.zero_hpz_partition_size"), "zpg"),
    ("ds.adam_offload", SWITCH, False, To("backend.deepspeed.offload_optimizer"), "adam_offload"),
    ("ds.deepcompile", SWITCH, False, To("backend.deepspeed.deep_compile"), "deepcompile"),
    ("ds.overlap_comm", SWITCH, False, To("backend.deepspeed.overlap_comm"), "overlap_comm"),
    ("ds.tensor_parallel_size", WHOLE, 1, To("backend.deepspeed.tensor_parallel"), "ds_tensor_parallel_size"),
    ("ds.ring_attn_size", WHOLE, 1, Rule("backend.deepspeed.sequence_parallel"), "ring_attn_size"),
    ("ds.ring_attn_head_stride", WHOLE, 1, Rule(), "ring_head_stride"),
    ("ds.grad_accum_dtype", TEXT, None, why.ACCUMULATION, "grad_accum_dtype"),
    ("ds.packing_samples", SWITCH, False, why.PACKING, "packing_samples"),
    ("ds.attn_implementation", TEXT, "flash_attention_2", why.ATTENTION, "attn_implementation"),
    ("ds.experts_implementation", TEXT, None, why.EXPERTS),
    ("ds.use_universal_ckpt", SWITCH, False, why.UNIVERSAL, "use_ds_universal_ckpt"),
    ("bf16", SWITCH, False, Rule("model.dtype")),
    ("flash_attn", SWITCH, False, why.FLASH),
)

LIGER: Line = ("ds.use_liger_kernel", SWITCH, False, why.LIGER, "use_liger_kernel")

FILES: tuple[Line, ...] = (
    ("ckpt.output_dir", TEXT, "./ckpt", Rule("output"), "save_path"),
    ("ckpt.path", TEXT, None, Rule(), "ckpt_path"),
    ("ckpt.save_steps", WHOLE, -1, Rule("checkpoint.every"), "save_steps"),
    ("ckpt.save_hf", SWITCH, False, Rule("checkpoint.export"), "save_hf_ckpt"),
    ("ckpt.disable_ds", SWITCH, False, why.NO_STATE, "disable_ds_ckpt"),
    ("ckpt.max_num", WHOLE, 3, To("checkpoint.keep"), "max_ckpt_num"),
    ("ckpt.max_mem", NUMBER, float("inf"), why.DISK_LIMIT, "max_ckpt_mem"),
    ("ckpt.load_enable", SWITCH, False, Rule("resume.checkpoint"), "load_checkpoint"),
    ("data.dataloader_num_workers", WHOLE, 0, why.LOADER, "dataloader_num_workers"),
    ("data.disable_fast_tokenizer", SWITCH, False, why.SLOW_TOKENIZER, "disable_fast_tokenizer"),
    ("train.seed", WHOLE, 42, To("seed"), "seed"),
    ("train.full_determinism_enable", SWITCH, False, why.DETERMINISM, "full_determinism"),
    ("local_rank", WHOLE, -1, why.LAUNCHER),
    ("use_ms", SWITCH, False, why.MODELSCOPE),
)


def logged(project: str) -> tuple[Line, ...]:
    """Return the flags of the loggers, which differ between programs in the default project alone."""
    return (
        ("logger.logging_steps", WHOLE, 1, Rule(), "logging_steps"),
        ("logger.wandb.key", TEXT, None, Rule("log.to"), "use_wandb"),
        ("logger.wandb.org", TEXT, None, Rule("log.wandb.entity"), "wandb_org"),
        ("logger.wandb.group", TEXT, None, Rule("log.wandb.group"), "wandb_group"),
        ("logger.wandb.project", TEXT, project, Rule("log.wandb.project"), "wandb_project"),
        ("logger.wandb.run_name", TEXT, "", Rule("log.wandb.name"), "wandb_run_name"),
        ("logger.tensorboard_dir", TEXT, None, Rule("log.tensorboard"), "use_tensorboard"),
    )


def adapted(*roles: str) -> tuple[Line, ...]:
    """Return the flags of the model adapter, which each of the roles gets."""
    choices = tuple(f"{role}.adapter" for role in roles)

    def of(option: str) -> tuple[str, ...]:
        return tuple(f"{role}.{name}.{option}" for role in roles for name in ("lora", "qlora"))

    rank, alpha, dropout, target = map(of, OPTIONS)
    return (
        ("ds.load_in_4bit", SWITCH, False, Rule(*choices, "backend.deepspeed.zero_stage"), "load_in_4bit"),
        ("ds.lora.rank", WHOLE, 0, Rule(*choices, *rank), "lora_rank"),
        ("ds.lora.alpha", WHOLE, 16, Rule(*alpha), "lora_alpha"),
        ("ds.lora.target_modules", TEXTS, None, Rule(*target), "target_modules"),
        ("ds.lora.dropout", NUMBER, 0.0, Rule(*dropout), "lora_dropout"),
    )


def trained(role: str, prefix: str, lr: float, flat_lr: str) -> tuple[Line, ...]:
    """Return the flags of optimizer and schedule of a role.

    Args:
        role: our section, such as ``actor``.
        prefix: beginning of the flags, such as ``actor.``; empty for the programs that train one model.
        lr: default of Adam's learning rate.
        flat_lr: flat name of its flag.
    """
    return (
        (f"{prefix}optim", choice("adam", "muon"), "adam", Rule(f"{role}.optim")),
        (f"{prefix}muon.lr", NUMBER, 0.02, Rule(f"{role}.muon.lr", f"{role}.muon.adjust_lr")),
        (f"{prefix}muon.momentum", NUMBER, 0.95, Rule(f"{role}.muon.momentum")),
        (f"{prefix}muon.ns_steps", WHOLE, 5, why.PLACEHOLDER),
        (f"{prefix}muon.nesterov", SWITCH, True, why.PLACEHOLDER),
        (f"{prefix}muon.no_nesterov", SWITCH, False, why.PLACEHOLDER),
        (f"{prefix}adam.lr", NUMBER, lr, Rule(f"{role}.adam.lr", f"{role}.muon.adam_lr"), flat_lr),
        (f"{prefix}adam.betas", PAIR, [0.9, 0.95], Rule(f"{role}.adam.betas", f"{role}.muon.adam_betas"),
         "adam_betas"),
        (f"{prefix}adam.eps", NUMBER, 1e-8, Rule(f"{role}.adam.eps", f"{role}.muon.adam_eps")),
        (f"{prefix}adam.weight_decay", NUMBER, 0.0,
         Rule(f"{role}.adam.weight_decay", f"{role}.muon.weight_decay"), "l2"),
        (f"{prefix}lr_scheduler", TEXT, "cosine_with_min_lr", Rule(f"{role}.lr_schedule"), "lr_scheduler"),
        (f"{prefix}lr_warmup_ratio", NUMBER, 0.03, Rule(f"{role}.warmup_ratio"), "lr_warmup_ratio"),
        (f"{prefix}min_lr_ratio", NUMBER, 0.1, Rule(f"{role}.min_lr_ratio")),
        (f"{prefix}max_norm", NUMBER, 1.0, Rule(f"{role}.max_norm"), "max_norm"),
    )
# fmt: on


def table(*parts: Iterable[Line]) -> dict[str, OptionEntry]:
    """Return a table by name. Of two lines with one name, the later one counts."""
    entries = (
        OptionEntry(
            name, kind, default, fate, tuple(spelling for spelling in old if spelling != name)
        )
        for part in parts
        for name, kind, default, fate, *old in part
    )
    return {entry.name: entry for entry in entries}
