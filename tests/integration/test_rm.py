"""``rlhf rm`` as a user runs it: its numbers are those of plain Transformers models, and its model can be served."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.cases import one_in
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BitsAndBytesConfig,
)

from rlhf_cli.main import main
from rlhf_core import ConfigError
from rlhf_core.contracts import RewardRequest, Turn
from rlhf_core.plugins import load
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import (
    QUIET,
    check_that_killed_runs_resume,
    records,
    seen_and_new,
)

pytestmark = pytest.mark.slow

PAIRS = [
    {"prompt": f"{a}?", "chosen": str(max(b, c)) * 2, "rejected": str(min(b, c)), "by": (b - c) / 4}
    for a in range(3)
    for b in range(4)
    for c in range(b)
]
SGD = (
    *("--optim", "sgd", "--actor.sgd.lr", "1.0", "--actor.max_norm", "none"),
    *("--actor.warmup_ratio", "0"),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model`` and ``pairs.jsonl`` (prompt, chosen, rejected, by)."""
    write_tiny_model(
        tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2, initializer_range=0.1
    )
    write("pairs.jsonl", PAIRS, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name, rows, folder=Path()):
    (folder / name).write_text("\n".join(map(json.dumps, rows)) + "\n")


def rm(*words, model="model", data="pairs.jsonl"):
    return main(["rm", "--model", model, "--data", data, *QUIET, *words])


def token_ids(pair, key, tokenizer):
    text = pair["prompt"] + pair[key]
    return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]


def plain_score(model, head, pair, key, tokenizer):
    """Score of the last token, by a plain model and without packing."""
    ids = torch.tensor([token_ids(pair, key, tokenizer)])
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return (hidden[0, -1] * head[0]).sum()


def first_head(folder):
    """The head that training started from: a run of no learning rate exports it."""
    words = ["--optim", "sgd", "--actor.sgd.lr", "1e-30", "--steps", "1", "--output", "start"]
    assert rm(*words) == 0
    model = AutoModelForSequenceClassification.from_pretrained(folder / "start" / "model")
    return model.score.weight.detach().clone()


def test_losses_and_gradients_of_two_updates_are_those_of_plain_models(folder):
    head = first_head(folder).requires_grad_()
    code = rm(
        *("--steps", "2", "--output", "run", "--train.batch_size", "18", *SGD),
        *("--data.margin_key", "by", "--ranking.center_coef", "0.05", "--data.max_length", "20"),
        *("--train.max_tokens_per_micro_batch", "40"),
    )

    assert code == 0
    tokenizer = AutoTokenizer.from_pretrained("model")
    model = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32).eval()
    found = records(Path("run"), "metrics")
    for step in range(2):
        ranking, centering = [], []
        for pair in PAIRS:
            chosen, rejected = (
                plain_score(model, head, pair, key, tokenizer) for key in ("chosen", "rejected")
            )
            ranking.append(-torch.nn.functional.logsigmoid(chosen - rejected - pair["by"]))
            centering.append((chosen + rejected).square())
        loss = torch.stack(ranking).mean()
        assert found[step]["loss/ranking"] == pytest.approx(loss.item(), abs=1e-6)
        weights = [*model.parameters(), head]
        for weight in weights:
            weight.grad = None
        (loss + 0.05 * torch.stack(centering).mean()).backward()
        with torch.no_grad():
            for weight in weights:
                weight -= weight.grad
    after = AutoModelForSequenceClassification.from_pretrained("run/model")
    for name, weight in after.named_parameters():
        plain = head if name == "score.weight" else dict(model.named_parameters())[name]
        torch.testing.assert_close(weight, plain, atol=2e-6, rtol=1e-5)


