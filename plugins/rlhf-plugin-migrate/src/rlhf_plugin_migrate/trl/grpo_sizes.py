"""Rules of the machine, the batches and the evaluation of TRL's GRPO."""

from __future__ import annotations

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from .common.shared_rules import (
    global_batch,
    names_of_sets,
    set_duration,
    set_logs,
    set_reference,
    set_saves,
)

_MICRO_BATCH = "train.max_tokens_per_micro_batch"
_PROMPT_TOKENS = 1024
"""Our default for the longest prompt; TRL has no limit."""


def has_reference_role(source: SourceOptions) -> bool:
    """Return True if the reference is a model of its own, and not the policy without its adapter or a copy of the
    policy that follows it."""
    kept_by_policy = source.flag("use_peft") or source.flag("sync_ref_model")
    return bool(source.number("beta")) and not kept_by_policy


def set_components(source: SourceOptions, out: Outcome, processes: int) -> str:
    """Set runtime, engine and backend, and return the backend's name."""
    backend = "deepspeed" if processes > 1 else "torch"
    out.set("backend.name", backend)
    if processes > 1:
        out.set("runtime.name", "ray")
        out.set("runtime.ray.ranks.policy", processes)
        if has_reference_role(source):
            out.set("runtime.ray.ranks.reference", processes, "beta")
    if not source.flag("use_vllm"):
        out.set("engine.name", "embedded", "use_vllm")  # on the trainer's own weights, as TRL does
        out.nothing(
            (
                *("vllm_mode", "vllm_gpu_memory_utilization"),
                *("vllm_tensor_parallel_size", "vllm_enable_sleep_mode"),
            ),
            "TRL reads it only with use_vllm",
        )
        return backend
    out.set("engine.name", "vllm", "use_vllm")
    out.set(
        "engine.vllm.memory_share",
        source.number("vllm_gpu_memory_utilization"),
        "vllm_gpu_memory_utilization",
    )
    _set_engines(source, out, processes)
    return backend


def _set_engines(source: SourceOptions, out: Outcome, processes: int) -> None:
    width = source.whole("vllm_tensor_parallel_size")
    if source.text("vllm_mode") == "server":
        out.set("runtime.name", "ray")
        out.set(
            "runtime.ray.colocate",
            ["policy+reference"] if has_reference_role(source) else [],
            "vllm_mode",
        )
        out.differs(
            "vllm_mode",
            "the engine is part of the run, on GPUs of its own; set runtime.ray.engines to their number",
        )
        out.set("engine.vllm.args.tensor_parallel_size", width, "vllm_tensor_parallel_size")
        if width > 1:
            out.set("runtime.ray.gpus_per.engine", width, "vllm_tensor_parallel_size")
        out.nothing("vllm_enable_sleep_mode", "TRL reads it only with vllm_mode colocate")
        return
    if source.flag("vllm_enable_sleep_mode"):
        out.set("runtime.sleep", "always", "vllm_enable_sleep_mode")
        how = "the trainer's state also leaves while the engine generates"
        out.differs("vllm_enable_sleep_mode", how)
    elif source.given("vllm_enable_sleep_mode"):
        out.set("runtime.sleep", "never", "vllm_enable_sleep_mode")
    if processes > 1:
        out.set("runtime.ray.engines", processes, "vllm_mode", comment="one on each GPU")
    else:
        out.nothing("vllm_mode", "the engine shares the GPU with the trainer")
    if width > 1:
        out.missing(
            "vllm_tensor_parallel_size",
            "an engine that shares GPUs with the trainer has one GPU; place it apart for more (runtime.ray.colocate)",
        )
    else:
        out.nothing("vllm_tensor_parallel_size", "1 is the default")


def generation_batch(source: SourceOptions, processes: int) -> int:
    """Return the number of completions that are generated together."""
    per_device = source.count("per_device_train_batch_size") * processes
    if source.given("generation_batch_size"):
        return source.whole("generation_batch_size")
    if source.given("steps_per_generation"):
        return per_device * source.whole("steps_per_generation")
    return global_batch(source, processes)


