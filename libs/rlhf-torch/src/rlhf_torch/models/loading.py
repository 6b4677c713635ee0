"""Loading of a causal language model from a folder or hub name, and the error texts where that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, __version__

from rlhf_core import ConfigError, PluginError, headline
from rlhf_core.long_work import log_if_long
from rlhf_core.outside.json_reader import parse_object
from rlhf_data import reach_hub

from ..adapters.merging import settle_ties
from ..packed import attention
from ..vision.pictures import PictureReader
from .modeling import DTYPES, CausalLM
from .quantized_files import settle_unpacked, unpacking
from .quiet import errors_only, quiet_loading
from .verification import own_attention, verify
from .vision_lm import VisionLM
from .weight_files import pickled_weights

log = logging.getLogger(__name__)

Adapt = Callable[[PreTrainedModel], PreTrainedModel]


class Loaded(NamedTuple):
    """A model as ``from_pretrained`` gives it."""

    model: PreTrainedModel
    lacks_head: bool
    """True: its folder has no output head, which has random weights now."""


def load_causal_lm(
    path: str,
    *,
    dtype: str | torch.dtype,
    compute_dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    adapt: Adapt | None = None,
    load_options: Mapping[str, Any] | None = None,
    needs_head: bool = True,
    writes: bool = True,
    reader: PictureReader | None = None,
    rows: int | None = None,
) -> CausalLM:
    """Return the model of a folder or hub name, on the CPU, in evaluation mode (dropout is never on), and verified.

    A model that is quantized as it is loaded may be on a GPU. Weights that the files hold in MXFP4 or FP8 are unpacked.

    Args:
        dtype: dtype of the parameters, ``float32`` or ``bfloat16``.
        compute_dtype: dtype of the matmuls; None: that of the parameters.
        adapt: changes the model in place before it is verified.
        load_options: further arguments of ``from_pretrained``.
        needs_head: False: a folder without the output head, such as that of a reward model, is enough; the head is then
            zeros.
        writes: False: the model writes no text, so the folder of a reward model is taken where its weights are whole.
        reader: reads images for the model; None: it reads text alone.
        rows: rows that embeddings and output head get where they have fewer; None: their own.

    Raises:
        ConfigError: the path cannot be read, is no causal language model, or lacks weights.
        PluginError: the architecture is one that packing or this package's attention would compute wrongly.
    """
    loaded = load_model(
        path,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        load_options=load_options,
        needs_head=needs_head,
        writes=writes,
        reader=reader,
        rows=rows,
    )
    with log_if_long(f"preparing the weights of model {path}"):
        model = loaded.model if adapt is None else adapt(loaded.model)
    with log_if_long(f"comparing model {path} with itself in packed rows"):
        lm = verified(model, as_dtype(compute_dtype or dtype), reader)
    if loaded.lacks_head:
        # After the comparison, which zeros would pass; Transformers draws them from the global random state.
        for parameter in model.get_output_embeddings().parameters():
            torch.nn.init.zeros_(parameter)
    return lm


def load_model(
    path: str,
    *,
    dtype: str | torch.dtype,
    trust_remote_code: bool = False,
    load_options: Mapping[str, Any] | None = None,
    needs_head: bool = True,
    writes: bool = True,
    reader: PictureReader | None = None,
    rows: int | None = None,
) -> Loaded:
    """Return the Transformers model of a folder or hub name; arguments are those of ``load_causal_lm``.

    Raises:
        ConfigError: the path cannot be read, is no causal language model, lacks weights, would lose its vision tower,
            its encoder or the head of a reward model, or its files are quantized in a way that is not unpacked.
        PluginError: its attention cannot be replaced.
    """
    if (Path(path) / "adapter_config.json").exists():
        raise ConfigError(_is_adapter(path), code="model/is-an-adapter")
    reach_hub(path)
    unpacked = unpacking(path, load_options or {})
    options = {
        "dtype": as_dtype(dtype),
        "trust_remote_code": trust_remote_code,
        "output_loading_info": True,
        "use_safetensors": True,  # the other format is a pickle, which can run code
        **(load_options or {}),
        **unpacked,
    }
    # What Transformers would do without our settings, it says as a warning.
    silent = errors_only() if unpacked else nullcontext()
    try:
        with log_if_long(f"reading the weights of model {path}"), quiet_loading(), silent:
            if reader is None:
                model, info = AutoModelForCausalLM.from_pretrained(
                    path, attn_implementation=attention.NAME, **options
                )
            else:
                of_text = {"text_config": attention.NAME}
                model, info = reader.family.load(attn_implementation=of_text, **options)
    except Exception as error:  # Transformers checks little of what the files hold
        if isinstance(error, KeyError) and error.args == (attention.NAME,):
            raise PluginError(own_attention(f"model {path}"), code="model/own-attention") from error
        raise _why_not(path, error, trust_remote_code) from error
    if reader is None:
        _refuse_a_part(path, model, trust_remote_code)
    if writes and needs_head and _judges(model):
        raise ConfigError(_is_reward_model(path), code="model/is-a-reward-model")
    missing = set(info["missing_keys"])
    head = set() if needs_head else missing & _head_names(model)
    lacking = sorted(missing - head) + sorted(map(str, info["mismatched_keys"]))
    _refuse_lacking(path, lacking, model if needs_head else None)
    if writes and needs_head and (unused := sorted(info["unexpected_keys"])):
        log.warning(
            "model %s: %s of the tensors in its files have no place in %s, so they are not trained or exported; the "
            "first is %s",
            path,
            len(unused),
            type(model).__name__,
            unused[0],
        )
    if unpacked:
        settle_unpacked(path, model, as_dtype(dtype))
    # Of a config.json that ties them by mistake Transformers keeps both, until it ties weights again for new rows.
    if settle_ties(model) and writes and needs_head:
        log.warning(
            'model %s: its config.json says "tie_word_embeddings": true, and its files hold an output head that '
            "differs from the embeddings: the two are computed, trained and exported apart. A program that goes by the "
            "config.json has the embeddings as its head: set the entry to false there",
            path,
        )
    if rows is not None:
        add_rows(model, rows)
    return Loaded(model, bool(head))


def _refuse_lacking(path: str, lacking: Sequence[str], model: PreTrainedModel | None) -> None:
    """Refuse a folder that lacks parameters.

    Args:
        model: the model, whose output head is among them maybe; None: nobody needs that.

    Raises:
        ConfigError: it lacks some.
    """
    if not lacking:
        return
    tied = ""
    if model is not None and set(lacking) <= _head_names(model):
        tied = ' If its output head is its embeddings, write "tie_word_embeddings": true into its config.json.'
    raise ConfigError(
        f"{path}: the weights do not fit its config.json: {len(lacking)} parameters would start from random "
        f"values, the first is {lacking[0]}. Expected the weights of a whole causal language model.{tied}",
        code="model/weights-missing",
    )


def add_rows(model: PreTrainedModel, rows: int) -> None:
    """Give embeddings and output head at least so many rows, and the configuration their number; each new row is the
    mean of those that were there, so that a new token is as probable as others on average.

    Source: Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models".
    """
    first = int(model.get_input_embeddings().weight.shape[0])
    if rows <= first:
        return
    # Transformers draws new rows from the global random state, on which a run's seeds would then depend.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.resize_token_embeddings(rows, mean_resizing=False)
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            for parameter in () if module is None else module.parameters():
                parameter[first:] = parameter[:first].float().mean(0).to(parameter.dtype)


def verified(
    model: PreTrainedModel, compute_dtype: torch.dtype, reader: PictureReader | None = None
) -> CausalLM:
    """Return the model as trainer and engine compute it, in evaluation mode.

    Args:
        reader: reads images for the model; None: it reads text alone.

    Raises:
        PluginError: the architecture is one that packing or this package's attention would compute wrongly.
    """
    model.eval()
    lm = VisionLM(model, compute_dtype, reader) if reader else CausalLM(model, compute_dtype)
    verify(lm)
    return lm


def _head_names(model: PreTrainedModel) -> set[str]:
    """Return the names of the output head's parameters."""
    head = model.get_output_embeddings()
    ids = {id(parameter) for parameter in (() if head is None else head.parameters())}
    named = model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if id(parameter) in ids}


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return a dtype by its name.

    Raises:
        ConfigError: it is none of ``DTYPES``.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ConfigError(
            f"dtype {dtype!r}; expected one of {', '.join(DTYPES)}", code="model/unknown-dtype"
        )
    return DTYPES[dtype]


