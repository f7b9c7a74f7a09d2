# SPDX-License-Identifier: Apache-2.0
"""A kernel may be there before those ahead of it have ended (kernels/cuda/README.md): so each begins with
kernel_begin(), and none says to the compiler that memory is read-only, which would let it read before that."""
import re

from source import Finding, without_comments

ROOM = "kernels/cuda/"
# A kernel's head; `kernel` stands for it where a macro makes several of one.
HEAD = re.compile(r"^[ \t]*(?:KERNEL(?:_BESIDE)?\([^()]*\)|kernel)[\s\\]+([\w#]+)\(", re.M)
FIRST = re.compile(r"[\s\\]*kernel_begin\(\);")
READ_ONLY = re.compile(r"\b(__restrict(?:__)?|restrict|__ldg)\b")


def check(tree):
    for path in tree.c_files():
        if not path.startswith(ROOM):
            continue
        text = without_comments(tree.text(path))
        for head in HEAD.finditer(text):
            if not FIRST.match(text, text.index("{", head.end()) + 1):
                yield Finding(path, text.count("\n", 0, head.start(1)) + 1, f"{head[1]} does not begin with kernel_begin()")
        for word in READ_ONLY.finditer(text):
            yield Finding(path, text.count("\n", 0, word.start()) + 1,
                          f"{word[1]}: a kernel that is launched early would read before it has waited")
