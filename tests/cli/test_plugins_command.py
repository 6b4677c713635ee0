import json
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rlhf_cli import main as main_module
from rlhf_cli.plugins_command import kind_word
from rlhf_core import Component, PluginError, Registered
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.plugins import Candidate, FailedPlugin, empty


@pytest.fixture
def with_plugins(monkeypatch):
    """Run the command line with a given set of plugins instead of the installed ones."""

    def use(plugins):
        monkeypatch.setattr(main_module.plugin_loader, "load", lambda: plugins)
        return plugins

    return use


def test_every_component_is_a_row(rlhf):
    code, out, _ = rlhf("plugins", "--json")

    rows = json.loads(out)
    assert code == 0
    assert {row["status"] for row in rows} == {"ok"}
    (row,) = [row for row in rows if row["component"] == "gae"]
    assert (row["plugin"], row["kind"], row["distribution"]) == (
        "algorithms",
        "advantage_estimator",
        "rlhf-plugin-algorithms",
    )
    assert row["version"]
    assert row["summary"]


def test_the_table_has_every_component(rlhf):
    code, out, _ = rlhf("plugins")

    assert code == 0
    assert all(
        name in out
        for name in ("plugin", "reinforce_baseline", "rlhf-plugin-algorithms", "single_turn")
    )


