"""docs/ against the source: hooks, needs, options, what may change on resume, and the index."""

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from rlhf_core import capabilities, hookspecs, plugins
from rlhf_trainer.loop import resume, training

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def section_of(page: str, heading: str) -> str:
    """The text below ``## heading``, up to the next heading of that level."""
    found = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2]
    assert found, f"{page} has no section {heading!r}"
    return found.partition("\n## ")[0]


def signature_of(hook: str) -> str:
    # Annotations are strings here, which inspect shows in quotes.
    return f"{hook}{inspect.signature(getattr(hookspecs, hook))}".replace("'", "")


def test_the_plugin_page_has_a_heading_for_each_hook_equal_to_its_signature():
    text = (DOCS / "plugins.md").read_text()

    headings = re.findall(r"^### (rlhf_.*)$", text, flags=re.MULTILINE)

    assert headings == [
        signature_of(hook) for hook in (*hookspecs.COMPONENT_HOOKS, *hookspecs.OBSERVER_HOOKS)
    ]


def test_every_declared_hook_is_in_one_of_the_two_families():
    declared = {name for name in vars(hookspecs) if name.startswith("rlhf_")}

    assert declared == {*hookspecs.COMPONENT_HOOKS, *hookspecs.OBSERVER_HOOKS}


def test_the_plugin_page_lists_the_needs_that_the_core_knows():
    table = section_of("plugins.md", "Components")

    listed = set(
        re.findall(r"`([a-z_]+(?:>=\d)?)`", "".join(re.findall(r"^\| `.*?\|", table, re.M)))
    )

    known = {*capabilities.SUPPLIED_BY_THE_LOOP, *capabilities.FIX, "group>=2", "staleness>=1"}
    assert listed == known


def test_the_resume_page_lists_what_may_change():
    table = section_of("checkpoints-and-resume.md", "What may change on resume")
    freely, refused = (re.findall(r"`([^`]+)`", line) for line in table.splitlines()[3:5])

    assert {*freely, "resume"} == set(resume.FREE)
    assert set(refused) == set(training.BINDING)


