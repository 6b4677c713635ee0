"""Audits: causes that are named with parameters off any grid, and gaps and runs of which none is."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch
from tests.plugins.lab.audited import case_of, tiny

from rlhf_core import ConfigError
from rlhf_plugin_lab.audit.changed import (
    with_attention_scale,
    with_dtype,
    with_rope_theta,
    with_rounded_weights,
    with_tied_head,
)
from rlhf_plugin_lab.audit.command import main
from rlhf_plugin_lab.audit.forward import Prefix, Reading, Sight, logprobs_of
from rlhf_plugin_lab.audit.hypotheses import HYPOTHESES
from rlhf_plugin_lab.audit.lora import between
from rlhf_plugin_lab.audit.luck import dropped
from rlhf_plugin_lab.audit.of_models import with_shifted_experts
from rlhf_plugin_lab.audit.precision import PRECISION
from rlhf_plugin_lab.audit.verdict import judge
from rlhf_testing.errors import has_code


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("other"), seed=1)


def judged(case, *causes):
    return judge("sampler", case, PRECISION, {name: HYPOTHESES[name] for name in causes})


@pytest.mark.parametrize(
    ("cause", "words", "fault"),
    [
        ("temperature", "temperature 0.7321", {"temperature": 0.7321}),
        ("logit_cap", "bound to 3.21 ", {"logit_cap": 3.21}),
        ("top_p", "top-p 0.", {"top_p": 0.8765}),
        ("top_k", "top-k 77", {"top_k": 77}),
        ("eos", "token 2, eos", {"banned": (2,)}),
        ("template", "first token missing", {"drop_first": 1}),
        ("template", "last 3 tokens missing", {"drop_last": 3}),
        ("template", "the token bos in front", {"front": (1,)}),
        ("positions", "off by 11", {"position_gap": 11}),
        ("positions", "begin again", {"restart": True}),
        ("positions", "times 1.777", {"position_scale": 1.777}),
        ("padding", "7 tokens pad", {"front": (0,) * 7}),
        ("padding", "prompts filled to 11", {"front": (0,), "fill": 11}),
        ("context", "the last 2 tokens", {"keep_prompt": 2}),
        ("context", "first 4 tokens cut off", {"drop_first": 4}),
        ("tokenizer", "off by -7", {"id_offset": -7}),
        ("kernel", "last 5 tokens", {"window": 5}),
        ("kernel", "prompt to all", {"sight": Sight.PROMPT}),
        ("kernel", "later tokens", {"sight": Sight.ALL}),
    ],
)
def test_a_fault_is_named_with_its_parameter(model, cause, words, fault):
    verdict = judged(case_of(model, **fault), cause)

    assert verdict.cause == cause, verdict
    assert words in verdict.detail
    # The set of top-p is the same over a range of its mass, and another one at some of the actions.
    assert verdict.left < max(PRECISION, 0.005 * verdict.gap), verdict


def test_rows_that_are_filled_are_told_from_prompts(model):
    fault = {"front": (0,), "fill": 19, "fill_rows": True}

    verdict = judged(case_of(model, answers=(8, 5, 9, 6), **fault), "padding")

    assert "rows filled to 19" in verdict.detail, verdict


@pytest.mark.parametrize(
    ("cause", "words", "change"),
    [
        ("rope", "theta 2345", lambda model: with_rope_theta(model, 2345.0)),
        ("quantized", "4 bits, a scale for each row", lambda model: with_rounded_weights(model, 4)),
        ("quantized", "each 16 weights", lambda model: with_rounded_weights(model, 8, 16)),
        ("tied_head", "embeddings", with_tied_head),
        ("kernel", "scores times 1.37", lambda model: with_attention_scale(model, 1.37)),
        ("dtype", "bfloat16", lambda model: with_dtype(model, torch.bfloat16)),
    ],
)
def test_a_changed_model_is_named(model, cause, words, change):
    verdict = judged(case_of(model, model=change(model)), cause)

    assert verdict.cause == cause, verdict
    assert words in verdict.detail
    assert verdict.left < PRECISION < verdict.gap


def test_other_experts_are_named(tmp_path):
    model = tiny(tmp_path, "qwen3_moe")

    verdict = judged(case_of(model, model=with_shifted_experts(model, 3)), "routes")

    assert "off by 3" in verdict.detail, verdict
    assert not list(HYPOTHESES["routes"](case_of(tiny(tmp_path / "dense")), lambda reading: 0.0))


def test_other_weights_and_a_beginning_of_theirs_are_told_apart(model, other):
    for prefix, cause in ((None, "weights"), (Prefix(model=other, block=4), "stale_prefix")):
        fault = {"prefix": prefix} if prefix else {"model": other}
        case = case_of(model, others={"old": other}, **fault)

        verdict = judged(case, "weights", "stale_prefix")

        assert verdict.cause == cause, verdict
        assert not verdict.also


def test_a_missing_or_scaled_adapter_is_named(model, other):
    adapted = between(model, other, 0.1)

    for factor, words in ((0.0, "without its adapter"), (1.7, "times 1.7")):
        fault = {"model": between(model, other, 0.1 * factor)}
        verdict = judged(case_of(adapted, base=model, **fault), "adapter")

        assert words in verdict.detail, verdict
        assert verdict.left < PRECISION


def test_of_causes_that_explain_alike_the_first_is_named_and_the_others_told(model):
    """Of prompts of one length, the first token missing is the same as the last five alone."""
    verdict = judged(case_of(model, prompts=(6, 6, 6), drop_first=1), "template", "context")

    assert verdict.cause == "template"
    assert verdict.also == ("context",)


def random_case(model, change):
    """Return a case of one prompt whose equal answers are recorded three times, each by another pass."""
    case = case_of(model, prompts=(6, 7))
    sequences = []
    for each in case.sequences:
        for _ in range(3):
            sequences.append(dataclasses.replace(each, logprobs={"sampler": change(each)}))
    return dataclasses.replace(case, sequences=sequences)


def test_dropout_is_told_by_repeats_and_sizes(model):
    reading = Reading(model=dropped(model, 0.15, "feed-forward layers"), temperature=1.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        case = random_case(model, lambda each: logprobs_of(reading, each))

        verdict = judged(case)

    assert verdict.cause == "dropout", verdict
    assert "48 repeated beginnings" in verdict.detail  # 2 sequences, 8 actions, 3 times


def test_random_gaps_without_repeats_may_be_of_other_weights(model):
    case = case_of(model, model=dropped(model, 0.15, "attention"))

    verdict = judged(case)

    assert verdict.cause == "", verdict
    assert "or of other weights: no beginning is recorded twice" in verdict.pattern


def test_random_gaps_are_blamed_on_nothing(model):
    case, noise = case_of(model), np.random.default_rng(0)
    for each in case.sequences:
        each.logprobs["sampler"] += noise.normal(size=len(each.token_ids))

    verdict = judge("sampler", case, PRECISION)

    assert not verdict.healthy
    assert verdict.cause == "", verdict
    assert "in turns 1" in verdict.pattern


def test_equal_log_probs_are_healthy(model):
    verdict = judge("sampler", case_of(model), PRECISION)

    assert verdict.healthy, verdict


def test_a_gap_in_the_second_turn_is_told(model):
    case = case_of(model, prompts=(6, 6))
    for each in case.sequences:
        each.action_mask[9] = False
        each.logprobs["sampler"][9] = np.nan
        each.logprobs["sampler"][12] += 0.5

    verdict = judged(case)

    assert "2 of 14 actions, from depth 12 on, in turns 2" in verdict.pattern
    assert verdict.gap == pytest.approx(1 / 14, rel=1e-3)  # 2 actions of 14 are off by 0.5


CONFIG = """# A run's whole configuration, by rlhf-core {version}. Repeat it: rlhf train -c config.toml
[model]
path = "{model}"
dtype = "float32"
[rollout]
temperature = 1.0
top_k = 0
top_p = 1.0
min_p = 0.0
min_new_tokens = 0
"""


@pytest.fixture
def recorded(tmp_path, model):
    """A run folder with tokens of steps 1 and 2, whose second step has weights of version 1."""
    model.save_pretrained(tmp_path / "model")
    run = tmp_path / "run"
    (run / "tokens").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("")
    (run / "config.toml").write_text(CONFIG.format(version="0.1.0", model=tmp_path / "model"))
    for step in (1, 2):
        columns = {name: [] for name in ("uid", "token_id", "action", "version", "rollout_logprob")}
        for uid, each in enumerate(case_of(model).sequences):
            columns["uid"] += [str(uid)] * len(each.token_ids)
            columns["token_id"] += each.token_ids.tolist()
            columns["action"] += each.action_mask.tolist()
            columns["version"] += [step - 1 if acts else None for acts in each.action_mask]
            values = each.logprobs["sampler"]
            columns["rollout_logprob"] += [None if np.isnan(value) else value for value in values]
        parquet.write_table(pa.table(columns), run / f"tokens/step-{step:08d}.parquet")
    return run


def test_a_healthy_step_ends_with_0(recorded, capsys):
    assert main([str(recorded), "--json"]) == 0

    (verdict,) = json.loads(capsys.readouterr().out)
    assert verdict["side"] == "sampler"
    assert verdict["gap"] < PRECISION


def test_a_later_step_needs_its_weights_and_is_read_with_them(recorded, capsys):
    with pytest.raises(
        ConfigError, match=r"step 2.*--model", check=has_code("lab/trained-weights")
    ):
        main([str(recorded), "--step", "2"])

    assert main([str(recorded), "--step", "2", "--model", str(recorded.parent / "model")]) == 0
    assert "healthy" in capsys.readouterr().out


def test_a_step_that_older_weights_sampled_blames_no_sampler(recorded, capsys):
    (recorded / "ledger.jsonl").write_text(
        '{"step": 2, "event": "trained", "version": 7, "groups": {}}\n'
    )
    path = recorded / "tokens/step-00000002.parquet"
    table = parquet.read_table(path)
    values = table.column("rollout_logprob")
    parquet.write_table(table.append_column("trainer_logprob", values), path)

    assert main([str(recorded), "--step", "2", "--model", str(recorded.parent / "model")]) == 0

    said = capsys.readouterr()
    assert "trainer: gap" in said.out
    assert "sampler" not in said.out
    assert "version 1 sampled this step and the trainer had version 7" in said.err


def test_a_gap_ends_with_1_and_is_told_in_words(recorded, capsys):
    config = recorded / "config.toml"
    config.write_text(config.read_text().replace("temperature = 1.0", "temperature = 1.3"))

    assert main([str(recorded)]) == 1
    assert "temperature: temperature 1, not 1.3" in capsys.readouterr().out


def break_tokens(run):
    path = run / "tokens/step-00000001.parquet"
    path.write_bytes(path.read_bytes()[:-100])


def drop_column(run):
    path = run / "tokens/step-00000001.parquet"
    parquet.write_table(parquet.read_table(path).drop_columns("rollout_logprob"), path)


def edit(old, new):
    def change(run):
        config = run / "config.toml"
        config.write_text(config.read_text().replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "words", "code"),
    [
        (
            lambda run: (run / "tokens/step-00000001.parquet").unlink(),
            r"--observers\.use token_files",
            "lab/no-tokens",
        ),
        (break_tokens, "cannot be read as Parquet", "lab/tokens-unreadable"),
        (drop_column, "no column rollout_logprob", "lab/no-column"),
        (
            lambda run: (run / "config.toml").unlink(),
            "expected the run's options",
            "lab/options-unreadable",
        ),
        (edit("[rollout]", "[rollout"), "no TOML", "lab/options-unreadable"),
        (
            edit("temperature = 1.0", ""),
            r"rollout\.temperature .* got nothing; the run is of .*0\.1\.0",
            "lab/option-no-number",
        ),
        (
            edit("top_k = 0", 'top_k = "many"'),
            r"rollout\.top_k .* got many",
            "lab/option-no-number",
        ),
        (
            edit('dtype = "float32"', 'dtype = "float8"'),
            r"model\.dtype is float8",
            "lab/unknown-dtype",
        ),
        (edit("rlhf train", "rlhf sft"), "rlhf sft", "lab/other-command"),
        (
            edit("[rollout]", '[actor]\nadapter = "lora:qlora"\n[rollout]'),
            r"adapter is lora:qlora",
            "lab/other-precision",
        ),
        (lambda run: (run.parent / "model/config.json").unlink(), "no model in", "lab/no-model"),
        (
            lambda run: (run.parent / "model/model.safetensors").unlink(),
            "cannot be loaded",
            "lab/model-unreadable",
        ),
    ],
)
def test_what_is_wrong_with_a_run_is_named(recorded, change, words, code):
    change(recorded)

    with pytest.raises(ConfigError, match=words, check=has_code(code)):
        main([str(recorded)])


def test_a_run_without_tokens_says_how_to_record_them(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")

    with pytest.raises(
        ConfigError, match=r"--observers\.use token_files", check=has_code("lab/no-tokens")
    ):
        main([str(tmp_path)])
