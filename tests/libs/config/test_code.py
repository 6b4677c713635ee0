"""Code references through the whole configuration."""

import sys

import pytest

from rlhf_config import Layer, parse_flags, read_toml, resolve, write_toml
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

SOURCE = """
from pydantic import Field
from rlhf_core import Component, Config


def score(prompt, response):
    return len(response)


def plain(batch):
    return batch


class Options(Config):
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount")


class MyEstimator:
    def __init__(self, config: Options):
        self.config = config


class NeedsMore(MyEstimator):
    pass


needs_values = Component(name="x", factory=NeedsMore, config=Options, needs={"mine:no_such_thing"})
"""


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path / "mine.py"


RUN = ["--model", "m", "--data", "d"]


def test_a_reward_function_is_wrapped_and_its_section_is_named_after_it(resolved):
    result = resolved(
        *RUN,
        "--reward",
        "mine.py:score",
        "--reward.score.weight=2",
        "--reward.score.batch",
        enough=False,
    )

    (chosen,) = result.selections["reward.use"]
    assert chosen.registered.name == "code"
    assert chosen.section == "reward.score"
    assert (chosen.options.path, chosen.options.batch, chosen.reward.weight) == (
        "mine.py:score",
        True,
        2.0,
    )
    assert result.tree["reward"]["use"] == ["mine.py:score"]
    assert "path" not in result.tree["reward"]["score"]


def test_several_functions_are_several_rewards(resolved, file):
    file.write_text(SOURCE + "\n\ndef other(response):\n    return 1\n")

    result = resolved(*RUN, "--reward", "mine.py:score", "mine.py:other", "pattern", enough=False)

    sections = [chosen.section for chosen in result.selections["reward.use"]]
    assert sections == ["reward.score", "reward.other", "reward.pattern"]


def test_of_names_that_differ_in_case_alone_each_is_found_and_both_are_told(resolved, tmp_path):
    path = tmp_path / "both.py"
    path.write_text(
        "class Ada:\n    def score(self, requests): return [1.0]\n\n\ndef ada(response): return 0.0\n"
    )

    for name in ("Ada", "ada"):
        chosen = resolved("--reward", f"{path}:{name}").selections["reward.use"][-1]
        assert chosen.options.path == f"{path}:{name}"
    with pytest.raises(ConfigError, check=has_code("config/section-taken")) as caught:
        resolved("--reward", f"{path}:ada", f"{path}:Ada")

    assert "Choose one of them, or rename one in its file" in str(caught.value)


def test_functions_of_one_name_cannot_share_a_section(resolved, file):
    (file.parent / "more.py").write_text("def score(response): return 1")

    with pytest.raises(ConfigError, check=has_code("config/section-taken")):
        resolved(*RUN, "--reward", "mine.py:score", "more.py:score", enough=False)


def test_the_path_of_a_wrapped_function_is_said_once(resolved):
    with pytest.raises(ConfigError, check=has_code("config/function-twice")):
        resolved(
            *RUN, "--reward", "mine.py:score", "--reward.score.path", "other.py:f", enough=False
        )


def test_an_estimator_of_ones_own_takes_its_options(resolved):
    result = resolved(
        "--estimator", "mine.py:MyEstimator", "--algo.advantage.my_estimator.gamma", "0.5"
    )

    chosen = result.one("algo.advantage.estimator")
    assert chosen.registered.build(chosen.options).config.gamma == 0.5
    assert result.tree["algo"]["advantage"]["estimator"] == "mine.py:MyEstimator"


def test_options_of_ones_own_estimator_are_checked(resolved):
    with pytest.raises(
        ConfigError,
        match=r"my_estimator.gamma: expected at most 1",
        check=has_code("config/out-of-range"),
    ):
        resolved("--estimator", "mine.py:MyEstimator", "--algo.advantage.my_estimator.gamma", "2")
    with pytest.raises(ConfigError, match="Did you mean", check=has_code("config/unknown-option")):
        resolved("--estimator", "mine.py:MyEstimator", "--algo.advantage.my_estimator.gama", "1")


def test_needs_of_ones_own_component_count(resolved):
    with pytest.raises(
        ConfigError, match="mine:no_such_thing", check=has_code("config/missing-capability")
    ):
        resolved("--estimator", "mine.py:needs_values")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--reward", "gone.py:f"], "--reward gone.py:f: cannot read 'gone.py'"),
        (["--reward", "mine.py:scor"], "Did you mean 'score'"),
        (["--reward", "mine.py"], "expected FILE.py:NAME"),
        (["--reward", "pattern", "--env", "mine.py:plain"], "is a function; this kind"),
    ],
)
def test_references_to_nothing_are_refused(resolved, words, part):
    with pytest.raises(ConfigError) as caught:
        resolved(*RUN, *words, enough=False)

    assert part in str(caught.value)


def test_the_files_hash_is_recorded(resolved, plugins, tmp_path):
    result = resolved(*RUN, "--reward", "mine.py:score", enough=False)
    write_toml(result, tmp_path / "config.toml")

    header = (tmp_path / "config.toml").read_text().partition("\n\n")[0]
    assert "mine.py:score: file, sha256 " in header
    assert plugins.loaded["mine.py"].startswith("file, sha256 ")


def test_what_a_run_with_code_records_repeats_it(resolved, plugins, tmp_path):
    words = [
        "--reward",
        "mine.py:score",
        "--reward.score.weight",
        "3",
        "--estimator",
        "mine.py:MyEstimator",
    ]
    first = resolved(*RUN, *words, enough=False)
    write_toml(first, tmp_path / "config.toml")

    again = resolve([read_toml(tmp_path / "config.toml")], plugins)

    assert again.tree == first.tree
    (chosen,) = again.selections["reward.use"]
    assert (chosen.options.path, chosen.reward.weight) == ("mine.py:score", 3.0)


def test_the_section_of_a_replaced_function_may_wait_in_a_file(resolved, plugins):
    """Overriding the reward of a file must not turn the file's options into unknown ones."""
    values = {"reward": {"use": ["mine.py:score"], "score": {"weight": 2.0}}}

    result = resolved(files=[Layer.of(values, "run.toml"), parse_flags(["--reward", "pattern"])])

    assert result.unused == ("reward.score",)
