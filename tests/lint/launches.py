# SPDX-License-Identifier: Apache-2.0
"""A kernel may be there before those ahead of it have ended (kernels/cuda/README.md): so each begins with
kernel_begin(), none says to the compiler that memory is read-only, which would let it read before that, and none lets
the next one come, which may be a library's that writes to our scratch."""
import re

from source import Finding, without_comments

ROOM = "kernels/cuda/"
# A kernel's head; `kernel` stands for it where a macro makes several of one.
HEAD = re.compile(r"^[ \t]*(?:KERNEL(?:_[A-Z]+)?\([^()]*\)|kernel\w*)[\s\\]+([\w#]+)\(", re.M)
FIRST = re.compile(r"[\s\\]*kernel_begin\(\);")
WORDS = {r"__restrict(?:__)?|restrict|__ldg": "a kernel that is launched early would read before it has waited",
         r"cudaTriggerProgrammaticLaunchCompletion|launch_dependents": "a library's kernel would write to scratch that is in use"}


def check(tree):
    for path in tree.c_files():
        if not path.startswith(ROOM):
            continue
        text = without_comments(tree.text(path))
        for head in HEAD.finditer(text):
            if not FIRST.match(text, text.index("{", head.end()) + 1):
                yield Finding(path, text.count("\n", 0, head.start(1)) + 1, f"{head[1]} does not begin with kernel_begin()")
        for words, why in WORDS.items():
            for word in re.finditer(rf"\b({words})\b", text):
                yield Finding(path, text.count("\n", 0, word.start()) + 1, f"{word[1]}: {why}")
