# SPDX-License-Identifier: Apache-2.0
"""`rc = rc ? rc : next()` is for straight lines of steps, each tried if those before went well.

    int rc = open_a(x, e);
    rc = rc ? rc : open_b(x, e);
    rc = rc ? rc : open_c(x, e);

Such a line begins with an assignment of rc, nothing else stands between its
statements, and it is short. In loops, with or without braces, after branches and behind other
statements an ordinary `if (rc)` shows better where control goes; so it does where a step has a
condition of its own, as in `rc = rc || !labels ? rc : …` and `rc = rc ? rc : grad ? … : …`. Errors
that are named `code` are held to the same."""
import re

from source import Finding, without_comments

LONGEST_LINE = 8  # of such statements; a longer one is a table or several functions
CHAINED = re.compile(r"\b(rc|code)\s*=\s*\(?\1\b\s*(?P<more>(?:\|\||&&)[^?;]*)?\?\s*\1\s*:(?P<step>[^;]*);")
LOOP = re.compile(r"\s*(?:for|while|do)\b")
CHOICE = re.compile(r"[^()]*\?")  # a condition outside the step's own parentheses


def scan_back(text, end):
    """Where the statement or head begins that ends before `end`. What stands between parentheses ends none."""
    start, depth = end, 0
    while start > 0 and (depth or text[start - 1] not in ";{}"):
        start -= 1
        depth += {")": 1, "(": -1}.get(text[start], 0)
    return start


def statement_before(text, at):
    """The statement that ends right before `at`, or "" if a block, branch or label does. A loop is one
    with the body that it has without braces."""
    end = len(text[:at].rstrip())
    if end == 0 or text[end - 1] != ";":
        return ""
    return text[scan_back(text, end - 1) : end].strip()


def is_in_loop(text, at):
    """Whether a block around `at`, up to the function's own, is a loop's."""
    depth = 0
    while at > 0:
        at -= 1
        depth += {"}": 1, "{": -1}.get(text[at], 0)
        if depth < 0:
            depth = 0
            if LOOP.match(text, scan_back(text, at)):
                return True
            if text.startswith("\n{", at - 1):
                return False
    return False


def find_violations(text):
    """(line, what) of a source without comments."""
    run = 0
    for match in CHAINED.finditer(text):
        before = statement_before(text, match.start())
        line = text.count("\n", 0, match.start()) + 1
        run = run + 1 if CHAINED.match(before) else 1
        if match["more"] or CHOICE.match(match["step"]):
            yield line, f"`{match[1]} = {match[1]} ? {match[1]} :` with a condition of its own"
        elif is_in_loop(text, match.start()):
            yield line, f"`{match[1]} = {match[1]} ? {match[1]} :` in a loop"
        elif re.match(r"(if|for|while|else|return|switch|case|goto)\b", before) or not re.search(r"\b(rc|code)\s*=\s", before):
            yield line, f"`{match[1]} = {match[1]} ? {match[1]} :` behind something else than its own line of steps"
        elif run == LONGEST_LINE + 1:
            yield line, f"a line of more than {LONGEST_LINE} steps"


def check(tree):
    for path in tree.product():
        for line, what in find_violations(without_comments(tree.text(path))):
            yield Finding(path, line, what)
