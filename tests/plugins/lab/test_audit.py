"""Audits: readings against independent arithmetic, and faults that are named."""

import dataclasses

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError
from rlhf_plugin_lab.audit.case import Case
from rlhf_plugin_lab.audit.changed import with_rounded_weights
from rlhf_plugin_lab.audit.command import main
from rlhf_plugin_lab.audit.forward import Reading, logprobs_of
from rlhf_plugin_lab.audit.precision import PRECISION
from rlhf_plugin_lab.audit.sequences import Recorded
from rlhf_plugin_lab.audit.truncation import truncated
from rlhf_plugin_lab.audit.verdict import judge
from rlhf_testing.tiny import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), initializer_range=0.2)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def case_of(model, **fault):
    """Return a case whose sampler recorded what a reading with a fault computes."""
    plain = Reading(model=model, temperature=1.0)
    sequences = []
    for seed in range(4):
        size = 14 + seed
        ids = np.random.default_rng(seed).integers(5, 90, size=size)
        mask = np.arange(size) >= 6 + seed
        blank = Recorded(token_ids=ids, action_mask=mask, logprobs={})
        logprobs = logprobs_of(dataclasses.replace(plain, **fault), blank)
        sequences.append(dataclasses.replace(blank, logprobs={"sampler": logprobs}))
    return Case(plain=plain, sequences=sequences, special={"pad": 0, "eos": 2}, others={})


def test_top_p_renormalizes_the_smallest_set():
    logprobs = torch.tensor([[0.5, 0.3, 0.2]]).log()

    actual = truncated(logprobs, top_p=0.7).exp()  # 0.5 + 0.3 >= 0.7: 0.5/0.8, 0.3/0.8

    torch.testing.assert_close(actual, torch.tensor([[0.625, 0.375, 0.0]]))


def test_rounded_weights_are_multiples_of_their_rows_scale(model):
    name = "model.layers.0.mlp.up_proj.weight"
    weight = with_rounded_weights(model, 4).get_parameter(name)
    scale = model.get_parameter(name).abs().amax(dim=1, keepdim=True) / 7  # 2 ** 3 - 1

    multiples = weight / scale

    torch.testing.assert_close(multiples, multiples.round(), atol=1e-4, rtol=0.0)


def test_the_plain_reading_is_the_models_log_softmax_at_actions(model):
    case = case_of(model)
    each = case.sequences[0]
    with torch.no_grad():
        logits = model(torch.from_numpy(each.token_ids)[None]).logits[0].double()
    expected = [float(logits[t - 1].log_softmax(0)[each.token_ids[t]]) for t in range(6, 14)]

    actual = logprobs_of(case.plain, each)

    assert np.isnan(actual[:6]).all()
    np.testing.assert_allclose(actual[6:], expected, atol=PRECISION)


def test_equal_log_probs_are_healthy(model):
    verdict = judge("sampler", case_of(model), PRECISION)

    assert verdict.healthy, verdict


@pytest.mark.parametrize(
    ("cause", "fault"),
    [
        ("temperature", {"temperature": 0.7}),
        ("padding", {"front": (0, 0)}),
        ("positions", {"position_gap": 3}),
        ("template", {"drop_first": 1}),
        ("context", {"keep_prompt": 2}),
        ("eos", {"banned": (2,)}),
    ],
)
def test_a_fault_is_named(model, cause, fault):
    verdict = judge("sampler", case_of(model, **fault), PRECISION)

    assert verdict.cause == cause, verdict
    assert verdict.left < PRECISION < verdict.gap


def test_random_gaps_are_blamed_on_nothing(model):
    case, noise = case_of(model), np.random.default_rng(0)
    for each in case.sequences:
        each.logprobs["sampler"] += noise.normal(size=len(each.token_ids))

    verdict = judge("sampler", case, PRECISION)

    assert not verdict.healthy
    assert verdict.cause == "", verdict
    assert "in turns 1" in verdict.pattern


def test_a_run_without_tokens_says_how_to_record_them(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")

    with pytest.raises(ConfigError, match=r"--observers\.use token_files"):
        main([str(tmp_path)])
