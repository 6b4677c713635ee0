"""A process of its own that asks a ``Component.suits`` about described machines, and says what it touched meanwhile.

Called as ``python suits_probe.py MODULE:FUNCTION``; prints one JSON object. Imports are absolute, since it is run by
its path.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rlhf_core.contracts import Accelerator, ChoiceSetting

_TOUCHES = ("/dev/nvidia", "libcuda", "libnvidia", "nvidia-smi", "rocm-smi")
"""Parts of the names that a process opens, loads or starts where it looks for GPUs itself."""
_ASKED_EVENTS = ("open", "ctypes.dlopen", "subprocess.Popen", "os.system", "os.posix_spawn")

_KNOWN: Mapping[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
_H100 = Accelerator(name="NVIDIA H100", memory_gib=80.0)
_SELECTED = {"runtime.name": ("any:one_process",), "backend.name": ("any:on_gpu",)}


def _setting(
    gpus: tuple[Accelerator, ...] = (_H100,),
    model: Mapping[str, Any] = _KNOWN,
    provides: frozenset[str] = frozenset({"in_process"}),
    options: Mapping[str, str] = MappingProxyType({}),
) -> ChoiceSetting:
    return ChoiceSetting(
        accelerators=gpus,
        components=_SELECTED,
        provides=provides,
        options={"model.path": "some/model", **options},
        model=model,
    )


SETTINGS: Mapping[str, ChoiceSetting] = {
    "a CPU": _setting((), {}),
    "one GPU": _setting(),
    "one GPU whose memory is unknown": _setting((Accelerator(name="GPU"),)),
    "a small GPU and a huge model": _setting(
        (Accelerator(name="NVIDIA T4", memory_gib=15.0),), {**_KNOWN, "num_hidden_layers": 4000}
    ),
    "eight GPUs": _setting((_H100,) * 8),
    "a runtime with processes of its own": _setting(provides=frozenset()),
    "a command without selectors": ChoiceSetting(
        accelerators=(_H100,), components={}, provides=frozenset(), options={}, model=_KNOWN
    ),
    "a model that is not on this machine": _setting(model={}),
    "a model of an unknown architecture": _setting(
        model={"architectures": ["Unheard"], "state_size": 16, "layer_types": [None]}
    ),
    "a config.json without sense": _setting(
        model={
            **{key: None for key in _KNOWN},
            "text_config": None,
            "head_dim": "64",
            "num_experts": "many",
        }
    ),
    "a config.json whose sizes are text": _setting(
        model={**{key: "12" for key in _KNOWN}, "text_config": {"hidden_size": []}}
    ),
    "a config.json whose head size is text": _setting(model={**_KNOWN, "head_dim": "64"}),
    "options without sense": _setting(
        options={"engines": "many", "rollout.max_staleness": "", "model.dtype": "?"}
    ),
}
"""Machines, models and options by their descriptions."""


def main(reference: str) -> None:
    """Ask a function about every setting, and print its verdicts and what it touched."""
    touched: list[str] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _ASKED_EVENTS:
            words = " ".join(map(str, arguments[:2]))
            touched.extend(word for word in _TOUCHES if word in words)

    sys.addaudithook(hear)
    before = set(sys.modules)
    module, _, name = reference.partition(":")
    suits = getattr(importlib.import_module(module), name)
    verdicts = {
        label: [_asked(suits, setting) for _ in range(2)] for label, setting in SETTINGS.items()
    }
    print(
        json.dumps(
            {
                "modules": sorted(set(sys.modules) - before),
                "touched": sorted(set(touched)),
                "verdicts": verdicts,
            }
        )
    )


def _asked(suits: Any, setting: ChoiceSetting) -> dict[str, Any]:
    try:
        fit = suits(setting)
    except Exception as error:  # whatever it raises is what the check reports
        return {"raised": f"{type(error).__name__}: {error}"}
    rank = getattr(fit, "rank", None)
    plain = rank if isinstance(rank, int | float) and not isinstance(rank, bool) else None
    return {
        "type": type(fit).__name__,
        "rank": plain,
        "odd_rank": None if rank is None or plain is not None else repr(rank),
        "reason": getattr(fit, "reason", None),
    }


if __name__ == "__main__":
    main(sys.argv[1])
