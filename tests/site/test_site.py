"""The built site has an entry for every public name, and its navigation every page of docs/.

`make site` builds it and runs these with REQUIRE_SITE set; without that they are skipped.
"""

import os
import re
import sys
import zlib
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parent.parent.parent
SITE = ROOT / "site"
INVENTORY = SITE / "objects.inv"
LINK = re.compile(r'(?:href|src)="(?!\w+:|//|#)([^"?]+)')
PLACE = re.compile(r' (?:id|name)="([^"]+)"')
sys.path.insert(0, str(ROOT / "docs"))

from api_modules import SHADOWED, public_members, public_modules, public_names  # noqa: E402

OF_A_LIBRARY = {
    f"rlhf_core.lazy.{name}"
    for name in ("Bool", "Float", "Int", "NDArray", "Shaped", "np", "torch")
}
"""Names of torch, numpy and jaxtyping, whose own documentation has them."""


@pytest.fixture(scope="module")
def entries() -> set[str]:
    """Names in the site's inventory, which other sites link by."""
    if "REQUIRE_SITE" not in os.environ:
        pytest.skip("a site that lies here may be an older one; make site builds it and runs this")
    *_, packed = INVENTORY.read_bytes().split(b"\n", 4)
    lines = zlib.decompress(packed).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines}


@pytest.mark.parametrize("module", public_modules())
def test_the_reference_has_every_public_name(entries, module):
    names = [*public_names(module), *public_members(module)]

    missing = [
        name
        for name in (module, *(f"{module}.{name}" for name in names))
        if SHADOWED.get(name, name) not in entries and name not in OF_A_LIBRARY
    ]

    assert missing == []


def test_the_words_of_the_vocabulary_are_in_the_reference(entries):
    tables = ("SUPPLIED_BY_THE_LOOP", "BROUGHT_BY_OPTIONS", "PROVIDED_BY_COMPONENTS", "FIX")

    assert {f"rlhf_core.capabilities.{table}" for table in tables} <= entries


def test_every_link_of_the_site_leads_to_a_page_and_a_place_in_it(entries):
    """MkDocs looks at links between Markdown pages; these are also those to sources, and within the reference."""
    places = {page: set(PLACE.findall(page.read_text())) for page in SITE.rglob("*.html")}
    lost = []
    for page in places:
        if page.is_relative_to(SITE / "source") or page.name == "404.html":
            continue
        for link in LINK.findall(page.read_text()):
            path, _, place = unquote(link).partition("#")
            target = (page.parent / path).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (place and place not in places.get(target, {place})):
                lost.append(f"{page.relative_to(SITE)}: {link}")

    assert len(places) > 200
    assert lost == []


def test_an_algorithms_page_leads_to_its_line_of_the_source(entries):
    page = (SITE / "docs/algorithms/rloo/index.html").read_text()

    line = re.search(r'href="../../../source/(\S+rloo)\.py\.html#L-(\d+)"', page)

    source = (ROOT / f"{line[1]}.py").read_text().splitlines()
    assert source[int(line[2]) - 1] == "class Rloo:"


def test_a_choice_in_a_table_shows_bars_without_backslashes(entries):
    page = (SITE / "docs/options/rollout/index.html").read_text()

    assert "<code>true|false</code>" in page
    assert "\\|" not in page


def test_what_is_said_of_a_field_is_on_its_page(entries):
    page = (SITE / "api/rlhf_core.contracts/index.html").read_text()

    assert 'id="rlhf_core.contracts.LossInputs.old_logprobs"' in page
    assert "The training step that trains on the batch, from 1." in page  # of RolloutInfo.step
