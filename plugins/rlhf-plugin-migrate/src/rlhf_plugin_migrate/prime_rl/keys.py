"""Keys of prime-rl's TOML files for ``rl`` and ``sft``, with the defaults of ``prime_rl.configs`` of August 2026.

Older names are those of prime-rl 0.3 to 0.5.
"""

from __future__ import annotations

from ..table.entries import Missing, Nothing, Rule, To
from ..table.kinds import NUMBER, SWITCH, TEXT, WHOLE
from ..verl.common import reasons
from ..verl.common.key_table import Line, key_table
from ..verl.reinforcement.engine_keys import vllm_argument

_RULE = Rule()
"""Fate of a key that is read together with others, in ``training``, ``rl`` and ``sft``."""
_SERVED = Nothing("engines are part of the run: the runtime starts them")
_RENDERED = Nothing(
    "the chat template of the tokenizer is rendered, and no turn is tokenized again"
)
_LAUNCHED = Missing("jobs of Slurm are started by hand: examples/cluster has a script", off=(None,))
_KEPT = Nothing("a checkpoint has all state")
_ROUTES = Nothing(
    "--algo.correction.replay_routes sends tokens to the experts that the engine chose"
)


# fmt: off
def _training_lines(prefix: str, wandb: str, ckpt: str) -> tuple[Line, ...]:
    """Return the keys of optimizer, schedule, adapter, loggers and checkpoints."""
    optim, scheduler, model = f"{prefix}optim", f"{prefix}scheduler", f"{prefix}model"
    return (
        (f"{optim}.type", TEXT, "adamw", _RULE),
        (f"{optim}.lr", NUMBER, 1e-6, _RULE),
        (f"{optim}.weight_decay", NUMBER, 0.01, _RULE),
        (f"{optim}.max_norm", NUMBER, 1.0, To("actor.max_norm", lambda norm: norm or "none")),
        (f"{optim}.betas1", NUMBER, 0.9, _RULE),
        (f"{optim}.betas2", NUMBER, 0.999, _RULE),
        (f"{optim}.mu", NUMBER, 0.95, _RULE),
        (f"{optim}.momentum", NUMBER, 0.9, _RULE),
        (f"{optim}.nesterov", SWITCH, True, _RULE),
        (f"{scheduler}.type", TEXT, "constant", _RULE),
        (f"{scheduler}.warmup_steps", WHOLE, 10, _RULE),
        (f"{scheduler}.decay_steps", WHOLE, 10, _RULE),
        (f"{scheduler}.min_lr", NUMBER, 0.0, _RULE),
        (f"{model}.lora", TEXT, None, _RULE),
        (f"{model}.lora.rank", WHOLE, 16, _RULE),
        (f"{model}.lora.alpha", NUMBER, 32.0, _RULE),
        (f"{model}.lora.dropout", NUMBER, 0.0, _RULE),
        (f"{model}.lora.target_modules", TEXT, None, _RULE),
        (f"{model}.lora.modules_to_save", TEXT, None, _RULE),
        (f"{model}.optimization_dtype", TEXT, "float32", To("model.dtype")),
        (f"{model}.ac", TEXT, True, _RULE),
        (f"{model}.cp", WHOLE, 1, _RULE),
        (f"{model}.trust_remote_code", SWITCH, False, To("model.trust_remote_code")),
        (f"{wandb}.project", TEXT, "prime-rl", _RULE),
        (f"{wandb}.name", TEXT, None, _RULE),
        (f"{wandb}.group", TEXT, None, To("log.wandb.group")),
        (f"{wandb}.entity", TEXT, None, To("log.wandb.entity")),
        (f"{wandb}.tags", TEXT, None, To("log.wandb.tags")),
        (f"{wandb}.offline", SWITCH, False,
         To("log.wandb.mode", lambda is_offline: "offline" if is_offline else "none", if_given=True)),
        (f"{ckpt}.interval", WHOLE, None, To("checkpoint.every")),
        (f"{ckpt}.keep_last", WHOLE, None, To("checkpoint.keep")),
        ("max_steps trainer.max_steps orchestrator.max_steps", WHOLE, None, To("train.steps")),
        ("output_dir", TEXT, "outputs", _RULE),
        ("run.name", TEXT, None, _RULE),
        ("resume", TEXT, None, _RULE),
        ("tokenizer.name trainer.tokenizer.name orchestrator.tokenizer.name", TEXT, None, To("model.tokenizer")),
        ("deployment.num_train_gpus", WHOLE, 1, _RULE),
        ("deployment.num_infer_gpus", WHOLE, 1, _RULE),
        ("deployment.gpus_per_node", WHOLE, 8, _RULE),
        ("deployment.num_train_nodes", WHOLE, None, _RULE),
        ("deployment.num_infer_nodes", WHOLE, None, _RULE),
        ("deployment.num_infer_replicas", WHOLE, 1, _RULE),
    )


def _in_models(names: str) -> str:
    return " ".join(f"{model}.{name}" for model in ("trainer.model", "model") for name in names.split())


