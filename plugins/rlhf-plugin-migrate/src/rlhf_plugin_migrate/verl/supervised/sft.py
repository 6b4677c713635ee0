"""Migration of verl's trainers of given answers to ``rlhf sft``."""

from __future__ import annotations

import math

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.adapter import set_adapter
from ..common.optimizer import set_optimizer, set_schedule
from ..common.sets import set_files_of_rows, set_template
from ..common.trainer import names_of, set_duration, set_evaluation, set_files, set_logs

_STRATEGY, _ULYSSES = "engine", "engine.ulysses_sequence_parallel_size"
_FSDP = ("fsdp", "fsdp2")
_ROWS, _ALL_ROWS = "data.micro_batch_size_per_gpu", "data.micro_batch_size"
_BUDGET, _DYNAMIC = "data.max_token_len_per_gpu", "data.use_dynamic_bsz"
_MESSAGES, _TURNS = "data.messages_key", "data.multiturn.enable"
_PROMPT, _RESPONSE = "data.prompt_key", "data.response_key"
_MICRO_BATCH = "train.max_tokens_per_micro_batch"


def migrate(source: SourceOptions, processes: int | None) -> Outcome:
    """Return the configuration that the keys of a trainer mean.

    Args:
        processes: number of processes that the launcher starts; None: it does not say.
    """
    out = Outcome(source, command="sft")
    out.apply_plain_entries()
    if not source.given("model.path"):
        out.warnings.append("model.path is missing: the configuration needs one")
    _set_machine(source, out, processes)
    set_files_of_rows(source, out)
    _set_columns(source, out)
    set_template(source, out)
    _set_sizes(source, out)
    set_duration(source, out)
    set_evaluation(source, out)
    set_files(source, out)
    set_logs(source, out)
    set_optimizer(source, out, "optim", "actor")
    steps = source.value("trainer.total_training_steps")
    set_schedule(source, out, "optim", "actor", steps if isinstance(steps, int) else None)
    set_adapter(source, out, "model", "actor")
    return out


def _set_machine(source: SourceOptions, out: Outcome, processes: int | None) -> None:
    nodes, gpus = "trainer.nnodes", "trainer.n_gpus_per_node"
    if processes is None and source.given(nodes, gpus):
        processes = source.whole(nodes) * source.whole(gpus)
    out.nothing((nodes, gpus), "the launcher says how many processes there are")
    if processes is None:
        out.warnings.append("one process is assumed; --processes says how many the launcher starts")
    number, width = processes or 1, max(source.whole(_ULYSSES), 1)
    strategy = source.text(_STRATEGY)
    if number > 1:
        out.set("runtime.name", "ray")
        out.set("runtime.ray.ranks.policy", number, nodes, gpus)
    backend = "fsdp" if number > 1 else "torch"
    if number > 1 and (width > 1 or strategy not in _FSDP):
        backend = "deepspeed"
        out.set("backend.deepspeed.zero_stage", 3, _STRATEGY)
        out.set("backend.deepspeed.sequence_parallel", width, _ULYSSES)
    elif width > 1:
        out.missing(
            _ULYSSES,
            "one process computes whole sequences; --processes says how many the launcher starts",
        )
    else:
        out.nothing(_ULYSSES, "1: each rank computes whole sequences")
    out.set("backend.name", backend, _STRATEGY)
    if strategy not in _FSDP:
        out.differs(_STRATEGY, f"there is no {strategy}: {backend} trains")
    checkpointing, dtype = "model.enable_gradient_checkpointing", "engine.model_dtype"
    out.copy(f"backend.{backend}.gradient_checkpointing", checkpointing)
    is_float32 = source.text(dtype) in ("fp32", "float32")
    out.set("model.dtype", "float32" if is_float32 else "bfloat16", dtype)
    images = "data.image_key"
    if source.text(images):
        out.set("model.vision", "vlm", images)
        out.set("data.image_key", source.text(images), images)
    else:
        out.nothing(images, "--model.vision vlm reads the column images")


def _set_columns(source: SourceOptions, out: Outcome) -> None:
    """Set where rows have their texts: conversations, or a question and an answer."""
    if _PROMPT not in source.entries or source.flag(_TURNS):
        out.set("data.messages_key", source.text(_MESSAGES), _MESSAGES, _TURNS)
        out.nothing(
            (_PROMPT, _RESPONSE, "data.prompt_dict_keys", "data.response_dict_keys"),
            "rows are conversations",
        )
        return
    out.nothing((_MESSAGES, _TURNS), "rows are questions with answers")
    inner = {}
    for name in ("prompt", "response"):
        key = f"data.{name}_dict_keys"
        inner[name] = names_of(source, key)
        if not inner[name]:
            out.nothing(key, "the column is text")
    columns = (source.text(_PROMPT), source.text(_RESPONSE))
    dict_keys = ("data.prompt_dict_keys", "data.response_dict_keys")
    if not inner["prompt"] and not inner["response"]:
        out.set("data.prompt_key", columns[0], _PROMPT)
        out.set("data.response_key", columns[1], _RESPONSE)
        out.set("data.chat", True, _PROMPT, comment="verl asks each question as the user's message")
    elif columns == ("extra_info", "extra_info") and inner == {
        "prompt": ["question"],
        "response": ["answer"],
    }:
        out.set("data.form", "verl", _PROMPT, _RESPONSE, *dict_keys)
    else:
        out.missing(
            (_PROMPT, _RESPONSE, *dict_keys),
            "an entry of a column is read with --data.form verl alone: extra_info.question and .answer",
        )


def _set_sizes(source: SourceOptions, out: Outcome) -> None:
    cut = "data.truncation"
    is_cut = source.text(cut) != "error"
    out.set("data.on_too_long", "truncate" if is_cut else "refuse", cut)
    if source.text(cut) == "left":
        out.differs(cut, "a longer row loses its end, not its beginning")
    length, width = source.whole("data.max_length"), max(source.whole(_ULYSSES), 1)
    out.nothing((_ROWS, _ALL_ROWS, _BUDGET, _DYNAMIC), "a matter of memory, which other keys say")
    if source.flag(_DYNAMIC) and not source.given(_ROWS):
        budget = max(source.whole(_BUDGET), length)
        out.set(_MICRO_BATCH, budget, _BUDGET, _DYNAMIC)
        return
    rows = source.whole(_ROWS)
    comment = f"{rows} x {length}; a matter of memory, the gradient does not depend on it"
    out.set(_MICRO_BATCH, max(math.ceil(rows * length / width), length), _ROWS, comment=comment)
