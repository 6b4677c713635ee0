"""README.md, CONTRIBUTING.md and docs/ do what they say: commands, TOML, Python, links, the README's plugin."""

import asyncio
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch
import typer.main

from rlhf_cli.errors import split_form
from rlhf_cli.main import command_tree, main
from rlhf_cli.train import DEFAULTS
from rlhf_cli.training import layers_of, split_arguments
from rlhf_config import Layer, Origin, render_help, resolve
from rlhf_core import Config
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import Action, RewardBatch, Stop, Task, Uid
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_testing.tiny import write_tiny_model

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/algorithms").glob("*.md")),
    *sorted((ROOT / "docs/options").glob("*.md")),
    *sorted(ROOT.glob("c*/README.md")),  # core, cli and contrib
    *sorted(ROOT.glob("examples/README.md")),
    *(
        path
        for family in ("libs", "plugins", "contrib", "examples")
        for path in sorted(ROOT.glob(f"{family}/*/README.md"))
    ),
]
"""Pages of the repository. Those of docs/site are the site's alone, which checks its links itself."""

BASE = {
    "model": {"path": "my_model"},
    "data": {"train": ["train.jsonl"]},
    "reward": {"use": ["exact_match"]},
}
"""What a run needs besides what a snippet shows."""


def blocks_of(page: Path, language: str) -> list[str]:
    """The fenced code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[list[str]]:
    """The commands of a page, one list of words each, without ``.venv/bin/``, variables in front, and comments. A line
    that ends in a backslash goes on in the next."""
    blocks = [block.replace("\\\n", " ") for block in blocks_of(page, "bash")]
    lines = [line for block in blocks for line in block.splitlines() if line]
    commands = [shlex.split(line.replace(".venv/bin/", ""), comments=True) for line in lines]
    variables = re.compile(r"[A-Z_]+=")
    return [[*itertools.dropwhile(variables.match, words)] for words in commands if words]


ALL_COMMANDS = [(page, words) for page in PAGES for words in commands_of(page)]
RLHF = [(page, split_form(words[1:])[1]) for page, words in ALL_COMMANDS if words[0] == "rlhf"]
TRAIN = [(page, words[1:]) for page, words in RLHF if words[0] == "train"]
OTHERS = [(page, words) for page, words in RLHF if words[0] != "train"]
TOML = [(page, block) for page in PAGES for block in blocks_of(page, "toml")]
RUN_TOML = [(page, block) for page, block in TOML if "[project]" not in block]
PYTHON = [(page, block) for page in PAGES for block in blocks_of(page, "python")]


def label(value: object) -> str:
    if isinstance(value, Path):
        return str(value.relative_to(ROOT))
    return " ".join(value) if isinstance(value, list) else str(value).splitlines()[0]


@pytest.fixture(scope="module")
def median(tmp_path_factory):
    """The README's plugin, installed into a folder of its own."""
    source = tmp_path_factory.mktemp("median")
    target = tmp_path_factory.mktemp("installed")
    (pyproject,) = (block for page, block in TOML if page == README)
    (module,) = (block for page, block in PYTHON if page == README and "hookimpl" in block)
    (source / "pyproject.toml").write_text(pyproject)
    (source / "rlhf_plugin_median.py").write_text(module)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True)
    return target


@pytest.fixture(scope="module")
def plugins(median):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(median))
        yield plugin_loader.load("")


@pytest.fixture(scope="module")
def functions():
    """Names of files and of the functions in them that the pages speak of."""
    text = "\n".join(page.read_text() for page in PAGES)
    return set(re.findall(r"([a-z_]+\.py):([A-Za-z_]+)\b", text))


