"""Sets of rows that Python scripts of TRL's users load: their keys, and a line for each argument that has none."""

import pytest

from rlhf_plugin_migrate.trl.python_script import read_script


@pytest.mark.parametrize(
    "call",
    [
        'load_dataset("json", data_files="rows.jsonl")',
        'load_dataset("json", data_files="rows.jsonl", split="train")',
        'load_dataset("json", data_files={"train": "rows.jsonl", "test": "t.jsonl"}, split="train")',
        'load_dataset("json", data_files="rows.jsonl", split=WHOLE, num_proc=8)',
    ],
)
def test_the_file_of_a_set_is_read_and_not_its_format(call):
    text = f"WHOLE = 'train'\nSFTTrainer('m', args=SFTConfig(), train_dataset={call})"

    found = read_script(text, "a.py")

    assert found.keys["dataset_name"] == "rows.jsonl"
    assert "dataset_train_split" not in found.keys
    assert found.left_out == []


@pytest.mark.parametrize(
    ("argument", "call", "said"),
    [
        ("train", 'load_dataset("json", data_files=["a.jsonl", "b.jsonl"])', "files in data.train"),
        (
            "train",
            'load_dataset("csv", data_files="a.csv", split="train[:9]")',
            "files in data.train",
        ),
        ("train", 'load_dataset("json", data_files="a.jsonl", split=PART)', "files in data.train"),
        (
            "train",
            'load_dataset("json", data_files="a.jsonl", split=f"train[:{n}]")',
            "does not show its split; name its files in data.train",
        ),
        (
            "train",
            'load_dataset("json", data_files={KEY: "a.jsonl"}, split=Split.TRAIN)',
            "does not show its split",
        ),
        ("train", 'load_dataset("json", data_files={KEY: "a.jsonl"})', "files in data.train"),
        ("train", 'load_dataset("text", data_files="a.txt")', "files in data.train"),
        ("train", 'load_dataset("json", data_dir="rows")', "files in data.train"),
        ("train", 'load_dataset("csv", data_files="a.csv", sep=";")', "sep of load_dataset has no"),
        ("train", 'load_dataset("my/set", data_files="a.csv")', "files in data.train"),
        ("eval", 'load_dataset("json", data_files="held_out.jsonl")', "files in eval.data"),
        ("eval", 'load_dataset("another/set", split="test")', "not a split of the training set"),
        ("train", 'load_dataset("a/b").map(chat)', "to_json(FILE), and name FILE in data.train"),
        ("eval", "held_out", "to_json(FILE), and name FILE in eval.data"),
        ("eval", 'load_dataset("a/b")', "not a split of the training set"),
    ],
)
def test_rows_that_no_option_takes_are_said_to_be_left_out(argument, call, said):
    train = "" if argument == "train" else "train_dataset=load_dataset('a/b', split='train'), "
    found = read_script(
        f"PART = 'train[:9]'\nDPOTrainer('m', args=DPOConfig(), {train}{argument}_dataset={call})",
        "a.py",
    )

    assert "dataset_test_split" not in found.keys
    assert (argument == "train") == ("dataset_name" not in found.keys)
    assert [one.text.split(":")[0] for one in found.left_out] == [f"{argument}_dataset"]
    assert said in found.left_out[0].problem


def test_arguments_that_change_no_row_leave_a_set_as_it_is():
    text = """
train = load_dataset("a/b", split="train", num_proc=8, token=secret(), cache_dir=CACHE, streaming=True)
DPOTrainer("m", args=DPOConfig(), train_dataset=train, eval_dataset=load_dataset("a/b", split="test", num_proc=2))
"""

    found = read_script(text, "a.py")

    assert found.keys["dataset_name"] == "a/b"
    assert found.keys["dataset_train_split"] == "train"
    assert found.keys["dataset_test_split"] == "test"
    assert found.left_out == []


def test_a_set_keeps_its_name_where_an_argument_of_it_is_left_out():
    text = """
train = load_dataset("a/b", split="train", revision="v2", **more)
DPOTrainer("m", args=DPOConfig(), train_dataset=train)
"""

    found = read_script(text, "a.py")

    assert found.keys["dataset_name"] == "a/b"
    assert found.keys["dataset_train_split"] == "train"
    assert {one.text: one.problem for one in found.left_out} == {
        "train_dataset, revision: 'v2'": "line 2: this argument of load_dataset has no counterpart; where it changes "
        "the rows, name them in data.train",
        "train_dataset, **: more": "line 2: this argument of load_dataset has no counterpart; where it changes "
        "the rows, name them in data.train",
    }


@pytest.mark.parametrize(
    "loaded",
    [
        "load_dataset('a/b')['train'], eval_dataset=load_dataset('a/b')['test']",
        "sets['train'], eval_dataset=sets['test']",
        "load_dataset(path='a/b', split=PART), eval_dataset=sets['test']",
    ],
)
def test_a_split_that_is_taken_of_what_is_loaded_is_read(loaded):
    text = f"PART = 'train'\nsets = load_dataset('a/b')\nSFTTrainer('m', train_dataset={loaded})"

    found = read_script(text, "a.py")

    assert found.left_out == []
    assert found.keys == {
        "model_name_or_path": "m",
        "dataset_name": "a/b",
        "dataset_train_split": "train",
        "dataset_test_split": "test",
    }


@pytest.mark.parametrize(
    "taken",
    ["load_dataset('a/b', split='train')['text']", "load_dataset('a/b')[:100]", "sets['train']"],
)
def test_rows_that_are_picked_or_changed_are_left_out(taken):
    text = f"sets = load_dataset('a/b')\nsets['train'] = shorter()\nSFTTrainer('m', train_dataset={taken})"

    found = read_script(text, "a.py")

    assert found.keys == {"model_name_or_path": "m"}
    assert [one.text.split(":")[0] for one in found.left_out] == ["train_dataset"]


def test_arguments_of_a_set_by_position_are_read_as_those_by_name():
    text = "DPOTrainer('m', args=DPOConfig(), train_dataset=load_dataset('json', None, None, 'a.jsonl', 'train'))"

    assert read_script(text, "a.py").keys["dataset_name"] == "a.jsonl"

    left_out = read_script(
        text.replace("'json', None, None", "'a/b', None, 'rows'"), "a.py"
    ).left_out
    assert [one.text.split(":")[0] for one in left_out] == ["train_dataset"]
    assert "data_dir of load_dataset has no counterpart" in left_out[0].problem
