# SPDX-License-Identifier: Apache-2.0
"""What a comment or a README points at is there: no section of a document that the repository lacks,
no file that has moved, no link into nothing."""
import ast
import io
import pathlib
import re
import tokenize

from source import C_SUFFIXES, Finding, c_comments

# Of others: named in comments, not in this repository.
FOREIGN = {
    "llm.c", "config.mak.dev",
    "yaml.h", "xxhash.h", "cmocka.h", "cudnn.h", "cuda_runtime_api.h", "cublasLt.h", "nccl.h", "sqlite3.h", "microhttpd.h",
    "omp.h", "xfs_fs.h",
    "nccl.c",  # a transport to come: its recipe names it
}
ELSEWHERE = re.compile(r"§|\b(?:design|section|chapter) \d|\bdesign (?:section|chapter)|\bpromises? \d", re.I)
NAMED = re.compile(r"(?<![\w/.*$<@%-])((?:[\w{},*?-]+/)*[\w*?{},-]+\.(?:c|h|cu|md|py|sh|proto))\b(?![\w*(/-])")
PLACEHOLDER = re.compile(r"NAME|(?<![a-z])thing(?![a-z])")  # in a recipe
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# A path of this tree in a README: `common/op`, `kernels/cpu/`, with its top folder.
TICKED = re.compile(r"`((?:common|coordinator|worker|kernels|proto|deploy|tests)/[\w./{},*-]*)`")


def py_comments(text):
    """(line, comment) of a Python source: its comments and docstrings."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            yield node.body[0].lineno, ast.get_docstring(node)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def remarks(path, text):
    """(line, text) of what a file says to people."""
    if path.endswith(C_SUFFIXES):
        yield from c_comments(text)
    elif path.endswith(".py"):
        yield from py_comments(text)
    elif path.endswith(".proto"):
        yield from ((n, line[line.index("//"):]) for n, line in enumerate(text.splitlines(), 1) if "//" in line)
    elif path.endswith((".sh", "Makefile", ".yaml")):
        yield from ((n, line) for n, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith("#"))
    elif path.endswith(".md"):
        yield from enumerate(text.splitlines(), 1)


def spread(name):
    """What a shell makes of braces: one{a,b} is onea and oneb."""
    match = re.search(r"\{([^}]*)\}", name)
    if not match:
        return [name]
    return [s for word in match[1].split(",") for s in spread(name[: match.start()] + word + name[match.end() :])]


class Names:
    """Whether a name that somebody wrote leads to a file or folder of the tree."""

    def __init__(self, files):
        self.files = set(files)
        self.folders = {str(p) for f in files for p in pathlib.PurePosixPath(f).parents}
        self.ends = set()  # every tail of every path: the name alone, with its folder, and so on
        for f in files:
            parts = f.split("/")
            self.ends.update("/".join(parts[i:]) for i in range(len(parts)))

    def has_file(self, name):
        if PLACEHOLDER.search(name):
            return True
        if any(c in name for c in "*?"):
            return any(pathlib.PurePosixPath(f).match(name) for f in self.files)
        return name in self.ends or name in FOREIGN

    def has_path(self, name, near):
        """Of a link or path: from the root, or from the folder of who says it."""
        if PLACEHOLDER.search(name):  # its folder at least
            name = PLACEHOLDER.split(name)[0].rpartition("/")[0]
        for start in ("", near):
            parts = []
            for part in (f"{start}/{name}" if start else name).rstrip("/").split("/"):
                if part == ".." and parts:
                    parts.pop()
                elif part != ".":
                    parts.append(part)
            path = "/".join(parts)
            is_program = f"{path}.c" in self.files  # named as its source is
            is_pattern = any(c in path for c in "*?") and self.has_file(path)
            if path in self.files or path in self.folders or is_program or is_pattern:
                return True
        return False


def find_violations(names, path, remark):
    near = path.rpartition("/")[0]
    for match in ELSEWHERE.finditer(remark):
        yield f"'{match[0]}' points into a document that is not here: name the room's README.md"
    for match in NAMED.finditer(remark):
        yield from (f"there is no {name}" for name in spread(match[1]) if not names.has_file(name))
    if path.endswith(".md"):
        for match in [*LINK.finditer(remark), *TICKED.finditer(remark)]:
            if ":" in match[1] or match[1].startswith(("<", "/")):
                continue
            yield from (f"{name} leads nowhere" for name in spread(match[1]) if not names.has_path(name, near))


def check(tree):
    # What the build makes may be named too.
    names = Names(tree.files + [f"gen/{f[:-6]}.pb-c.h" for f in tree.named(".proto")])
    read = (*C_SUFFIXES, ".py", ".proto", ".sh", "Makefile", ".yaml", ".md")
    for path in tree.files:
        if path.startswith("tests/bench/results/") or not path.endswith(read):
            continue
        try:
            for line, remark in remarks(path, tree.text(path)):
                for what in sorted(set(find_violations(names, path, remark))):
                    yield Finding(path, line, what)
        except SyntaxError as e:
            yield Finding(path, e.lineno or 1, f"cannot be read as Python: {e.msg}")
