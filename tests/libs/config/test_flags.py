import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_config import parse_flags
from rlhf_config.layers import leaves
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


def test_a_flag_takes_the_words_up_to_the_next_flag():
    layer = parse_flags(["--train.steps", "3", "--rollout.stop", "a", "b", "--data.chat"])

    assert layer.values == {
        "train": {"steps": ("3",)},
        "rollout": {"stop": ("a", "b")},
        "data": {"chat": ()},
    }


def test_an_equals_sign_gives_exactly_one_value():
    layer = parse_flags(["--data.template=--{q}=", "--train.steps=3"])

    assert layer.values == {"data": {"template": ("--{q}=",)}, "train": {"steps": ("3",)}}


def test_a_repeated_flag_appends_also_across_its_short_name():
    layer = parse_flags(["--data", "a.jsonl", "--seed", "1", "--data.train=b.jsonl"])

    assert layer.values["data"]["train"] == ("a.jsonl", "b.jsonl")


def test_short_names_stand_for_their_paths_and_messages_keep_them():
    layer = parse_flags(["--estimator", "gae"])

    assert layer.values == {"algo": {"advantage": {"estimator": ("gae",)}}}
    assert layer.origins["algo.advantage.estimator"].label == "--estimator"
    assert layer.origins["algo.advantage.estimator"].typed


@pytest.mark.parametrize("number", ["-3", "-.5", "-1e-4", "-inf"])
def test_negative_numbers_are_values(number):
    assert parse_flags(["--a.b", number]).values == {"a": {"b": (number,)}}


@pytest.mark.parametrize(
    ("words", "part", "code"),
    [
        (["stray"], "belongs to none", "config/stray-word"),
        (["--output", "bad\udcff"], "expected UTF-8 text", "config/word-of-bytes"),
        (["--seed=1", "stray"], "belongs to none", "config/stray-word"),
        (["-x", "1"], "-c FILE", "config/one-letter-option"),
        (["--"], "expected --section.option", "config/no-section"),
        (["--a..b", "1"], "expected --section.option", "config/no-section"),
        (["--=1"], "expected --section.option", "config/no-section"),
        (
            ["--a.b", "1", "--a.b.c", "2"],
            "cannot be an option and a section",
            "config/option-beside-section",
        ),
        (
            ["--a.b.c", "1", "--a.b", "2"],
            "cannot be an option and a section",
            "config/option-beside-section",
        ),
    ],
)
def test_words_that_are_no_options_are_refused(words, part, code):
    with pytest.raises(ConfigError, match=part, check=has_code(code)):
        parse_flags(words)


paths = st.from_regex(r"[a-z]{1,3}(\.[a-z]{1,3}){0,2}", fullmatch=True)


@given(
    st.dictionaries(paths, st.lists(st.text(st.characters(codec="ascii"), min_size=1), max_size=3))
)
def test_every_word_is_kept_or_refused(options):
    """Nothing that was typed disappears."""
    words = [word for path, values in options.items() for word in (f"--{path}", *values)]
    try:
        layer = parse_flags(words)
    except ConfigError:
        return
    kept = [word for _, values in leaves(layer.values) for word in values]
    typed = [word.partition("=")[2] for word in words if word.startswith("--") and "=" in word]
    typed += [word for word in words if not word.startswith("--")]
    assert sorted(kept) == sorted(typed)


def test_a_path_that_no_option_has_is_refused_before_anything_walks_it():
    with pytest.raises(ConfigError, check=has_code("config/too-deep-option")):
        parse_flags(["--a" + 5000 * ".a", "1"])
