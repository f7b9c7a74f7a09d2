# SPDX-License-Identifier: Apache-2.0
"""What a comment or a README points at is there: no section of a document that the repository lacks,
no file that has moved, no link into nothing, no function and no other name that code no longer has.

A name is looked for where it is marked as one: called() with nothing between its parentheses, or in backticks with an
underscore. In the product's comments and in READMEs every lower-case name with an underscore is one."""
import ast
import io
import pathlib
import re
import tokenize

from source import C_SUFFIXES, COMMENT, PRODUCT, Finding, c_comments

# Of others: named in comments, not in this repository.
FOREIGN = {
    "llm.c", "config.mak.dev",
    "yaml.h", "xxhash.h", "cmocka.h", "cudnn.h", "cuda_runtime_api.h", "cublasLt.h", "nccl.h", "sqlite3.h", "microhttpd.h",
    "omp.h", "xfs_fs.h",
}
# Names of others' code, and words that look like names.
FOREIGN_NAMES = {
    "grpc_shutdown", "grpc_health_probe", "http_proxy", "launch_dependents",
    "read_head",  # the example of an error's way up
    "relu2_grad",  # the example of an op to add
}
ELSEWHERE = re.compile(r"§|\b(?:design|section|chapter) \d|\bdesign (?:section|chapter)|\bpromises? \d", re.I)
NAMED = re.compile(r"(?<![\w/.*$<@%-])((?:[\w{},*?-]+/)*[\w*?{},-]+\.(?:c|h|cu|md|py|sh|proto))\b(?![\w*(/-])")
PLACEHOLDER = re.compile(r"NAME|KERNEL|(?<![a-z])thing(?![a-z])")  # in a recipe
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# A path of this tree in a README: `common/op`, `kernels/cpu/`, with its top folder.
TICKED = re.compile(r"`((?:common|coordinator|worker|kernels|proto|deploy|tests)/[\w./{},*-]*)`")
CALLED = re.compile(r"(?<![\w`.>-])([A-Za-z]\w{2,})\(\)")
TICKED_NAME = re.compile(r"`([A-Za-z]\w*(?:(?:\.|->)\w+)*)(?:\(\))?`")
PLAIN_NAME = re.compile(r"(?<![\w./*<{$-])([a-z]\w*_[a-z0-9_]*[a-z0-9])(?![\w*…{(-])")
COLLECTIVE = re.compile(r"(?:all_(?:reduc|gather)|reduce_scatter|all_to_all)(?:s|es|d|ed)$")  # as a verb


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


class Code:
    """The words that code has outside its comments, and those of them that are called."""

    def __init__(self, tree):
        self.words = {word for f in tree.files for word in re.findall(r"\w+", f)}
        self.called = set()
        for path in tree.files:
            if path.endswith(".md") or path.startswith("tests/bench/results/"):
                continue
            text = tree.text(path)
            if path.endswith((*C_SUFFIXES, ".def", ".proto")):
                text = COMMENT.sub(lambda m: " " if m[0].startswith("/") else m[0], text)
            elif path.endswith((".py", ".sh", "Makefile")):
                text = re.sub(r"#.*", "", text)
            self.words.update(re.findall(r"\w+", text))
            # Without the \b each tail of a long word, as golden files have them, would be tried for itself.
            self.called.update(re.findall(r"\b(\w+)\s*\(", text))

    def has(self, name):
        known = name in self.words or name in FOREIGN_NAMES
        return known or bool(PLACEHOLDER.search(name) or COLLECTIVE.match(name)) or name.isupper()


def find_lost_names(code, path, remark):
    for match in CALLED.finditer(remark):
        if match[1] not in code.called and not PLACEHOLDER.search(match[1]) and match[1] not in FOREIGN_NAMES:
            yield f"no function is named {match[1]}"
    for match in TICKED_NAME.finditer(remark):
        for word in re.split(r"\.|->", match[1]):
            if "_" in word and not code.has(word):
                yield f"code has no {word}"
    if path.startswith(PRODUCT) or path.endswith(".md"):
        for match in PLAIN_NAME.finditer(remark):
            if not code.has(match[1]):
                yield f"code has no {match[1]}"


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
    code = Code(tree)
    names = Names(tree.files + [f"gen/{f[:-6]}.pb-c.h" for f in tree.named(".proto")])
    read = (*C_SUFFIXES, ".py", ".proto", ".sh", "Makefile", ".yaml", ".md")
    for path in tree.files:
        if path.startswith("tests/bench/results/") or not path.endswith(read):
            continue
        try:
            for line, remark in remarks(path, tree.text(path)):
                for what in sorted({*find_violations(names, path, remark), *find_lost_names(code, path, remark)}):
                    yield Finding(path, line, what)
        except SyntaxError as e:
            yield Finding(path, e.lineno or 1, f"cannot be read as Python: {e.msg}")
