"""Writing of a merged model: all of its files into a folder beside, which then gets its name in one step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from transformers import PreTrainedModel

from rlhf_core import ConfigError
from rlhf_core.storage import made_whole
from rlhf_torch.models.export import copy_tokenizer, save_plain
from rlhf_torch.models.loading import reads_images
from rlhf_torch.vision.processor_files import copy_processor, has_processor

HEADS = ("value_head.safetensors",)
"""Files of heads beside a model, which are copied as they are."""
_TOKENIZER = "tokenizer_config.json"


def check_output(out: Path) -> None:
    """Refuse a path at which something is already.

    Raises:
        ConfigError: OUT is a file, or a folder that is not empty.
    """
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(
            f"{out}: expected a new or an empty folder; something is there already",
            code="output/not-empty",
        )


def write_merged(
    model: PreTrainedModel, out: Path, *, base: str, adapter: Path, trust_remote_code: bool
) -> None:
    """Write model, tokenizer with chat template, generation config and heads; a kill leaves no half-written OUT.

    The tokenizer is the adapter's where its folder has one, else the base's; so is the image processor of a model that
    reads images.

    Raises:
        StorageError: the folder could not be written; nothing of it is left.
    """
    with made_whole(out) as part:
        part.mkdir(parents=True)
        save_plain(model, part)
        source = str(adapter) if (adapter / _TOKENIZER).is_file() else base
        copy_tokenizer(source, part, trust_remote_code=trust_remote_code)
        if reads_images(model.config):
            copy_processor(str(adapter) if has_processor(adapter) else base, part)
        for name in HEADS:
            if (adapter / name).is_file():
                shutil.copyfile(adapter / name, part / name)
