"""Tiny models and adapters of every kind that PEFT trains, with random factors that matter."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlhf_testing.tiny import write_tiny_model

TINY = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "initializer_range": 0.3}


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """A model whose embedding is its head."""
    return write_tiny_model(tmp_path_factory.mktemp("inference") / "base", **TINY)


@pytest.fixture(scope="session")
def untied_base(tmp_path_factory) -> Path:
    """A model with a head of its own."""
    return write_tiny_model(tmp_path_factory.mktemp("inference") / "untied", **TINY, tied=False)


@pytest.fixture
def write_adapter(tmp_path) -> Callable[..., Path]:
    """Writes a PEFT folder whose every factor is random; arguments are those of ``LoraConfig``."""

    def write(
        base: Path, name: str = "adapter", *, labels: int | None = None, **options: object
    ) -> Path:
        from peft import LoraConfig, get_peft_model

        options = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **options}
        task = "CAUSAL_LM" if labels is None else "SEQ_CLS"
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT's advice on tied matrices
            torch.manual_seed(5)
            if labels is None:
                model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            else:
                model = AutoModelForSequenceClassification.from_pretrained(
                    base, dtype=torch.float32, num_labels=labels, pad_token_id=0
                )
            wrapped = get_peft_model(model, LoraConfig(task_type=task, **options))
            for parameter in wrapped.parameters():
                if parameter.requires_grad:
                    torch.nn.init.normal_(parameter, std=0.3)
            wrapped.save_pretrained(tmp_path / name)
        return tmp_path / name

    return write
