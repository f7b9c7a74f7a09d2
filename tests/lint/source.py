# SPDX-License-Identifier: Apache-2.0
"""What every rule of the lint reads: the tree's files, their comments, and what a rule has found."""
import collections
import functools
import pathlib
import re
import subprocess

# `line` is for people; exceptions name the path alone, so that they hold wherever the line moves.
Finding = collections.namedtuple("Finding", "path line what")

PRODUCT = ("common/", "coordinator/", "worker/", "kernels/")
C_SUFFIXES = (".c", ".h", ".cu")


class Tree:
    """The files of a checkout. `objects` is the folder of its object files, or None."""

    def __init__(self, root, files=None, objects=None):
        self.root = pathlib.Path(root)
        self.objects = pathlib.Path(objects) if objects else None
        self.files = sorted(files if files is not None else list_tracked(self.root))

    @functools.lru_cache(maxsize=None)
    def text(self, path):
        return (self.root / path).read_text(errors="replace")

    def lines(self, path):
        return self.text(path).splitlines()

    def named(self, *suffixes):
        return [f for f in self.files if f.endswith(suffixes)]

    def c_files(self):
        return self.named(*C_SUFFIXES)

    def product(self):
        return [f for f in self.c_files() if f.startswith(PRODUCT)]


def list_tracked(root):
    """Files that git knows and those it would not ignore, as they are on disk now."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return [f for f in sorted(set(listed)) if f and (root / f).is_file()]


COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.S)


def c_comments(text):
    """(line, comment) of a C source."""
    for match in COMMENT.finditer(text):
        if match[0].startswith("/"):
            yield text.count("\n", 0, match.start()) + 1, match[0]


def without_comments(text):
    """The same text, as many lines, with blanks for comments and for what strings hold."""
    def blank(match):
        s = match[0]
        return re.sub(r"[^\n]", " ", s) if s.startswith("/") else s[0] + " " * (len(s) - 2) + s[-1]

    return COMMENT.sub(blank, text)
