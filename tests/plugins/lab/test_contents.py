"""Contents of the page: what the index has of runs, and what the chunks unpack to."""

import base64
import gzip
import hashlib
import json
import math
import random

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.plugins.lab.run_folders import sample, write_lines, write_run

from rlhf_core import ConfigError
from rlhf_plugin_lab.paper.chunks import number_of, to_json
from rlhf_plugin_lab.paper.contents import contents_of
from rlhf_testing.errors import has_code

PNG = b"\x89PNG\r\n\x1a\n and pixels"


def all_of(step):
    return True


def contents(*runs, max_bytes=10_000_000, wanted=all_of):
    return contents_of(runs, max_bytes=max_bytes, wanted=wanted)


def unpacked(found, name):
    return json.loads(gzip.decompress(base64.b64decode(dict(found.chunks)[name])))


def only_text(found):
    (run,) = found.index["runs"]
    place = unpacked(found, run["steps"][-1]["part"])["place"][-1]
    return unpacked(found, place[0])[place[1]]


def test_the_index_says_what_a_run_is(run):
    (described,) = contents(run).index["runs"]

    assert described["name"] == "first"
    assert (described["command"], described["version"], described["last_step"]) == (
        "train",
        "rlhf-core 0.1.0",
        2,
    )
    assert described["first_last"]["reward/mean"] == [0.25, 0.5]
    assert described["problems"] == []


def test_a_step_has_a_table_and_texts_in_a_chunk(run):
    found = contents(run)
    (step,) = found.index["runs"][0]["steps"]
    table = unpacked(found, step["part"])

    assert (step["step"], step["set"], step["count"], step["reward"]) == (1, "", 2, 0.5)
    assert table["uid"] == ["0.5.0.0", "0.5.1.0"]
    assert table["rewards"] == {"exact": [1, 1]}
    assert table["asked"] == {"0.5": "17 * 23?"}
    (part, first, _), (same, second, _) = table["place"]
    assert (part, first, second) == (same, 0, 1)
    assert unpacked(found, part)[1]["turns"][-1] == ["policy", "", "390"]


def test_rewards_that_some_rollouts_lack_are_gaps(tmp_path):
    rewards = [{"a": 1.0}, {"b": 2.0}, {"a": 3.0}, {}]
    samples = [sample(f"0.{n}.0.0", rewards=each) for n, each in enumerate(rewards)]
    found = contents(write_run(tmp_path / "run", samples))

    table = unpacked(found, found.index["runs"][0]["steps"][0]["part"])

    assert table["rewards"] == {"a": [1, None, 3, None], "b": [None, 2, None, None]}


def test_curves_are_in_a_chunk_with_steps_seconds_and_values(run):
    found = contents(run)

    series = unpacked(found, found.index["runs"][0]["series"])

    assert series["reward/mean"] == [[1, 2], [2, 4], [0.25, 0.5]]


def test_a_long_step_is_cut_into_chunks(tmp_path):
    many = [sample(f"0.{n}.0.0", response=f"answer {n}") for n in range(600)]
    found = contents(write_run(tmp_path / "run", many))

    places = unpacked(found, found.index["runs"][0]["steps"][0]["part"])["place"]

    assert len({part for part, _, _ in places}) == 3  # 256 in each
    part, at, _ = places[599]
    assert unpacked(found, part)[at]["turns"][-1][2] == "answer 599"


def test_evaluations_are_sets_beside_training(tmp_path):
    evaluated = [sample("-1.0.0.0", step=0, eval="test/T0")]
    found = contents(write_run(tmp_path / "run", [sample()], evaluated))

    assert [(step["step"], step["set"]) for step in found.index["runs"][0]["steps"]] == [
        (0, "test/T0"),
        (1, ""),
    ]


def test_only_wanted_steps_have_rollouts(tmp_path):
    run = write_run(tmp_path / "run", [sample(step=step) for step in (1, 2, 3)])

    found = contents(run, wanted=lambda step: step == 2)

    assert [step["step"] for step in found.index["runs"][0]["steps"]] == [2]


def test_what_has_no_room_is_a_line(tmp_path):
    chance = random.Random(1)
    texts = [sample(f"0.{n}.0.0", response=chance.randbytes(1000).hex()) for n in range(256)]
    found = contents(write_run(tmp_path / "run", texts), max_bytes=60_000)
    (described,) = found.index["runs"]

    assert found.chunks.num_bytes <= 60_000
    assert any("--max-mb" in line for line in described["problems"])
    table = unpacked(found, described["steps"][0]["part"])
    assert table["place"][0] is None
    assert len(table["reward"]) == 256