@pytest.fixture
def folder(tmp_path, monkeypatch, functions):
    """A working directory with the examples, and the Python files that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    for file, name in functions:
        block = next((b for _, b in PYTHON if re.search(rf"(def|class) {name}\b", b)), None)
        (tmp_path / file).write_text(block or f"def {name}(response):\n    return 0.0\n")
    (tmp_path / "run.toml").write_text(tomli_w.dumps(BASE))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def layer(values: dict) -> Layer:
    leaves = [(f"{a}.{b}") for a, section in values.items() for b in section]
    return Layer(values, {path: Origin(path) for path in leaves})


def left_out(words: list[str], files: list[str]) -> dict:
    """What a run needs besides what a page shows of it. An environment brings its own tasks and rewards."""
    has_tasks = "--env" in words or any(
        "env" in tomllib.loads(Path(file).read_text()) for file in files
    )
    missing = {"model": BASE["model"]} if has_tasks else dict(BASE)
    is_part = not files and "--model" not in words and "--rollout.max_length" not in words
    if is_part and "--executor" in words:
        missing["rollout"] = {"max_length": 4096}  # The run's own, like its model.
    return missing


def resolve_words(words: list[str], plugins) -> None:
    arguments = split_arguments([word for word in words if word != "..."])
    files = [str(ROOT / name) for name in arguments.files if (ROOT / name).exists()]
    defaults, *others = layers_of(
        type(arguments)(files=tuple(files), options=arguments.options), DEFAULTS
    )
    missing = left_out(words, files)
    if any("source" in other.values.get("data", {}) for other in others):
        missing.pop("data", None)
    layers = [defaults, layer(missing), *others]
    if arguments.help:
        assert "note:" not in render_help(layers, plugins)
    else:
        resolve(layers, plugins)


def test_the_pages_have_something_to_check():
    assert len(TRAIN) > 5
    assert len(OTHERS) > 5
    assert len(RUN_TOML) > 3
    assert len(PYTHON) > 5


@pytest.mark.parametrize(("page", "words"), TRAIN, ids=label)
def test_a_training_command_resolves(page, words, plugins, folder):
    """With what stands in its file, where the repository has that file."""
    resolve_words(words[1:] if words[0] == "train" else words, plugins)


@pytest.mark.parametrize(("page", "words"), OTHERS, ids=label)
def test_a_command_parses(page, words, plugins):
    command = typer.main.get_command(command_tree(plugins, words))
    rest = list(words)
    while rest and (sub := getattr(command, "commands", {}).get(rest[0])):
        command = sub
        rest = rest[1:]

    assert command.name == [word for word in words if word not in rest][-1]
    command.make_context(command.name, rest)  # raises when an argument or option does not fit


@pytest.mark.parametrize(
    ("page", "words"), [pair for pair in ALL_COMMANDS if pair[1][0] == "make"], ids=label
)
def test_a_make_target_exists(page, words):
    assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "words"), [pair for pair in ALL_COMMANDS if pair[1][0].startswith("python")], ids=label
)
def test_a_script_exists(page, words):
    assert words[1] == "-m" or (ROOT / words[1]).is_file()


def test_the_plain_commands_are_those_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    text = (
        makefile.replace("$(BIN)/", "").replace("$(PYTHON)", "python3").replace("$(VENV)", ".venv")
    )
    plain = next(block for block in blocks_of(README, "bash") if "pip install" in block)

    missing = [
        line for line in plain.splitlines() if line not in text and line != ". .venv/bin/activate"
    ]

    assert missing == []


@pytest.mark.parametrize(("page", "block"), RUN_TOML, ids=label)
def test_a_configuration_resolves(page, block, plugins, folder):
    (folder / "run.toml").write_text(block)

    resolve_words(["-c", str(folder / "run.toml")], plugins)


@pytest.mark.parametrize(("page", "block"), PYTHON, ids=label)
def test_a_python_block_runs(page, block, folder):
    exec(compile(block, page.name, "exec"), {"__name__": page.stem})


def test_the_tests_behind_the_promises_exist():
    table = README.read_text().partition("## Five promises")[2].partition("\n## ")[0]
    named = re.findall(r"`(test_\w+)` in \[[^]]*\]\(([^)]*)\)", table)

    assert len(named) >= 5
    assert [pair for pair in named if f"def {pair[0]}(" not in (ROOT / pair[1]).read_text()] == []


def test_the_table_of_kinds_is_complete(plugins):
    text = README.read_text().partition("## What is pluggable")[2]
    table = {
        hook: cells
        for hook, cells in re.findall(r"^\| [^|]* \| `(rlhf_\w+)` \|(.*)\|$", text, re.M)
    }
    assert list(table) == list(COMPONENT_HOOKS)

    for hook, cells in table.items():
        # `serve-rm` is what a person types; a component's name is a Python word.
        typed = re.findall(r"`([\w-]+)`", cells.rpartition("|")[2])
        shown = [name.replace("-", "_") for name in typed]
        ours = [
            name
            for entry in plugins.registries[hook]
            if entry.distribution is not None
            and (ROOT / "plugins" / entry.distribution.metadata["Name"]).is_dir()
            for name in (entry.name, *entry.component.aliases)
        ]
        assert shown == ours, hook


def names_in(page: str, name: str) -> dict:
    """What the block of a page defines that has ``name``."""
    (block,) = (b for path, b in PYTHON if path.name == page and name in b)
    namespace: dict = {"__name__": name}
    exec(compile(block, page, "exec"), namespace)
    return namespace


def test_the_reward_function_scores_as_its_page_says():
    score = names_in("rewards.md", "def score(")["score"]

    assert score("it is 51.", "51") == {"reward": 1.0, "has_number": True}
    assert score("it is 5", "51") == {"reward": 0.0, "has_number": True}
    assert score("no idea", "51") == {"reward": 0.0, "has_number": False}


def test_the_environment_of_the_page_plays_an_episode():
    make = names_in("writing-an-environment.md", "class GuessNumber")["GuessNumber"]

    async def play(*guesses):
        environment = make(Config())
        row = environment.tasks("train")[21]
        await environment.reset(Task(uid=Uid(0, 0), row=row), seed=5)
        secret = row["secret"]
        texts = [str(secret + guess) if isinstance(guess, int) else guess for guess in guesses]
        turns = enumerate(texts)
        results = [
            await environment.step(Action(text=text, token_ids=(), stop=Stop.EOS, turn=turn))
            for turn, text in turns
        ]
        await environment.close()
        return [(result.observation.text, dict(result.rewards), result.done) for result in results]

    assert asyncio.run(play(-1, 1, "what", 0)) == [
        (" higher:", {}, False),
        (" lower:", {}, False),
        (" a number:", {}, False),
        (None, {"found": 1.0}, True),
    ]


def test_the_readme_plugin_is_listed_and_refused_without_groups(plugins):
    entry = plugins.get("rlhf_advantage_estimators", "median_baseline")

    assert entry.qualified == "median:median_baseline"
    assert entry.origin == "rlhf-plugin-median 0.1.0"
    one = ["--estimator", "median_baseline", "--rollout.n_samples_per_prompt", "1"]
    with pytest.raises(ValueError, match="median_baseline needs at least 2"):
        resolve_words(one, plugins)


def test_the_readme_plugin_computes_reward_minus_median(plugins):
    rewards = torch.tensor([1.0, 0.0, 0.5, 2.0, 4.0, 9.0])
    mask = torch.tensor([[True, True], [True, False]] * 3)
    estimator = plugins.get("rlhf_advantage_estimators", "median_baseline").build()

    estimate = estimator(
        RewardBatch(
            token_rewards=torch.zeros(6, 2),
            rewards=rewards,
            action_mask=mask,
            group=torch.tensor([0, 0, 0, 1, 1, 1]),
            episode=torch.arange(6),
            turn=torch.zeros(6, 2, dtype=torch.int64),
            truncated=torch.zeros(6, dtype=torch.bool),
        )
    )

    # Medians 0.5 and 4; the second row of each pair has one action.
    expected = torch.tensor([[0.5, 0.5], [-0.5, 0], [0, 0], [-2, 0], [0, 0], [5, 0]])
    torch.testing.assert_close(estimate.advantages, expected)


@pytest.fixture
def small_run(folder):
    """Flags of a run of two steps on a tiny model."""
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:02d}=", "answer": f"{n:02d}"[::-1]} for n in range(8)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (folder / "share.py").write_text(
        "def share(response, answer):\n    return sum(a == b for a, b in zip(response, answer)) / 2\n"
    )
    text = """
