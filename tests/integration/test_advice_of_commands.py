"""Whoever follows what an error of a command advises gets further: the words of the next attempt are taken from the
message, by the test."""

import itertools
import json
import re
import shlex

import pytest
from tests.advice import require_progress, without
from tests.advised_messages import raised_messages

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

from .advised_places import FOLLOWED
from .forked_runs import QUIET

REWARD = "def score(response):\n    return float(len(response))\n"
TOOL = 'def add(a: int, b: int) -> int:\n    """Sum of two numbers."""\n    return a + b\n'
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
FILES = {
    "rows": [{"prompt": f"{n:03d}=", "answer": f"{n:03d}"} for n in range(8)],
    "asked": [{"question": f"{n:03d}=", "answer": "1"} for n in range(8)],
    "chats": [
        {
            "messages": [
                {"role": "user", "content": f"{n}"},
                {"role": "assistant", "content": f"{7 * n}"},
            ]
        }
        for n in range(8)
    ],
    "pairs": [{"prompt": f"{n}", "chosen": "12", "rejected": "3"} for n in range(8)],
    "held": [{"prompt": f"{n}+", "answer": "1"} for n in range(3)],
}
VALUES = {
    "--algo.terms.use": "entropy",
    "--chat": "",
    "--check": "",
    "--checkpoint.best_metric": "eval/loss",
    "--data": "rows.jsonl",
    "--data.chat": "true",
    "--data.jsonl_stream.path": "chats.jsonl",
    "--data.max_samples": "4",
    "--data.prompt_key": "question",
    "--data.response_key": "answer",
    "--data.train": "rows.jsonl",
    "--env": "frozen_lake",
    "--eval.data": "held.jsonl",
    "--model": "model",
    "--model.adapter": "peft",
    "--model.vision": "vlm",
    "--output": "elsewhere",
    "--preference.terms.use": "sft",
    "--prompt-key": "question",
    "--remote.model": "a-model",
    "--remote.url": "http://localhost:1/v1",
    "--reward": "reward.py:score",
    "--prompt-tokens": "8",
    "--response-tokens": "8",
    "--rollout.max_length": "2048",
    "--select.mode": "best",
    "--select.threshold": "0.5",
    "--teacher.path": "model",
    "--template": "{question}",
}
"""Flag -> what the user of this workspace writes where a message leaves it open."""
CHECKED = {
    "sft": (
        "--data chats.jsonl",
        {
            "no data": "--data none",
            "a best metric without evaluations": "--checkpoint.best_metric eval/loss",
            "the way of a best metric": "--checkpoint.best_mode min",
            "a split of nothing": "--eval.split test",
            "evaluations of nothing": "--eval.every 5",
            "a source without an end": "--data none --data.source jsonl_stream --data.jsonl_stream.path chats.jsonl",
            "splits of a source": "--data none --data.source jsonl_stream --data.jsonl_stream.path chats.jsonl "
            "--steps 3 --data.split x",
            "a source beside sets": "--data.source jsonl_stream --data.jsonl_stream.path chats.jsonl --steps 3",
            "a column of images": "--data.image_key image",
            "sizes of no images": "--data.max_pixels 100",
            "images of a text model": "--log.images 3",
            "a smoothed target of another loss": "--train.loss dft --train.label_smoothing 0.1",
            "a slow adapter": "--actor.adapter lora --actor.adam.lr 1e-6",
            "strict with nothing to resume": "--resume.strict true",
            "dtypes that do not go together": "--backend.torch.compute_dtype float32 --model.dtype bfloat16",
            "a misspelled option": "--train.batchsize 3",
        },
    ),
    "dpo": (
        "--data pairs.jsonl",
        {
            "a weight of one loss": "--preference.weight 2",
            "likelihood of chosen answers without pairs": "--preference.loss kto --preference.nll_coef 1",
        },
    ),
    "rm": (
        "--data pairs.jsonl",
        {"margins of a loss without": "--data.margin_key m --ranking.loss log_exp"},
    ),
    "prm": ("", {"no data": ""}),
    "distill": (
        "--data chats.jsonl",
        {
            "no teacher": "",
            "half of a divergence": "--teacher.path model --teacher.direction jsd",
            "a share of no divergence": "--teacher.path model --teacher.share 0.5",
            "another rendering of plain text": "--teacher.path model --teacher.system_prompt x --data.text_key t",
            "another rendering of images": "--teacher.path model --teacher.system_prompt x --model.vision vlm",
        },
    ),
    "generate": (
        "--data rows.jsonl",
        {
            "no data": "--data none",
            "the best of nothing": "--select.mode best",
            "no threshold": "--select.mode rejection --reward reward.py:score",
            "pairs of one": "--select.mode pairs --reward reward.py:score",
            "equal completions": "--rollout.temperature 0 --rollout.n_samples_per_prompt 3",
            "a threshold for nothing": "--select.threshold 1",
            "cut answers for nothing": "--select.truncated",
            "a truncated distribution of one token": "--rollout.temperature 0 --rollout.top_p 0.5",
            "the place of no adapter": "--model.serve merged",
            "a column of images": "--data.image_key image",
        },
    ),
    "eval": (
        "--model model --data rows.jsonl --reward reward.py:score",
        {
            "two that answer": "--remote.url http://localhost:1/v1",
            "equal episodes": "--eval.n_samples 4",
            "a temperature twice": "--eval.temperatures 1 1",
            "repetitions without a server": "--remote.retries 3",
            "samples of the environment's tasks": "--eval.max_samples 3",
            "a split of rows": "--eval.environment_split test",
            "a truncated distribution of one token": "--rollout.top_p 0.5",
            "the place of no adapter": "--model.serve merged",
            "sizes of no images": "--data.max_pixels 5",
        },
    ),
    "chat": (
        "model",
        {"the place of no adapter": "--model.serve adapter", "a misspelling": "--rollout.topp 0.9"},
    ),
    "train": (
        "--model model --data rows.jsonl --reward reward.py:score",
        {
            "a teacher's loss": "--loss distill",
            "imitation as the policy loss": "--loss sft --supervised.data rows.jsonl",
            "an advantage for each reward": "--reward none --env frozen_lake --data none --executor multi_turn "
            "--rollout.max_length 2048 --steps 1 --estimator gdpo",
            "one sample for a group's estimator": "--estimator grpo --rollout.n_samples_per_prompt 1",
            "a filter of samples older than any": "--rollout.filters drop_stale --steps 2",
            "a critic that warms up in all steps": "--estimator gae --critic.warmup_steps 2 --steps 2",
            "an environment for one turn": "--env frozen_lake --executor single_turn",
            "a slow adapter": "--actor.adapter lora --actor.adam.lr 1e-6",
            "sleep beside rollouts ahead": "--runtime.sleep always --rollout.max_staleness 1",
            "tokens' rewards of one number": "--reward none --executor multi_turn --env frozen_lake",
            "dtypes that do not go together": "--backend.torch.compute_dtype float32 --model.dtype bfloat16",
            "dtypes of ranks that do not go together": "--backend deepspeed --backend.deepspeed.compute_dtype float32 "
            "--model.dtype bfloat16",
            "dtypes of shared weights that do not go together": "--backend fsdp --backend.fsdp.compute_dtype float32 "
            "--model.dtype bfloat16",
        },
    ),
}
OTHER = {
    "eval of nothing": "eval --check",
    "eval without tasks": "eval model --check",
    "eval without scores": "eval model --data rows.jsonl --check",
    "eval of long episodes": "eval model --env frozen_lake --check",
    "eval of a nameless model": "eval --url http://localhost:1/v1 --data rows.jsonl --reward reward.py:score --check",
    "eval of a server with an engine": "eval --url http://localhost:1/v1 --model-name m --data rows.jsonl "
    "--reward reward.py:score --engine embedded --check",
    "eval of a server by templates": "eval --url http://localhost:1/v1 --model-name m --data rows.jsonl "
    "--reward reward.py:score --data.chat_template_kwargs.a 1 --check",
    "columns of no data": "eval model --env frozen_lake --rollout.max_length 500 --data.prompt_key q --check",
    "chat with a dry run": "chat model --dry-run",
    "images of a text model": "plan model --image-tokens 5",
    "a spread of no lengths": "plan model --response-spread 1",
    "a plan without a model": "plan nowhere",
    "tokens without a model": "data check rows.jsonl --max-prompt-tokens 99",
    "conversations and a template": "data check chats.jsonl --messages-key messages --template {prompt}",
    "rows with another column": "data check asked.jsonl",
    "a system prompt of plain text": "data check rows.jsonl --system-prompt x",
    "normalization without being asked": "serve-rm model --mean 3",
    "a part of no steps": "serve-rm model --split x",
    "a misspelled option of an environment that is shown": "env show frozen_lake --env.frozen_lake.siz 4",
    "tools of no tool": "env show tools",
    "tools of no tool, checked": "env check tools",
    "no such server": "serve-rm model --auth false --host 0.0.0.0",
}
STARTED = {
    "sft of other columns": "sft --data asked.jsonl",
    "sft of long rows": "sft --data chats.jsonl --data.max_length 8",
    "generate with a system prompt": "generate --data rows.jsonl --data.system_prompt x --rollout.max_new_tokens 2",
}


