"""Every Markdown page of the repository: its links and their anchors, and what its fenced blocks are.

A block with a language is run or read by a test; one without is no code: a table, what a command prints.
"""

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.test_readme import ALL_COMMANDS, PAGES, blocks_of, label

ROOT = Path(__file__).parent.parent

READ = {
    "bash": "commands, each looked at by test_readme.py as COMMANDS_NOT_RUN says",
    "json": "read as JSON, or as one object a line, below",
    "python": "run by test_readme.py",
    "toml": "resolved as the configuration of a run by test_readme.py; a pyproject.toml is built there, or read below",
}
"""Languages of fenced blocks -> what a test does with them."""
NOT_READ = {
    "": "tables, and what commands print",
    "math": "formulas; tests/site sets each of them as the site does",
    "mermaid": "diagrams, which code hosts and the site draw",
    "sh": "a launch script of another framework, as rlhf migrate reads it; tests/plugins/migrate has such scripts",
    "text": "what a chat template makes",
}
"""Other languages -> why no test reads them."""
COMMANDS_NOT_RUN = {
    "rlhf": "parsed, and its options resolved, by test_readme.py: training takes minutes or GPUs",
    "make": "its target is looked up by test_readme.py; CI runs most of them",
    "python": "its script is looked up by test_readme.py; examples and benchmarks have tests of their own",
    "python3": "as python",
    "python3.13": "needs an interpreter of that version",
    "pip": "installs, which tests/release does from built wheels",
    "hf": "downloads",
    "twine": "uploads",
    "git": "needs a remote",
    "printf": "writes into a pipe to a command, which tests/plugins/inference does",
    ".": "enters an environment",
    "tensorboard": "serves until it is ended",
    "sbatch": "needs Slurm",
    "submit.sh": "needs a cluster; tests/examples reads it",
}
"""First words of commands in bash blocks -> why they are not run here, and what is done in place of that."""

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)#?([^)\s]*)[^)]*\)")
CODE = re.compile(r"(`+).+?\1", flags=re.DOTALL)
TAG = re.compile(r"</?[a-zA-Z][^>\n]*>")
MARKUP = {"<details>", "</details>", "<summary>", "</summary>"}
A_COMMAND = re.compile(r"^(\$ |rlhf |pip install|python3? |make )")


def prose_of(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def slug(heading: str) -> str:
    """Anchor that code hosts, and the site, give a heading."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose_of(page), flags=re.MULTILINE)
    return {slug(heading) for heading in headings}


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("When a reward fails", "when-a-reward-fails"),
        ("rlhf_rewards() -> Components", "rlhf_rewards---components"),
        ("`rollout.endpoint`", "rolloutendpoint"),
        ("From [OpenRLHF](x.md), or not", "from-openrlhf-or-not"),
    ],
)
def test_anchors_are_made_as_code_hosts_make_them(heading, anchor):
    assert slug(heading) == anchor


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_links_lead_to_files_and_headings(page):
    lost = []
    for path, anchor in LINK.findall(prose_of(page)):
        target = (page.parent / path) if path else page
        if not target.exists():
            lost.append(path)
        elif target.suffix == ".md" and anchor and anchor not in anchors_of(target):
            lost.append(f"{path}#{anchor}")
        elif target.suffix == ".py" and (line := re.fullmatch(r"L(\d+)", anchor)):
            assert int(line[1]) <= len(target.read_text().splitlines()), f"{path}#{anchor}"

    assert lost == []


def test_a_lost_heading_is_found(tmp_path):
    (tmp_path / "a.md").write_text("# A\n\n[b](b.md#here) [c](b.md#there)\n")
    (tmp_path / "b.md").write_text("## Here\n\n```\n## There\n```\n")

    with pytest.raises(AssertionError, match="there"):
        test_links_lead_to_files_and_headings(tmp_path / "a.md")


def rows_of_other_widths(text: str) -> list[str]:
    """Rows that have more or fewer cells than their table's first: code hosts cut these, also at a ``|`` in code."""
    uneven, cells = [], None
    for line in text.splitlines():
        now = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else None
        if None not in (now, cells) and now != cells:
            uneven.append(line)
        else:
            cells = now
    return uneven


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_rows_of_a_table_have_as_many_cells_as_its_head(page):
    assert rows_of_other_widths(prose_of(page)) == []


def test_a_row_with_another_number_of_cells_is_found():
    table = "| a | b |\n| --- | --- |\n| `x\\|y` | 1 |\n| `x|y` | 1 |\n| 2 |\n\n| c |\n"

    assert rows_of_other_widths(table) == ["| `x|y` | 1 |", "| 2 |"]


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_words_in_angle_brackets_are_code_or_escaped(page):
    """A page shows nothing of ``<image>`` in its text: it is an element of HTML to a browser."""
    assert set(TAG.findall(CODE.sub("", prose_of(page)))) <= MARKUP


def test_every_block_is_of_a_language_that_is_read_or_has_a_reason():
    languages = {language for page in PAGES for _, language, _ in FENCE.findall(page.read_text())}

    assert languages == READ.keys() | NOT_READ.keys()


@pytest.mark.parametrize("page", PAGES, ids=label)
def test_a_block_without_a_language_has_no_commands(page):
    """They would be looked at by no test: ```bash marks them."""
    found = [
        text.splitlines()[0]
        for _, language, text in FENCE.findall(page.read_text())
        if not language and A_COMMAND.match(text)
    ]

    assert found == []


def test_every_command_of_the_pages_is_looked_at_or_has_a_reason():
    first_words = {Path(words[0]).name or words[0] for _, words in ALL_COMMANDS}

    assert first_words == COMMANDS_NOT_RUN.keys()


JSON = [(page, block) for page in PAGES for block in blocks_of(page, "json")]


@pytest.mark.parametrize(("page", "block"), JSON, ids=label)
def test_json_is_json(page, block):
    try:
        json.loads(block)
    except json.JSONDecodeError:
        for line in block.splitlines():
            json.loads(line)


PROJECTS = [
    SimpleNamespace(page=page, text=block)
    for page in PAGES
    for block in blocks_of(page, "toml")
    if "[project]" in block
]


@pytest.mark.parametrize("block", PROJECTS, ids=lambda block: label(block.page))
def test_a_pyproject_of_a_page_names_what_it_needs(block):
    project = tomllib.loads(block.text)["project"]

    assert project["name"].startswith("rlhf-")
    assert any(each.startswith("rlhf-core") for each in project["dependencies"])
