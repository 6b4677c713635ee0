"""``rlhf dpo`` as a user runs it: its numbers are those of plain Transformers models, and it goes on after a kill."""

import json
import math
from pathlib import Path

import pytest
import torch
from tests.cases import one_in
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .forked_runs import (
    QUIET,
    check_that_killed_runs_resume,
    records,
    seen_and_new,
)

pytestmark = pytest.mark.slow

PAIRS = [
    {"prompt": f"{a}+{b}=", "chosen": f"{a + b:02d}", "rejected": f"{a + b + 1}?"}
    for a in range(4)
    for b in range(4)
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model`` and ``pairs.jsonl`` (prompt, chosen, rejected)."""
    write_tiny_model(tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2)
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, PAIRS)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dpo(*words):
    return main(["dpo", "--model", "model", "--data", "pairs.jsonl", *QUIET, *words])


def answer_logprob(model, tokenizer, prompt, answer):
    """Log-prob of an answer and its end of sequence, without packing."""
    return token_logprobs(model, tokenizer, prompt, answer).sum()


def token_logprobs(model, tokenizer, prompt, answer):
    asked = tokenizer.encode(prompt, add_special_tokens=False)
    said = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
    ids = torch.tensor([*asked, *said])
    logprobs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    return logprobs[len(asked) - 1 : -1].gather(1, ids[len(asked) :, None])[:, 0]


def naive_loss(model, reference, pairs, beta):
    tokenizer = AutoTokenizer.from_pretrained("model")
    losses = []
    for pair in pairs:
        ratios = []
        for key in ("chosen", "rejected"):
            with torch.no_grad():
                under_reference = answer_logprob(reference, tokenizer, pair["prompt"], pair[key])
            mine = answer_logprob(model, tokenizer, pair["prompt"], pair[key])
            ratios.append(mine - under_reference)
        losses.append(-torch.nn.functional.logsigmoid(beta * (ratios[0] - ratios[1])))
    return torch.stack(losses).mean()


TWO_PLAIN_UPDATES = (
    *("--steps", "2", "--output", "run", "--train.batch_size", "16", "--optim", "sgd"),
    *("--actor.sgd.lr", "1.0", "--actor.max_norm", "none", "--actor.warmup_ratio", "0"),
)


def plain_models():
    """The model at the start, twice: to be updated, and as the reference."""
    return (AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32) for _ in range(2))


def check_plain_updates(model, loss_of, *, loss=1e-6, weights=2e-6):
    """Do the run's two updates with a plain model, and compare losses and weights.

    Args:
        loss_of: computes the loss of an update's rows with the model as it is.
        loss: largest difference of losses.
        weights: largest difference of weights.
    """
    found = records(Path("run"), "metrics")
    for step in range(2):
        expected = loss_of()
        model.zero_grad()
        expected.backward()
        assert found[step]["loss/preference"] == pytest.approx(expected.item(), abs=loss)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= weight.grad
    after = dict(AutoModelForCausalLM.from_pretrained("run/model").named_parameters())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(after[name], weight, atol=weights, rtol=1e-5)


def test_losses_and_gradients_of_two_updates_are_those_of_plain_models(folder):
    """In the first update policy and reference agree, so the second one shows that the reference is the start."""
    code = dpo(
        *TWO_PLAIN_UPDATES,
        *("--preference.dpo.beta", "0.3", "--train.max_tokens_per_micro_batch", "40"),
        *("--data.max_length", "40"),
    )

    assert code == 0
    model, reference = plain_models()
    check_plain_updates(model, lambda: naive_loss(model, reference, PAIRS, 0.3))
    found = records(Path("run"), "metrics")
    assert found[0]["preference/margin"] == pytest.approx(0.0, abs=1e-6)
    assert found[1]["preference/margin"] > 0.0


def naive_matched_loss(model, reference, pairs, kind):
    """AOT of a whole update, with sorted margins or log-ratios, beta 0.3."""
    tokenizer = AutoTokenizer.from_pretrained("model")
    sums = {
        (name, key): torch.stack(
            [answer_logprob(one, tokenizer, pair["prompt"], pair[key]) for pair in pairs]
        )
        for name, one in (("policy", model), ("reference", reference))
        for key in ("chosen", "rejected")
    }
    if kind == "aot":
        high, low = (sums[n, "chosen"] - sums[n, "rejected"] for n in ("policy", "reference"))
    else:
        high, low = (sums["policy", k] - sums["reference", k] for k in ("chosen", "rejected"))
    return -torch.nn.functional.logsigmoid(0.3 * (high.sort().values - low.sort().values)).mean()


UNEVEN = [
    {**pair, "chosen": pair["chosen"] + "!" * (number % 4), "rejected": pair["rejected"] + "?" * (number % 3)}
    for number, pair in enumerate(PAIRS)
]  # fmt: skip


def naive_ld_loss(model, reference, pairs, beta, alpha):
    """LD-DPO, token by token: those beyond the pair's shorter answer weigh alpha, under both models."""
    tokenizer = AutoTokenizer.from_pretrained("model")
    losses = []
    for pair in pairs:
        answers = [
            [
                token_logprobs(one, tokenizer, pair["prompt"], pair[key])
                for one in (model, reference)
            ]
            for key in ("chosen", "rejected")
        ]
        shorter = min(len(mine) for mine, _ in answers)
        ratios = []
        for mine, under_reference in answers:
            tokens = mine - under_reference.detach()
            ratios.append(tokens[:shorter].sum() + alpha * tokens[shorter:].sum())
        losses.append(-torch.nn.functional.logsigmoid(beta * (ratios[0] - ratios[1])))
    return torch.stack(losses).mean()


def test_tokens_beyond_the_shorter_answer_weigh_less_in_updates_and_held_out_rows(folder):
    held_out = [{**pair, "prompt": pair["prompt"].replace("+", "-")} for pair in UNEVEN]
    for name, pairs in (("pairs", UNEVEN), ("held_out", held_out)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs)) + "\n")
    code = dpo(
        *TWO_PLAIN_UPDATES,
        *("--preference.dpo.beta", "0.3", "--train.max_tokens_per_micro_batch", "40"),
        *("--data.max_length", "40", "--preference.ld_alpha", "0.25"),
        *("--eval.data", "held_out.jsonl", "--eval.every", "1"),
    )

    assert code == 0
    model, reference = plain_models()
    check_plain_updates(model, lambda: naive_ld_loss(model, reference, UNEVEN, 0.3, 0.25))
    with torch.no_grad():
        loss = naive_ld_loss(model, reference, held_out, 0.3, 0.25)
        plain = naive_loss(model, reference, held_out, 0.3)
    last = records(Path("run"), "eval")[-1]
    assert last["eval/loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert plain.item() != pytest.approx(loss.item(), abs=1e-4)


def naive_weight(model, tokenizer, pair):
    """WPO's weight of a pair, by the probabilities of whole vocabularies."""
    weight = 1.0
    for key in ("chosen", "rejected"):
        asked = tokenizer.encode(pair["prompt"], add_special_tokens=False)
        said = [*tokenizer.encode(pair[key], add_special_tokens=False), tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*asked, *said]])).logits[0]
        shares = logits.softmax(-1)[len(asked) - 1 : -1]
        aligned = [
            math.log(float(share[token])) - math.log(float(share.square().sum()))
            for share, token in zip(shares, said, strict=True)
        ]
        weight *= math.exp(sum(aligned) / len(said))
    return weight


