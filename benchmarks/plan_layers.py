"""The closed forms of ``rlhf plan`` beside a pass of the real model over tensors without numbers.

    PYTHONPATH=. python benchmarks/plan_layers.py [--tokens 1024]

Operations of a forward and a backward pass are those that torch's ``FlopCounterMode`` counts, bytes those of every
tensor that autograd saves, each storage once, on the meta device. Attention is Transformers' ``sdpa``, which on this
device is computed from its parts, or a stand-in that keeps what a GPU's kernel keeps and counts no operations.
Printed are the ratios of the pass to the closed form, and the seconds of both.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from tests.plugins.plan.conftest import PUBLISHED
from tests.plugins.plan.model.test_activations import PROBE, SIZES, VarlenLike
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf_plugin_plan.model.activations import Precision, layer_bytes
from rlhf_plugin_plan.model.shapes import shape_of
from rlhf_plugin_plan.seconds.work import attention_flops, sequences, training_flops

PRECISION = Precision(parameters="bfloat16", compute="bfloat16")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SHAPES: dict[str, dict[str, Any]] = {
    **{name: SIZES | {"model_type": name, "num_hidden_layers": 4} for name in FAMILIES},
    **{name: PUBLISHED[name]["config"] for name in ("qwen2.5-0.5b", "qwen2.5-7b")},
}


def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    query, key, value, _, _ = ctx.saved_tensors
    return query + grad, key + 0, value + 0


# The tests need no backward pass, and refuse it.
VarlenLike.backward = staticmethod(backward)  # type: ignore[method-assign]


def passed(config: dict[str, Any], attention: str, tokens: int) -> tuple[int, int, float]:
    """Return the operations, the bytes of one token that a layer saves, and the seconds of the pass."""
    start = time.perf_counter()
    saved = []
    for layers in (config["num_hidden_layers"], 1):
        given = {**config, "num_hidden_layers": layers, "use_cache": False}
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(**given), attn_implementation=attention, dtype=torch.bfloat16
            )
        own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        found: dict[int, torch.Tensor] = {}

        def note(tensor: torch.Tensor, found: dict[int, torch.Tensor] = found) -> torch.Tensor:
            found[tensor.untyped_storage()._cdata] = tensor
            return tensor

        ids = torch.zeros(1, tokens, dtype=torch.int64, device="meta")
        mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device="meta")
        with FlopCounterMode(display=False) as counter:
            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                logits = model(input_ids=ids, attention_mask=mask).logits
            logits.sum().backward()
        size = sum(t.untyped_storage().nbytes() for at, t in found.items() if at not in own)
        saved.append((size, layers, counter.get_total_flops()))
    (most, layers, flops), (least, one, _) = saved
    return flops, round((most - least) / (layers - one) / tokens), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=1024)
    tokens = parser.parse_args().tokens
    for name, config in SHAPES.items():
        start = time.perf_counter()
        shape = shape_of(config, name)
        work = sequences(1, 0, tokens)
        flops, size = training_flops(shape, work), layer_bytes(shape, PRECISION)
        ours_s = time.perf_counter() - start
        matmuls = flops - 3.5 * attention_flops(shape, work.pairs)
        whole, unfused, sdpa_s = passed(config, "sdpa", tokens)
        plain, kept, probe_s = passed(config, PROBE, tokens)
        print(
            f"{name:>13}: operations of matmuls {plain / matmuls:.4f}, with attention {whole / flops:.4f}; bytes with "
            f"the stand-in {kept / size:.4f}, with sdpa {unfused / size:.2f}; {1e6 * ours_s:.0f} us, {probe_s:.2f} and "
            f"{sdpa_s:.2f} s"
        )


if __name__ == "__main__":
    main()
