"""Rules of TRL's machine, batches, data, evaluation and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..table.outcome import Outcome
from ..table.source import SourceOptions

_MICRO_BATCH = "train.max_tokens_per_micro_batch"
_PROMPT_TOKENS = 1024
"""Our default for the longest prompt; TRL has no limit."""


def set_components(source: SourceOptions, out: Outcome, processes: int) -> str:
    """Set runtime, engine and backend, and return the backend's name."""
    backend = "deepspeed" if processes > 1 else "torch"
    out.set("backend.name", backend)
    if processes > 1:
        out.set("runtime.name", "ray")
        out.set("runtime.ray.ranks.policy", processes)
        if source.number("beta"):
            out.set("runtime.ray.ranks.reference", processes, "beta")
    if not source.flag("use_vllm"):
        out.nothing("use_vllm", "off: the engine embedded generates on the trainer's own weights")
        for name in ("vllm_mode", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size"):
            out.nothing(name, "TRL reads it only with use_vllm")
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
            ["policy+reference"] if source.number("beta") else [],
            "vllm_mode",
        )
        out.differs(
            "vllm_mode",
            "the engine is part of the run, on GPUs of its own; set runtime.ray.engines to their number",
        )
        out.set("engine.vllm.args.tensor_parallel_size", width, "vllm_tensor_parallel_size")
        if width > 1:
            out.set("runtime.ray.gpus_per.engine", width, "vllm_tensor_parallel_size")
        return
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


def set_computing(source: SourceOptions, out: Outcome, backend: str) -> None:
    """Set the weights' type and how passes are computed."""
    dtype = source.text("dtype")
    known = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
    out.set("model.dtype", known.get(dtype, "bfloat16"), "dtype")
    if dtype not in known:
        out.differs("dtype", f"there is no {dtype}: weights are float32 or bfloat16")
    out.set(
        f"backend.{backend}.gradient_checkpointing",
        source.flag("gradient_checkpointing"),
        "gradient_checkpointing",
    )
    out.set(f"backend.{backend}.compile", source.flag("torch_compile"), "torch_compile")


def global_batch(source: SourceOptions, processes: int) -> int:
    """Return the number of completions of an optimizer step."""
    per_step = source.whole("per_device_train_batch_size") * processes
    return per_step * source.whole("gradient_accumulation_steps")


def generation_batch(source: SourceOptions, processes: int) -> int:
    """Return the number of completions that are generated together."""
    per_device = source.whole("per_device_train_batch_size") * processes
    if source.given("generation_batch_size"):
        return source.whole("generation_batch_size")
    if source.given("steps_per_generation"):
        return per_device * source.whole("steps_per_generation")
    return global_batch(source, processes)


def updates_per_step(source: SourceOptions, processes: int) -> int:
    """Return the number of TRL's steps, which are updates, in a step here, which is a rollout batch."""
    minibatches = max(generation_batch(source, processes) // global_batch(source, processes), 1)
    return minibatches * source.whole("num_iterations")


def set_batches(source: SourceOptions, out: Outcome, processes: int) -> None:
    """Set prompts per rollout batch, completions per update, and how long to train."""
    generated, updated = generation_batch(source, processes), global_batch(source, processes)
    group = source.whole("num_generations")
    keys = ("generation_batch_size", "steps_per_generation")
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps")
    comment = f"{generated} completions in groups of {group}"
    out.set("rollout.batch_size", max(generated // group, 1), *keys, *sizes, comment=comment)
    size = updated if generated % updated == 0 else generated
    out.set("train.batch_size", size, *sizes, comment=f"with {processes} processes")
    per_pass = source.whole("per_device_train_batch_size")
    longest = source.value("vllm_max_model_length")
    if isinstance(longest, int):
        out.set("rollout.max_length", longest, "vllm_max_model_length")
        out.set("data.max_prompt_tokens", max(longest - 1, 1), "vllm_max_model_length")
    else:
        longest = _PROMPT_TOKENS + source.whole("max_completion_length")
        out.nothing(
            "vllm_max_model_length", "the length is that of the longest prompt and completion"
        )
        out.warnings.append(
            f"TRL has no limit for prompts; longer ones than data.max_prompt_tokens = {_PROMPT_TOKENS} are refused here"
        )
    comment = f"{per_pass} x {longest}; a matter of memory, the gradient does not depend on it"
    out.set(_MICRO_BATCH, per_pass * longest, sizes[0], comment=comment)
    _set_duration(source, out, updates_per_step(source, processes))


def _set_duration(source: SourceOptions, out: Outcome, updates: int) -> None:
    steps = source.whole("max_steps")
    if steps > 0:
        out.set(
            "train.steps",
            math.ceil(steps / updates),
            "max_steps",
            comment="rollout batches; TRL counts updates",
        )
        out.nothing("num_train_epochs", "max_steps overrides it")
        return
    epochs = source.number("num_train_epochs")
    out.set("train.epochs", max(math.ceil(epochs), 1), "num_train_epochs")
    out.nothing("max_steps", "the epochs say how long to train")
    if epochs != math.ceil(epochs):
        out.differs("num_train_epochs", "epochs are whole here")


def set_records(source: SourceOptions, out: Outcome, processes: int) -> None:
    """Set evaluation, checkpoints and logs. TRL's steps are updates, ours are rollout batches."""
    updates = updates_per_step(source, processes)
    strategy = source.text("save_strategy")
    if strategy == "steps":
        every = max(round(source.number("save_steps") / updates), 1)
        out.set("checkpoint.every", every, "save_steps", "save_strategy")
    else:
        out.nothing("save_steps", f"save_strategy is {strategy}")
        out.nothing("save_strategy", "a checkpoint is saved at the end")
        if strategy not in ("no", "end"):
            out.missing("save_strategy", "checkpoints are counted in steps: checkpoint.every")
    _set_evaluation(source, out, updates)
    loggers = source.value("report_to")
    names = [loggers] if isinstance(loggers, str) else list(loggers or [])  # type: ignore[arg-type]
    other = [str(name) for name in names if name not in ("tensorboard", "none", "all")]
    if other:
        out.missing(
            "report_to",
            f"there is no logger for {', '.join(other)}; TensorBoard's events are in the run folder",
        )
    out.set("log.tensorboard", True, "report_to")


def _set_evaluation(source: SourceOptions, out: Outcome, updates: int) -> None:
    keys = (
        "eval_strategy",
        "eval_steps",
        "eval_on_start",
        "num_generations_eval",
        "dataset_test_split",
    )
    sets = list(_sets(source))
    if source.text("eval_strategy") == "no" or not sets:
        for name in keys:
            out.nothing(name, "TRL evaluates only with eval_strategy")
        if source.given("test_split_size"):
            out.nothing("test_split_size", "TRL evaluates only with eval_strategy")
        return
    if source.given("test_split_size"):
        out.set("eval.fraction", source.number("test_split_size"), "test_split_size")
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
    out.set("eval.at_start", source.flag("eval_on_start"), "eval_on_start")
    samples = source.value("num_generations_eval") or source.value("num_generations")
    out.set("eval.n_samples", samples, "num_generations_eval")
    out.set("eval.temperatures", [source.number("temperature")], "temperature")


def _sets(source: SourceOptions) -> Iterator[str]:
    """Yield the names of the sets."""
    mixture = source.value("datasets")
    if isinstance(mixture, list):
        for part in mixture:
            if isinstance(part, dict) and "path" in part:
                name = part.get("name")
                yield f"{part['path']}:{name}" if name else str(part["path"])
    elif source.given("dataset_name"):
        name = source.text("dataset_config")
        yield source.text("dataset_name") + (f":{name}" if name else "")


def set_data(source: SourceOptions, out: Outcome) -> None:
    """Set the sets of prompts."""
    sets = list(_sets(source))
    key = "datasets" if source.given("datasets") else "dataset_name"
    if sets:
        out.set("data.train", list(sets), key, "dataset_config")
    else:
        out.warnings.append("dataset_name is missing: the configuration needs data.train")
        out.nothing("dataset_config", "there is no dataset_name")
    if source.given("datasets"):
        out.differs(
            "datasets",
            "path and name of each set are kept; data.split holds for all, and single files are named in data.train",
        )
        out.nothing("dataset_name", "TRL reads datasets instead")
        out.nothing("dataset_config", "TRL reads datasets instead")