model.path = "model"
data.train = ["train.jsonl"]
data.max_prompt_tokens = 8
rollout.batch_size = 4
rollout.n_samples_per_prompt = 4
rollout.max_new_tokens = 4
reward.use = ["share.py:share"]
train.steps = 2
runtime.local.threads = 1
"""
    (folder / "small.toml").write_text(text)
    return ["-c", "small.toml"]


def metrics_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_readme_plugin_trains(small_run, median, monkeypatch, folder, capfd):
    """As a user would: its package is installed, found, chosen by name, and recorded with its version."""
    monkeypatch.syspath_prepend(str(median))
    words = ["train", *small_run, "--estimator", "median_baseline", "--output", "runs/median"]

    assert main(words) == 0, capfd.readouterr().err

    assert [line["step"] for line in metrics_of(folder / "runs/median")] == [1, 2]
    assert "rlhf-plugin-median 0.1.0" in (folder / "runs/median/plugins.json").read_text()
    assert (
        'estimator = "median:median_baseline"' in (folder / "runs/median/config.toml").read_text()
    )
    assert main(["show", "runs/median", "--step", "1"]) == 0
    assert "response:" in capfd.readouterr().out


def test_the_file_of_the_readme_trains_like_its_package(
    small_run, median, monkeypatch, folder, capfd
):
    """The same numbers, with the KL penalty in the reward; and the file's needs hold without a package."""
    monkeypatch.syspath_prepend(str(median))
    penalty = ["--algo.kl.mode", "reward", "--algo.kl.coef", "0.5"]
    for name, output in (("median_baseline", "package"), ("my_file.py:MedianBaseline", "file")):
        words = ["train", *small_run, *penalty, "--estimator", name, "--output", output]
        assert main(words) == 0, capfd.readouterr().err

    package, file = (metrics_of(folder / output) for output in ("package", "file"))
    assert [line["metrics"] for line in package] == [line["metrics"] for line in file]
    one = ["--estimator", "my_file.py:MedianBaseline", "--rollout.n_samples_per_prompt", "1"]
    assert main(["train", *small_run, *one]) == 2
    assert "median_baseline needs at least 2" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words", [["median_baseline"], ["my_file.py:MedianBaseline", "--kind", "advantage_estimator"]]
)
def test_the_kit_has_nothing_to_say_of_the_readme_plugin(words, median, monkeypatch, folder, capfd):
    monkeypatch.syspath_prepend(str(median))

    assert main(["check", *words]) == 0, capfd.readouterr().out


