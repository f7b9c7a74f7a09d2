# SPDX-License-Identifier: Apache-2.0
"""No source is longer than one can hold in mind: where one is, a noun is hiding in it. Nor is a README.
A function of the product fits on a screen or little more, and a comment in the window that the code is read in:
clang-format wraps code at 100 columns and leaves comments as they are."""
import re

from source import C_SUFFIXES, Finding, without_comments

LONGEST = {".c": 700, ".cu": 700, ".py": 700, ".h": 220, "/README.md": 150}
TOP_README = 180
LONGEST_FUNCTION = 60  # lines, from its name to its last brace
LONGEST_COMMENT = 110  # columns: over 100 by a word
FUNCTION = re.compile(r"^[^\s#{}/][^\n;{}]*?(\w+)\([^;{}]*\)\n\{\n.*?\n\}\n", re.M | re.S)


def find_long_functions(text):
    """(line, name, length) of a source without comments."""
    for match in FUNCTION.finditer(text):
        length = match[0].count("\n")
        if length > LONGEST_FUNCTION:
            yield text.count("\n", 0, match.start()) + 1, match[1], length


def check(tree):
    for suffix, longest in LONGEST.items():
        for path in tree.named(suffix):
            n = len(tree.lines(path))
            if n > longest:
                yield Finding(path, n, f"{n} lines; over {longest} a noun is hiding")
    for path in tree.named(*C_SUFFIXES):
        for i, line in enumerate(tree.lines(path), 1):
            if len(line) > LONGEST_COMMENT and line.lstrip().startswith("//"):
                yield Finding(path, i, f"a comment of {len(line)} columns: wrap it at 100")
    for path in {"README.md"} & set(tree.files):
        if len(tree.lines(path)) > TOP_README:
            yield Finding(path, len(tree.lines(path)), f"over {TOP_README} lines: a newcomer stops reading")
    for path in tree.product():
        for line, name, length in find_long_functions(without_comments(tree.text(path))):
            yield Finding(path, line, f"{name} has {length} lines; over {LONGEST_FUNCTION} several functions are hiding")
