"""Flags of ``serve_rm``, which become those of ``rlhf serve-rm``: a command line, not a configuration."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...table.entries import Nothing, OptionEntry, Rule, To
from ...table.kinds import SWITCH, TEXT, WHOLE, choice
from ...table.outcome import Outcome
from ..common import reasons as why
from ..common.command_line import read_flags

_MODEL = "MODEL"
_ENTRIES = (
    OptionEntry("reward.model_name_or_path", TEXT, None, To(_MODEL), ("reward_pretrain",)),
    OptionEntry("reward.normalize_enable", SWITCH, False, Rule("--normalize"), ("normalize_reward",)),
    OptionEntry("ds.value_head_prefix", TEXT, "score", To("--head", if_given=True), ("value_head_prefix",)),
    OptionEntry(
        "data.max_len", WHOLE, 2048, To("--max-length", differs="--overlong says what is cut"), ("max_len",)
    ),
    OptionEntry("port", WHOLE, 5000, To("--port")),
    OptionEntry("host", TEXT, "0.0.0.0", To("--host", differs="requests need a token, RLHF_REWARD_TOKEN")),
    OptionEntry("ds.param_dtype", choice("bf16", "fp16"), "bf16", Rule("--dtype"), ("param_dtype",)),
    OptionEntry("batch_size", WHOLE, None, Rule("--batch-tokens")),
    OptionEntry("ds.packing_samples", SWITCH, False, Nothing("the scores do not depend on it"), ("packing_samples",)),
    OptionEntry("ds.attn_implementation", TEXT, "flash_attention_2", why.ATTENTION, ("attn_implementation",)),
    OptionEntry("ds.experts_implementation", TEXT, None, why.EXPERTS),
    OptionEntry("ds.load_in_4bit", SWITCH, False, why.QUANTIZED, ("load_in_4bit",)),
    OptionEntry("data.disable_fast_tokenizer", SWITCH, False, why.SLOW_TOKENIZER, ("disable_fast_tokenizer",)),
    OptionEntry("use_ms", SWITCH, False, why.MODELSCOPE),
)  # fmt: skip

FLAGS = {entry.name: entry for entry in _ENTRIES}
"""The table, by the names of 0.11.2."""


def migrate(words: Sequence[str]) -> tuple[str, Outcome]:
    """Return the command line of ``rlhf serve-rm`` that the flags mean, and what became of each."""
    source = read_flags(words, FLAGS)
    out = Outcome(source)
    out.apply_plain_entries()
    out.set("--overlong", "cut_end", "data.max_len")
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[source.text("ds.param_dtype")]
    out.set("--dtype", dtype, "ds.param_dtype")
    if source.flag("reward.normalize_enable"):
        out.set("--normalize", "model", "reward.normalize_enable")
    if source.given("batch_size"):
        tokens = source.whole("batch_size") * source.whole("data.max_len")
        out.set("--batch-tokens", tokens, "batch_size")
    model = source.text("reward.model_name_or_path") or _MODEL
    if model == _MODEL:
        out.warnings.append(
            "--reward.model_name_or_path is missing: put the model in place of MODEL"
        )
    flags = [
        word
        for path, setting in out.settings.items()
        if path != _MODEL
        for word in (path, str(setting.value))
    ]
    return shlex.join(["rlhf", "serve-rm", model, *flags]), out
