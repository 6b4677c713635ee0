"""What a backend does with roles under adapters: written once for one rank of torch and every rank of DeepSpeed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import torch
from deepspeed_material import ADAM, ADAMW, adapter, make_batch, make_plan
from deepspeed_scenarios import TRAINING, Found, Place, steps
from peft import LoraConfig, get_peft_model
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from rlhf_core.contracts import ValueObjective
from rlhf_weights import weights_digest

TOKENS = (7, 30, 11)
"""Tokens whose embeddings are trained, in the head too, which is tied."""
STACKS = ("experts.gate_up_proj", "experts.down_proj")
"""Experts of a layer that are one parameter."""
ADAPTERS: dict[str, Any] = {
    "lora": adapter("lora", rank=4),
    "merged": adapter("lora", rank=4, serve="merged"),
    "dora": adapter("dora", rank=4),
    "rows": adapter("lora", rank=4, trainable_token_indices=TOKENS, serve="merged"),
    "stacks": adapter("lora", rank=4, target_parameters=STACKS, serve="merged"),
}
FAMILY_OF = {"stacks": "qwen3_moe"}
"""Models of the adapters that are not put into ``qwen3``."""
DROPPING = adapter("lora", rank=4, dropout=0.3, modules_to_save=("model.norm",), serve="merged")
SAVED: dict[str, dict[str, Any]] = {
    "float32": {"adapter": DROPPING},
    "rows": {"adapter": ADAPTERS["rows"]},
    "stacks": {"adapter": ADAPTERS["stacks"], "family": FAMILY_OF["stacks"]},
    "bfloat16": {"adapter": DROPPING, "dtype": "bfloat16"},
    "critic": {
        "adapter": adapter("lora", rank=4),
        "role": "critic",
        "head": "value",
        "objective": ValueObjective(),
    },
}
"""Roles that stop and go on."""


def adapting(place: Place, found: Found) -> None:
    """Two updates of AdamW, with what engines get, the log-probs of policy and base, and the export."""
    begun = adapter("lora", init_from=write_begun(place), lr_ratio=4.0)
    for name, ref in {**ADAPTERS, "begun": begun}.items():
        backend = place.start(FAMILY_OF.get(name, "qwen3"), optimizer=ADAMW, adapter=ref)
        rows = place.part(make_batch()).trajectories
        found.facts[f"first checksum {name}"] = backend.checksum()
        found.array(f"first {name}", backend.logprobs(rows))
        for seed in range(2):
            batch = make_batch(seed=seed)
            found.metrics(backend.train_step(place.part(batch), make_plan(batch)))
            found.array(f"base {seed} {name}", backend.base_logprobs(rows))
        found.array(f"logprobs {name}", backend.logprobs(rows))
        found.keep_weights(backend, name)
        found.facts[f"checksum {name}"] = backend.checksum()
        served = {key.removeprefix(f"{name}/"): t for key, t in found.weights(name).items()}
        found.facts[f"digest {name}"] = weights_digest(served.items())
        backend.export(place.folder / name)
        backend.close()


def write_begun(place: Place) -> str:
    """Write the same PEFT folder, with factors that matter, in a place of this rank's own."""
    folder = str(place.folder / f"begun_{place.rank}_{uuid4()}")
    model = AutoModelForCausalLM.from_pretrained(place.models / "qwen3")
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    generator = torch.Generator().manual_seed(5)
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    wrapped.save_pretrained(folder)
    return folder


def moving_adapters(place: Place, found: Found) -> None:
    """How far two updates move each parameter, in both dtypes, of a policy and of a critic."""
    batch = make_batch()
    for name, changes in SAVED.items():
        backend = place.start(**{"optimizer": ADAM, **changes})
        before, trained = parameters_of(backend), trained_names(backend)
        for _ in range(3):  # A critic's head is 0 before the first update, and B before the second.
            backend.train_step(place.part(batch), make_plan(batch))
        for key, weight in parameters_of(backend).items():
            kind = "trained" if key in trained else "frozen"
            distance = (weight.float() - before[key].float()).abs().max()
            found.tensors[f"{name} {kind}/{key}"] = distance
        backend.close()


def resuming_adapters(place: Place, found: Found) -> None:
    """A run under an adapter with dropout that is saved and goes on, and one that is restored."""
    for name, changes in SAVED.items():
        spec = {**TRAINING, **changes}
        straight = place.start(**spec)
        steps(place, straight, (0, 1, 2))
        straight.save(place.folder / f"saved {name}")
        steps(place, straight, (3, 4))
        resumed = place.start(**spec)
        resumed.load(place.folder / f"saved {name}")
        steps(place, resumed, (3, 4))
        ends = [parameters_of(backend) for backend in (straight, resumed)]
        found.facts[f"trained {name}"] = sorted(trained_names(straight))
        found.facts[f"differing {name}"] = [
            key for key, weight in ends[0].items() if not torch.equal(weight, ends[1][key])
        ]
        for kind, backend in (("straight", straight), ("resumed", resumed)):
            backend.export(place.folder / f"{kind} {name}", ema=True)
            backend.close()


def trained_names(backend: Any) -> set[str]:
    return {name for name, weight in backend._model.named_weights() if weight.requires_grad}


def parameters_of(backend: Any) -> dict[str, torch.Tensor]:
    """Return copies of all parameters, collected where ranks have cut them."""
    named = dict(backend._model.named_weights())
    cut = [weight for weight in named.values() if hasattr(weight, "ds_id")]
    with of_deepspeed(cut) if cut else nullcontext():
        return {name: whole(weight.detach()).clone() for name, weight in named.items()}


def of_deepspeed(cut: list[torch.Tensor]) -> Any:
    from rlhf_plugin_deepspeed.files.weights import whole

    return whole(cut)


def whole(weight: torch.Tensor) -> torch.Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight
