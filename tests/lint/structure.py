#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The house in numbers: what a person has to find, read and change in it.

    structure.py [--root DIR] [--build DIR]     --root: of another checkout, say an older one

Needs git and, for the cycles, nm and a build's objects. The paths below are lists of files that one
reads to follow a thing from end to end, by hand; a file that has moved is named as missing."""
import argparse
import collections
import pathlib
import re

import chained_rc
import cycles
from source import Tree, without_comments

# One follows a call where it leads; helpers of common/base that a name explains are not counted.
PATHS = {
}
# What the recipes of the rooms' READMEs touch, tried by making the change; tests are not counted.
RECIPES = {
}
STATIC = re.compile(r"^static (?!inline)[^=;{}()]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)


def count_lines(tree, files):
    return sum(len(tree.lines(f)) for f in files)


def static_functions(tree):
    return [m[1] for f in tree.named(".c", ".cu") if f in tree.product()
            for m in STATIC.finditer(without_comments(tree.text(f)))]


def find_circles(tree):
    found = []
    for folder, objects in sorted(cycles.folders_with_objects(tree).items()):
        for members in cycles.find_circles(cycles.find_needs(cycles.read_symbols(objects))):
            found.append((folder, [pathlib.Path(m).stem.removesuffix(".cu") for m in members]))
    return found


def print_lists(title, lists, tree):
    for name, files in lists.items():
        missing = [f for f in files if f not in tree.files]
        print(f"{title} {name:<38} {len(files):6} files{': missing ' + ' '.join(missing) if missing else ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=pathlib.Path)
    args = parser.parse_args()
    build = args.build or args.root / "build"
    tree = Tree(args.root, objects=build / "obj" if (build / "obj").exists() else None)
    product, statics = tree.product(), static_functions(tree)
    names = collections.Counter(f.rsplit("/", 1)[-1] for f in product)
    tests = [f for f in tree.files if f.startswith("tests/") and f.endswith((".c", ".h", ".cu", ".py", ".sh"))]
    rooms = {f.rsplit("/", 1)[0] for f in product}
    fullest = collections.Counter(f.rsplit("/", 1)[0] for f in product if not f.endswith(".h")).most_common(3)
    code = [without_comments(tree.text(f)) for f in product]
    circles = find_circles(tree) if tree.objects else []
    rows = [
        ("product: lines", count_lines(tree, product)),
        ("product: files", len(product)),
        ("product: rooms (folders)", len(rooms)),
        ("product: files that are not headers in the fullest rooms", ", ".join(f"{n} {r}" for r, n in fullest)),
        ("product: files over 700 lines", sum(len(tree.lines(f)) > 700 for f in product)),
        ("product: basenames that recur, main.c aside", sum(n > 1 for b, n in names.items() if b != "main.c")),
        ("product: static functions of one word", f"{sum('_' not in s for s in statics)} of {len(statics)}"),
        ("product: `rc = rc ? rc :`", sum(len(chained_rc.CHAINED.findall(c)) for c in code)),
        ("tests: lines", count_lines(tree, tests)),
        ("rooms' READMEs", sum(f.endswith("README.md") and "/" in f for f in tree.files)),
        ("top README.md: lines", len(tree.lines("README.md"))),
        ("cycles between object files of one folder", len(circles) if tree.objects else "not built"),
        ("files in such cycles", sum(len(c) for _, c in circles)),
    ]
    for name, value in rows:
        print(f"{name:<60} {value}")
    for folder, members in circles:
        print(f"    {folder}: {' '.join(members)}")
    print_lists("read", PATHS, tree)
    print_lists("change for", RECIPES, tree)


if __name__ == "__main__":
    main()
