"""Publishing merges with what was published before, and rewrites nothing else."""

import json

import pytest
from benchmarks import learning, learning_pages

KINDS = ("estimator", "loss")
PAGE = f"""# Algorithms

Words before.

{learning_pages.START}
an old note

{learning_pages.HEADER[0]}
{learning_pages.HEADER[1]}
| [gae](gae.md) (estimator) | 1 | 1.000 | 300 | 191 |
| [rloo](rloo.md) (estimator) | 1 | 0.100 | not reached | 10 |
{learning_pages.END}

Words after.
"""


@pytest.fixture
def pages(tmp_path):
    (tmp_path / "README.md").write_text(PAGE)
    for name in ("rloo", "ppo"):
        (tmp_path / f"{name}.md").write_text(f"# {name}\n\nWhat it is.\n")
    return tmp_path


def result(kind, name, seed, accuracy=(0.0, 0.95, 1.0), error=""):
    steps = [100 * index for index in range(len(accuracy))]
    return {
        **{"kind": kind, "name": name, "seed": seed, "error": error, "flags": ["--x", "/home/me"]},
        **{"seconds": 60.0 + seed, "steps": steps, "accuracy": list(accuracy)},
    }


def publish(pages, *results, name="results.json"):
    path = pages / name
    path.write_text(json.dumps({"hardware": "a CPU", "date": "today", "results": results}))
    learning_pages.publish([path], pages, KINDS)


def rows_of(pages):
    lines = (pages / "README.md").read_text().splitlines()
    return [line for line in lines if line.startswith("| [")]


def test_new_rows_take_the_place_of_old_ones_and_others_stay(pages):
    publish(pages, result("loss", "ppo", 1), result("estimator", "rloo", 2))

    assert learning_pages.OLDER.strip() in (pages / "README.md").read_text()
    assert rows_of(pages) == [
        "| [gae](gae.md) (estimator) | 1 | 1.000 | 300 | 191 |",
        "| [rloo](rloo.md) (estimator) | 2 | 1.000 | 100 | 62 |",
        "| [ppo](ppo.md) (loss) | 1 | 1.000 | 100 | 61 |",
    ]
    text = (pages / "README.md").read_text()
    assert "Words before." in text
    assert text.endswith("Words after.\n")
    assert "an old note" not in text


def test_a_second_seed_joins_the_first_and_the_same_seed_replaces_it(pages):
    publish(pages, result("loss", "ppo", 1, (0.0, 0.5, 0.9)))
    publish(pages, result("loss", "ppo", 2, (0.0, 0.2, 0.95)))
    publish(pages, result("loss", "ppo", 1, (0.0, 0.9, 0.97)))

    # 100 and 200 steps; 61 and 62 seconds.
    assert rows_of(pages)[-1] == "| [ppo](ppo.md) (loss) | 1, 2 | 0.970, 0.950 | 150 | 62 |"
    lines = (pages / "curves/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [1, 2]


def test_one_seed_that_did_not_get_there_says_so(pages):
    publish(pages, result("loss", "ppo", 1), result("loss", "ppo", 2, (0.0, 0.5, 0.89)))

    assert rows_of(pages)[-1].split("|")[4].strip() == "not reached"


def test_failed_runs_and_paths_of_the_machine_are_not_published(pages, capsys):
    publish(pages, result("loss", "ppo", 1), result("estimator", "rloo", 2, error="out of memory"))

    assert "rloo seed 2 failed" in capsys.readouterr().out
    published = (pages / "curves/results.jsonl").read_text()
    assert "rloo" not in published
    assert "/home/me" not in published


def test_a_page_gets_its_curve_once(pages):
    publish(pages, result("loss", "ppo", 1))
    publish(pages, result("loss", "ppo", 2))

    text = (pages / "ppo.md").read_text()
    assert text.startswith("# ppo\n\nWhat it is.\n\n## Learning curve\n")
    assert text.count("## Learning curve") == 1
    assert "--only loss:ppo --seeds 1 2`" in text
    assert (pages / "curves/loss_ppo.png").stat().st_size > 1000
    assert not (pages / "curves/estimator_rloo.png").exists()


def test_every_component_of_the_table_has_its_curve_and_its_page():
    """Of the documentation as it is."""
    docs = learning_pages.Path(__file__).parents[2] / "docs/algorithms"
    table = (docs / "README.md").read_text().partition(learning_pages.START)[2]

    components = [
        learning_pages._component_of(line) for line in table.splitlines() if line[:3] == "| ["
    ]

    assert set(components) == set(learning.components())
    for kind, name in components:
        picture = f"curves/{kind}_{name}.png"
        assert (docs / picture).exists()
        assert f"({picture})" in (docs / f"{name}.md").read_text()
