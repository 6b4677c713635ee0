"""The walls of the house: no circles, no private imports, docs like the tree."""

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def module_at(path: Path) -> ModuleType:
    """A module by its file; docs/ is no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


graph = module_at(DOCS / "import_graph.py")
KNOWN = graph.modules()
read = graph.imports


@cache
def imports_of(module: object) -> list:
    return list(read(module, KNOWN))


graph.imports = lambda module, _: imports_of(module)  # the source is parsed once for all tests


def libraries() -> set[str]:
    """Packages that register no plugin and that others may build on, beside the core and the command line."""
    return {project.parent.name.replace("-", "_") for project in ROOT.glob("libs/*/pyproject.toml")}


def test_the_graph_knows_the_tree():
    assert len(KNOWN) > 300
    assert "rlhf_core.component" in graph.module_edges(KNOWN)["rlhf_core.registry"]


def test_a_circle_is_found():
    assert graph.circles({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) == [["a", "b", "c"]]
    assert graph.circles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_module_imports_one_that_leads_back_to_it():
    assert graph.circles(graph.module_edges(KNOWN)) == []


def test_no_room_imports_one_that_leads_back_to_it():
    assert graph.circles(graph.room_edges(KNOWN)) == []


def test_no_private_name_is_imported():
    """Neither a module nor a name that begins with an underscore leaves the module or package that it is in."""
    found = [
        f"{each.source}:{each.line} {each.module} {each.name}"
        for module in KNOWN.values()
        for each in graph.imports(module, KNOWN)
        if each.module in KNOWN
        and any(re.match(r"_[^_]", part) for part in [*each.module.split("."), each.name])
    ]

    assert found == []


def test_a_plugin_builds_on_the_core_and_on_libraries_alone():
    """Plugins share code through packages that promise it, never through each other."""
    allowed = {"rlhf_core", "rlhf_cli", *libraries()}
    beside = {
        source: {folder.name for folder in source.iterdir()} for source in ROOT.glob("*/*/src")
    }
    found = [
        f"{each.source}:{each.line} {each.module}"
        for module in KNOWN.values()
        for each in graph.imports(module, KNOWN)
        if each.module.startswith("rlhf_")
        and (top := each.module.partition(".")[0]) not in {module.top, *allowed}
        and not any(top in own for source, own in beside.items() if source in module.path.parents)
    ]

    assert found == []


def test_the_core_and_libraries_know_no_plugin():
    """The core imports itself alone; a library the core and libraries."""
    below = {"rlhf_core": {"rlhf_core"}} | {
        library: {"rlhf_core", *libraries()} for library in libraries()
    }
    found = [
        f"{each.source}:{each.line} {each.module}"
        for module in KNOWN.values()
        if module.top in below
        for each in graph.imports(module, KNOWN)
        if each.module.startswith("rlhf_")
        and each.module.partition(".")[0] not in below[module.top]
    ]

    assert found == []


def test_the_page_of_the_architecture_shows_the_tree():
    """`make generated` rewrites its tables."""
    generator = module_at(DOCS / "generate_architecture.py")

    assert (DOCS / "architecture.md").read_text() == generator.current()


def test_every_place_that_the_architecture_names_is_there():
    """A link ends at a file or folder; `package.module:Name` is defined in that module."""
    text = (DOCS / "architecture.md").read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    names = re.findall(r"`(rlhf_[\w.]+):(\w+)`", text)

    assert links
    assert names
    assert [link for link in links if not (DOCS / link).exists()] == []
    missing = [
        f"{module}:{name}"
        for module, name in names
        if module not in KNOWN
        or not re.search(
            rf"^(?:class |def |async def )?{name}\b", KNOWN[module].path.read_text(), flags=re.M
        )
    ]
    assert missing == []


@pytest.mark.parametrize(
    "package",
    sorted(name for name, module in KNOWN.items() if module.is_package),
)
def test_every_folder_says_what_lives_there(package):
    text = KNOWN[package].path.read_text()

    assert re.match(r'"""\S', text), f"{KNOWN[package].path}: expected a docstring"