def test_numbers_that_json_does_not_have_are_none():
    assert [number_of(value) for value in (0.123456789, 3.0, math.nan, -math.inf, True, "1", 10**400)] == [
        0.123457, 3, None, None, None, None, None,
    ]  # fmt: skip


def test_rollouts_of_another_version_are_shown_as_far_as_they_are_known(tmp_path):
    odd = {
        "step": 1,
        "reward": math.nan,
        "rewards": [1],
        "colour": {"a": 1},
        "truncated": 1,
        "end": 3,
    }
    found = contents(write_run(tmp_path / "run", [odd]))
    (described,) = found.index["runs"]

    assert only_text(found) == {"other": {"colour": "{'a': 1}"}}
    assert described["steps"][0]["reward"] is None
    assert any("without a text" in line for line in described["problems"])


def test_names_of_runs_tell_them_apart(tmp_path):
    runs = [write_run(tmp_path / name) for name in ("a/run", "b/run")]

    assert [run["name"] for run in contents(*runs).index["runs"]] == ["a/run", "b/run"]


@pytest.mark.parametrize(
    ("make", "code"),
    [(lambda folder: None, "lab/no-run"), (lambda folder: folder.mkdir(), "lab/not-a-run")],
)
def test_a_folder_that_is_no_run_is_an_error(tmp_path, make, code):
    make(tmp_path / "run")

    with pytest.raises(ConfigError, match=r"expected a run", check=has_code(code)):
        contents(tmp_path / "run")


def test_images_of_the_runs_store_are_embedded_once(tmp_path):
    image = {"file": "media/a.png", "width": 2, "height": 2, "tokens": [3, 4]}
    run = write_run(tmp_path / "run", [sample(images=[image]), sample("0.5.1.0", images=[image])])
    (run / "media").mkdir()
    (run / "media/a.png").write_bytes(PNG)

    found = contents(run)

    (shown,) = only_text(found)["images"]
    assert base64.b64decode(dict(found.chunks)[shown["part"]]) == PNG
    assert (shown["kind"], shown["width"], shown["tokens"]) == ("image/png", 2, [3, 4])
    assert sum(name.startswith("b") for name, _ in found.chunks) == 1


@pytest.mark.parametrize(
    "file",
    [
        "../secret.png",
        "media/../../secret.png",
        "media/link.png",
        "media/a.svg",
        "media/endless.png",
        "media/gone.png",
        3,
    ],
)
def test_a_record_brings_no_other_file_into_the_page(tmp_path, file):
    run = write_run(tmp_path / "run", [sample(images=[{"file": file}])])
    (tmp_path / "secret.png").write_bytes(PNG)
    (run / "media").mkdir()
    (run / "media/a.svg").write_text("<svg onload=alert(1)>")
    (run / "media/link.png").symlink_to(tmp_path / "secret.png")
    (run / "media/endless.png").symlink_to("/dev/zero")

    found = contents(run)

    assert not any(name.startswith("b") for name, _ in found.chunks)
    assert found.index["runs"][0]["problems"]


def linked(run, name, file):
    """An entry of the run's store that is a link, as those of images in files are."""
    path = run / "media" / name
    path.parent.mkdir(parents=True)
    path.symlink_to(file)
    return {"file": f"media/{name}", "width": 2, "height": 2, "tokens": [3, 4]}


def test_an_image_that_the_store_links_by_its_content_is_embedded(tmp_path):
    (tmp_path / "mine.png").write_bytes(PNG)
    (tmp_path / "elsewhere").mkdir()
    digest = hashlib.sha256(PNG).hexdigest()
    run = write_run(tmp_path / "run")
    image = linked(run, f"{digest[:2]}/{digest}.png", tmp_path / "mine.png")
    write_lines(run / "samples.jsonl", [sample(images=[image])])

    found = contents(run.parent / "elsewhere" / ".." / run.name)

    (shown,) = only_text(found)["images"]
    assert base64.b64decode(dict(found.chunks)[shown["part"]]) == PNG
    assert not found.index["runs"][0]["problems"]


