import os
import subprocess
import sys

import pytest
from tests.deadlines import HANG_S

from rlhf_cli import train, training
from rlhf_core import ConfigError
from rlhf_core.contracts import RunResult
from rlhf_core.plugins import FailedPlugin, load
from rlhf_testing.errors import has_code

COMPLETE = ["--model", "./model", "--data", "rows.jsonl", "--reward", "reward.py:score"]


def test_switches_are_told_from_options():
    arguments = training.split_arguments(
        ["-c", "a.toml", "--seed", "1", "--config=b.toml", "--check", "--dry-run", "-h", "--resume"]
    )

    assert arguments.files == ("a.toml", "b.toml")
    assert arguments.options == ("--seed", "1", "--resume", "auto")
    assert (arguments.check, arguments.dry_run, arguments.help) == (True, True, True)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--resume"], ("--resume", "auto")),
        (["--resume", "--seed", "1"], ("--resume", "auto", "--seed", "1")),
        (["--resume", "runs/x"], ("--resume", "runs/x")),
        (["--resume=auto"], ("--resume=auto",)),
    ],
)
def test_a_bare_resume_means_the_newest_checkpoint(words, options):
    assert training.split_arguments(words).options == options


@pytest.mark.parametrize("words", [["-c"], ["-c", "--seed", "1"], ["--config"]])
def test_config_needs_a_file(words):
    with pytest.raises(ConfigError, check=has_code("usage/not-toml")):
        training.split_arguments(words)


def test_a_valid_configuration_is_valid(folder, rlhf):
    named = [*COMPLETE, "--engine", "embedded", "--check"]
    assert rlhf("train", *named) == (0, "The configuration is valid.\n", "")


def test_a_check_says_which_engine_is_chosen(folder, rlhf):
    code, out, err = rlhf("train", *COMPLETE, "--check")
    assert (code, out) == (0, "The configuration is valid.\n")
    assert err.startswith("engine ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("switch", ["--check", "--dry-run"])
def test_the_function_of_an_agent_is_looked_for(folder, rlhf, switch):
    (folder / "agent.py").write_text("def play(context):\n    return 1.0\n")
    words = [*COMPLETE, "--executor", "endpoint", "--rollout.max_length", "4096", switch]

    found = rlhf("train", *words, "--rollout.endpoint.agent", "agent.py:play")
    code, _, missing = rlhf("train", *words, "--rollout.endpoint.agent", "agent.py:plays")

    assert found[0] == 0
    assert "plays" not in found[2]
    assert code == (2 if switch == "--check" else 0)
    assert "agent.py" in missing
    assert "plays" in missing


def test_later_files_and_flags_win(folder, rlhf):
    (folder / "a.toml").write_text(
        "[train]\nsteps = 1\nbatch_size = 8\n[rollout]\nbatch_size = 4\n"
    )
    (folder / "b.toml").write_text("[train]\nsteps = 2\n")

    code, out, err = rlhf("train", "-c", "a.toml", "-c", "b.toml", *COMPLETE, "--dry-run")
    assert (code, err) == (0, "")
    assert "steps: 2" in out
    assert "4 prompts x 8 samples" in out

    _, out, _ = rlhf("train", "-c", "a.toml", *COMPLETE, "--dry-run", "--steps", "9")
    assert "steps: 9" in out


def test_a_dry_run_says_what_moves_while_the_engine_generates(folder, rlhf):
    code, out, err = rlhf("train", *COMPLETE, "--dry-run", "--runtime.sleep", "always")

    assert (code, err) == (0, "")
    assert "the engine sleeps while roles compute; out while it generates: policy" in out


def test_a_dry_run_needs_no_weights_and_says_so(folder, rlhf):
    (folder / "rows.jsonl").unlink()

    code, out, err = rlhf("train", *COMPLETE, "--dry-run", "--model", "org/model")[0:3]
    assert code == 2  # the model is given twice

    words = [*COMPLETE, "--dry-run"]
    words[1] = "./not/there"
    code, out, err = rlhf("train", *words)
    assert code == 0
    assert "algorithms:reinforce_baseline (rlhf-plugin-algorithms" in out
    assert "not ready to run: --model ./not/there: expected a Transformers folder" in err
    assert "not ready to run: --data rows.jsonl: there is no such file" in err


def test_help_follows_the_selection(folder, rlhf):
    _, out, err = rlhf("train", "--help")
    assert err == ""
    assert "--algo.advantage.reinforce_baseline" in out
    assert "--algo.advantage.gae.gamma" not in out

    code, out, _ = rlhf("train", "--estimator", "gae", "--help")
    assert code == 0
    assert "--algo.advantage.gae.gamma" in out
    assert "rlhf-plugin-algorithms" in out
    assert "also installed: " in out


def test_help_survives_what_cannot_be_selected(folder, rlhf):
    code, out, _ = rlhf("train", "--estimator", "nope", "--help")

    assert code == 0
    assert "note: --estimator nope: no advantage estimator 'nope'" in out
    assert "--actor.adam.lr" in out


def test_what_a_file_says_in_vain_is_listed(folder, rlhf, monkeypatch):
    (folder / "run.toml").write_text("[algo.advantage.gae]\ngamma = 0.9\n")
    seen = run_instead(monkeypatch, "finished")

    code, _, err = rlhf("train", "-c", "run.toml", *COMPLETE)

    assert code == 0
    assert "not used by this run: algo.advantage.gae" in err
    assert seen[0].unused == ("algo.advantage.gae",)


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1), ("interrupted", 130)])
def test_the_exit_code_tells_how_the_run_ended(folder, rlhf, monkeypatch, status, code):
    run_instead(monkeypatch, status)

    found, _, err = rlhf("train", *COMPLETE)

    assert found == code
    assert ("what happened" in err) == (status != "finished")


