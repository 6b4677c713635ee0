import random
import re

import pytest

pytest.importorskip("textarena", reason="pip install 'contrib/rlhf-bridge-textarena[ecosystem]'")

from rlhf_bridge_textarena.config import TextArenaConfig
from rlhf_bridge_textarena.environment import TextArenaBridge
from rlhf_core import ConfigError
from rlhf_testing.errors import has_code

BOARD = tuple(f"[{place}]" for place in range(9))


def text(observation):
    return observation.messages[0]["content"]


def test_a_number_is_guessed_by_halves(played):
    """The game says higher or lower; 1 to 20 takes at most 5 guesses by halves."""
    low, high = [1], [20]

    def guess(observation):
        shown = text(observation).lower()
        middle = (low[0] + high[0]) // 2
        if "higher than" in shown or "is higher" in shown:
            low[0] = middle + 1
        elif "lower than" in shown or "is lower" in shown:
            high[0] = middle - 1
        return f"[{(low[0] + high[0]) // 2}]"

    seen, results = played(
        TextArenaBridge(TextArenaConfig(game="GuessTheNumber-v0")), [guess] * 10, seed=3
    )

    assert "guess" in text(seen).lower()
    assert results[-1].done
    assert results[-1].rewards["game"] == 1.0
    assert len(results) <= 6


@pytest.mark.parametrize(
    "game", ["GuessTheNumber-v0", "Mastermind-v0", "TowerOfHanoi-v0", "FrozenLake-v0"]
)
def test_the_seed_alone_decides_and_the_global_generator_is_left_as_it_was(played, game):
    random.seed(1)
    before = random.getstate()
    first = played(TextArenaBridge(TextArenaConfig(game=game)), ["[1]", "[2]"], seed=5)
    assert random.getstate() == before
    random.seed(2)

    assert played(TextArenaBridge(TextArenaConfig(game=game)), ["[1]", "[2]"], seed=5) == first


def test_another_player_answers_between_two_turns(played):
    config = TextArenaConfig(game="TicTacToe-v0", num_players=2, opponents=BOARD)

    def free(observation):
        # A place that the board, as it was shown last, still has a number for.
        return "[" + re.findall(r"\b(\d)\b", text(observation))[-1] + "]"

    seen, results = played(TextArenaBridge(config), ["[4]", *([free] * 8)], seed=1)

    assert "tic tac toe" in text(seen).lower()
    assert results[-1].done
    assert results[-1].rewards["game"] in (-1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        ({"game": "NoSuch-v0"}, "expected a game of TextArena in game", "environment/not-loadable"),
        (
            {"game": "TicTacToe-v0", "num_players": 2},
            "expected moves of the other players",
            "config/out-of-range",
        ),
        (
            {"game": "TicTacToe-v0", "opponents": BOARD},
            "expected moves of the other players",
            "config/out-of-range",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, code):
    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        TextArenaBridge(TextArenaConfig(**options))


def test_a_game_that_is_stalled_earns_no_more_than_a_lost_one(played):
    config = TextArenaConfig(game="TowerOfHanoi-v0", max_turns=1)

    _, results = played(TextArenaBridge(config), ["I will not move"])

    assert results[-1].done
    assert results[-1].rewards == {"game": -1.0}
    assert results[-1].metrics["won"] == 0.0