def script(name: str) -> ModuleType:
    """A script of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_of_options_are_up_to_date():
    """`make generated` rewrites them, and removes what is no section any more."""
    paths = [DOCS / "options.md", *(DOCS / "options").glob("*.md")]

    written = {path.relative_to(DOCS).as_posix(): path.read_text() for path in paths}

    assert written == script("generate_options").current()


def test_the_gallery_is_up_to_date():
    """`make generated` rewrites it."""
    assert (DOCS / "gallery.md").read_text() == script("generate_gallery").current()


@pytest.fixture(scope="module")
def coded():
    """What generates the page of codes, the places that it finds, for which it reads all source, and its page."""
    generator = script("generate_errors")
    found = list(generator.places())
    generator.places = lambda: found
    return generator, found, generator.current()


def test_the_page_of_codes_is_what_the_source_says(coded):
    assert (DOCS / "error-codes.md").read_text() == coded[2]


def test_codes_have_an_area_and_words(coded):
    codes = {place.code for place in coded[1]}

    assert [
        code for code in codes if not re.fullmatch(r"[a-z]+(-[a-z]+)*/[a-z0-9]+(-[a-z0-9]+)*", code)
    ] == []


def test_each_code_has_words_that_say_what_it_means(coded):
    """And none is explained that the source tells itself, or no longer has."""
    generator, _, page = coded
    lines = [line for line in page.splitlines() if line.startswith("| `")]

    said = {line.split("`")[1]: line.rpartition(" | ")[2].strip(" |") for line in lines}
    assert [code for code, text in said.items() if len(re.findall(r"\w{2,}", text)) < 3] == []
    assert generator.MEANINGS.keys() <= said.keys()


def test_the_gallery_shows_every_curve():
    shown = set(re.findall(r"\(algorithms/curves/(\w+\.png)\)", (DOCS / "gallery.md").read_text()))

    assert shown == {path.name for path in (DOCS / "algorithms/curves").glob("*.png")}


def test_the_navigation_of_the_site_has_every_page():
    """Pages of algorithms are added by the site itself."""
    listed = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)

    assert {f"docs/{path.name}" for path in DOCS.glob("*.md")} <= set(listed)
    assert [path for path in listed if not (ROOT / path).is_file()] == []
    assert len(listed) == len(set(listed))


LINKED = script("link_algorithms").components(plugins.load(""))
"""The component of each page of docs/algorithms."""


def test_every_page_of_an_algorithm_is_of_a_component():
    pages = {path.stem for path in (DOCS / "algorithms").glob("*.md")}

    assert pages - LINKED.keys() == {"README", "compared_with_peers"}


@pytest.mark.parametrize("name", LINKED)
def test_an_algorithms_page_links_the_line_of_its_class(name):
    """`make generated` rewrites the line."""
    page = DOCS / "algorithms" / f"{name}.md"

    file, line, defined = re.search(
        r"^Source code: \[\S+\]\((\S+)#L(\d+)\), `(\w+)`\.$", page.read_text(), flags=re.MULTILINE
    ).groups()

    text = (page.parent / file).read_text().splitlines()[int(line) - 1]
    assert re.match(rf"(class|def) {defined}\b", text), f"{page.name} links {text!r}"
    factory = LINKED[name].component.factory
    assert (factory.partition(":")[2] if isinstance(factory, str) else factory.__name__) == defined


def test_the_index_lists_every_page():
    listed = set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "README.md").read_text()))

    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    algorithms = {path for path in listed if path.startswith("algorithms/")}
    assert listed - algorithms == pages
    assert "algorithms/README.md" in algorithms


OPTION = re.compile(r"`(?:--)?((?:[a-z_0-9]+\.)+[a-z_0-9]+)[ `=]")
"""An option by its whole path, in the words of a page."""
OF_OTHERS = {
    "algo.dynamic_filtering_enable": "OpenRLHF's",
    "model.adapter": "of rlhf generate, as are the next two",
    "model.generation_config": "an attribute of a model in Python",
    "model.quantize": "of rlhf generate",
    "model.serve": "of rlhf generate",
    "reward.clip_range": "OpenRLHF's",
    "reward.normalize_enable": "OpenRLHF's",
    "reward.stop_properly_penalty_coef": "OpenRLHF's",
    "run.start_step": "an attribute in Python",
    "train.jsonl.gz": "a file",
}
"""Names on pages that look like an option's path -> what they are."""
AS_GIVEN = ("data.chat_template_kwargs.", "engine.vllm.args.", "env.")
"""Sections whose options have names that others gave them, or that are those of an installed environment."""
BY_ROLE = ("runtime.ray.cpus_per.", "runtime.ray.gpus_per.", "runtime.ray.ranks.")


def options_of_the_reference() -> set[str]:
    found = set()
    for page in (DOCS / "options").glob("*.md"):
        section = ""
        for line in page.read_text().splitlines():
            if line.startswith("#"):
                section = line.strip("# ")
                found.add(section)
            elif line.startswith("| `"):
                names = re.findall(r"`([^`]+)`", line.split(" | ")[0])
                found |= {name if "." in name else f"{section}.{name}" for name in names}
    return found


def test_options_that_pages_name_are_in_the_reference():
    known = options_of_the_reference()
    sections = {name.partition(".")[0] for name in known if not name.startswith("--")}
    of_a_term = {"weight", "aggregation"}
    missing = []
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *(DOCS / "algorithms").glob("*.md")]
    for page in pages:
        if page.name in ("compared_with_peers.md", "migrating.md"):  # names of other frameworks
            continue
        for name in OPTION.findall(page.read_text()):
            if name.partition(".")[0] not in sections or name.startswith((*AS_GIVEN, *BY_ROLE)):
                continue
            like_the_actors = "actor" + name.removeprefix("critic")
            is_a_terms = name.startswith("algo.terms.") and name.rpartition(".")[2] in of_a_term
            is_a_file = re.search(r"\.(json|jsonl|log|md|png|py|toml|txt)$", name)
            if name in known or like_the_actors in known or is_a_terms or is_a_file:
                continue
            if name not in OF_OTHERS:
                missing.append(f"{page.name}: {name}")

    assert missing == []