def over(common, words):
    """Return the words of a case behind the common ones, of which those are left out that it sets itself."""
    for flag in (word for word in words if word.startswith("--")):
        common = without(common, flag)
    return [*common, *words]


CASES = {
    f"{command}: {name}": over(shlex.split(f"{command} {common}"), shlex.split(f"{words} --check"))
    for command, (common, cases) in CHECKED.items()
    for name, words in cases.items()
}
CASES |= {name: shlex.split(words) for name, words in OTHER.items()}


def test_places_name_cases_that_are_here():
    assert set(FOLLOWED.values()) <= set(CASES)


@pytest.fixture(scope="module")
def checked_in(tmp_path_factory):
    """Folder of the commands that are checked, whose model has no weights."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(SHAPE))
    return filled(folder)


@pytest.fixture(scope="module")
def started_in(tmp_path_factory):
    """Folder of the commands that are started."""
    folder = tmp_path_factory.mktemp("started")
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    return filled(folder)


def filled(folder):
    for name, rows in FILES.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "reward.py").write_text(REWARD)
    return folder


@pytest.fixture
def error_of(monkeypatch, capsys):
    """Returns what a command says when it fails, and None when it does what it was told without a warning."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    known = {}

    def run(words):
        key = tuple(words)
        if key not in known:
            code = main(list(words))
            printed = capsys.readouterr()
            warned = [line for line in printed.err.splitlines() if line.startswith("warning: ")]
            said = printed.out + printed.err if code else "\n".join(warned)
            known[key] = re.sub(r"^(?:error|warning): ", "", said, flags=re.MULTILINE) or None
        return known[key]

    return run


