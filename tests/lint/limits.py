# SPDX-License-Identifier: Apache-2.0
"""A limit has one name in one place: two that must agree, written twice, will differ one day.

What a program can see of that: a constant of one name and number in two files, a limit of one name
and two values, an array of things, a loop or a clamp whose bound is a bare number, a duration without a name
in the midst of code, and a message that says a duration which some constant elsewhere decides."""
import collections
import re

from source import COMMENT, Finding, without_comments

# Named twice on purpose: each for a reason of its own, whether the numbers are the same or not.
APART = {
    "FIRST_PAUSE_MS": "the client's calls and the daemons of `weft run` wait independently",
    "PATH_LEN": "buffers for paths, each as long as its own file needs",
    "LOOK_MS": "ranks that greet each other and a device's marks are looked at independently",
}
# SHA-256 is defined by arrays of 64 words.
BY_DEFINITION = {"common/base/hash.c"}
# A kernel's block size, unrolling and the like belong to that kernel alone.
ITS_OWN = ("kernels/cuda/", "kernels/cpu/")
LIMIT = re.compile(r"(?:^|_)(?:MAX|MOST|MIN|LEAST|LIMIT|LEN|CAP)(?:_|$)")
ENUM = re.compile(r"^enum(?: \w+)?\s*\{([^}]*)\}", re.M | re.S)
ENTRY = re.compile(r"\b([A-Z][A-Z0-9_]+)\s*=\s*([^,\n}]+)")
DEFINE = re.compile(r"^#define ([A-Z][A-Z0-9_]+)[ ]+(\S.*)$", re.M)
# Text and digests have sizes of their own: what counts is how many things there may be.
THING = r"(?:struct \w+|enum \w+|(?!u?int8_t)\w+_t|int|double|float|bool|unsigned(?! char))"
ARRAY = re.compile(rf"^\s+(?:static |const )*{THING} [^;=()\n]*\w\[(\d{{2,}})\]", re.M)
LOOP = re.compile(r"\bfor \([^;]*;[^;]*&& (\w+) < ([1-9]\d*)(?![\w.])[^;]*;")
DURATION = re.compile(r"\b(\d+) \* CLOCK_(S|MS)\b")
WAITED = re.compile(r"\b(?:poll|epoll_wait)\([^;{]*[ (,](\d{2,})\)")
CLAMPED = re.compile(r"\b(\d{3,}) \? \1\b")
SAID = re.compile(r'"[^"\n]*(?<![\w%.:])(\d{2,}) (s|ms|min|h)\b[^"\n]*"')


def constants(tree):
    """name -> {value: [(path, line)]} of what is named at file scope."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in tree.product():
        text = without_comments(tree.text(path))
        for block in ENUM.finditer(text):
            for entry in ENTRY.finditer(block[1]):
                line = text.count("\n", 0, block.start(1) + entry.start()) + 1
                found[entry[1]][entry[2].strip()].append((path, line))
        for define in DEFINE.finditer(text):
            line = text.count("\n", 0, define.start()) + 1
            found[define[1]][define[2].strip()].append((path, line))
    return found


def check_names(tree):
    for name, values in sorted(constants(tree).items()):
        for value, places in values.items():
            rooms = {p.rsplit("/", 1)[0] if p.startswith(ITS_OWN) else p for p, _ in places}
            if len(rooms) > 1 and re.search(r"\d", value) and name not in APART:
                for path, line in places:
                    others = ", ".join(sorted({p for p, _ in places} - {path}))
                    yield Finding(path, line, f"{name} is {value} here and in {others}: one constant for both")


def check_values(tree):
    for name, values in sorted(constants(tree).items()):
        places = [(path, line, value) for value, at in values.items() for path, line in at]
        if not LIMIT.search(name) or name in APART:
            continue
        for path, line, value in places:
            # Two values in one file are two branches of an #if.
            other = next(((p, v) for p, _, v in places if p != path and v != value), None)
            if other:
                yield Finding(path, line, f"{name} is {value} here and {other[1]} in {other[0]}: one constant, or two names")


def check_numbers(path, text):
    code = without_comments(text)
    for match in ARRAY.finditer(code):
        if re.search(r"\bchar \w+\[", match[0]) or path in BY_DEFINITION:
            continue
        yield match.start(1), f"an array of {match[1]}: its size has no name"
    for match in LOOP.finditer(code):
        yield match.start(), f"a loop that ends at {match[2]}: the bound has no name"
    for match in DURATION.finditer(code):
        start = code.rfind("\n", 0, match.start()) + 1
        line = code[start : code.find("\n", match.start())]
        in_table = code[match.start() - 1] == "{" or code[match.end()] == "}"
        if not in_table and not re.match(r"\s*(#define|static const|enum)|\s*[A-Z_]+ = ", line):
            yield match.start(), f"{match[0]}: a duration without a name"
    for match in WAITED.finditer(code):
        yield match.start(1), f"poll() waits {match[1]} ms: a duration without a name"
    for match in CLAMPED.finditer(code):
        yield match.start(1), f"at most or at least {match[1]}, written twice: the bound has no name"
    spoken = COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), text)
    for match in SAID.finditer(spoken):
        yield match.start(1), f"a message says {match[1]} {match[2]}: print the constant that decides it"


def check(tree):
    yield from check_names(tree)
    yield from check_values(tree)
    for path in tree.product():
        text = tree.text(path)
        for at, what in check_numbers(path, text):
            yield Finding(path, text.count("\n", 0, at) + 1, what)