def test_an_interrupt_is_130(folder, rlhf, monkeypatch):
    def interrupt(resolved, plugins):
        raise KeyboardInterrupt

    replace_run(monkeypatch, interrupt)

    assert rlhf("train", *COMPLETE)[0] == 130


def test_plugins_that_failed_are_a_warning_each_and_an_error_if_named(folder, capsys):
    plugins = load("")
    plugins.failed.append(
        FailedPlugin("acme", "rlhf-plugin-acme 1.0", ImportError("no module x\nmore"))
    )

    named = [*COMPLETE, "--engine", "embedded", "--check"]
    assert train.execute(named, plugins) == 0
    err = capsys.readouterr().err
    assert err == "warning: plugin 'acme' (rlhf-plugin-acme 1.0) is not usable: no module x\n"

    with pytest.raises(
        ConfigError,
        match=r"(?s)'acme:x'.*'acme'.*no module x",
        check=has_code("plugin/unknown-component"),
    ):
        train.execute([*COMPLETE, "--loss", "acme:x"], plugins)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["plugins"],
        ["new", "--help"],
        ["train", "--steps", "0", *COMPLETE],
    ],
    ids=["help", "version", "train help", "plugins", "new help", "bad option"],
)
def test_nothing_heavy_is_imported(folder, words):
    """Importing torch alone would take longer than all of these may."""
    code = (
        "import sys\nfrom rlhf_cli.main import main\n"
        f"code = main({words!r})\n"
        "heavy = {'torch', 'transformers', 'datasets', 'ray', 'vllm', 'deepspeed', 'matplotlib'}\n"
        "heavy |= {'numpy', 'jaxtyping', 'asyncio', 'ssl', 'packaging.requirements'}\n"
        "print('imported:', *sorted(heavy & sys.modules.keys()), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_S
    )

    assert done.stderr.splitlines()[-1].strip() == "imported:"
    assert done.returncode == (2 if "--steps" in words else 0)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train", *COMPLETE, "--dry-run"], 0),
        (["train", *COMPLETE, "--data", "nobody/nothing"], 2),
        (["train", "--model", "nobody/nothing", *COMPLETE[2:]], 2),
    ],
    ids=["dry run", "a set that is nowhere", "a model that is nowhere"],
)
def test_torch_is_not_imported_for_what_needs_no_model(folder, words, code):
    program = (
        f"import sys\nfrom rlhf_cli.main import main\ncode = main({words!r})\n"
        "print('imported:', *sorted({'torch', 'transformers'} & sys.modules.keys()), file=sys.stderr)\n"
        "sys.exit(code)"
    )
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        env=os.environ | nowhere,
    )

    assert (done.stderr.splitlines()[-1].strip(), done.returncode) == ("imported:", code)
    assert ("127.0.0.1" in done.stderr) == (code == 2)


def test_the_list_of_commands_is_no_reason_to_build_an_options_model():
    """Pydantic builds one at its first use; the first of all also has it look for plugins of its own."""
    code = (
        "import sys\nfrom rlhf_cli.main import main\nmain(['--help'])\n"
        "from rlhf_core import Config\n"
        "models = [Config]\n"
        "for model in models: models += model.__subclasses__()\n"
        "built = [m.__name__ for m in models[1:] if m.__pydantic_complete__ and m.model_fields]\n"
        "print('built:', len(models) > 50, *built, file=sys.stderr)\n"
        "foreign = [name for name in sys.modules if not name.startswith('rlhf')]\n"
        "print('foreign:', len(foreign), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S
    )

    built, foreign = done.stderr.splitlines()[-2:]
    assert built == "built: True"
    # Modules of Python and of libraries, each of which takes time in each process that a run starts.
    assert int(foreign.split()[1]) <= 360


def run_instead(monkeypatch, status):
    """Replace the training loop by one that ends at once; returns what it was called with."""
    seen = []

    def run(resolved, plugins):
        seen.append(resolved)
        return RunResult(status=status, steps=0, seconds=0.0, message="what happened")

    replace_run(monkeypatch, run)
    return seen


def replace_run(monkeypatch, run):
    import types

    module = types.ModuleType("rlhf_trainer.loop.run")
    module.run = run
    monkeypatch.setitem(sys.modules, "rlhf_trainer.loop.run", module)


@pytest.mark.parametrize("switch", ["--check", "--dry-run", ""])
def test_a_module_that_is_not_installed_is_named_before_anything_starts(folder, rlhf, switch):
    (folder / "mine.py").write_text(
        "import not_there_at_all\n\n\ndef metric(episodes):\n    return {}\n"
    )
    words = [*COMPLETE, "--eval.fraction", "0.5", "--eval.metrics", "mine.py:metric"]
    words += filter(None, [switch])

    code, _, said = rlhf("train", *words)

    assert "--eval.metrics metric (mine.py) imports not_there_at_all, not installed here" in said
    assert "pip install not_there_at_all" in said
    assert code == (0 if switch else 1)
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("switch", ["--check", "--dry-run"])
def test_a_parameter_that_no_column_has_is_named(folder, rlhf, switch):
    (folder / "reward.py").write_text("def score(response, answer_key):\n    return 1.0\n")

    _, _, err = rlhf("train", *COMPLETE, "--engine", "embedded", switch)

    assert (
        "score reads the column 'answer_key', which no row of rows.jsonl has. Did you mean 'answer'"
        in err
    )
