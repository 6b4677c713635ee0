"""A trained role as a plain Transformers folder, and its weights by name."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaTokenizer

from rlhf_core import ConfigError
from rlhf_core.contracts import RankingObjective, ValueObjective
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES
from rlhf_torch.models.export import GENERATION


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_is_a_plain_model(start, steps, make_spec, models, tmp_path, family):
    backend = start(make_spec(models[family]))
    steps(backend, range(2))

    backend.export(tmp_path / "out")

    assert "rlhf" not in (tmp_path / "out" / "config.json").read_text()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert plain.config._attn_implementation in ("sdpa", "eager")
    torch.testing.assert_close(
        dict(plain.named_parameters()), dict(backend._model.named_weights()), atol=0, rtol=0
    )
    tokens = torch.arange(4, 16)
    lm = backend.module()
    from rlhf_torch.packed.packing import PackedLayout

    layout = PackedLayout([0, 12], lm.device)
    with torch.no_grad():
        ours = lm.logits(lm.hidden(tokens, layout.positions(), layout))
        theirs = plain(input_ids=tokens[None]).logits[0]
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    before = AutoTokenizer.from_pretrained(models[family])
    after = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert after.encode("ab c?") == before.encode("ab c?")
    assert after.chat_template == before.chat_template


def test_a_generation_config_that_transformers_reads_but_does_not_write_is_exported_as_it_is(
    start, make_spec, models, tmp_path
):
    """Published models have a temperature without ``do_sample``, or a padding token of -1."""
    own = tmp_path / "own"
    shutil.copytree(models["qwen3"], own)
    values = {"temperature": 0.6, "top_p": 0.9, "pad_token_id": -1, "eos_token_id": [2, 3]}
    (own / GENERATION).write_text(json.dumps(values))
    backend = start(make_spec(own))

    backend.export(tmp_path / "out")

    exported = json.loads((tmp_path / "out" / GENERATION).read_text())
    assert {name: exported[name] for name in values} == values
    assert "do_sample" not in exported
    assert backend.module().model.generation_config.temperature == 0.6


def test_the_average_is_exported_and_the_weights_come_back(
    start, steps, make_spec, models, tmp_path
):
    backend = start(make_spec(models["qwen3"], ema_decay=0.9))
    steps(backend, range(2))
    digest = backend.checksum()

    backend.export(tmp_path, ema=True)

    exported = dict(AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters())
    torch.testing.assert_close(exported, backend._updater.ema, atol=0, rtol=0)
    assert backend.checksum() == digest


def test_an_average_that_is_not_kept_cannot_be_exported(start, make_spec, models, tmp_path):
    with pytest.raises(
        ConfigError, match=r"--actor\.ema", check=has_code("training/no-moving-average")
    ):
        start(make_spec(models["qwen3"])).export(tmp_path, ema=True)


def test_an_exported_critic_goes_on_with_its_head(
    start, steps, make_spec, make_batch, models, tmp_path
):
    options = {"role": "critic", "head": "value", "objective": ValueObjective()}
    trained = start(make_spec(models["qwen3"], **options))
    steps(trained, range(2))
    trained.export(tmp_path)
    trajectories = make_batch().trajectories

    loaded = start(make_spec(tmp_path, **options))

    np.testing.assert_array_equal(loaded.values(trajectories), trained.values(trajectories))


@pytest.mark.parametrize("head", [None, "score"])
def test_an_exported_tokenizer_gives_the_same_tokens_behind_special_ones(
    start, make_spec, models, tmp_path, head
):
    """Llama's tokenizer with ``legacy`` puts a blank there, and Transformers does not write ``legacy``."""
    own = tmp_path / "own"
    shutil.copytree(models["llama"], own, ignore=shutil.ignore_patterns("*token*"))
    words = ["<unk>", "<s>", "</s>", "\u2581", "\u2581a", "a", "b"]
    tokenizer = LlamaTokenizer(
        vocab={word: number for number, word in enumerate(words)}, merges=[("\u2581", "a")]
    )
    tokenizer.save_pretrained(own)
    edited = json.loads((own / "tokenizer_config.json").read_text())
    (own / "tokenizer_config.json").write_text(json.dumps({**edited, "legacy": True}))
    scores = {"role": "reward_model", "head": head, "objective": RankingObjective()}
    options = {} if head is None else scores

    start(make_spec(own, **options)).export(tmp_path / "out")

    before, after = (AutoTokenizer.from_pretrained(each) for each in (own, tmp_path / "out"))
    assert before.tokenize("<s>ab") == ["<s>", "\u2581a", "b"]
    assert after.tokenize("<s>ab") == ["<s>", "\u2581a", "b"]


def test_a_model_without_tokenizer_is_exported_without_one(
    start, make_spec, models, tmp_path, caplog
):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((models["qwen3"] / name).read_bytes())

    start(make_spec(bare)).export(tmp_path / "out")

    assert (tmp_path / "out" / "model.safetensors").exists()
    assert "no tokenizer" in caplog.text


def test_buckets_hold_all_weights_by_their_names(start, make_spec, models):
    backend = start(make_spec(models["qwen3"]))

    served = {name for bucket in backend.buckets() for name in bucket}

    assert served == set(backend.module().model.state_dict())