def test_a_link_to_other_bytes_than_its_name_says_is_not_followed_into_the_page(tmp_path):
    (tmp_path / "mine.png").write_bytes(PNG + b"secret")
    digest = hashlib.sha256(PNG).hexdigest()
    run = write_run(tmp_path / "run")
    image = linked(run, f"{digest[:2]}/{digest}.png", tmp_path / "mine.png")
    write_lines(run / "samples.jsonl", [sample(images=[image])])

    found = contents(run)

    assert only_text(found)["images"][0]["why"] == "outside of the run's images"
    assert not any(name.startswith("b") for name, _ in found.chunks)


def test_a_store_that_is_a_link_brings_no_other_file_into_the_page(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/mine.png").write_bytes(PNG)
    run = write_run(tmp_path / "run", [sample(images=[{"file": "media/mine.png"}])])
    (run / "media").symlink_to(tmp_path / "pictures")

    found = contents(run)

    assert only_text(found)["images"][0]["why"] == "outside of the run's images"
    assert not any(name.startswith("b") for name, _ in found.chunks)


def test_an_image_whose_file_is_gone_is_shown_as_missing(tmp_path):
    run = write_run(tmp_path / "run")
    image = linked(run, "ab/ab.png", tmp_path / "gone.png")
    write_lines(run / "samples.jsonl", [sample(images=[image])])

    found = contents(run)

    (shown,) = only_text(found)["images"]
    assert (shown["why"], shown["width"]) == ("the file is gone or cannot be read", 2)
    assert "image files cannot be read" in found.index["runs"][0]["problems"][0]


def write_tokens(run, **columns):
    (run / "tokens").mkdir()
    parquet.write_table(pa.table(columns), run / "tokens/step-00000001.parquet")


def tokens_of(found):
    place = unpacked(found, found.index["runs"][0]["steps"][0]["part"])["place"]
    return [part and unpacked(found, part)[at] for _, at, part in place]


def test_tokens_are_beside_their_rollout_with_the_ratio_of_both_log_probs(run):
    write_tokens(
        run, uid=["0.5.0.0"] * 2, text=["17", "391"], action=[False, True],
        rollout_logprob=[None, -1.0], trainer_logprob=[None, -0.5], version=[None, 3],
    )  # fmt: skip

    first, second = tokens_of(contents(run))

    assert first["text"] == ["17", "391"]
    assert first["columns"] == {
        "rollout_logprob": [None, -1], "trainer_logprob": [None, -0.5], "version": [None, 3], "action": [0, 1],
        "ratio": [None, 1.649],  # e^0.5
    }  # fmt: skip
    assert second is None


def test_tokens_without_texts_are_shown_by_their_ids(run):
    write_tokens(run, uid=["0.5.0.0"], token_id=[17])

    assert tokens_of(contents(run))[0]["text"] == ["[17]"]


@pytest.mark.parametrize("content", [b"no parquet", b""])
def test_a_file_of_tokens_that_cannot_be_read_is_a_line(run, content):
    (run / "tokens").mkdir()
    (run / "tokens/step-00000001.parquet").write_bytes(content)

    assert "files of tokens cannot be read" in contents(run).index["runs"][0]["problems"][0]


def test_tokens_without_the_name_of_their_rollout_are_a_line(run):
    write_tokens(run, text=["391"])

    assert "no column uid" in contents(run).index["runs"][0]["problems"][0]


def test_json_of_the_page_has_no_markup():
    text = to_json({"</script>": "<!-- & \u2028\u2029 \ud800 ü"})

    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"</script>": "<!-- & \u2028\u2029 \ud800 ü"}


def test_fates_and_missing_files_are_in_the_index(run):
    dropped = {"step": 1, "event": "dropped", "reason": "no_signal", "groups": {"0.7": 4}}
    write_lines(run / "ledger.jsonl", [dropped])
    (run / "config.toml").unlink()

    (described,) = contents(run).index["runs"]

    assert described["fates"]["1"]["dropped"]["no_signal"]["number"] == 1
    assert "config.toml cannot be read" in described["problems"][0]


def test_a_run_says_how_its_steps_are_replayed(tmp_path):
    run = write_run(tmp_path / "it's <b>one</b>", [sample()])

    (described,) = contents(run).index["runs"]

    assert described["replay"] == f"rlhf replay '{tmp_path}/it'\"'\"'s <b>one</b>'"


def test_a_run_whose_command_is_not_known_is_not_replayed(run):
    (run / "config.toml").unlink()

    (described,) = contents(run).index["runs"]

    assert described["replay"] == ""
