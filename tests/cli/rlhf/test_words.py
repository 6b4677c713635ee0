"""Flags of an error as keywords of a function."""

import pytest

import rlhf
from rlhf.words import in_python_words, python_words
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("--steps 0: expected at least 1", "steps=..."),
        (
            "--algo.kl.coef 0.1 needs a reference. Set --algo.kl.coef 0 or --steps 3, or --algo.kl.mode loss",
            'steps=..., **{"algo.kl.coef": ..., "algo.kl.mode": ...}',
        ),
        ("there is no such option. All of them: rlhf train --help", ""),
        ("a dash -- is no flag, and neither is x--y", ""),
    ],
)
def test_each_flag_is_a_keyword_once(message, words):
    assert python_words(message) == words


def test_an_error_gets_one_note_however_many_functions_it_passes():
    with pytest.raises(ConfigError) as caught, in_python_words(), in_python_words():
        raise ConfigError("--rollout.max_new_tokens 0: expected at least 1")

    assert caught.value.__notes__ == ['In Python: **{"rollout.max_new_tokens": ...}']


def test_a_mistake_in_a_call_has_the_note():
    with pytest.raises(
        ConfigError, match=r"^--model", check=has_code("config/missing-option")
    ) as caught:
        rlhf.describe(steps=3)

    assert caught.value.__notes__[-1].startswith("In Python: model=...")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "keyword beta: there is no such option. Did you mean algo.kl.coef?",
            '**{"algo.kl.coef": ...}',
        ),
        ("keyword output_dir: there is no such option. Did you mean output?", ""),
        ("keyword lr: there is no such option. Did you mean actor.adam.lr or critic.adam.lr?", ""),
    ],
)
def test_the_option_that_a_wrong_keyword_means_is_in_pythons_words(message, words):
    assert python_words(message) == words