_EMPTY = Nothing("an empty table has prime-rl's defaults")
_TABLES = (
    _EMPTY,
    "deployment log model monitors run tokenizer trainer trainer.data trainer.log trainer.loss trainer.model "
    "trainer.optim trainer.scheduler trainer.tokenizer orchestrator orchestrator.algo orchestrator.concurrency "
    "orchestrator.eval orchestrator.eval.sampling orchestrator.log orchestrator.model orchestrator.tokenizer "
    "orchestrator.train orchestrator.train.sampling data data.loss_mask optim scheduler val val.data",
)
_FAMILIES = (
    ("deployment.type deployment.nodes_per_fsdp_group deployment.orchestrator_on_inference", reasons.PLACED),
    ("slurm", _LAUNCHED),
    ("log. trainer.log. orchestrator.log.", Nothing("run.log has the run's log")),
    ("env_vars trainer.env_vars orchestrator.env_vars",
     Missing("a configuration sets no variables: export them before the run", off=(None,))),
    ("clean dry_run run.dir", Nothing("a run folder that is there is refused, and --dry-run is a flag")),
    ("tokenizer.chat_template trainer.tokenizer.chat_template orchestrator.tokenizer.chat_template", reasons.TEMPLATE),
    ("tokenizer.trust_remote_code trainer.tokenizer.trust orchestrator.tokenizer.trust "
     "orchestrator.model.trust_remote_code", Nothing("model.trust_remote_code holds for the tokenizer, too")),
    ("ckpt trainer.ckpt orchestrator.ckpt", _KEPT),
    ("resume. trainer.resume orchestrator.resume", Missing("checkpoints of prime-rl cannot be read", off=(None,))),
    ("monitors. wandb. trainer.monitors orchestrator.monitors", Nothing("metrics.jsonl has all metrics")),
    ("trainer.memory_profiler_path trainer.trace_path memory_profiler_path trace_path", reasons.PROFILED),
    ("trainer.model.quantization model.quantization", reasons.PRECISION),
    ("trainer.model.freeze_moe_router model.freeze_moe_router",
     Missing("the router is trained, too", off=(None, False))),
    ("trainer.model.debug model.debug trainer.data.fake", Missing("an aid for finding bugs of prime-rl", off=(None,))),
    ("trainer.model.vlm model.vlm", Missing("set model.vision = vlm (docs/images.md)", off=(None,))),
    (_in_models("compile ac. ac_offloading fsdp_cpu_offload optim_cpu_offload full_offload reshard_after_forward "
                "dp_replicate ep deepep_ cp_style impl attn moe_ index_cache fused_lm_head reduce_dtype "
                "conversion_dir seq_len"), reasons.FAST),
    ("trainer.matmul_precision matmul_precision trainer.gc gc trainer.dist_timeout "
     "dist_timeout trainer.heartbeat heartbeat trainer.metrics_server", reasons.FAST),
    ("weight_broadcast trainer.weight_broadcast orchestrator.weight_broadcast rollout_transport "
     "trainer.rollout_transport orchestrator.rollout_transport", reasons.PLACED),
    ("inference.vllm.", vllm_argument),
    ("inference", _SERVED),
)

