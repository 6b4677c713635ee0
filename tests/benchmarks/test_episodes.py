"""The benchmark of very many episodes counts what it plays."""

from benchmarks import episodes


def test_every_round_plays_all_episodes():
    rows = episodes.measure(16, turns=2, rounds=2)

    assert [(row["round"], row["episodes"]) for row in rows] == [(1, 16), (2, 16)]
