# SPDX-License-Identifier: Apache-2.0
"""What READMEs say is so: the table of keys, the targets of make."""
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = pathlib.Path(os.environ.get("WEFT_BUILD", ROOT / "build")) / "weft"


def test_the_table_of_keys_is_generated_from_the_schema():
    schema = subprocess.run([WEFT, "schema", "--markdown"], capture_output=True, text=True, check=True)
    keys = (ROOT / "common/job/KEYS.md").read_text()
    table = re.search(r"^<!-- schema -->\n(.*?)^<!-- /schema -->", keys, re.S | re.M).group(1)
    assert table == schema.stdout


def test_every_target_the_readme_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    readme = (ROOT / "README.md").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", readme)):
        assert re.search(rf"^{target}:", makefile, re.M), target
