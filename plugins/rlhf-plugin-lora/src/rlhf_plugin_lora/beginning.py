"""The PEFT folder that an adapter continues from: what of it decides the adapter, and what is refused by its key.

Read before a run starts, so nothing here imports torch or PEFT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlhf_core import ConfigError

if TYPE_CHECKING:
    from rlhf_torch.adapters.folder import AdapterFolder

STACKS = "target_parameters"
"""Key of the stacks of experts that have factors."""
KEPT = (
    "r",
    "lora_alpha",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    STACKS,
    "modules_to_save",
    "fan_in_fan_out",
)
"""Keys of PEFT's config by which the adapter is built again."""
TOKENS = "trainable_token_indices"
"""Key of the tokens whose embeddings are trained, which PEFT's own layers do not compute here."""
_OF_NO_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",  # compared with the run's model
        "inference_mode",
        "lora_dropout",  # the run's own
        "megatron_core",  # of megatron_config
        "peft_type",
        "peft_version",
        "qalora_group_size",  # of use_qalora
        "revision",
        "task_type",
        # Settings of ways to begin; the file has what they have become.
        "corda_config",
        "eva_config",
        "loftq_config",
        "lora_ga_config",
        "runtime_config",
    }
)
"""Further keys of PEFT's config that may have any value."""
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva", "loftq"),
}
"""Values with which a key changes neither the formula of a layer nor the base's weights."""
DECIDED = {
    "rank": "r",
    "alpha": "lora_alpha",
    "target": "target_modules",
    "exclude": "exclude_modules",
    "rank_pattern": "rank_pattern",
    "alpha_pattern": "alpha_pattern",
    "modules_to_save": "modules_to_save",
    "use_rslora": "use_rslora",
    TOKENS: TOKENS,
    STACKS: STACKS,
}
"""Options that a folder decides -> its key."""
_FACTORS = (".lora_A.", ".lora_embedding_A")


def read_beginning(path: str, given: Mapping[str, Any], *, has_magnitudes: bool) -> AdapterFolder:
    """Return the folder ``init_from``, with whose adapter a run may go on.

    Args:
        given: the options of ``DECIDED``, those that are unset as None or empty.
        has_magnitudes: True: the adapter is DoRA.

    Raises:
        ConfigError: the folder is no PEFT folder, has a setting that is not computed here, or contradicts an option.
    """
    from rlhf_torch.adapters.folder import read_adapter

    folder = read_adapter(path)
    config = folder.config
    for problem in (*_unknown(config), *_other_kinds(config, has_magnitudes)):
        raise ConfigError(
            f"init_from {path} of the adapter: {problem}", code="adapter/does-not-fit"
        )
    for option, key in DECIDED.items():
        value, held = given[option], config.get(key)
        if value not in (None, (), {}) and not _agree(value, held):
            raise ConfigError(
                f"{option} {_shown(value)} of the adapter: init_from {path} has {key} {_shown(held)}, and "
                f"an adapter goes on as it is. Leave {option} out.",
                code="adapter/goes-on-as-it-is",
            )
    if not _ranks(folder):
        raise ConfigError(
            f"init_from {path} of the adapter: expected factors of LoRA; its file has none",
            code="adapter/does-not-fit",
        )
    return folder


def largest_rank(folder: AdapterFolder) -> int:
    """Return the largest rank of the folder's factors."""
    if folder.config.get(
        STACKS
    ):  # in the file the factors of all experts of a stack are one matrix
        own = (folder.config.get("rank_pattern") or {}).values()
        return max(map(int, (folder.config["r"], *own)))
    return max(_ranks(folder))


def _ranks(folder: AdapterFolder) -> list[int]:
    shapes = folder.shapes.items()
    return [shape[0] for name, shape in shapes if any(mark in name for mark in _FACTORS)]


def _unknown(config: Mapping[str, Any]) -> Iterator[str]:
    for key, value in config.items():
        if key in _PLAIN:
            if value not in _PLAIN[key]:
                yield f"it has {key} {value!r}; expected {_PLAIN[key][0]!r}. {_WAYS_OUT.get(key, _MERGE)}"
        elif key == TOKENS and isinstance(value, dict):
            yield f"it has {TOKENS} of named modules; expected a list of ids. {_MERGE}"
        elif value and key not in (*KEPT, *_OF_NO_EFFECT, TOKENS):
            yield f"it has {key}, which no adapter here computes. {_MERGE}"


_MERGE = "Merge it into its base (rlhf merge BASE FOLDER OUT) and train OUT"
_WAYS_OUT = {
    "init_lora_weights": "Such an adapter stands on a base that was changed as it began; have PEFT convert it "
    "(save_pretrained with path_initial_model_for_weight_conversion), and give the result"
}


def _other_kinds(config: Mapping[str, Any], has_magnitudes: bool) -> Iterator[str]:
    if config["peft_type"] != "LORA":
        yield f"it has peft_type {config['peft_type']}; expected LORA"
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        yield f"it has task_type {config['task_type']}; expected CAUSAL_LM. {_MERGE}"
    if bool(config.get("use_dora")) != has_magnitudes:
        wanted = "lora or qlora" if has_magnitudes else "dora"
        yield f"it has use_dora {bool(config.get('use_dora'))}; choose the adapter {wanted}"
    elif has_magnitudes and config.get(STACKS):
        yield f"it has {STACKS}, beside whose stacks no lengths of rows are trained"


def _agree(given: Any, held: Any) -> bool:
    if isinstance(given, tuple):
        return set(given) == ({held} if isinstance(held, str) else set(held or ()))
    return bool(given == (held or 0))


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
