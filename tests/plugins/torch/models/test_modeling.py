"""Loading, packing and refusing models."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    Qwen3Config,
    Qwen3VLConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from rlhf_core import ConfigError, PluginError
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import FAMILIES, write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import NEVER, LogitForm
from rlhf_torch.packed.packing import PackedLayout

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_logits_are_those_of_the_models_own_forward(models, family):
    lm = load_causal_lm(str(models[family]), dtype="float32")
    own = AutoModelForCausalLM.from_pretrained(models[family], dtype=torch.float32).eval()
    rows = [torch.arange(4, 4 + length) for length in (15, 4, 9)]
    layout = PackedLayout([0, 15, 19, 28], lm.device)

    with torch.no_grad():
        actual = lm.logits(lm.hidden(torch.cat(rows), layout.positions(), layout))
        expected = torch.cat([own(input_ids=row[None]).logits[0] for row in rows])

    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


def test_the_shape_of_a_model_is_known(models):
    lm = load_causal_lm(str(models["gemma3"]), dtype="bfloat16")

    assert (lm.num_layers, lm.num_kv_heads, lm.key_width(1), lm.vocab_size) == (2, 2, 16, 100)
    assert lm.dtype == lm.compute_dtype == torch.bfloat16
    assert lm.logits(torch.zeros(3, 32, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_final_softcap_is_applied(tmp_path):
    folder = _edited(write_tiny_model(tmp_path / "m", "gemma3"), final_logit_softcapping=0.05)
    lm = load_causal_lm(str(folder), dtype="float32")

    with torch.no_grad():
        logits = lm.logits(torch.randn(8, 32, generator=torch.Generator().manual_seed(0)) * 100)

    assert 0.04 < float(logits.abs().max()) < 0.0500001


def test_autocast_keeps_float32_parameters(models):
    lm = load_causal_lm(str(models["qwen3"]), dtype="float32", compute_dtype="bfloat16")
    layout = PackedLayout([0, 6], lm.device)

    hidden = lm.hidden(torch.arange(6), layout.positions(), layout)
    lm.logits(hidden).sum().backward()

    assert all(p.grad.dtype == torch.float32 for p in lm.parameters())


def test_a_missing_folder_is_explained():
    with pytest.raises(
        ConfigError, match=r"/nowhere/at/all.*--model", check=has_code("model/not-found")
    ):
        load_causal_lm("/nowhere/at/all", dtype="float32")


def test_an_unknown_hub_name_is_explained():
    with pytest.raises(ConfigError, check=has_code("model/not-found")):
        load_causal_lm("nobody/no-such-model", dtype="float32")


def test_a_folder_without_config_is_explained(tmp_path):
    (tmp_path / "notes.txt").write_text("x")

    with pytest.raises(ConfigError, match=r"notes\.txt", check=has_code("model/not-a-folder")):
        load_causal_lm(str(tmp_path), dtype="float32")


@pytest.mark.parametrize("tied", [True, False])
def test_a_reward_model_is_no_model_that_writes(tmp_path, tied):
    """Its output head may be that of its embeddings; its own head, of the scores, would be lost without a word."""
    folder = write_tiny_model(tmp_path / "m")
    config = AutoConfig.from_pretrained(folder, num_labels=1, tie_word_embeddings=tied)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)

    with pytest.raises(
        ConfigError,
        match=r"reward model.*rlhf rm --model",
        check=has_code("model/is-a-reward-model"),
    ):
        load_causal_lm(str(folder), dtype="float32")
    assert load_causal_lm(str(folder), dtype="float32", needs_head=False)


def test_a_reward_model_of_a_plain_class_is_known_by_its_head(tmp_path):
    """Image-text models have no class that judges, and OpenRLHF names its own; both write the head's name."""
    folder = write_tiny_model(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "value_head_prefix": "score"}))

    with pytest.raises(
        ConfigError,
        match=r"reward model.*rlhf rm --model",
        check=has_code("model/is-a-reward-model"),
    ):
        load_causal_lm(str(folder), dtype="float32")
    assert load_causal_lm(str(folder), dtype="float32", writes=False)


def test_a_folder_without_weights_is_explained(tmp_path):
    folder = write_tiny_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()

    with pytest.raises(ConfigError, match="cannot be read", check=has_code("model/unreadable")):
        load_causal_lm(str(folder), dtype="float32")


def test_damaged_weights_are_explained(tmp_path):
    folder = write_tiny_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"not a model")

    with pytest.raises(ConfigError, match="cannot be read", check=has_code("model/unreadable")):
        load_causal_lm(str(folder), dtype="float32")