def test_pairs_weigh_as_much_as_the_policy_would_have_written_them(folder):
    held_out = [{**pair, "prompt": pair["prompt"].replace("+", "-")} for pair in UNEVEN]
    for name, pairs in (("pairs", UNEVEN), ("held_out", held_out)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs)) + "\n")
    code = dpo(
        *TWO_PLAIN_UPDATES,
        *("--preference.dpo.beta", "0.3", "--train.max_tokens_per_micro_batch", "40"),
        *("--data.max_length", "40", "--preference.wpo"),
        *("--eval.data", "held_out.jsonl", "--eval.every", "1"),
    )

    assert code == 0
    tokenizer = AutoTokenizer.from_pretrained("model")
    model, reference = plain_models()
    means = []

    def weighted(pairs):
        weights = [naive_weight(model, tokenizer, pair) for pair in pairs]
        losses = [naive_loss(model, reference, [pair], 0.3) for pair in pairs]
        means.append(sum(weights) / len(pairs))
        return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / len(pairs)

    check_plain_updates(model, lambda: weighted(UNEVEN), loss=1e-5, weights=1e-5)
    found = [step["preference/pair_weight"] for step in records(Path("run"), "metrics")]
    assert found == pytest.approx(means, rel=1e-4)
    with torch.no_grad():
        loss = weighted(held_out)
    last = records(Path("run"), "eval")[-1]
    assert last["eval/loss"] == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["aot", "aot_unpaired"])
def test_pairs_are_matched_over_the_whole_update_however_it_is_cut(folder, kind):
    code = dpo(
        *TWO_PLAIN_UPDATES,
        *("--preference.loss", kind, f"--preference.{kind}.beta", "0.3"),
        *("--train.max_tokens_per_micro_batch", "40", "--data.max_length", "40"),
    )

    assert code == 0
    model, reference = plain_models()
    reference.requires_grad_(False)
    check_plain_updates(model, lambda: naive_matched_loss(model, reference, PAIRS, kind))