def test_a_narrow_terminal_shows_whole_names_and_summaries(rlhf, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    _, out, _ = rlhf("plugins", "--kind", "is_correction")

    lines = re.sub("\x1b\\[[0-9;]*m", "", out).splitlines()
    assert lines[0] == "is_correction"
    assert all(len(line) <= 80 for line in lines)
    assert "…" not in out
    assert any(line.split()[:2] == ["seq_mask_tis", "algorithms"] for line in lines)


@pytest.mark.parametrize("text", ["TIS", "truncated"])
def test_rows_can_be_filtered_by_what_they_say(rlhf, text):
    _, out, _ = rlhf("plugins", "--filter", text, "--json")

    assert "tis" in {row["component"] for row in json.loads(out)}
    assert "gae" not in {row["component"] for row in json.loads(out)}


def test_a_filter_that_nothing_passes_says_so(rlhf):
    assert rlhf("plugins", "--filter", "no such words") == (
        0,
        "nothing that is installed has this; rlhf plugins lists all\n",
        "",
    )


def test_rows_can_be_limited_to_a_kind(rlhf):
    _, out, _ = rlhf("plugins", "--kind", "policy_loss", "--json")

    assert {row["kind"] for row in json.loads(out)} == {"policy_loss"}


def test_an_unknown_kind_lists_the_kinds(rlhf):
    code, _, err = rlhf("plugins", "--kind", "loss")

    assert code == 2
    assert (
        "--kind loss: expected one of data_source, prompt_sampler, rollout_executor, reward," in err
    )


def test_kinds_are_hooks_in_the_singular():
    words = [kind_word(hook) for hook in COMPONENT_HOOKS]

    assert {"policy_loss", "preference_loss", "is_correction", "train_backend", "command"} <= set(
        words
    )
    assert not [word for word in words if word.endswith("e_s") or word.startswith("rlhf")]


def test_failures_are_rows_and_strict_makes_them_an_error(rlhf, with_plugins):
    plugins = with_plugins(empty())
    plugins.failed.append(FailedPlugin("acme", "rlhf-plugin-acme 1.0", ImportError("no module x")))

    code, out, _ = rlhf("plugins", "--json")
    assert code == 0
    assert json.loads(out)[0]["status"] == "failed: no module x"
    assert json.loads(out)[0]["version"] == "1.0"

    code, out, err = rlhf("plugins", "--strict")
    assert code == 1
    assert "failed, see below" in out
    assert "acme (rlhf-plugin-acme 1.0) cannot be used:\n  ImportError: no module x\n" in out
    assert "1 plugin(s) could not be loaded: acme" in err


def test_strict_counts_a_package_without_an_entry_point(rlhf, with_plugins, monkeypatch):
    with_plugins(empty())
    lost = FailedPlugin("lost", "rlhf-plugin-lost 1.0", PluginError("it has no entry point"))
    monkeypatch.setattr("rlhf_cli.plugins_command.unregistered", lambda: [lost])

    code, out, err = rlhf("plugins", "--strict")

    assert code == 1
    assert "it has no entry point" in out
    assert "1 plugin(s) could not be loaded: lost" in err


def test_show_tells_everything_of_a_component(rlhf):
    code, out, _ = rlhf("plugins", "show", "gae")

    assert code == 0
    assert "algorithms:gae  (advantage estimator, rlhf-plugin-algorithms" in out
    assert "needs: values" in out
    assert "lambda_ NUMBER (default 0.95)" in out
    file, _, line = out.partition("source: ")[2].partition("\n")[0].rpartition(":")
    assert file.endswith("rlhf_plugin_algorithms/advantages/gae.py")
    assert Path(file).read_text().splitlines()[int(line) - 1] == "class GaeEstimator:"


def test_show_finds_qualified_names_and_aliases(rlhf):
    assert "algorithms:group_norm" in rlhf("plugins", "show", "grpo")[1]
    assert "algorithms:ppo" in rlhf("plugins", "show", "algorithms:ppo")[1]


def test_show_of_nothing_suggests(rlhf):
    code, _, err = rlhf("plugins", "show", "reinforce_baselin")

    assert code == 2
    assert (
        "no installed plugin has a component 'reinforce_baselin'. Did you mean 'reinforce_baseline'?"
        in err
    )


def test_a_plugins_command_gets_its_words_and_gives_the_exit_code(rlhf, with_plugins):
    plugins = with_plugins(empty())
    seen = []

    def factory(arguments):
        seen.append(arguments)
        return 7

    component = Component(name="greet", factory=factory, summary="Say hello.")
    plugins.registries["rlhf_commands"].add(Registered(component, "acme"))

    assert rlhf("greet", "--name", "you", "-x", "more")[0] == 7
    assert seen == [["--name", "you", "-x", "more"]]
    assert "Say hello. (acme)" in rlhf("--help")[1]


def test_a_plugins_command_of_two_words_is_typed_with_a_hyphen(rlhf, with_plugins):
    plugins = with_plugins(empty())
    component = Component(name="say_hello", factory=lambda arguments: 5, summary="Say hello.")
    plugins.registries["rlhf_commands"].add(Registered(component, "acme"))

    assert rlhf("say-hello")[0] == 5


def leaves_with_words(arguments):
    sys.exit("no such word: x")


def test_a_plugins_command_that_exits_with_words_has_failed(rlhf, with_plugins):
    component = Component(name="speak", factory=leaves_with_words, summary="Speak.")
    with_plugins(empty()).registries["rlhf_commands"].add(Registered(component, "acme"))

    code, _, err = rlhf("speak")

    assert code == 1
    assert err.strip() == "no such word: x"


@pytest.mark.parametrize("answer", ["no such word", 2.0, 256, -1])
def test_an_answer_that_is_no_exit_code_is_refused(rlhf, with_plugins, answer):
    component = Component(name="speak", factory=lambda arguments: answer, summary="Speak.")
    with_plugins(empty()).registries["rlhf_commands"].add(Registered(component, "acme"))

    code, _, err = rlhf("--errors", "json", "speak")

    assert code != 0
    found = json.loads(err.splitlines()[-1])
    assert found["code"] == "plugin/wrong-answer"
    assert f"it returned {answer!r}" in found["message"]


def test_a_plugins_command_that_raises_names_the_plugin(with_plugins):
    plugins = with_plugins(empty())

    def factory(arguments):
        raise ZeroDivisionError

    plugins.registries["rlhf_commands"].add(
        Registered(Component(name="boom", factory=factory), "acme")
    )

    with pytest.raises(ZeroDivisionError) as caught:
        main_module.main(["boom"])

    assert caught.value.__notes__ == ["in plugin acme (acme), command boom"]


def test_a_plugin_cannot_take_the_name_of_a_command_of_ours(rlhf, with_plugins):
    plugins = with_plugins(empty())
    entry = Registered(Component(name="train", factory=lambda arguments: 9), "acme")
    plugins.registries["rlhf_commands"].add(entry)

    code, _, err = rlhf("plugins", "--json")

    assert code == 0
    assert "the command acme:train (acme) is not available" in err


def test_a_misspelled_command_is_exit_code_two(rlhf):
    code, _, err = rlhf("trian")

    assert code == 2
    assert "train" in err
    assert "Traceback" not in err


def test_candidates_of_modules_have_an_origin():
    assert Candidate("m", EntryPoint("m", "m", "g"), None).origin == "module m"


def test_the_reason_of_a_failed_plugin_is_whole_and_says_where(rlhf, with_plugins):
    reason = "two lines\nand a long second one, " + "which no column of a table would hold " * 5
    plugins = with_plugins(empty())
    try:
        raise ValueError(reason)
    except ValueError as error:
        plugins.failed.append(FailedPlugin("acme", "rlhf-plugin-acme 1.0", error))

    _, out, _ = rlhf("plugins")

    assert "\n  ValueError: two lines\n" in out
    assert f"\n  {reason.splitlines()[1]}" in out
    assert f"raised in {__file__}:" in out


@pytest.mark.parametrize("name", ["acme", "rlhf-plugin-acme", "acme:my_loss"])
@pytest.mark.parametrize("words", [("plugins", "show"), ("check",)])
def test_what_is_asked_of_a_failed_plugin_is_answered_with_its_reason(
    rlhf, with_plugins, words, name
):
    plugins = with_plugins(empty())
    plugins.failed.append(FailedPlugin("acme", "rlhf-plugin-acme 1.0", ImportError("no module x")))

    code, _, err = rlhf(*words, name)

    assert code == 2
    assert "acme (rlhf-plugin-acme 1.0) cannot be used:\n  ImportError: no module x" in err
    assert "is called" not in err


def test_nothing_of_the_table_is_cut_off_where_a_program_reads_it(rlhf):
    _, out, _ = rlhf("plugins")

    assert "…" not in out


def test_observer_hooks_are_shown_by_the_name_of_their_plugin(rlhf):
    code, out, _ = rlhf("plugins", "show", "loggers")

    assert code == 0
    assert out.startswith("loggers  (observer hooks, rlhf-plugin-loggers ")
    assert "rlhf_step_end" in out
    assert "rlhf_plugin_loggers/__init__.py" in out
