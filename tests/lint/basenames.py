# SPDX-License-Identifier: Apache-2.0
"""A file of the product is found by its name alone: no two share one, but for each program's main.c. Nor has a
file of the tests a name of the product's, since comments name files so."""
import collections

from source import Finding

SHARED = {"main.c"}


def check(tree):
    paths = collections.defaultdict(list)
    for path in tree.product():
        paths[path.rsplit("/", 1)[-1]].append(path)
    for name, same in sorted(paths.items()):
        if len(same) > 1 and name not in SHARED:
            for path in same:
                others = ", ".join(p for p in same if p != path)
                yield Finding(path, 1, f"has the same name as {others}")
    for path in tree.c_files():
        name = path.rsplit("/", 1)[-1]
        if path.startswith("tests/") and name in paths and name not in SHARED:
            yield Finding(path, 1, f"has the same name as {paths[name][0]}")
