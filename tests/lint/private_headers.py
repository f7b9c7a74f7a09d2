# SPDX-License-Identifier: Apache-2.0
"""A header that says in its first lines "Inside X/ only." is included from the folder X alone, and from tests.

Two rooms that need the same declaration have it in a header that both may include."""
import re

from source import Finding

MARK = re.compile(r"\bInside ([\w/]+?)/? only\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
FIRST_LINES = 8


def find_owner(tree, header):
    """The folder that a header is for, or None if it is for all."""
    match = MARK.search("\n".join(tree.lines(header)[:FIRST_LINES]))
    if not match:
        return None
    folder = header.rsplit("/", 1)[0]
    # The end of the folder's path suffices: "Inside job/ only." in a header of common/job.
    at = (folder + "/").rfind(match[1] + "/")
    return folder[: at + len(match[1])] if at >= 0 else match[1]


def check(tree):
    owners = {h: find_owner(tree, h) for h in tree.named(".h")}
    for path in tree.product():
        text = tree.text(path)
        for match in INCLUDE.finditer(text):
            owner = owners.get(match[1])
            if owner and not path.startswith(owner + "/"):
                line = text.count("\n", 0, match.start()) + 1
                yield Finding(path, line, f"includes {match[1]}, which is for {owner}/ alone")
