# SPDX-License-Identifier: Apache-2.0
"""No source is longer than one can hold in mind: where one is, a noun is hiding in it."""
from source import Finding

LONGEST = {".c": 700, ".cu": 700, ".py": 700, ".h": 220}


def check(tree):
    for suffix, longest in LONGEST.items():
        for path in tree.named(suffix):
            n = len(tree.lines(path))
            if n > longest:
                yield Finding(path, n, f"{n} lines; over {longest} a noun is hiding")
