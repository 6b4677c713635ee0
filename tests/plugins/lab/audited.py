"""Tiny models and cases of audits whose sampler recorded what a reading with a fault computes."""

import dataclasses

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rlhf_plugin_lab.audit.case import Case
from rlhf_plugin_lab.audit.forward import Reading, logprobs_of
from rlhf_plugin_lab.audit.sequences import Recorded
from rlhf_testing.tiny import write_tiny_model


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def tiny(folder, family="qwen3", seed=0):
    return load(write_tiny_model(folder, family, initializer_range=0.2, tied=False, seed=seed))


def case_of(model, /, *, prompts=(6, 7, 8, 9), answers=(8, 8, 8, 8), others=(), base=None, **fault):
    """Return a case of sequences of a prompt and an answer with these lengths."""
    plain = Reading(model=model, temperature=1.0)
    faulty = dataclasses.replace(plain, **fault)
    sequences = []
    for seed, (prompt, answer) in enumerate(zip(prompts, answers, strict=False)):
        ids = np.random.default_rng(seed).integers(5, 90, size=prompt + answer)
        mask = np.arange(prompt + answer) >= prompt
        blank = Recorded(token_ids=ids, action_mask=mask, logprobs={})
        logprobs = logprobs_of(faulty, blank)
        logprobs = np.where(np.isneginf(logprobs), np.nan, logprobs)
        sequences.append(dataclasses.replace(blank, logprobs={"sampler": logprobs}))
    special = {"pad": 0, "bos": 1, "eos": 2}
    return Case(plain=plain, sequences=sequences, special=special, others=dict(others), base=base)