def _is_adapter(path: str) -> str:
    """Return an error text for a PEFT folder, which holds an adapter beside a base that is elsewhere."""
    try:
        settings = parse_object((Path(path) / "adapter_config.json").read_bytes())
        base = settings["base_model_name_or_path"] or "BASE"
    except (OSError, ValueError, KeyError, TypeError):
        base = "BASE"
    return (
        f"model {path}: expected a whole model; it is an adapter (adapter_config.json), made for the base {base}. Make "
        f"a plain model of both: rlhf merge {base} {path} OUT, and give OUT. Or train it on: --model {base} "
        f"--actor.adapter lora --actor.lora.init_from {path}"
    )


def _judges(model: PreTrainedModel) -> bool:
    """Return whether a folder says of itself that it scores texts. Where embeddings are the output head, its weights
    fit a model that writes, but were trained to judge, and the head of the scores would be lost without a word."""
    kinds = getattr(model.config, "architectures", None) or [""]
    # Reward models that read images have the class of the plain model; the name of their head tells them.
    return str(kinds[0]).endswith("ForSequenceClassification") or hasattr(
        model.config, "value_head_prefix"
    )


def _is_reward_model(path: str) -> str:
    return (
        f"model {path}: expected a model that writes text; its config.json says that it is a reward model. "
        "Give the model that it was made from. To score with it: --reward reward_model "
        f"--reward.reward_model.path {path}; to train it further: rlhf rm --model {path}"
    )


