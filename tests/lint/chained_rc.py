# SPDX-License-Identifier: Apache-2.0
"""`rc = rc ? rc : next()` is for straight lines of steps, each tried if those before went well.

    int rc = open_a(x, e);
    rc = rc ? rc : open_b(x, e);
    rc = rc ? rc : open_c(x, e);

Such a line begins with an assignment of rc, nothing else stands between its
statements, and it is short. In loops, after branches and behind other statements an ordinary
`if (rc)` shows better where control goes."""
import re

from source import Finding, without_comments

LONGEST_LINE = 8  # of such statements; a longer one is a table or several functions
CHAINED = re.compile(r"\brc\s=\s+rc\s\?\s+rc\s*:")


def statement_before(text, at):
    """The statement that ends right before `at`, or "" if a block, branch or label does. What stands
    between parentheses ends no statement: a loop is one with the body that it has without braces."""
    end = len(text[:at].rstrip())
    if end == 0 or text[end - 1] != ";":
        return ""
    start, depth = end - 1, 0
    while start > 0 and (depth or text[start - 1] not in ";{}"):
        start -= 1
        depth += {")": 1, "(": -1}.get(text[start], 0)
    return text[start:end].strip()


def find_violations(text):
    """(line, what) of a source without comments."""
    run = 0
    for match in CHAINED.finditer(text):
        before = statement_before(text, match.start())
        line = text.count("\n", 0, match.start()) + 1
        run = run + 1 if CHAINED.match(before) else 1
        if re.match(r"(if|for|while|else|return|switch|case|goto)\b", before) or not re.search(r"\brc\s=\s", before):
            yield line, "`rc = rc ? rc :` behind something else than its own line of steps"
        elif run == LONGEST_LINE + 1:
            yield line, f"a line of more than {LONGEST_LINE} steps"


def check(tree):
    for path in tree.product():
        for line, what in find_violations(without_comments(tree.text(path))):
            yield Finding(path, line, what)
