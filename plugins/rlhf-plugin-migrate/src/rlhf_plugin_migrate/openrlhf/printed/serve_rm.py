"""Flags of ``serve_rm``, which become those of ``rlhf serve-rm``: a command line, not a configuration."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...table.outcome import Outcome
from ..common.command_line import FLAGS, read_flags

_MODEL = "MODEL"


def migrate(words: Sequence[str]) -> tuple[str, Outcome]:
    """Return the command line of ``rlhf serve-rm`` that the flags mean, and what became of each."""
    source = read_flags(words, FLAGS["serve_rm"])
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
