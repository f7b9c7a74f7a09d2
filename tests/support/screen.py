# SPDX-License-Identifier: Apache-2.0
"""A terminal's screen in memory: what is seen there after the bytes that a program has written. It knows the few
sequences that weft writes, and fails on every other."""
import re
import unicodedata

TOKEN = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|[\x00-\x1f\x7f-\x9f]|[^\x00-\x1f\x7f-\x9f]+")


def width(c):
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


class Screen:
    """Lines are lists of characters; `lines` holds the scrollback too. As most terminals do it breaks and joins
    lines that were too long where its width changes."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.lines, self.wrapped = [[]], [False]  # wrapped: the line continues the one above
        self.y = self.x = 0
        self.sequences = set()
        self.rest = b""

    def feed(self, data):
        self.rest += data
        cut = len(self.rest)
        while cut > 0 and cut > len(self.rest) - 8:  # a sequence or character that is not whole yet
            try:
                text = self.rest[:cut].decode()
            except UnicodeDecodeError:
                cut -= 1
                continue
            if not re.search("\x1b(\\[[0-9;]*)?$", text):
                break
            cut -= 1
        else:
            return
        self.rest = self.rest[cut:]
        for m in TOKEN.finditer(text):
            self.take(m)

    def take(self, m):
        if m[2]:
            self.sequences.add(m[2])
            number = int(m[1] or 1) if m[2] == "A" else m[1]
            if m[2] == "A":
                self.y = max(self.y - number, self.top(), 0)
            elif m[2] == "J" and number == "":
                del self.lines[self.y + 1 :], self.wrapped[self.y + 1 :]
                del self.lines[self.y][self.x :]
            else:
                assert m[2] == "m", f"a sequence that nobody should send: {m[0]!r}"
        elif m[0] == "\r":
            self.x = 0
        elif m[0] == "\n":
            self.down(False)
        elif m[0] != "\x07":
            assert m[0].isprintable(), f"a character that steers: {m[0]!r}"
            for c in m[0]:
                self.put(c)

    def top(self):
        return len(self.lines) - self.rows

    def down(self, wraps):
        self.y += 1
        if self.y == len(self.lines):
            self.lines.append([])
            self.wrapped.append(wraps)

    def put(self, c):
        if self.x + width(c) > self.columns:
            self.down(True)
            self.x = 0
        line = self.lines[self.y]
        line += " " * (self.x - len(line))
        line[self.x : self.x + width(c)] = [c] + [""] * (width(c) - 1)
        self.x += width(c)

    def resize(self, columns, rows):
        whole, at = [], 0
        for i, line in enumerate(self.lines):
            if self.wrapped[i]:
                whole[-1] += line
            else:
                whole.append(list(line))
            if i == self.y:
                at = len(whole) - 1, len(whole[-1]) - len(line) + self.x
        self.columns, self.rows, self.lines, self.wrapped = columns, rows, [], []
        for i, line in enumerate(whole):
            if i == at[0]:
                self.y, self.x = len(self.lines) + max(at[1] - 1, 0) // columns, (at[1] - 1) % columns + 1 if at[1] else 0
            for k in range(0, max(len(line), 1), columns):
                self.lines.append(line[k : k + columns])
                self.wrapped.append(k > 0)

    def text(self):
        """What was written, scrolled away or not; a line that was broken is one."""
        out = []
        for line, wrapped in zip(self.lines, self.wrapped, strict=True):
            if wrapped:
                out[-1] += "".join(line)
            else:
                out.append("".join(line).rstrip())
        return out
