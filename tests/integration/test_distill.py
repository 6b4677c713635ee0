"""``rlhf distill`` as a user runs it: its numbers are those of plain Transformers models."""

import json
from pathlib import Path

import pytest
import torch
from tests.cases import one_in
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.main import main
from rlhf_testing.tiny import tiny_tokenizer, write_tiny_model

from .forked_runs import (
    QUIET,
    check_that_killed_runs_resume,
    records,
    seen_and_new,
)

pytestmark = pytest.mark.slow

ROWS = [{"prompt": f"{a}+{b}=", "response": f"{a + b:02d}"} for a in range(4) for b in range(3)]
VOCABULARY = len(tiny_tokenizer())


SMALL = (
    *("--reward", "none.py:score", "--rollout.batch_size", "2"),
    *("--rollout.n_samples_per_prompt", "2", "--rollout.max_new_tokens", "2"),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current directory, with ``model``, a ``teacher`` with clear opinions, and ``rows.jsonl``."""
    write_tiny_model(tmp_path / "model", hidden_size=32, num_layers=2, num_heads=2)
    write_tiny_model(
        tmp_path / "teacher",
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        initializer_range=0.5,
        seed=3,
    )
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def distill(*words):
    start = ["distill", "--model", "model", "--data", "rows.jsonl", "--teacher.path", "teacher"]
    return main([*start, *QUIET, *words])


def response_logprobs(model, tokenizer, row):
    """Log-probs (A, V) at each token of a response and its end, and the tokens, without packing."""
    asked = tokenizer.encode(row["prompt"], add_special_tokens=False)
    said = [*tokenizer.encode(row["response"], add_special_tokens=False), tokenizer.eos_token_id]
    ids = torch.tensor([*asked, *said])
    logprobs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    return logprobs[len(asked) - 1 : -1], ids[len(asked) :]


def with_rest(logprobs, chosen):
    """Log-probs (A, k + 1) of the chosen tokens, and of all others together."""
    top = logprobs.gather(1, chosen)
    if chosen.shape[1] == logprobs.shape[1]:
        return top
    return torch.cat([top, torch.log1p(-top.exp().sum(1, keepdim=True))], dim=1)


def naive_losses(student, teacher, k, direction):
    """Means over all tokens of the KL and of the negative log-likelihood."""
    tokenizer = AutoTokenizer.from_pretrained("model")
    kls, nlls = [], []
    for row in ROWS:
        with torch.no_grad():
            taught, _ = response_logprobs(teacher, tokenizer, row)
        own, tokens = response_logprobs(student, tokenizer, row)
        chosen = taught.topk(k).indices
        p, q = with_rest(taught, chosen), with_rest(own, chosen)
        if direction == "reverse":
            p, q = q, p
        kls.append((p.exp() * (p - q)).sum(1))
        nlls.append(-own.gather(1, tokens[:, None])[:, 0])
    return torch.cat(kls).mean(), torch.cat(nlls).mean()


@pytest.mark.parametrize(
    ("k", "direction", "nll_coef"),
    [(4, "forward", 0.0), (4, "reverse", 0.5), (VOCABULARY, "forward", 0.5)],
)
def test_losses_and_gradients_of_two_updates_are_those_of_plain_models(
    folder, k, direction, nll_coef
):
    """With all tokens of the vocabulary among the k the divergence is the whole one."""
    code = distill(
        *("--steps", "2", "--output", "run", "--train.batch_size", "12", "--optim", "sgd"),
        *("--actor.sgd.lr", "1.0", "--actor.max_norm", "none", "--actor.warmup_ratio", "0"),
        *("--train.max_tokens_per_micro_batch", "40", "--data.max_length", "40"),
        *("--teacher.top_k", str(k), "--teacher.direction", direction),
        *("--teacher.nll_coef", str(nll_coef)),
    )

    assert code == 0
    teacher = AutoModelForCausalLM.from_pretrained("teacher", dtype=torch.float32)
    student = AutoModelForCausalLM.from_pretrained("model", dtype=torch.float32)
    found = records(Path("run"), "metrics")
    for step in range(2):
        kl, nll = naive_losses(student, teacher, k, direction)
        student.zero_grad()
        (kl + nll_coef * nll).backward()
        assert found[step]["loss/policy"] == pytest.approx(kl.item(), abs=1e-5)
        assert found[step]["distill/kl"] == pytest.approx(kl.item(), abs=1e-5)
        if nll_coef:
            assert found[step]["loss/sft"] == pytest.approx(nll.item(), abs=1e-5)
        with torch.no_grad():
            for weight in student.parameters():
                weight -= weight.grad
    after = dict(AutoModelForCausalLM.from_pretrained("run/model").named_parameters())
    for name, weight in student.named_parameters():
        torch.testing.assert_close(after[name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("template", ["teacher.jinja", "model"])
def test_a_teacher_with_a_rendering_of_its_own_is_a_plain_model_on_it(folder, template):
    """The student learns its own end of turns from what the teacher gives to the teacher's end."""
    teachers = tiny_tokenizer()
    teachers.chat_template = (
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}<bos>{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    if template == "model":
        teachers.save_pretrained("teacher")
    else:
        (folder / template).write_text(teachers.chat_template)
    (folder / "held.jsonl").write_text(json.dumps({"prompt": "9+9=", "response": "18"}) + "\n")

    code = distill(
        *("--steps", "1", "--output", "run", "--train.batch_size", "12", "--teacher.top_k", "4"),
        *("--data.chat", "--teacher.chat_template", template),
        *("--teacher.system_prompt", "Add.", "--teacher.nll_coef", "0.5"),
        *("--eval.data", "held.jsonl"),
    )

    assert code == 0
    tokenizer = AutoTokenizer.from_pretrained("model")
    eos, bos = tokenizer.eos_token_id, tokenizer.bos_token_id
    models = [
        AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        for name in ("model", "teacher")
    ]

    def logprobs(row):
        """(A, V) of student and teacher at the answer and its end."""
        asked = (
            f"user:{row['prompt']}\nassistant:",
            f"[system] Add.<bos>[user] {row['prompt']}<bos>[assistant] ",
        )
        for model, prompt, end in zip(models, asked, ("<eos>", "<bos>"), strict=True):
            text = f"{prompt}{row['response']}{end}"
            ids = tokenizer.encode(text, add_special_tokens=False, return_tensors="pt")
            yield model(input_ids=ids).logits[0].log_softmax(-1)[-4:-1]

    kls, nlls = [], []
    swapped = torch.arange(VOCABULARY)
    swapped[[eos, bos]] = torch.tensor([bos, eos])
    with torch.no_grad():
        for row in ROWS:
            own, taught = logprobs(row)
            taught = taught[:, swapped]
            said = tokenizer.encode(f"{row['response']}<eos>", add_special_tokens=False)
            chosen = taught.topk(4).indices
            p, q = with_rest(taught, chosen), with_rest(own, chosen)
            kls.append((p.exp() * (p - q)).sum(1))
            nlls.append(-own[range(3), said])
        _, held = logprobs({"prompt": "9+9=", "response": "18"})
    said = tokenizer.encode("18<bos>", add_special_tokens=False)
    (found,) = records(Path("run"), "metrics")
    assert found["distill/kl"] == pytest.approx(torch.cat(kls).mean().item(), abs=1e-5)
    assert found["loss/sft"] == pytest.approx(torch.cat(nlls).mean().item(), abs=1e-5)
    evaluated = records(Path("run"), "eval")[0]
    assert evaluated["eval/teacher_nll"] == pytest.approx(
        -held[range(3), said].mean().item(), abs=1e-5
    )


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (
            ("distill", "--teacher.path", "teacher", "--train.batch_size", "4"),
            "--teacher.chat_template model.",
        ),
        (
            ("train", "--loss", "distill", "--algo.teacher.path", "teacher", *SMALL),
            "--model.tokenizer teacher.",
        ),
    ],
)
def test_a_teacher_that_was_trained_on_another_rendering_is_named(folder, caplog, words, fix):
    Path("none.py").write_text("def score(response):\n    return 0.0\n")
    teachers = AutoTokenizer.from_pretrained("teacher")
    teachers.chat_template = teachers.chat_template.replace("assistant:", "model:")
    teachers.save_pretrained("teacher")
    command, *more = words

    common = ["--model", "model", "--data", "rows.jsonl", "--data.chat", "--output", "run"]
    assert main([command, *common, *QUIET, "--steps", "1", *more]) == 0

    (told,) = [text for text in caplog.messages if "renders them otherwise" in text]
    assert told.startswith(
        f"{'--algo.' if command == 'train' else '--'}teacher.path teacher: it reads"
    )
    assert told.endswith(fix)


