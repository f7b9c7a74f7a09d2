# SPDX-License-Identifier: Apache-2.0
"""What READMEs say is so: the table of keys, the targets of make."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = pathlib.Path(os.environ.get("WEFT_BUILD", ROOT / "build")) / "weft"


def test_the_table_of_keys_is_generated_from_the_schema():
    schema = subprocess.run([WEFT, "schema", "--markdown"], capture_output=True, text=True, check=True)
    keys = (ROOT / "common/job/KEYS.md").read_text()
    table = re.search(r"^<!-- schema -->\n(.*?)^<!-- /schema -->", keys, re.S | re.M).group(1)
    assert table == schema.stdout


@pytest.mark.parametrize("readme", sorted(ROOT.glob("**/README.md")), ids=lambda p: str(p.relative_to(ROOT)))
def test_every_target_a_readme_names_exists(readme):
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", readme.read_text(), re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target


def commands(heading, tmp_path):
    """Those that the README gives below a heading, in its order, with fewer steps."""
    readme = (ROOT / "README.md").read_text()
    block = re.search(rf"^## {heading}.*?```sh\n(.*?)```", readme, re.S | re.M).group(1)
    lines = block.replace("$PWD/build", str(WEFT.parent)).replace("/tmp/book", str(tmp_path / "book"))
    return lines.replace("steps: 300", "steps: 4").replace("every: 100", "every: 2")


def run_commands(lines, tmp_path):
    done = subprocess.run(["bash", "-euc", lines], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_way_from_text_to_a_model_and_to_one_of_ones_own_is_as_the_readme_says(tmp_path):
    said = run_commands(commands("From your own data", tmp_path), tmp_path)
    assert "sample after step 4: " in said
    assert len(list((tmp_path / "book/ckpt").glob("book-*/step-00000004.a1/COMMIT"))) == 1
    path = f"export PATH={WEFT.parent}:$PATH; cd book\n"
    said = run_commands(path + commands("A model of your own", tmp_path), tmp_path)
    assert "logits  [batch, seq, vocab]" in said
    assert "sample after step 4: " in said
    assert len(list((tmp_path / "book/ckpt").glob("mine-*/step-00000004.a1/COMMIT"))) == 1
