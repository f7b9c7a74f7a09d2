# SPDX-License-Identifier: Apache-2.0
"""A header whose leading comment says "Inside X/ only." is included from the folder X alone, and from tests.
One that is included from its own folder alone says so: who changes it then knows whom it may concern.

Two rooms that need the same declaration have it in a header that both may include."""
import collections
import re

from source import Finding, c_comments

MARK = re.compile(r"\bInside ([\w/]+?)/? only\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
LEFT_EDGE = re.compile(r"^\s*(?://|/?\*+/?)?", re.M)
BEGINS = re.compile(r"^\s*#\s*pragma once\b", re.M)


def unwrap(comment):
    """Its words on one line: a comment breaks wherever its line is full, also within the mark."""
    return " ".join(LEFT_EDGE.sub("", comment).split())


def split_header(tree, header):
    """(what stands before #pragma once, what comes behind it)"""
    text = tree.text(header)
    begins = BEGINS.search(text)
    return (text[: begins.start()], text[begins.start():]) if begins else (text, "")


def find_owner(tree, header):
    """The folder that a header is for, or None if it is for all."""
    match = MARK.search(unwrap(split_header(tree, header)[0]))
    if not match:
        return None
    folder = header.rsplit("/", 1)[0]
    # The end of the folder's path suffices: "Inside job/ only." in a header of common/job.
    at = (folder + "/").rfind(match[1] + "/")
    return folder[: at + len(match[1])] if at >= 0 else match[1]


def check(tree):
    headers = tree.named(".h")
    owners = {h: find_owner(tree, h) for h in headers}
    for header in headers:
        lead, rest = split_header(tree, header)
        for first, comment in c_comments(rest):
            if MARK.search(comment):
                line = lead.count("\n") + first
                yield Finding(header, line, "a mark behind #pragma once holds nobody back: it belongs to the leading comment")
    users = collections.defaultdict(set)
    for path in tree.product():
        text = tree.text(path)
        for match in INCLUDE.finditer(text):
            users[match[1]].add(path)
            owner = owners.get(match[1])
            if owner and not path.startswith(owner + "/"):
                line = text.count("\n", 0, match.start()) + 1
                yield Finding(path, line, f"includes {match[1]}, which is for {owner}/ alone")
    for header in headers:
        folder = header.rpartition("/")[0]
        if users[header] and not owners[header] and all(p.startswith(folder + "/") for p in users[header]):
            yield Finding(header, 1, f"no other room includes it: its leading comment says 'Inside {folder}/ only.'")