@pytest.mark.slow
def test_a_student_comes_near_its_teacher(folder):
    code = distill(
        *(*seen_and_new("rows.jsonl"), "--output", "run", "--train.epochs", "60"),
        *("--train.batch_size", "6", "--actor.adam.lr", "0.003", "--runtime.local.threads", "1"),
    )

    assert code == 0
    steps = records(Path("run"), "metrics")
    assert steps[-1]["distill/kl"] < 0.1 * steps[0]["distill/kl"]
    first, last = records(Path("run"), "eval")
    before, after = (
        abs(each["eval/seen/nll"] - each["eval/seen/teacher_nll"]) for each in (first, last)
    )
    assert after < 0.6 * before
    assert first["eval/seen/teacher_nll"] == last["eval/seen/teacher_nll"]


@pytest.mark.slow
@pytest.mark.parametrize("phase", one_in(2, ["train", "save"]))
def test_a_run_that_was_killed_goes_on_to_the_bit(folder, phase):
    words = [
        *("distill", "--model", "model", "--data", "rows.jsonl", "--teacher.path", "teacher"),
        *(*QUIET, "--train.batch_size", "5", "--train.epochs", "2", "--checkpoint.every", "2"),
        *("--runtime.local.threads", "1", *seen_and_new("rows.jsonl"), "--eval.every", "3"),
        *("--actor.adam.lr", "0.01"),
    ]
    steps = {"train": (2, 5), "save": (4, 6)}[phase]
    check_that_killed_runs_resume(folder, words, phase, steps)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--teacher.direction", "sideways"], "forward"),
        (["--teacher.top_k", "0"], "--teacher.top_k"),
        (["--data.response_key", "answer"], "rows.jsonl"),
        (["--loss", "ppo"], "there is no such option"),
        (["--teacher.chat_template", "no.jinja"], "there is no such file"),
        (["--teacher.system_prompt", "Add."], "Add --data.chat"),
        (
            ["--teacher.system_prompt", "Add.", "--data.text_key", "prompt"],
            "plain text has no chat",
        ),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(folder, capfd, words, message):
    (folder / "model" / "model.safetensors").unlink()

    assert distill(*words, "--output", "run") == 2
    assert message in capfd.readouterr().err