def test_a_preference_is_learned_and_the_exported_model_is_a_reward(folder):
    """The larger of two digits is preferred; some pairs are held out for some prompts."""
    digits = [
        {"prompt": f"{a}?", "chosen": str(b), "rejected": str(c)}
        for a in range(4)
        for b in range(10)
        for c in range(b)
    ]
    held_out = digits[::7]
    write("train.jsonl", [row for row in digits if row not in held_out])
    write("held_out.jsonl", held_out)

    code = rm(
        *("--eval.data", "held_out.jsonl", "--output", "run", "--train.epochs", "20"),
        *("--train.batch_size", "16", "--actor.adam.lr", "0.003", "--runtime.local.threads", "1"),
        data="train.jsonl",
    )

    assert code == 0
    first, last = records(Path("run"), "eval")
    assert first["eval/loss"] == pytest.approx(0.6931, abs=0.1)
    assert last["eval/accuracy"] >= 0.95
    assert last["eval/loss"] < 0.3
    # The statistics beside the model are those of the scores that Transformers gives.
    plain = AutoModelForSequenceClassification.from_pretrained("run/model").eval()
    tokenizer = AutoTokenizer.from_pretrained("run/model")
    ids = [token_ids(pair, key, tokenizer) for pair in held_out for key in ("chosen", "rejected")]
    with torch.no_grad():
        scores = [plain(input_ids=torch.tensor([row])).logits.item() for row in ids]
    config = json.loads(Path("run/model/config.json").read_text())
    assert config["mean"] == pytest.approx(np.mean(scores), abs=1e-5)
    assert config["std"] == pytest.approx(np.std(scores, ddof=1), abs=1e-5)
    assert last["eval/score_mean"] == pytest.approx(config["mean"], abs=1e-6)
    assert last["eval/score_std"] == pytest.approx(config["std"], abs=1e-6)
    margins = np.subtract(scores[0::2], scores[1::2])
    assert last["eval/margin"] == pytest.approx(margins.mean(), abs=1e-5)
    # The reward of this project gives the same scores, and normalizes with them.
    for normalize, expected in (
        ("none", scores),
        ("model", [(score - config["mean"]) / config["std"] for score in scores]),
    ):
        assert reward_of("run/model", held_out, tokenizer, normalize) == pytest.approx(
            expected, abs=1e-5
        )


def reward_of(path, pairs, tokenizer, normalize):
    """Rewards of all answers by the component ``reward_model``."""
    registered = load("").get("rlhf_rewards", "reward_model")
    reward = registered.build(registered.validate({"path": path, "normalize": normalize}))
    requests = [
        request_of(pair, key, tokenizer) for pair in pairs for key in ("chosen", "rejected")
    ]
    return [result.reward for result in asyncio.run(reward.score(requests))]


def request_of(pair, key, tokenizer):
    ids = token_ids(pair, key, tokenizer)
    start = len(tokenizer.encode(pair["prompt"], add_special_tokens=False))
    return RewardRequest(
        uid="0.0.0.0",
        row=pair,
        prompt=pair["prompt"],
        response=pair[key],
        token_ids=tuple(ids),
        action_mask=tuple(place >= start for place in range(len(ids))),
        turns=(Turn(start=start, end=len(ids)),),
        truncated=False,
    )


def test_statistics_of_training_pairs_stand_in_for_held_out_ones_and_may_be_left_out(folder):
    assert rm("--steps", "1", "--output", "run") == 0
    assert rm("--steps", "1", "--output", "bare", "--ranking.statistics", "false") == 0

    with_them, bare = (
        json.loads(Path(run, "model", "config.json").read_text()) for run in ("run", "bare")
    )
    assert with_them.pop("std") > 0
    assert with_them.pop("mean") == pytest.approx(0.0, abs=1.0)
    assert with_them == bare


def test_an_average_of_the_weights_has_no_statistics_of_other_weights(folder):
    assert rm("--steps", "1", "--output", "run", "--actor.ema", "0.9") == 0

    assert "std" in json.loads(Path("run/model/config.json").read_text())
    assert "std" not in json.loads(Path("run/model_ema/config.json").read_text())


def test_an_adapter_learns_and_is_merged_into_the_exported_classifier(folder):
    words = ["--actor.adapter", "lora", "--actor.adam.lr", "0.01", *seen_and_new("pairs.jsonl")]
    assert rm("--steps", "3", "--output", "run", *words) == 0

    first, *_, last = records(Path("run"), "eval")
    assert last["eval/seen/loss"] < first["eval/seen/loss"]
    plain = AutoModelForSequenceClassification.from_pretrained("run/model").eval()
    tokenizer = AutoTokenizer.from_pretrained("run/model")
    ids = [token_ids(pair, key, tokenizer) for pair in PAIRS for key in ("chosen", "rejected")]
    with torch.no_grad():
        scores = [plain(input_ids=torch.tensor([row])).logits.item() for row in ids]
    assert np.mean(scores) == pytest.approx(last["eval/seen/score_mean"], abs=1e-5)
    assert np.std(scores, ddof=1) == pytest.approx(last["eval/seen/score_std"], abs=1e-5)
    assert Path("run/model/adapter/adapter_model.safetensors").exists()


