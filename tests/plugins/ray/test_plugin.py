"""The plugin as it is listed and chosen."""

import subprocess
import sys

import pytest

from rlhf_core import plugins as plugin_loader


def test_listing_the_plugin_imports_neither_ray_nor_torch():
    code = (
        "import sys, rlhf_plugin_ray as p\n"
        "assert [c.name for c in p.rlhf_runtimes()] == ['ray']\n"
        "heavy = {'torch', 'ray', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.scale
def test_the_runtime_can_be_chosen_by_its_name():
    pytest.importorskip("ray")
    entry = plugin_loader.load("").get("rlhf_runtimes", "ray")

    runtime = entry.build(entry.validate({"ranks": {"policy": 2}, "engines": 2}))

    assert {"start", "close"} <= set(dir(runtime))


def test_an_option_out_of_range_is_refused():
    entry = plugin_loader.load("").get("rlhf_runtimes", "ray")

    for options in ({"ranks": {"policy": 0}}, {"engines": 0}, {"threads": 0}, {"colour": 1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            entry.validate(options)