@pytest.mark.slow
def test_margins_grow_and_held_out_pairs_are_told_apart(folder):
    code = dpo(
        *(*seen_and_new("pairs.jsonl"), "--output", "run", "--train.epochs", "20"),
        *("--train.batch_size", "8", "--actor.adam.lr", "0.003", "--runtime.local.threads", "1"),
    )

    assert code == 0
    first, last = records(Path("run"), "eval")
    assert first["eval/seen/loss"] == pytest.approx(0.6931, abs=1e-3)
    assert first["eval/seen/margin"] == pytest.approx(0.0, abs=1e-5)
    assert last["eval/seen/accuracy"] == 1.0
    assert last["eval/seen/margin"] > 1.0
    assert last["eval/seen/loss"] < 0.4


def test_a_loss_without_a_reference_and_the_likelihood_beside_it(folder):
    words = ["--preference.loss", "simpo", "--preference.nll_coef", "0.5", "--steps", "2"]

    assert dpo(*words, "--output", "run") == 0

    found = records(Path("run"), "metrics")[0]
    assert found["loss/nll"] == pytest.approx(found["preference/chosen_nll"], rel=1e-5)


def test_several_losses_add_up_with_their_weights(folder):
    words = ["--train.batch_size", "16", "--steps", "1", *seen_and_new("pairs.jsonl")]
    words += ["--preference.weight", "0.8", "--preference.terms.use", "bco", "apo_zero"]
    words += ["--preference.terms.bco.weight", "0.2", "--preference.terms.bco.beta", "0.5"]

    assert dpo(*words, "--output", "run") == 0

    found, held_out = records(Path("run"), "metrics")[0], records(Path("run"), "eval")[0]
    # Policy and reference agree: ln 2, 2 ln 2 and 1.
    total = 0.8 * math.log(2) + 0.2 * 2 * math.log(2) + 1.0
    assert found["loss/preference"] == pytest.approx(total, abs=1e-6)
    assert held_out["eval/loss"] == pytest.approx(total, abs=1e-6)
    assert found["preference/loss_bco"] == pytest.approx(2 * math.log(2), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("phase", one_in(2, ["train", "save"]))
def test_a_run_that_was_killed_goes_on_to_the_bit(folder, phase):
    words = [
        *("dpo", "--model", "model", "--data", "pairs.jsonl", *QUIET, "--train.batch_size", "5"),
        *("--train.epochs", "2", "--checkpoint.every", "2", "--runtime.local.threads", "1"),
        *(*seen_and_new("pairs.jsonl"), "--eval.every", "3", "--actor.adam.lr", "0.01"),
    ]
    steps = {"train": (1, 2, 5, 8), "save": (2, 8)}[phase]
    check_that_killed_runs_resume(folder, words, phase, steps)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.label_key", "label"], "would change nothing: dpo reads pairs"),
        (["--data.margin_key", "by"], "no preference loss reads margins"),
        (["--preference.loss", "nothing"], "nothing"),
        (["--preference.weight", "2"], "there is one loss. Add --preference.terms.use"),
        (["--preference.terms.use", "kto"], "a loss on the same rows as dpo"),
        (
            ["--preference.loss", "simpo", "--preference.ld_alpha", "0.5"],
            "expected 1 with simpo, which compares no whole answers with those of a reference",
        ),
        (
            ["--preference.loss", "kto", "--preference.ld_alpha", "0.5"],
            "expected 1 with kto, which learns from answers without a partner",
        ),
        (
            ["--preference.loss", "kto", "--preference.wpo"],
            "expected a loss of each pair by itself, got kto",
        ),
        (
            ["--preference.loss", "aot", "--preference.wpo"],
            "expected a loss of each pair by itself, got aot",
        ),
        (["--data.chosen_key", "best"], "pairs.jsonl"),
        (["--loss", "ppo"], "there is no such option"),
        (["--preference.dpo.beta", "-1"], "a value above 0"),
        (["--log.images", "3"], "would change nothing: the model reads text alone"),
        (
            ["--steps", "1", "--train.epochs", "2"],
            "would change nothing: train.steps says how long the run is",
        ),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(folder, capfd, words, message):
    (folder / "model" / "model.safetensors").unlink()

    assert dpo(*words, "--output", "run") == 2
    assert message in capfd.readouterr().err


def test_the_best_checkpoint_may_be_of_any_metric_that_is_evaluated(folder):
    words = [*seen_and_new("pairs.jsonl"), "--steps", "1", "--output", "run"]
    assert dpo(*words) == 0
    (evaluated,) = {tuple(found) for found in records(Path("run"), "eval")}

    best = ["--checkpoint.best_mode", "min", "--check", "--output", "other"]
    for metric in evaluated:
        assert dpo(*words[:5], *best, "--checkpoint.best_metric", metric) == 0


def test_pairs_of_equal_answers_are_bad_rows(folder, capfd):
    same = [*PAIRS, {"prompt": "1+1=", "chosen": "02", "rejected": "02"}]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, same)) + "\n")

    assert dpo("--output", "run") == 2
    said = capfd.readouterr().err
    assert "pairs.jsonl:17" in said
    assert "the preferred answer and the other are the same" in said