def test_training_goes_on_from_a_reward_model(folder):
    assert rm("--steps", "3", "--output", "run", *SGD, *seen_and_new("pairs.jsonl")) == 0
    words = ["--steps", "1", "--output", "more", *SGD, *seen_and_new("pairs.jsonl")]
    assert rm(*words, model="run/model") == 0

    *_, last = records(Path("run"), "eval")
    first, *_ = records(Path("more"), "eval")
    assert first == pytest.approx(last, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("phase", one_in(3, ["train", "save", "export"]))
def test_a_run_that_was_killed_goes_on_to_the_bit(folder, phase):
    words = [
        *("rm", "--model", "model", "--data", "pairs.jsonl", *QUIET, "--train.batch_size", "5"),
        *("--train.epochs", "2", "--checkpoint.every", "2", "--runtime.local.threads", "1"),
        *(*seen_and_new("pairs.jsonl"), "--eval.every", "3", "--actor.adam.lr", "0.01"),
    ]
    steps = {"train": (1, 2, 5, 8), "save": (2, 8), "export": (8,)}[phase]
    check_that_killed_runs_resume(folder, words, phase, steps)
    for step in steps:
        config = "model/config.json"
        resumed = (folder / f"{phase}{step}" / config).read_text()
        assert resumed == (folder / "whole" / config).read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranking.loss", "hinge"], "sigmoid"),
        (["--ranking.center_coef", "-1"], "--ranking.center_coef"),
        (["--data.chosen_key", "best"], "pairs.jsonl"),
        (["--data.margin_key", "prompt"], "expected a finite number"),
        (
            ["--data.margin_key", "by", "--ranking.loss", "log_exp"],
            "--data.margin_key by: the loss log_exp has no margin",
        ),
        (["--preference.loss", "dpo"], "there is no such option"),
        (["--data.max_length", "3"], "the row has"),
        (
            ["--checkpoint.best_metric", "eval/seen/accuracy"],
            "there is no evaluation to take it from",
        ),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(folder, capfd, words, message):
    (folder / "model" / "model.safetensors").unlink()

    assert rm(*words, "--output", "run") == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "1?", "chosen": "2", "rejected": "2"}, "the preferred answer and the other"),
        ({"prompt": "1?", "chosen": "", "rejected": "2"}, "pairs.jsonl:19"),
        ({"prompt": "1?", "chosen": "2"}, "rejected"),
    ],
)
def test_bad_rows_are_named(folder, capfd, row, message):
    write("pairs.jsonl", [*PAIRS, row])

    assert rm("--output", "run") == 2
    assert message in capfd.readouterr().err


def test_pairs_that_are_cut_to_the_same_tokens_are_bad_rows(folder, capfd):
    write("pairs.jsonl", [{"prompt": "1234567?", "chosen": "12", "rejected": "13"}])
    words = ["--data.max_length", "9", "--data.on_too_long", "truncate", "--output", "run"]

    assert rm(*words) == 2
    assert "the same tokens, up to --data.max_length" in capfd.readouterr().err


