# SPDX-License-Identifier: Apache-2.0
"""Each rule of the lint names a violation that is planted in a small tree, and nothing in the clean one."""
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import lint
from source import Tree

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
CLEAN = {
    "README.md": "A house: see [the job](common/job/README.md) and `common/job`.\n",
    "common/job/README.md": "What a job is.\n",
    "common/job/tree.h": SPDX + "// A tree of text. Inside job/ only.\n#pragma once\nint tree_read(void);\n",
    "common/job/tree.c": SPDX + '// See tree.h.\n#include "common/job/tree.h"\nint tree_read(void) { return 0; }\n',
    "common/job/job.h": SPDX + "// A job.\n#pragma once\nenum { JOB_MAX = 64 };\nint job_read(void);\n",
    "common/job/job.c": SPDX + '#include "common/job/job.h"\n#include "common/job/tree.h"\n'
                               "int job_read(void)\n{\n    int rc = tree_read();\n    rc = rc ? rc : tree_read();\n"
                               "    rc = rc ? rc : tree_read();\n    return rc;\n}\n",
    "coordinator/main.c": SPDX + '#include "common/job/job.h"\nint main(void) { return job_read(); }\n',
    "worker/main.c": SPDX + "int main(void) { return 0; }\n",
}


def run_rules(root, files, objects=None):
    """What the lint says of a tree of these files: a list of "path: what [rule]"."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    left, _ = lint.find_violations(Tree(root, files=list(files), objects=objects), list(lint.RULES))
    return [f"{f.path}: {f.what} [{rule}]" for rule, f in left]


def test_a_clean_tree_has_no_violation(tmp_path):
    assert run_rules(tmp_path, CLEAN) == []


# What is planted, and the one thing that is said of it.
PLANTED = {
    "a room includes what it may not": (
        {"common/job/job.c": SPDX + '#include "coordinator/decide/coord.h"\n', "coordinator/decide/coord.h": SPDX},
        "common/job/job.c: common/job may not include coordinator/decide/coord.h [includes]"),
    "a foreign header outside its home": (
        {"common/job/job.c": SPDX + "#include <sqlite3.h>\n"}, "common/job/job.c: sqlite3.h belongs to coordinator/store/db [includes]"),
    "a source without its licence": (
        {"common/job/job.c": "int x;\n"}, "common/job/job.c: the first line is not the SPDX line [includes]"),
    "a source outside every room": (
        {"tools/a.c": SPDX}, "tools/a.c: lies in no room of the layout [includes]"),
    "a room's own header in another room": (
        {"coordinator/main.c": SPDX + '#include "common/job/tree.h"\n'},
        "coordinator/main.c: includes common/job/tree.h, which is for common/job/ alone [private_headers]"),
    "a room's own header whose mark is wrapped": (
        {"coordinator/main.c": SPDX + '#include "common/job/tree.h"\n',
         "common/job/tree.h": SPDX + "// A tree of text. Inside\n// common/job/ only.\n#pragma once\n"},
        "coordinator/main.c: includes common/job/tree.h, which is for common/job/ alone [private_headers]"),
    "a room's own header whose mark ends a long comment": (
        {"coordinator/main.c": SPDX + '#include "common/job/tree.h"\n',
         "common/job/tree.h": SPDX + "// A row of the picture.\n" * 30 + "// Inside common/job/\n// only.\n#pragma once\n"},
        "coordinator/main.c: includes common/job/tree.h, which is for common/job/ alone [private_headers]"),
    "a mark that stands by one declaration": (
        {"common/job/job.h": SPDX + "#pragma once\n// Inside common/job/ only: reads it.\nint job_read(void);\n"},
        "common/job/job.h: a mark behind #pragma once holds nobody back: it belongs to the leading comment [private_headers]"),
    "a header that its room alone includes and that does not say so": (
        {"coordinator/main.c": SPDX + "int main(void) { return 0; }\n"},
        "common/job/job.h: no other room includes it: its leading comment says 'Inside common/job/ only.' [private_headers]"),
    "a foreign text that is printed without being made plain": (
        {"coordinator/main.c": SPDX + 'int main(int n, char **v) { return n + printf("%s", v[0]); }\n'},
        "coordinator/main.c: printf() prints: people are written to by plain.h alone [printing]"),
    "an error that is written to the standard error as it came": (
        {"worker/main.c": SPDX + 'int main(int n, char **v)\n{\n    return n + fputs(\n        v[0],\n        stderr);\n}\n'},
        "worker/main.c: fputs() prints: people are written to by plain.h alone [printing]"),
    "two files of one name": (
        {"worker/job.c": SPDX}, "worker/job.c: has the same name as common/job/job.c [basenames]"),
    "a test's file of a product file's name": (
        {"tests/unit/job.h": SPDX}, "tests/unit/job.h: has the same name as common/job/job.h [basenames]"),
    "a source that is too long": (
        {"worker/long.c": SPDX + "int x;\n" * 700}, "worker/long.c: 701 lines; over 700 a noun is hiding [lengths]"),
    "a header that is too long": (
        {"worker/long.h": SPDX + "\n" * 220}, "worker/long.h: 221 lines; over 220 a noun is hiding [lengths]"),
    "a comment that runs out of the window": (
        {"worker/a.c": SPDX + "// " + "word " * 22 + "\nint x;\n"},
        "worker/a.c: a comment of 113 columns: wrap it at 100 [lengths]"),
    "a function that is too long": (
        {"worker/a.c": SPDX + "int g(void)\n{\n    return 0;\n}\n\nstatic int f(int a,\n             int b)\n{\n" + "    g();\n" * 57 + "}\n"},
        "worker/a.c: f has 61 lines; over 60 several functions are hiding [lengths]"),
    "a room's README that is too long": (
        {"common/job/README.md": "Words.\n" * 151}, "common/job/README.md: 151 lines; over 150 a noun is hiding [lengths]"),
    "a top README that is too long": (
        {"README.md": "Words.\n" * 181}, "README.md: over 180 lines: a newcomer stops reading [lengths]"),
    "a section of a document elsewhere": (
        {"worker/a.c": SPDX + "// As design \u00a79 says.\n"},
        "worker/a.c: '\u00a7' points into a document that is not here: name the room's README.md [documents]"),
    "a section of a document elsewhere, in words": (
        {"worker/a.c": SPDX + "// As section 9 says.\n"},
        "worker/a.c: 'section 9' points into a document that is not here: name the room's README.md [documents]"),
    "a promise of a document elsewhere": (
        {"worker/a.c": SPDX + "int x; // promise 5\n"},
        "worker/a.c: 'promise 5' points into a document that is not here: name the room's README.md [documents]"),
    "a comment that names a document that is gone": (
        {"worker/a.c": SPDX + "/* See\n * compiler.md. */\n"}, "worker/a.c: there is no compiler.md [documents]"),
    "a comment that names a file that has moved": (
        {"worker/a.c": SPDX + "// See old/place.h.\n"}, "worker/a.c: there is no old/place.h [documents]"),
    "a comment that names a function that is gone": (
        {"worker/a.c": SPDX + "// Freed by drop_all().\n"}, "worker/a.c: no function is named drop_all [documents]"),
    "a comment that names a variable as if it were a function": (
        {"worker/a.c": SPDX + "// As settle() does.\nint settle;\n"}, "worker/a.c: no function is named settle [documents]"),
    "a comment with a name that code has no more": (
        {"worker/a.c": SPDX + "/* Until\n * not_before. */\nlong not_before_ns;\n"}, "worker/a.c: code has no not_before [documents]"),
    "a test's comment with a field that is gone": (
        {"tests/a.c": SPDX + "// It fills `tree->old_rows`.\n"}, "tests/a.c: code has no old_rows [documents]"),
    "a README with a name that only comments still have": (
        {"common/job/README.md": "See job_parse.\n", "worker/a.c": SPDX + "// job_parse, `job_parse`\n"},
        "common/job/README.md: code has no job_parse [documents]"),
    "a docstring that names a file that has moved": (
        {"tests/a.py": '"""As in place.c."""\n'}, "tests/a.py: there is no place.c [documents]"),
    "a Python file that is none": (
        {"tests/a.py": "def f(:\n"}, "tests/a.py: cannot be read as Python: invalid syntax [documents]"),
    "a README's link into nothing": (
        {"common/job/README.md": "See [the tree](../tree/README.md).\n"},
        "common/job/README.md: ../tree/README.md leads nowhere [documents]"),
    "a README's path that is gone": (
        {"README.md": "It is in `common/jobs`.\n"}, "README.md: common/jobs leads nowhere [documents]"),
    "one constant in two files": (
        {"worker/a.c": SPDX + "enum { BLAME_MS = 1500 };\n", "coordinator/b.c": SPDX + "enum { A, BLAME_MS = 1500 };\n"},
        "worker/a.c: BLAME_MS is 1500 here and in coordinator/b.c: one constant for both [limits]"),
    "one limit with two values": (
        {"worker/a.h": SPDX + "#define RANKS_MAX 1024\n", "coordinator/b.c": SPDX + "enum { A, RANKS_MAX = 4096 };\n"},
        "worker/a.h: RANKS_MAX is 1024 here and 4096 in coordinator/b.c: one constant, or two names [limits]"),
    "an array with a bare size": (
        {"worker/a.c": SPDX + "struct l {\n    int pending[64], n;\n};\n"},
        "worker/a.c: an array of 64: its size has no name [limits]"),
    "a loop with a bare bound": (
        {"worker/a.c": SPDX + "void f(int n)\n{\n    for (int i = 0; i < n && i < 8; i++)\n        g();\n}\n"},
        "worker/a.c: a loop that ends at 8: the bound has no name [limits]"),
    "a duration in the midst of code": (
        {"worker/a.c": SPDX + "int f(void) { return now - lost < 60 * CLOCK_S; }\n"},
        "worker/a.c: 60 * CLOCK_S: a duration without a name [limits]"),
    "a short duration in the midst of code": (
        {"worker/a.c": SPDX + "int f(void) { return join(now + 5 * CLOCK_S); }\n"},
        "worker/a.c: 5 * CLOCK_S: a duration without a name [limits]"),
    "a poll that waits a bare number": (
        {"worker/a.c": SPDX + "int f(void) { return poll(&p, g(1), 500); }\n"},
        "worker/a.c: poll() waits 500 ms: a duration without a name [limits]"),
    "a clamp with a bare bound": (
        {"worker/a.c": SPDX + "int f(int ms) { return ms > 60000 ? 60000 : ms; }\n"},
        "worker/a.c: at most or at least 60000, written twice: the bound has no name [limits]"),
    "a message that says a constant's number": (
        {"worker/a.c": SPDX + 'void f(void) { say("no answer within 60 s"); }\n'},
        "worker/a.c: a message says 60 s: print the constant that decides it [limits]"),
    "chained errors in a loop": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    int rc = 0;\n    for (int i = 0; i < 3; i++)\n        rc = rc ? rc : g();\n    return rc;\n}\n"},
        "worker/a.c: `rc = rc ? rc :` behind something else than its own line of steps [chained_rc]"),
    "chained errors in a loop with braces": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    for (int i = 0; i < 3; i++) {\n        int rc = a();\n        rc = rc ? rc : g();\n    }\n}\n"},
        "worker/a.c: `rc = rc ? rc :` in a loop [chained_rc]"),
    "chained errors in a branch of a loop": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    while (x()) {\n        if (y()) {\n            int rc = a();\n            rc = rc ? rc : g();\n        }\n    }\n}\n"},
        "worker/a.c: `rc = rc ? rc :` in a loop [chained_rc]"),
    "chained errors with a condition": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    int rc = a();\n    rc = rc || !x ? rc : g();\n    return rc;\n}\n"},
        "worker/a.c: `rc = rc ? rc :` with a condition of its own [chained_rc]"),
    "chained errors with a choice": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    int rc = a();\n    rc = rc  ? rc\n         : x ? g()\n             : h();\n    return rc;\n}\n"},
        "worker/a.c: `rc = rc ? rc :` with a condition of its own [chained_rc]"),
    "chained errors of another name": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    int code = a();\n    if (x)\n        b();\n    code = code ? code : g();\n    return code;\n}\n"},
        "worker/a.c: `code = code ? code :` behind something else than its own line of steps [chained_rc]"),
    "chained errors behind a loop": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    int rc = a();\n    for (int i = 0; i < 3 && !rc; i++)\n        rc = b();\n    rc = rc ? rc : g();\n    return rc;\n}\n"},
        "worker/a.c: `rc = rc ? rc :` behind something else than its own line of steps [chained_rc]"),
    "chained errors behind a branch": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    int rc = a();\n    if (x) {\n        b();\n    }\n    rc = rc ? rc : g();\n    return rc;\n}\n"},
        "worker/a.c: `rc = rc ? rc :` behind something else than its own line of steps [chained_rc]"),
    "chained errors without an end": (
        {"worker/a.c": SPDX + "int f(void)\n{\n    int rc = a();\n" + "    rc = rc ? rc : g();\n" * 9 + "    return rc;\n}\n"},
        "worker/a.c: a line of more than 8 steps [chained_rc]"),
    "a kernel that does not wait": (
        {"kernels/cuda/a.cu": SPDX + "KERNEL(THREADS) first(float *x)\n{\n    kernel_begin();\n}\n\nKERNEL_BESIDE(THREADS, 2)\nsecond(float *x)\n{\n    float y = *x;\n    kernel_begin();\n}\n"},
        "kernels/cuda/a.cu: second does not begin with kernel_begin() [launches]"),
    "a kernel in a macro that does not wait": (
        {"kernels/cuda/a.h": SPDX + "#define BOTH(kernel, name) \\\n    kernel name##_f32(void) \\\n    {  \\\n        name(); \\\n    }\n"},
        "kernels/cuda/a.h: name##_f32 does not begin with kernel_begin() [launches]"),
    "a promise that memory is read-only": (
        {"kernels/cuda/a.h": SPDX + "float sum(const float *__restrict__ x);\n"},
        "kernels/cuda/a.h: __restrict__: a kernel that is launched early would read before it has waited [launches]"),
    "a kernel that lets the next one come": (
        {"kernels/cuda/a.h": SPDX + "static void end(void)\n{\n    cudaTriggerProgrammaticLaunchCompletion();\n}\n"},
        "kernels/cuda/a.h: cudaTriggerProgrammaticLaunchCompletion: a library's kernel would write to scratch that is in use [launches]"),
    "an exception that excepts nothing": (
        {"tests/lint/exceptions.txt": "# known\nlengths worker/gone.c\n"},
        "tests/lint/exceptions.txt: 'lengths worker/gone.c' excepts nothing any more [lengths]"),
}


@pytest.mark.parametrize("files, said", PLANTED.values(), ids=PLANTED)
def test_it_names(tmp_path, files, said):
    assert said in run_rules(tmp_path, {**CLEAN, **files})


def test_it_names_rooms_that_stand_on_each_other(tmp_path, monkeypatch):
    below = lint.includes.ARROWS["common/base"]
    monkeypatch.setitem(lint.includes.ARROWS, "common/base", [*below, "common/job"])
    said = run_rules(tmp_path, CLEAN)
    assert "tests/lint/includes.py: rooms that may include each other: " \
        "common/base → common/job → common/base [includes]" in said


def test_it_leaves_out_what_is_excepted(tmp_path):
    known = {"worker/long.c": SPDX + "int x;\n" * 700, "tests/lint/exceptions.txt": "lengths worker/long.c # a parser\n"}
    assert run_rules(tmp_path, {**CLEAN, **known}) == []


def test_two_files_may_differ_in_what_is_no_limit(tmp_path):
    apart = {
        "worker/a.c": SPDX + "enum { PIECE = 512, PATH_LEN = 4000 };\n",
        "coordinator/b.c": SPDX + "enum { PIECE = 2048, PATH_LEN = 4200 };\n",
        "worker/wide.h": SPDX + "#ifdef WIDE\n#define LANES_MAX 16\n#else\n#define LANES_MAX 8\n#endif\n",
    }
    assert run_rules(tmp_path, {**CLEAN, **apart}) == []


def compile_all(root, files):
    for path in files:
        out = root / "build/obj" / path.replace(".c", ".o")
        out.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-c", str(root / path), "-o", str(out)], check=True)
    return root / "build/obj"


def test_it_names_a_cycle_between_the_files_of_a_folder(tmp_path):
    circle = {
        "worker/a.c": SPDX + "int b(void);\nint a(void) { return b(); }\n",
        "worker/b.c": SPDX + "int c(void);\nint b(void) { return c(); }\n",
        "worker/c.c": SPDX + "int a(void);\nint c(void) { return a(); }\n",
        "worker/d.c": SPDX + "int a(void);\nint d(void) { return a(); }\n",
    }
    run_rules(tmp_path, circle)
    said = run_rules(tmp_path, circle, objects=compile_all(tmp_path, circle))
    assert said == ["worker: 3 files need each other: a b c; for one a (b) → b (c) → c (a) → a [cycles]"]


def test_what_goes_down_between_two_folders_is_no_cycle(tmp_path):
    rooms = {
        "worker/a.c": SPDX + "int b(void);\nint a(void) { return b(); }\n",
        "common/job/b.c": SPDX + "int a(void);\nint b(void) { return a(); }\n",
    }
    run_rules(tmp_path, rooms)
    assert run_rules(tmp_path, rooms, objects=compile_all(tmp_path, rooms)) == []