RL = key_table(
    (
        ("model.name", TEXT, "Qwen/Qwen3-0.6B", _RULE),
        ("trainer.model.name", TEXT, None, _RULE),
        ("orchestrator.model.name", TEXT, None, _RULE),
        ("seq_len", WHOLE, None, _RULE),
        ("orchestrator.seq_len", WHOLE, 2048, _RULE),
        ("orchestrator.batch_size", WHOLE, 128, _RULE),
        ("orchestrator.token_batch_size", WHOLE, None,
         Missing("a step has a number of samples, not of tokens", off=(None,))),
        ("orchestrator.group_size orchestrator.rollouts_per_example", WHOLE, 1, To("rollout.n_samples_per_prompt")),
        ("orchestrator.max_off_policy_steps", WHOLE, 8, _RULE),
        ("orchestrator.train.sampling.temperature orchestrator.sampling.temperature", NUMBER, 1.0,
         To("rollout.temperature")),
        ("orchestrator.train.sampling.max_completion_tokens orchestrator.sampling.max_tokens", WHOLE, None, _RULE),
        ("orchestrator.train.filter_zero_advantages", SWITCH, True, _RULE),
        ("orchestrator.train.source orchestrator.train.env orchestrator.env", TEXT, [], _RULE),
        ("orchestrator.eval.source orchestrator.eval.env", TEXT, [], _RULE),
        ("orchestrator.eval.interval", WHOLE, 100, _RULE),
        ("orchestrator.eval.num_examples", WHOLE, -1, _RULE),
        ("orchestrator.eval.group_size orchestrator.eval.rollouts_per_example", WHOLE, 1, _RULE),
        ("orchestrator.eval.sampling.temperature", NUMBER, None, _RULE),
        ("orchestrator.eval.sampling.max_completion_tokens", WHOLE, None, _RULE),
        ("orchestrator.eval.skip_first_step", SWITCH, False, _RULE),
        ("orchestrator.algo.type", TEXT, "grpo", _RULE),
        ("orchestrator.algo.teacher.name", TEXT, None, _RULE),
        ("trainer.loss.type", TEXT, "default", _RULE),
        ("trainer.loss.dppo_mask_low", NUMBER, 0.2, _RULE),
        ("trainer.loss.dppo_mask_high", NUMBER, 0.2, _RULE),
        ("trainer.loss.ipo_threshold", NUMBER, 0.1, _RULE),
        ("trainer.loss.kl_tau", NUMBER, 1e-3, _RULE),
        ("inference.vllm.tensor_parallel_size", WHOLE, 1, _RULE),
        ("inference.vllm.gpu_memory_utilization", NUMBER, 0.9, To("engine.vllm.memory_share")),
        ("inference.vllm.enforce_eager", SWITCH, False,
         To("engine.vllm.compile", lambda eager: not eager, if_given=True)),
        ("inference.vllm.enable_prefix_caching", SWITCH, None, To("engine.vllm.prefix_caching")),
        *_training_lines("trainer.", "monitors.wandb", "ckpt"),
    ),
    groups=(_TABLES,),
    families=(
        *_FAMILIES,
        ("inference.vllm.tool_call_parser inference.vllm.reasoning_parser orchestrator.renderer", _RENDERED),
        ("inference.vllm.data_parallel_size inference.vllm.api_server_count", reasons.PLACED),
        ("orchestrator.concurrency.", Nothing("rollout.concurrency bounds the prompts that are played at once")),
        ("orchestrator.train.sampling.extra_body orchestrator.eval.sampling.",
         Missing("held-out prompts are sampled as training prompts are, but for the temperature", off=(None,))),
        ("orchestrator.algo.length_penalty", Missing("write it as a reward, or use the shaper length_bonus")),
        ("orchestrator.algo.teacher.", Nothing("the teacher is part of the run; no server is asked")),
        ("orchestrator.algo.", Missing("it has no counterpart", off=(None,))),
        ("trainer.enable_router_replay inference.vllm.enable_return_routed_experts", _ROUTES),
        ("trainer.loss.", Missing("write a loss (docs/plugins.md), and start the run with --loss FILE.py:NAME")),
        ("orchestrator.model.client", _SERVED),
        ("orchestrator.model.vlm", Missing("set model.vision = vlm (docs/images.md)", off=(None,))),
        ("orchestrator.eval.retrigger_on_resume orchestrator.inference_metrics_roles", reasons.FAST),
        ("orchestrator.model.lora", Nothing("the adapter's rank and modules are those of the trainer")),
        ("orchestrator.output_dir trainer.output_dir trainer.enable_token_export",
         Nothing("the run folder has everything")),
        ("orchestrator.tasks_per_minute orchestrator.env_server orchestrator.num_train_workers "
         "orchestrator.pad_to_multiple_of orchestrator.collect_inference_metrics orchestrator.heartbeat", reasons.FAST),
    ),
    framework="prime-rl",
)
"""The table of ``rl``."""

SFT = key_table(
    (
        ("model.name", TEXT, "Qwen/Qwen3-0.6B", To("model.path")),
        ("data.name", TEXT, "PrimeIntellect/Reverse-Text-SFT", _RULE),
        ("data.subsets", TEXT, None, _RULE),
        ("data.splits", TEXT, None, _RULE),
        ("data.probabilities", TEXT, None, To("data.probabilities")),
        ("data.shuffle", SWITCH, True, To("data.shuffle")),
        ("data.seed", WHOLE, 0, To("seed", if_given=True)),
        ("data.seq_len", WHOLE, 128, To("data.max_length")),
        ("data.batch_size", WHOLE, 128, To(
            "train.batch_size", differs="it counts rows; prime-rl counts packed sequences of seq_len tokens")),
        ("data.micro_batch_size", WHOLE, 1, _RULE),
        ("data.loss_mask.system", SWITCH, False, Missing("the assistant's turns are learned")),
        ("data.loss_mask.user", SWITCH, False, Missing("the assistant's turns are learned")),
        ("data.loss_mask.tool", SWITCH, False, Missing("the assistant's turns are learned")),
        ("data.loss_mask.assistant", SWITCH, True, Nothing("the assistant's turns are learned")),
        ("val.data.name", TEXT, None, To("eval.data", lambda name: [str(name)])),
        ("val.interval", WHOLE, 50, _RULE),
        ("val.eval_on_start", SWITCH, False, To("eval.at_start", if_given=True)),
        *_training_lines("", "monitors.wandb", "ckpt"),
    ),
    groups=(_TABLES,),
    families=(
        *_FAMILIES,
        ("eval", Missing("a trained model plays environments with rlhf eval --env", off=(None,))),
        ("renderer", _RENDERED),
        ("data.type data.num_workers data.stopping_strategy data.length data.input_ids val.data.", reasons.FAST),
    ),
    framework="prime-rl",
)
"""The table of ``sft``."""
# fmt: on