def test_a_teacher_is_needed(folder, capfd):
    words = ["distill", "--model", "model", "--data", "rows.jsonl", *QUIET, "--output", "run"]

    assert main(words) == 2
    assert "--teacher.path: expected a model to learn from; got none" in capfd.readouterr().err


def test_a_teacher_with_other_tokens_is_refused(folder, capfd):
    tiny_tokenizer("0123456789+=").save_pretrained("teacher")

    assert distill("--output", "run") == 2
    assert "expected a teacher with the student's tokenizer" in capfd.readouterr().err


def test_a_template_that_the_teacher_lacks_is_named(folder, capfd):
    teachers = tiny_tokenizer()
    teachers.chat_template = None
    teachers.save_pretrained("teacher")
    (folder / "teacher" / "chat_template.jinja").unlink(missing_ok=True)

    words = ["--data.chat", "--teacher.chat_template", "model", "--output", "run"]
    assert distill(*words) == 2
    assert "expected a teacher whose tokenizer has a chat template" in capfd.readouterr().err


def test_more_tokens_than_there_are_are_refused(folder, capfd):
    assert distill("--teacher.top_k", str(VOCABULARY + 1), "--output", "run") == 2
    assert f"the vocabulary of the teacher has {VOCABULARY} tokens" in capfd.readouterr().err
