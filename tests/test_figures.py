"""Figures on the front page are those of the pages and tables that they come from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.mutants.running import MUTANTS

from rlhf_cli.main import main

ROOT = Path(__file__).parent.parent


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def ratios_to_trl(heading: str) -> list[str]:
    """Return the bold numbers of the row "ours / TRL" below a heading of the page on performance."""
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    section = page[page.index(heading) :]
    row = next(line for line in section.splitlines() if "ours / TRL" in line)
    return re.findall(r"\*\*(0\.\d\d)\*\*", row)


def recipe_row(name: str) -> list[str]:
    page = (ROOT / "examples/gsm_symbolic/README.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip(" *") for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("page", ["README.md", "docs/conformance.md"])
def test_the_number_of_planted_bugs_is_that_of_the_list(page):
    [told] = re.findall(r"(?:injects|puts) (\d+) bugs", text_of(page))

    assert int(told) == len(MUTANTS)


def test_the_step_beside_trl_is_that_of_the_page_on_performance():
    embedded = ratios_to_trl("### With the embedded engine")
    vllm = ratios_to_trl("## A whole training step on one GPU, beside TRL")
    page = text_of("README.md")

    assert (
        f"{min(embedded)} to {max(embedded)} of the time of TRL's with the embedded engine" in page
    )
    assert f"and {min(vllm)} to {max(vllm)} with `--engine vllm`" in page


def summary_rows() -> list[tuple[str, str, str]]:
    """Return the seconds, the share and the heading's anchor of each line of the table at the top of the page."""
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    lines = page[: page.index("\n## ")].splitlines()
    rows = [line.strip("|").split("|") for line in lines if line.startswith("| ")][1:]
    links = [re.fullmatch(r"\[(.*)\]\(#(.*)\)", row[3].strip()) for row in rows]
    return [
        (row[2].strip(), link[1], link[2]) for row, link in zip(rows, links, strict=True) if link
    ]


@pytest.mark.parametrize(("seconds", "share", "anchor"), summary_rows())
def test_a_line_of_the_table_is_what_its_section_says(seconds, share, anchor):
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    sections = re.split(r"(?m)^(?=##+ )", page)[1:]
    named = {
        re.sub(r"[^a-z0-9 -]", "", each.split("\n")[0].lower()).strip().replace(" ", "-"): each
        for each in sections
    }
    section = re.sub(r"\*\*|`", "", named[anchor])

    assert re.search(rf"\b{re.escape(seconds)}\b", section)
    for number in re.findall(r"\d\.\d\d", share):
        assert re.search(rf"\b{re.escape(number)}\b", section)


def test_the_step_beside_openrlhf_is_that_of_the_page_on_performance():
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    section = page[page.index("## Four GPUs") :]
    [ratio] = re.findall(r"\*\*ours / OpenRLHF\*\* \| \*\*(0\.\d\d)\*\*", section)

    assert f"a step of 7B takes {ratio} of the time of OpenRLHF's" in text_of("README.md")


def test_the_table_of_the_others_has_the_seconds_of_the_page_on_performance():
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    one = page[page.index("### With the embedded engine") :]
    four = page[page.index("## Four GPUs") :]
    rows = {
        line.split("|")[1].strip(): line
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("| ")
    }
    small = rows["a step of 1.5B, one H200"]
    large = rows["a step of 7B, four H200, default memory settings"]

    # On one machine, which the table of all three shapes is not.
    [same_machine] = re.findall(r"(?s)on one more machine, three runs.*?\*\*0\.28\*\*", one)
    own = sorted(re.findall(r"8\.6\d", same_machine.partition("(")[0]))
    [theirs] = re.findall(r"TRL on this machine: (\S+ and \S+ s)", same_machine)
    assert f"**{own[len(own) // 2]} s**" in small
    assert theirs in small
    [step] = re.findall(r"\| \*\*step\*\* \(first\) \|.*", four[: four.index("ours / OpenRLHF")])
    ours, theirs = (re.findall(r"\*\*(\d+\.\d)\*\*", step)[place] for place in (0, 1))
    assert f"**{ours} s**" in large
    assert f"| {theirs} s, gradient checkpointing" in large


def test_the_table_of_the_others_counts_the_bridges_and_the_kinds():
    page = text_of("README.md")
    kinds = re.findall(r"(?m)^\| [^|]+ \| `rlhf_\w+`", (ROOT / "README.md").read_text())
    words = {6: "six", 7: "seven", 8: "eight"}

    assert f"a package, {len(kinds)} kinds" in page
    assert (
        f"[{words[len(list((ROOT / 'contrib').glob('rlhf-bridge-*')))]} ecosystems](contrib)"
        in page
    )


def test_the_curves_are_those_of_the_recipe():
    large, ours, trl = (
        recipe_row(name) for name in ("1.5B", "0.5B, GRPO, seed 43", "0.5B, GRPO by TRL")
    )
    first, last = (f"{float(large[column]):.2f}" for column in (1, 4))
    ratio = float(ours[-1]) / float(trl[-1])
    page = text_of("README.md")

    minutes = float(large[-1]) / 60
    assert (
        f"from {first} to {last} of the held-out questions in {minutes:.1f} minutes of steps"
        in page
    )
    assert f"in {ratio:.2f} of the time" in page


SHAPES = {
    "0.5B": (896, 24, 14, 2, 4864, 151936, True),
    "1.5B": (1536, 28, 12, 2, 8960, 151936, True),
    "3B": (2048, 36, 16, 2, 11008, 151936, True),
    "7B": (3584, 28, 28, 4, 18944, 152064, False),
}
"""Width, layers, heads, heads of keys and values, inner width, rows of the vocabulary and whether the head is tied, of
Qwen2.5."""
SIZES = ("1x16GB", "1x24GB", "1x48GB", "1xh100", "2xh100")


def fits(folder: Path, gpus: str) -> bool:
    """Whether the front page's command says that a model fits."""
    [line] = re.findall(r"(?m)^rlhf plan \S+ --gpus \S+ (.*)$", (ROOT / "README.md").read_text())
    return main(["plan", str(folder), "--gpus", gpus, *line.split()]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", SHAPES)
def test_the_smallest_machine_of_the_table_fits_and_the_next_smaller_does_not(
    model, tmp_path, capsys
):
    width, layers, heads, kv_heads, inner, rows, tied = SHAPES[model]
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": rows,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 32768,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    [told] = re.findall(
        rf"(?m)^\| {re.escape(model)} \| `(\S+)` \|$", (ROOT / "README.md").read_text()
    )

    assert fits(tmp_path, told)
    smaller = SIZES[: SIZES.index(told)]
    assert not smaller or not fits(tmp_path, smaller[-1])