def _refuse_a_part(path: str, model: PreTrainedModel, trust_remote_code: bool) -> None:
    """Refuse a model of which Transformers has loaded a part: the text model, or the decoder."""
    if reads_images(model.config):
        return
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if getattr(config, "is_encoder_decoder", False):
        raise ConfigError(
            f"model {path}: expected a causal language model; it is an encoder-decoder ({config.model_type}), of which "
            "the decoder alone would be loaded, trained and exported. Choose another model.",
            code="model/encoder-decoder",
        )
    if reads_images(config):
        raise ConfigError(
            f"model {path}: it reads images ({config.model_type}), and only its text model would be loaded and "
            "exported. Set --model.vision vlm, which trains it with rows of text alone too; commands without this "
            "option run models that read text alone.",
            code="model/reads-images",
        )


def reads_images(config: Any) -> bool:
    """Return whether a configuration is that of an image-text model."""
    return getattr(config, "vision_config", None) is not None


def _why_not(path: str, error: Exception, trust_remote_code: bool) -> ConfigError:
    """Return an error that says in the user's words why a path cannot be loaded."""
    folder = Path(path)
    first_line = headline(error)
    if folder.is_dir() and not (folder / "config.json").exists():
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        return ConfigError(
            f"model {path}: expected a Transformers folder with a config.json; it holds {found}. Give the folder that "
            "save_pretrained wrote.",
            code="model/not-a-folder",
        )
    if not folder.exists() and isinstance(error, OSError):
        return ConfigError(
            f"model {path}: no such folder, and not available as a hub name ({first_line}). Give --model a folder "
            "with config.json and weights, or the name of a model that is in the cache or can be downloaded.",
            code="model/not-found",
        )
    if pickled := pickled_weights(path):
        return ConfigError(
            f"model {path}: expected weights in safetensors; {pickled} is a pickle, which is not read, "
            "because it can run code. If you trust it: python -c 'from transformers import AutoModelForCausalLM as M; "
            f'M.from_pretrained("{path}").save_pretrained("{path}-safetensors")\' and copy the tokenizer there',
            code="model/pickled-weights",
        )
    if isinstance(error, OSError | SafetensorError):
        return ConfigError(f"model {path}: cannot be read: {first_line}", code="model/unreadable")
    # Transformers read the configuration, and has no language model for its kind.
    if first_line.startswith("Unrecognized configuration class"):
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        if reads_images(config):
            return ConfigError(
                f"model {path}: expected a language model; it reads images ({config.model_type}). Where it is trained, "
                "set --model.vision; commands without this option run models that read text alone.",
                code="model/reads-images",
            )
    hint = ""
    if not trust_remote_code and _lacks_code(folder, str(error)):
        hint = " If you trust the code that it comes with: --model.trust_remote_code true runs it."
    elif trust_remote_code:
        hint = f". If its own code raised this: it may be of another version of Transformers than {__version__}."
    return ConfigError(
        f"model {path}: not a causal language model that can be loaded: {first_line}{hint}",
        code="model/unknown-family",
    )


def _lacks_code(folder: Path, text: str) -> bool:
    """Return whether a model's own code is what is missing: Transformers says so, or does not know the architecture."""
    if "trust_remote_code" in text or "does not recognize this architecture" in text:
        return True
    try:
        return "auto_map" in parse_object((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
