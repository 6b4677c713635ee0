"""The recipe ``shop_desk``: its rows are of the quality that its text says, and its four commands take them."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop_desk"
ROW = {"name": "Ana", "order": "12345", "about": "late"}
GOOD = (
    "Dear Ana,\n\nthank you for your letter (order 12345). We pay the postage back to you.\n\n"
    "Kind regards,\nThe Lamp Desk"
)


@pytest.fixture(scope="module")
def rules():
    spec = importlib.util.spec_from_file_location("shop_desk_rules", EXAMPLE / "rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with the example, its rows and a tiny chat model in place of the pretrained one."""
    root = tmp_path_factory.mktemp("shop")
    here = root / "examples" / "shop_desk"
    shutil.copytree(EXAMPLE, here, ignore=shutil.ignore_patterns("data"))
    sizes = ("--replies", "200", "--pairs", "200", "--letters", "64", "--held-out", "32")
    subprocess.run(
        [sys.executable, str(here / "prepare.py"), *sizes], check=True, capture_output=True
    )
    write_tiny_model(root / "model")
    return root


def rows(root: Path, name: str) -> list[dict]:
    file = root / "examples" / "shop_desk" / "data" / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (GOOD, None),
        (GOOD.replace("Dear Ana", "Hello"), "greets"),
        (GOOD.replace("12345", "54321"), "names_order"),
        (GOOD.replace("We pay the postage", "We keep the postage"), "right_remedy"),
        (GOOD.replace("Kind", "A new one leaves our house today.\n\nKind"), "right_remedy"),
        (GOOD.replace("We pay", "light " * 60 + "We pay"), "short"),
        (GOOD + "\n\nPS: hello", "closes"),
    ],
)
def test_each_of_the_five_things_counts_for_itself(rules, text, missing):
    found = rules.rules(text, **ROW)

    assert found["reward"] == pytest.approx(1.0 if missing is None else 0.8)
    assert found["all"] == float(missing is None)
    assert [name for name in rules.kept(text, ROW) if not found[name]] == [missing] * bool(missing)


def test_replies_have_seven_of_ten_things_and_pairs_prefer_the_fuller_one(rules, root):
    pairs = rows(root, "pairs")
    letters = {row["messages"][0]["content"]: row for row in rows(root, "letters")}
    held_out = {row["name"] for row in rows(root, "held_out")}

    def about(prompt):
        content = prompt[-1]["content"]
        words = content.split()
        return {"name": words[-1], "order": words[-2].rstrip("."), "about": ""}

    def things(text, row):
        found = rules.kept(text, row)
        return sum(found[name] for name in ("greets", "names_order", "short", "closes"))

    shares = [things(row["chosen"], about(row["prompt"])) / 4 for row in pairs]
    others = [things(row["rejected"], about(row["prompt"])) / 4 for row in pairs]
    assert sum(shares) / len(shares) > 0.75 > 0.6 > sum(others) / len(others)
    replies = [(row["messages"][0], row["messages"][1]["content"]) for row in rows(root, "replies")]
    kept = [things(text, about([asked])) / 4 for asked, text in replies]
    assert sum(kept) / len(kept) == pytest.approx(0.7, abs=0.05)
    assert not held_out & {row["name"] for row in letters.values()}


@pytest.mark.slow
def test_the_whole_chain_runs_with_a_tiny_model(root, monkeypatch):
    monkeypatch.chdir(root)
    few = ("--steps", "2", "--log.progress", "off")
    rows = ("--data.max_length", "2000", "--train.batch_size", "2")
    desk = "examples/shop_desk"

    assert main(["sft", "-c", f"{desk}/sft.toml", "--model", "model", *rows, *few]) == 0
    assert main(["rm", "-c", f"{desk}/rm.toml", *rows, "--eval.max_samples", "4", *few]) == 0
    assert main(["dpo", "-c", f"{desk}/dpo.toml", *rows, "--eval.max_samples", "4", *few]) == 0
    small = ("--rollout.batch_size", "2", "--rollout.max_new_tokens", "8")
    whole = ("--data.max_prompt_tokens", "1000", "--backend.torch.compile", "false")
    assert main(["train", "-c", f"{desk}/rl.toml", *small, *whole, *few]) == 0
    judged = ("--data", f"{desk}/data/held_out.jsonl", "--data.prompt_key", "messages")
    asked = ("--data.chat", "--reward", f"{desk}/rules.py:rules", "--rollout.max_new_tokens", "8")
    assert main(["eval", "runs/shop_desk/rl/model", *judged, *asked, "--output", "judged"]) == 0
    summary = json.loads(Path("judged/summary.json").read_text())
    assert "rules/names_order" in json.dumps(summary)