def test_any_metric_that_is_evaluated_may_choose_the_best_checkpoint(folder):
    words = [*seen_and_new("pairs.jsonl"), "--steps", "1", "--output", "run"]
    assert rm(*words) == 0
    (evaluated,) = {tuple(found) for found in records(Path("run"), "eval")}

    for metric in evaluated:
        best = ["--checkpoint.best_metric", metric, "--check", "--output", "other"]
        assert rm(*words[:5], *best) == 0


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A folder as ``folder`` is, with the ``run`` of an adapter in it."""
    return trained_adapter(tmp_path_factory.mktemp("adapted"), "lora", width=32)


@pytest.fixture(scope="module")
def in_four_bits(tmp_path_factory):
    """A folder as ``folder`` is, with the ``run`` of an adapter beside a base in 4 bits in it."""
    # bitsandbytes unpacks widths that are multiples of 64 rightly on every processor.
    return trained_adapter(tmp_path_factory.mktemp("in_four_bits"), "qlora", width=64)


def trained_adapter(there, adapter, *, width, packed=False):
    """A folder with a run of ``rlhf rm``.

    Args:
        packed: the base is in 4 bits in its files already.
    """
    shape = {"hidden_size": width, "num_layers": 2, "num_heads": 2}
    write_tiny_model(there / "model", **shape, initializer_range=0.1)
    if packed:
        base = AutoModelForCausalLM.from_pretrained(
            there / "model",
            quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
        )
        base.save_pretrained(there / "model")
    write("pairs.jsonl", PAIRS, there)
    words = ("--actor.adapter", adapter, "--actor.adam.lr", "1e-2", "--steps", "3")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(there)
        assert rm(*words, *seen_and_new("pairs.jsonl"), "--output", "run") == 0
    return there


def test_the_folder_of_the_adapter_scores_like_the_whole_model(adapted):
    """The exported adapter brings its head, its tokenizer and the statistics, and names its base."""
    tokenizer = AutoTokenizer.from_pretrained(adapted / "model")
    whole, small = (str(adapted / "run" / name) for name in ("model", "model/adapter"))
    assert not Path(small, "model.safetensors").exists()

    for normalize in ("none", "model"):
        expected = reward_of(whole, PAIRS, tokenizer, normalize)
        actual = reward_of(small, PAIRS, tokenizer, normalize)
        # Both are summed in float32, by two implementations.
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert len({round(score, 3) for score in expected}) > 10


def test_peft_loads_the_folder_of_the_adapter(adapted):
    tokenizer = AutoTokenizer.from_pretrained(adapted / "model")
    base = AutoModelForSequenceClassification.from_pretrained(adapted / "model", num_labels=1)
    plain = AutoModelForSequenceClassification.from_pretrained(adapted / "run" / "model")
    ids = torch.tensor([token_ids(PAIRS[0], "chosen", tokenizer)])

    loaded = PeftModel.from_pretrained(base, adapted / "run" / "model" / "adapter").eval()

    with torch.no_grad():
        expected = plain(input_ids=ids).logits
        torch.testing.assert_close(loaded(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-4)


def test_beside_a_base_in_four_bits_the_model_is_the_adapters_folder_and_scores_as_it_was_trained(
    in_four_bits, tmp_path
):
    tokenizer = AutoTokenizer.from_pretrained(in_four_bits / "model")
    model = in_four_bits / "run" / "model"
    *_, trained = records(in_four_bits / "run", "eval")
    assert {path.name for path in model.glob("*.safetensors")} == {"adapter_model.safetensors"}

    scores = reward_of(str(model), PAIRS, tokenizer, "none")

    assert np.mean(scores) == pytest.approx(trained["eval/seen/score_mean"], abs=1e-5)
    assert np.std(scores, ddof=1) == pytest.approx(trained["eval/seen/score_std"], abs=1e-5)
    normalized = reward_of(str(model), PAIRS, tokenizer, "model")
    expected = (np.array(scores) - trained["eval/score_mean"]) / trained["eval/score_std"]
    np.testing.assert_allclose(normalized, expected, atol=1e-4)
    # Merged into the base as its files have it, the adapter is another model.
    other = shutil.copytree(model, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    del config["quantization_config"]
    (other / "config.json").write_text(json.dumps(config))
    assert np.abs(np.subtract(reward_of(str(other), PAIRS, tokenizer, "none"), scores)).max() > 1e-3


def test_beside_a_base_in_four_bits_in_its_files_the_model_scores_as_it_was_trained(tmp_path):
    there = trained_adapter(tmp_path, "qlora", width=64, packed=True)
    *_, trained = records(there / "run", "eval")

    scores = reward_of(
        str(there / "run/model"), PAIRS, AutoTokenizer.from_pretrained(there / "model"), "none"
    )

    assert np.mean(scores) == pytest.approx(trained["eval/seen/score_mean"], abs=1e-5)
    assert np.std(scores, ddof=1) == pytest.approx(trained["eval/seen/score_std"], abs=1e-5)


def test_peft_loads_the_folder_of_an_adapter_beside_a_base_in_four_bits(in_four_bits):
    tokenizer = AutoTokenizer.from_pretrained(in_four_bits / "model")
    folder = in_four_bits / "run" / "model"
    config = AutoConfig.from_pretrained(folder)
    base = AutoModelForSequenceClassification.from_pretrained(
        in_four_bits / "model",
        num_labels=1,
        quantization_config=BitsAndBytesConfig.from_dict(config.quantization_config),
    )

    loaded = PeftModel.from_pretrained(base, folder).eval()
    for module in loaded.modules():
        # Otherwise bitsandbytes rounds to bfloat16 on some processors.
        module.support_avx512bf16_for_cpu = False

    ids = torch.tensor([token_ids(PAIRS[0], "chosen", tokenizer)])
    expected, *_ = reward_of(str(folder), PAIRS[:1], tokenizer, "none")
    with torch.no_grad():
        score = loaded(input_ids=ids).logits.item()
    assert score == pytest.approx(expected, abs=1e-5)


def test_an_adapter_without_a_head_is_no_reward_model(adapted, tmp_path):
    headless = shutil.copytree(adapted / "run" / "model" / "adapter", tmp_path / "headless")
    tensors = load_file(headless / "adapter_model.safetensors")
    del tensors["base_model.model.score.weight"]
    save_file(tensors, headless / "adapter_model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(adapted / "model")

    with pytest.raises(
        ConfigError,
        match=r"expected an adapter with a head 'score'.*it has none",
        check=has_code("reward-model/unusable"),
    ):
        reward_of(str(headless), PAIRS, tokenizer, "none")