def with_model(words):
    return words if "--model" in words or words[0] in ("eval", "chat") else [*words, *MODEL]


MODEL = ("--model", "model")
SMALL = ["--steps", "1", "--train.batch_size", "2", *QUIET]


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
def test_following_the_advice_of_a_start_gets_further(started_in, error_of, name, monkeypatch):
    monkeypatch.chdir(started_in)
    number = itertools.count()

    def start(words):
        """Each attempt in a folder of its own, since a started run is not begun twice."""
        small = SMALL if words[0] == "sft" else ["--log.progress", "off"]
        return error_of([*words, *small, "--output", f"{name}-{next(number)}"])

    assert require_progress(start, with_model(shlex.split(STARTED[name])), VALUES)


@pytest.mark.parametrize("name", CASES)
def test_following_the_advice_of_a_command_gets_further(checked_in, error_of, name, monkeypatch):
    monkeypatch.chdir(checked_in)
    words = with_model(CASES[name]) if CASES[name][0] in CHECKED else CASES[name]

    assert require_progress(error_of, words, VALUES), error_of(words)
    for place in (place for place, case in FOLLOWED.items() if case == name):
        raised = [one for one in raised_messages() if one.place == place]
        assert any(one.says(error_of(words)) for one in raised), (place, error_of(words))
