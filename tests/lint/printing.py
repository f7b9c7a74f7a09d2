# SPDX-License-Identifier: Apache-2.0
"""What people read is written by common/base/plain.c alone.

A name of a file, a sample of a model or a peer's words may hold bytes that steer a terminal. Whoever prints
cannot know in every case where a text comes from, so nobody else prints: plain_printf(), plain_puts() and
plain_put() are the only ways to standard output and standard error. The log (log.c) writes its own lines, made
plain; err.c stands beneath all of it, and prints constants."""
import re

from source import Finding, without_comments

ALLOWED = {"common/base/plain.c", "common/base/log.c", "common/base/err.c"}
ALWAYS = re.compile(r"(?<![\w.>])(v?printf|puts|putchar|perror|psignal)\s*\(")
TO_A_STREAM = re.compile(r"(?<![\w.>])(v?fprintf|fputs|fputc|putc|fwrite|write|v?dprintf)\s*\(([^;]*)")
STANDARD = re.compile(r"\bstd(out|err)\b|\bSTD(OUT|ERR)_FILENO\b|\bto\b")
FIRST_IS_STANDARD = re.compile(r"\s*[12]\s*,")


def find_violations(text):
    """(line, function) of a source without comments."""
    for match in ALWAYS.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1]
    for match in TO_A_STREAM.finditer(text):
        if STANDARD.search(match[2]) or FIRST_IS_STANDARD.match(match[2]):
            yield text.count("\n", 0, match.start()) + 1, match[1]


def check(tree):
    for path in tree.product():
        if path in ALLOWED:
            continue
        for line, function in find_violations(without_comments(tree.text(path))):
            yield Finding(path, line, f"{function}() prints: people are written to by plain.h alone")
