"""What people type into the site's search finds a page to read before an entry of the reference.

`make site` builds the site and runs this with REQUIRE_SITE set; without that it is skipped.
"""

import json
import os
import re
from pathlib import Path

import pytest

INDEX = Path(__file__).parents[2] / "site/search/search_index.json"
MARKUP = re.compile(r"<[^>]+>")
NOT_INDEXED = {"of"}
WORDS = {
    "GRPO": "docs/algorithms/",
    "PPO": "docs/algorithms/ppo/",
    "KL": "docs/algorithms/",
    "Muon": "docs/algorithms/muon/",
    "LoRA": "docs/lora/",
    "QLoRA": "docs/lora/",
    "learning rate": "docs/",
    "out of memory": "docs/",
    "max_new_tokens": "docs/",
    "temperature": "docs/",
    "optimizer": "docs/",
    "reward": "docs/rewards/",
    "reward model": "docs/reward-models/",
    "environment": "docs/writing-an-environment/",
    "agents": "docs/agents/",
    "tools": "docs/tools/",
    "images": "docs/",
    "chat template": "docs/chat-templates/",
    "data": "docs/data/",
    "evaluation": "docs/evaluation/",
    "checkpoint": "docs/",
    "resume": "docs/",
    "wandb": "docs/",
    "SFT": "docs/",
    "DPO": "docs/",
    "vLLM": "docs/vllm/",
    "DeepSpeed": "docs/deepspeed/",
    "Ray": "docs/ray/",
    "OpenRLHF": "docs/",
    "plugin": "docs/plugins/",
    "security": "docs/security/",
}


@pytest.fixture(scope="module")
def found_pages():
    """Find pages for words as the theme's search does: titles weigh more, each word has to be there."""
    if "REQUIRE_SITE" not in os.environ:
        pytest.skip("a site that lies here may be an older one; make site builds it and runs this")
    from lunr import lunr

    read = json.loads(INDEX.read_text())
    places, boosts = read["docs"], read["config"]["fields"]
    fields = [{"field_name": name, "boost": boosts[name]["boost"]} for name in ("title", "text")]
    plain = [
        {"id": index, **{name: MARKUP.sub(" ", place[name]) for name in ("title", "text")}}
        for index, place in enumerate(places)
    ]
    weighed = [
        (document, {"boost": place.get("boost", 1)})
        for document, place in zip(plain, places, strict=True)
    ]
    index = lunr(ref="id", fields=fields, documents=weighed)

    def find(words):
        kept = [word for word in words.split() if word not in NOT_INDEXED]
        found = index.search(" ".join(f"+{word}" for word in kept))
        return [places[int(each["ref"])]["location"] for each in found]

    return find


@pytest.mark.parametrize(("words", "page"), WORDS.items())
def test_words_find_the_page_about_them_first(found_pages, words, page):
    assert found_pages(words)[0].startswith(page)


@pytest.mark.parametrize(
    ("option", "page"),
    [
        ("max_new_tokens", "docs/options/rollout/"),
        ("desirable_weight", "docs/options/rlhf-dpo/"),
        ("clip_high", "docs/options/algo.loss/"),
    ],
)
def test_an_option_is_found_on_the_page_of_its_section(found_pages, option, page):
    assert any(found.startswith(page) for found in found_pages(option))