def updates_per_step(source: SourceOptions, processes: int) -> int:
    """Return the number of TRL's steps, which are updates, in a step here, which is a rollout batch."""
    minibatches = max(generation_batch(source, processes) // global_batch(source, processes), 1)
    return minibatches * source.count("num_iterations")


def set_batches(source: SourceOptions, out: Outcome, processes: int) -> None:
    """Set prompts per rollout batch, completions per update, and how long to train."""
    generated, updated = generation_batch(source, processes), global_batch(source, processes)
    group = source.count("num_generations")
    keys = ("generation_batch_size", "steps_per_generation")
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps")
    comment = f"{generated} completions in groups of {group}"
    out.set("rollout.batch_size", max(generated // group, 1), *keys, *sizes, comment=comment)
    size = updated if generated % updated == 0 else generated
    out.set("train.batch_size", size, *sizes, comment=f"with {processes} processes")
    per_pass = source.count("per_device_train_batch_size")
    longest, prompt = source.value("vllm_max_model_length"), source.value("max_prompt_length")
    if isinstance(longest, int):
        out.set("rollout.max_length", longest, "vllm_max_model_length")
    else:
        tokens = prompt if isinstance(prompt, int) else _PROMPT_TOKENS
        longest = tokens + source.whole("max_completion_length")
        out.nothing(
            "vllm_max_model_length", "the length is that of the longest prompt and completion"
        )
    if isinstance(prompt, int):
        out.set("data.max_prompt_tokens", prompt, "max_prompt_length")
        out.differs("max_prompt_length", "a longer prompt is refused; TRL cut its beginning off")
    elif source.given("vllm_max_model_length"):
        out.set("data.max_prompt_tokens", max(longest - 1, 1), "vllm_max_model_length")
    else:
        out.warnings.append(
            f"TRL has no limit for prompts; longer ones than data.max_prompt_tokens = {_PROMPT_TOKENS} are refused here"
        )
    comment = f"{per_pass} x {longest}; a matter of memory, the gradient does not depend on it"
    out.set(_MICRO_BATCH, per_pass * longest, sizes[0], comment=comment)
    updates = updates_per_step(source, processes)
    set_duration(source, out, updates)
    set_reference(source, out, updates, is_used=bool(source.number("beta")))


def set_records(source: SourceOptions, out: Outcome, processes: int) -> None:
    """Set evaluation, checkpoints and logs. TRL's steps are updates, ours are rollout batches."""
    updates = updates_per_step(source, processes)
    set_saves(source, out, updates)
    _set_evaluation(source, out, updates)
    set_logs(source, out)


def _set_evaluation(source: SourceOptions, out: Outcome, updates: int) -> None:
    keys = (
        "eval_strategy",
        "eval_steps",
        "eval_on_start",
        "num_generations_eval",
        "dataset_test_split",
    )
    sets = list(names_of_sets(source))
    if source.text("eval_strategy") == "no" or not sets:
        out.nothing(keys, "TRL evaluates only with eval_strategy")
        if source.given("test_split_size"):
            out.nothing("test_split_size", "TRL evaluates only with eval_strategy")
        return
    if source.given("test_split_size"):
        out.copy("eval.fraction", "test_split_size")
        out.nothing("dataset_test_split", "the held-out rows are a share of the training rows")
    else:
        out.set("eval.data", [f"test={sets[0]}"], "eval_strategy")
        out.set("eval.split", source.text("dataset_test_split"), "dataset_test_split")
    # Without a number of its own the Trainer evaluates as often as it logs.
    steps = source.number("eval_steps" if source.given("eval_steps") else "logging_steps")
    if source.text("eval_strategy") == "epoch":
        out.differs(
            "eval_strategy",
            "evaluations are counted in steps (eval.every); this one is at the end only",
        )
        out.nothing("eval_steps", "eval_strategy is epoch")
    else:
        out.set("eval.every", max(round(steps / updates), 1), "eval_strategy", "eval_steps")
    out.copy("eval.at_start", "eval_on_start")
    samples = source.value("num_generations_eval") or source.value("num_generations")
    out.set("eval.n_samples", samples, "num_generations_eval")
    out.set("eval.temperatures", [source.number("temperature")], "temperature")
