"""Exported files say to Transformers 4 what they say to version 5."""

import json

import pytest
import transformers
from packaging.version import Version
from tests.libs.data.chat.template.shipped import source_of, tokenizer_with
from tests.released_templates import released_tokenizer
from transformers import (
    AutoConfig,
    AutoTokenizer,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    LlamaConfig,
    Qwen2_5_VLConfig,
    Qwen3Config,
)

from rlhf_core.contracts import RankingObjective
from rlhf_testing.tiny import write_tiny_model
from rlhf_torch.models.export import copy_tokenizer
from rlhf_torch.models.older_readers import CONFIG, name_rotation

LLAMA = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PLAIN = {"rope_type": "default"}
BY_LAYER = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {**PLAIN, "rope_theta": 1e4},
}
SECTIONS = {**PLAIN, "mrope_section": [16, 24, 24]}
CASES = {
    "a base": (Qwen3Config(rope_theta=1e6), {"rope_theta": 1e6}),
    "scaled": (
        LlamaConfig(rope_parameters={**LLAMA, "rope_theta": 5e5}, max_position_embeddings=2**17),
        {"rope_theta": 5e5, "rope_scaling": LLAMA},
    ),
    "by layer": (
        Gemma3TextConfig(rope_parameters=BY_LAYER),
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "in a part": (
        Gemma3Config(text_config={"rope_parameters": BY_LAYER}),
        {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    "of rows and columns": (
        Qwen2_5_VLConfig(text_config={"rope_parameters": {**SECTIONS, "rope_theta": 1e6}}),
        {"rope_theta": 1e6, "rope_scaling": SECTIONS},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rotations_are_under_the_keys_of_both_versions(tmp_path, case):
    """Version 4 would rotate by the default base, and say nothing."""
    config, older = CASES[case]
    config.save_pretrained(tmp_path)
    before = AutoConfig.from_pretrained(tmp_path)

    name_rotation(tmp_path)

    values = json.loads((tmp_path / CONFIG).read_text())
    part = values.get("text_config", values)
    assert {key: part.get(key) for key in older} == older
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == before.to_dict()


NEWER = {
    "full_attention": {**PLAIN, "rope_type": "proportional", "rope_theta": 1e6},
    "sliding_attention": {**PLAIN, "rope_theta": 1e4},
}


def test_a_file_that_version_5_would_read_otherwise_stays(tmp_path):
    Gemma4TextConfig(rope_parameters=NEWER).save_pretrained(tmp_path)
    before = (tmp_path / CONFIG).read_bytes()

    name_rotation(tmp_path)

    assert (tmp_path / CONFIG).read_bytes() == before


@pytest.mark.parametrize("name", ["llama3", "qwen2_5"])
def test_a_tokenizer_is_named_in_the_words_of_version_4(tmp_path, name):
    tokenizer = released_tokenizer(name)
    tokenizer.save_pretrained(tmp_path / "own")
    before = AutoTokenizer.from_pretrained(tmp_path / "own")

    copy_tokenizer(str(tmp_path / "own"), tmp_path / "out", trust_remote_code=False)

    values = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert values["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "extra_special_tokens" not in values  # a list there is an AttributeError of version 4
    after = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(after) is type(before)
    assert after.get_vocab() == before.get_vocab()
    assert after.all_special_tokens == before.all_special_tokens
    text = "<|im_start|><|eot_id|> Hi"
    assert after.encode(text) == before.encode(text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("glm4moe", ["<|endoftext|>", "<|user|>", "<|observation|>"]),
        ("gemma4_v5", ["<|endoftext|>", "<turn|>", "<|tool_response>"]),
        ("gptoss", ["<|endoftext|>", "<|return|>", "<|call|>"]),
        ("llama3", ["<|endoftext|>", "<|eot_id|>"]),
    ],
)
def test_an_export_of_a_base_model_lists_every_end_of_a_turn(tmp_path, name, expected):
    """Servers stop at those alone; a base model's own files name the end of texts."""
    tokenizer = tokenizer_with(source_of(name), "<|endoftext|>")
    tokenizer.save_pretrained(tmp_path / "own")
    out = write_tiny_model(tmp_path / "out", hidden_size=16, num_layers=1, num_heads=2)
    (out / "generation_config.json").write_text(
        json.dumps({"eos_token_id": tokenizer.eos_token_id})
    )

    copy_tokenizer(str(tmp_path / "own"), out, trust_remote_code=False)

    listed = json.loads((out / "generation_config.json").read_text())["eos_token_id"]
    assert listed == sorted(tokenizer.convert_tokens_to_ids(expected))


def test_a_token_with_a_name_of_its_own_is_found_by_version_4(tmp_path):
    """Processors of images ask their tokenizers for ``image_token``."""
    tokenizer = released_tokenizer("qwen2_5")
    tokenizer.save_pretrained(tmp_path / "own")
    path = tmp_path / "own" / "tokenizer_config.json"
    named = {"model_specific_special_tokens": {"image_token": "<|im_start|>"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | named))
    before = AutoTokenizer.from_pretrained(tmp_path / "own")
    assert before.image_token == "<|im_start|>"

    copy_tokenizer(str(tmp_path / "own"), tmp_path / "out", trust_remote_code=False)

    values = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    if Version(transformers.__version__) >= Version("5.18"):  # before, other tokens were none then
        assert values["extra_special_tokens"] == {"image_token": "<|im_start|>"}
    after = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert after.image_token == before.image_token
    assert after.all_special_tokens == before.all_special_tokens


@pytest.mark.parametrize("objective", [None, RankingObjective()], ids=["policy", "reward model"])
def test_an_export_says_its_base_of_rotations_to_version_4(
    start, make_spec, models, tmp_path, objective
):
    given = {} if objective is None else {"objective": objective, "head": "score"}
    backend = start(make_spec(models["qwen3"], **given))

    backend.export(tmp_path / "out")

    values = json.loads((tmp_path / "out" / CONFIG).read_text())
    assert values["rope_theta"] == values["rope_parameters"]["rope_theta"]
