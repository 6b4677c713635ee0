"""The command ``rlhf merge``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_config import FlagParser, pinned_folder


def parser() -> FlagParser:
    """Return the parser of the command's words."""
    own = FlagParser(
        prog="rlhf merge",
        description="Write a plain Transformers folder whose weights are those of BASE with a PEFT adapter merged into "
        "them: in float32, rounded once to the base's dtype. The base is not changed.",
    )
    own.add_argument(
        "base",
        metavar="BASE",
        help="folder or hub name (also NAME@REVISION) that the adapter was trained on",
    )
    own.add_argument(
        "adapter", metavar="ADAPTER", help="PEFT folder: adapter_config.json and weights"
    )
    own.add_argument("out", metavar="OUT", type=Path, help="folder to write; new or empty")
    own.add_argument(
        "--same-base",
        action="store_true",
        help="BASE is the adapter's base, although adapter_config.json names another folder",
    )
    own.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code that comes with the model"
    )
    return own


def merge(words: Sequence[str]) -> int:
    """Run ``rlhf merge WORDS`` and return the exit code.

    Raises:
        ConfigError: base, adapter or OUT cannot be used, or the adapter does not fit the base.
        PluginError: the merged model computes something else than the base with the adapter.
    """
    own = parser().parse_args(list(words))
    own.base, own.adapter = pinned_folder(own.base), pinned_folder(own.adapter)
    # Imported here: help needs no torch.
    from rlhf_core.long_work import log_if_long
    from rlhf_torch.adapters.folder import read_adapter
    from rlhf_torch.adapters.merging import cast_back, merge_adapter

    from .base_model import load_base
    from .writing import check_output, write_merged

    check_output(own.out)
    adapter = read_adapter(own.adapter)
    if not own.same_base:
        adapter.require_base(own.base, "add --same-base")
    with log_if_long(f"reading the weights of {own.base}"):
        loaded = load_base(own.base, adapter, trust_remote_code=own.trust_remote_code)
    with log_if_long(f"merging {adapter.path} into {own.base}"):
        merged = merge_adapter(loaded.model, own.base, adapter)
        cast_back(merged, loaded.dtypes)
    with log_if_long(f"writing the model to {own.out}"):
        write_merged(
            merged,
            own.out,
            base=own.base,
            adapter=adapter.path,
            trust_remote_code=own.trust_remote_code,
        )
    print(
        f"{own.out}: {type(merged).__name__}, {merged.num_parameters():,} parameters, {merged.dtype}"
    )
    return 0