def test_an_estimator_that_ignores_the_kl_penalty_ends_the_run(small_run, folder, capfd):
    """What this page's plugin once did in silence."""
    source = (folder / "my_file.py").read_text()
    ignoring = source.replace(
        "advantages_at_tokens(by_turn, batch)", "by_turn[:, :1] * batch.action_mask"
    )
    assert ignoring != source
    (folder / "ignoring.py").write_text(ignoring)
    words = ["train", *small_run, "--estimator", "ignoring.py:MedianBaseline"]
    penalty = ["--algo.kl.coef", "0.5", "--algo.kl.mode", "reward", "--output", "penalty"]

    assert main([*words, *penalty]) == 2

    (fix,) = re.findall(r"Set (--algo.kl.mode .*), or let", capfd.readouterr().err)
    in_loss = ["--algo.kl.coef", "0.5", *fix.split(), "--output", "loss"]
    assert main([*words, *in_loss]) == 2  # the default estimator has no gradient as a loss
    (further,) = re.findall(r"Set (--algo.kl.estimator \w+)", capfd.readouterr().err)
    assert main([*words, *in_loss, *further.split()]) == 0, capfd.readouterr().err


def test_the_examples_of_the_page_on_python_run(small_run, folder):
    (folder / "run.toml").write_text((folder / "small.toml").read_text())

    means = names_in("notebooks.md", "rlhf.train(")["main"]()
    result = names_in("notebooks.md", "rlhf.start(")["main"]({"output": "runs/steps"})

    assert len(means) == 10
    assert (result.status, result.steps) == ("finished", 2)
    assert result.metrics()[-1]["policy/lr"] == 1e-6


def test_the_line_of_facts_is_what_the_package_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = project["requires-python"].removeprefix(">=")
    major_and_minor = project["version"].rpartition(".")[0]

    facts = (
        f"Python {python} or later · [{project['license']}](LICENSE) · version {major_and_minor}"
    )
    assert f"\n{facts}\n" in README.read_text()
    assert "Apache License" in (ROOT / "LICENSE").read_text()
