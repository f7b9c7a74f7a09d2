# SPDX-License-Identifier: Apache-2.0
"""No source is longer than one can hold in mind: where one is, a noun is hiding in it. Nor is a README."""
from source import Finding

LONGEST = {".c": 700, ".cu": 700, ".py": 700, ".h": 220, "/README.md": 150}
TOP_README = 180


def check(tree):
    for suffix, longest in LONGEST.items():
        for path in tree.named(suffix):
            n = len(tree.lines(path))
            if n > longest:
                yield Finding(path, n, f"{n} lines; over {longest} a noun is hiding")
    for path in {"README.md"} & set(tree.files):
        if len(tree.lines(path)) > TOP_README:
            yield Finding(path, len(tree.lines(path)), f"over {TOP_README} lines: a newcomer stops reading")
