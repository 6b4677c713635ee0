"""The example of docs/migrating.md is what the command makes of it."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/migrating.md"


def test_the_example_of_the_page_is_up_to_date(run, workspace, tmp_path):
    text = PAGE.read_text()
    (script,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (expected,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.sh").write_text(script)

    assert run("train.sh").code == 0

    written = (tmp_path / "run.toml").read_text()
    configuration = written.partition("\n\n")[2].partition("\n\n\n#")[0]
    assert configuration.strip() == expected.strip()