@pytest.mark.parametrize("content", [b"junk", b"\x80\x04N."], ids=["junk", "a pickle"])
def test_pickled_weights_are_not_read(tmp_path, content):
    folder = write_tiny_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)

    with pytest.raises(
        ConfigError, match=r"pytorch_model\.bin", check=has_code("model/pickled-weights")
    ):
        load_causal_lm(str(folder), dtype="float32")


def test_a_pickle_beside_the_weights_is_not_taken_for_them(tmp_path):
    folder = _edited(write_tiny_model(tmp_path / "m"), model_type="unheard_of")
    (folder / "training_args.bin").write_bytes(b"")

    with pytest.raises(ConfigError, match="unheard_of", check=has_code("model/unknown-family")):
        load_causal_lm(str(folder), dtype="float32")


@pytest.mark.parametrize("content", [100_000 * '{"a":', "[1]"], ids=["deep", "a list"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_files_that_no_model_has_are_explained(tmp_path, name, content):
    folder = write_tiny_model(tmp_path / "m")
    (folder / name).write_text(content)

    with pytest.raises(ConfigError, check=has_code("model/unknown-family")):
        load_causal_lm(str(folder), dtype="float32")


def test_weights_that_would_be_random_are_refused(tmp_path):
    folder = _edited(write_tiny_model(tmp_path / "m", "llama"), num_hidden_layers=3)

    with pytest.raises(ConfigError, match=r"layers\.2", check=has_code("model/weights-missing")):
        load_causal_lm(str(folder), dtype="float32")


def test_weights_that_are_no_numbers_are_refused_by_their_name(tmp_path):
    folder = write_tiny_model(tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(
        ConfigError,
        match=r"parameter model\.layers\.1\.mlp\.up_proj\.weight",
        check=has_code("model/not-finite"),
    ):
        load_causal_lm(str(folder), dtype="float32")


def test_weights_of_another_shape_are_refused(tmp_path):
    folder = _edited(write_tiny_model(tmp_path / "m", "llama"), intermediate_size=64)

    with pytest.raises(ConfigError, match="edited", check=has_code("model/unknown-family")):
        load_causal_lm(str(folder), dtype="float32")


def test_a_model_that_is_no_causal_lm_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))

    with pytest.raises(ConfigError, check=has_code("model/unknown-family")):
        load_causal_lm(str(tmp_path), dtype="float32")


def test_an_unknown_dtype_is_refused(models):
    with pytest.raises(ConfigError, match="float8", check=has_code("model/unknown-dtype")):
        load_causal_lm(str(models["qwen3"]), dtype="float8")


def test_a_model_without_attention_is_refused(tmp_path):
    from transformers import MambaConfig

    config = MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    with pytest.raises((ConfigError, PluginError), match=r"Mamba|layers|attention"):
        load_causal_lm(str(tmp_path), dtype="float32")


def test_a_position_bias_outside_of_the_layout_is_refused(tmp_path):
    from transformers import FalconConfig

    config = FalconConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    with pytest.raises((ConfigError, PluginError)):
        load_causal_lm(str(tmp_path), dtype="float32")


@pytest.mark.parametrize("window", [4, 4096])
def test_a_window_that_the_layers_do_not_ask_for_is_refused(tmp_path, window, monkeypatch):
    """The probe is shorter than long windows, so the request of each layer is compared with the config too."""
    from transformers.models.qwen3 import modeling_qwen3

    config = Qwen3Config(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        use_sliding_window=True,
        sliding_window=window,
        layer_types=["sliding_attention", "full_attention"],
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    load_causal_lm(str(tmp_path), dtype="float32")
    original = modeling_qwen3.Qwen3Attention.__init__

    def forgetful(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.sliding_window = None

    monkeypatch.setattr(modeling_qwen3.Qwen3Attention, "__init__", forgetful)
    with pytest.raises(
        PluginError, match=r"0 is sliding_attention.*None", check=has_code("model/windows-differ")
    ):
        load_causal_lm(str(tmp_path), dtype="float32")


@pytest.mark.parametrize("window", [4, 4096])
def test_a_window_of_all_layers_that_they_do_not_ask_for_is_refused(tmp_path, window):
    """PhiMoE has a window in its mask and not in its attention."""
    from transformers import PhimoeConfig

    config = PhimoeConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        num_local_experts=4,
        sliding_window=window,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)

    with pytest.raises(
        PluginError, match=f"None.* {window}", check=has_code("model/windows-differ")
    ):
        load_causal_lm(str(tmp_path), dtype="float32")


def test_a_model_that_reads_images_is_named_where_it_is_taken_for_a_language_model(tmp_path):
    Qwen3VLConfig().save_pretrained(tmp_path)

    with pytest.raises(
        ConfigError, match=r"\(qwen3_vl\)\..*--model\.vision", check=has_code("model/reads-images")
    ):
        load_causal_lm(str(tmp_path), dtype="float32")


def test_a_model_that_reads_images_is_not_loaded_without_its_tower(tmp_path):
    write_tiny_vision_model(tmp_path, "qwen3_5")

    with pytest.raises(
        ConfigError, match=r"--model\.vision vlm", check=has_code("model/reads-images")
    ):
        load_causal_lm(str(tmp_path), dtype="float32")


def test_an_encoder_decoder_is_not_loaded_without_its_encoder(tmp_path):
    """Whisper's decoder alone is a causal language model to Transformers, with the same names of weights."""
    tiny = {"d_model": 16, "num_mel_bins": 8, "max_source_positions": 8, "vocab_size": 100}
    parts = {
        f"{part}_{name}": number
        for part in ("encoder", "decoder")
        for name, number in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
    }
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(**tiny, **parts, **ends)
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path)

    with pytest.raises(
        ConfigError, match=r"encoder-decoder \(whisper\)", check=has_code("model/encoder-decoder")
    ):
        load_causal_lm(str(tmp_path), dtype="float32")


def test_weights_without_a_place_in_the_model_are_told_of(tmp_path, caplog):
    """A family may have layers that guess further tokens, which Transformers does not build."""
    write_tiny_model(tmp_path, "qwen3")
    weights = load_file(tmp_path / "model.safetensors")
    extra = {"model.guess.weight": torch.zeros(2, 2)}
    save_file(weights | extra, tmp_path / "model.safetensors", metadata={"format": "pt"})

    load_causal_lm(str(tmp_path), dtype="float32")

    assert "1 of the tensors in its files have no place in Qwen3ForCausalLM" in caplog.text
    assert "model.guess.weight" in caplog.text


@pytest.mark.filterwarnings("ignore")  # Transformers advises to mend config.json
def test_a_head_that_config_json_ties_by_mistake_keeps_its_weights(tmp_path, caplog):
    folder = _edited(write_tiny_model(tmp_path / "m", tied=False), tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")

    model = load_causal_lm(str(folder), dtype="float32", rows=105).model

    assert not model.config.tie_word_embeddings
    torch.testing.assert_close(
        model.lm_head.weight[:100], weights["lm_head.weight"], atol=0, rtol=0
    )
    torch.testing.assert_close(
        model.model.embed_tokens.weight[:100], weights["model.embed_tokens.weight"], atol=0, rtol=0
    )
    assert "hold an output head that differs from the embeddings" in caplog.text
    caplog.clear()
    load_causal_lm(str(write_tiny_model(tmp_path / "right", tied=False)), dtype="float32")
    assert not caplog.text


def test_a_head_that_is_not_there_is_said_to_be_the_embeddings_maybe(tmp_path):
    folder = _edited(write_tiny_model(tmp_path / "m", tied=True), tie_word_embeddings=False)

    with pytest.raises(
        ConfigError,
        match=r'first is lm_head.*write "tie_word_embeddings": true',
        check=has_code("model/weights-missing"),
    ):
        load_causal_lm(str(folder), dtype="float32")


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    LlamaConfig(vocab_size=100).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "code.Mine", "AutoModelForCausalLM": "code.Lm"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text("raise SystemExit('was run')")

    with pytest.raises(
        ConfigError, match="trust_remote_code", check=has_code("model/unknown-family")
    ):
        load_causal_lm(str(tmp_path), dtype="float32")


def test_code_of_another_version_of_transformers_is_named_as_a_reason(tmp_path):
    LlamaConfig(vocab_size=100, auto_map={"AutoModelForCausalLM": "own.Lm"}).save_pretrained(
        tmp_path
    )
    (tmp_path / "own.py").write_text("from transformers import gone_since")

    with pytest.raises(
        ConfigError, match="another version of Transf", check=has_code("model/unknown-family")
    ):
        load_causal_lm(str(tmp_path), dtype="float32", trust_remote_code=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 100, (8).to_bytes(8, "little") + b"{}      "],
    ids=["empty", "noise", "no tensors"],
)
def test_weights_that_cannot_be_read_advise_no_code(tmp_path, content):
    LlamaConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    ).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load_causal_lm(str(tmp_path), dtype="float32")

    assert "trust_remote_code" not in str(caught.value)


def _edited(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    copy = folder.with_name("edited")
    shutil.copytree(folder, copy)
    return copy


def test_a_soft_cap_leaves_what_is_never_sampled_where_it_is():
    """2 tanh(1 / 2) = 0.92423, 2 tanh(-4) = -1.99866; then all is divided by the temperature."""
    raw = torch.tensor([1.0, -8.0, NEVER])

    logits = LogitForm(softcap=2.0, temperature=0.5).apply(raw)

    torch.testing.assert_close(logits, torch.tensor([1.848469, -3.997317, -2e5]))
    assert logits.softmax(-1)[2] == 0
