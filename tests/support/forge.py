# SPDX-License-Identifier: Apache-2.0
"""The service's messages as proto/ describes them: packed, unpacked, and drawn at random by somebody who
lies. A message is a dict of its fields; one that is added to the protocol is forged here without a line."""
import re
import struct

import h2
import runs

INTEGERS = ("int32", "int64", "uint32", "uint64", "bool")


def read_protocol():
    """{message: {field: (number, type, repeated, of the oneof)}}, without packages; {enum: its numbers}."""
    messages, enums = {}, {}
    for path in sorted((runs.REPO / "proto").glob("*.proto")):
        prefix = "rank." if path.stem == "rank" else ""  # it has a Hello of its own
        message = enum = None
        text = re.sub(r"//.*", "", path.read_text())
        for statement in re.findall(r"[^;{}]*[;{}]", text):
            words = statement.strip(" \n;").split()
            if words[:1] in (["message"], ["enum"]):
                message, enum = (prefix + words[1], None) if words[0] == "message" else (None, words[1])
                (messages if message else enums)[message or enum] = {} if message else []
                one = False
            elif words[:1] == ["oneof"]:
                one = True
            elif enum and "=" in words:
                enums[enum].append(int(words[-1]))
            elif message and "=" in words:
                repeated = words[0] == "repeated"
                kind, name, _, number = words[repeated:repeated + 4]
                messages[message][name] = (int(number), kind, repeated, one)
    for fields in messages.values():
        for name, (number, kind, *rest) in fields.items():
            fields[name] = (number, find_type(kind, messages, enums), *rest)
    return messages, enums


def find_type(kind, messages, enums):
    """A type by the name that messages and enums have here."""
    short = kind.rsplit(".", 1)[-1]
    for name in ("rank." + short if kind.startswith("weft.rank.") else short, "rank." + short, short):
        if name in messages or name in enums:
            return name
    return kind


MESSAGES, ENUMS = read_protocol()


def pack(message, fields):
    out = b""
    for name, value in fields.items():
        number, kind, repeated, _ = MESSAGES[message][name]
        for v in value if repeated else [value]:
            if kind in ("double", "float"):
                out += h2.varint(number << 3 | 1) + struct.pack("<d", v)
            elif kind in INTEGERS or kind in ENUMS:
                out += h2.number(number, int(v))
            else:
                raw = pack(kind, v) if kind in MESSAGES else v if isinstance(v, bytes) else v.encode()
                out += h2.varint(number << 3 | 2) + h2.varint(len(raw)) + raw
    return out


def take_varint(raw, at):
    n = shift = 0
    while True:
        n |= (raw[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if raw[at - 1] < 128:
            return n, at


def unpack(message, raw):
    by_number = {number: (name, kind, repeated) for name, (number, kind, repeated, _) in MESSAGES[message].items()}
    fields, at = {}, 0
    while at < len(raw):
        key, at = take_varint(raw, at)
        if key & 7 == 0:
            value, at = take_varint(raw, at)
        elif key & 7 == 1:
            value, at = struct.unpack_from("<d", raw, at)[0], at + 8
        else:
            size, at = take_varint(raw, at)
            value, at = raw[at:at + size], at + size
        name, kind, repeated = by_number[key >> 3]
        if kind in MESSAGES:
            value = unpack(kind, value)
        elif kind == "string":
            value = value.decode(errors="replace")  # what a spoiled message said comes back
        if repeated:
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = value
    return fields


class Forger:
    """Draws messages. `claims`: what fields of a name say, a list to draw from; the rest is odd."""

    NUMBERS = [0, 1, 2, 3, 5, 7, 40, 65, 70, 74, 150, -1, 1000000000, 2**31 - 1, 2**63 - 1, -2**63]
    TEXTS = ["", "x", "../../etc", "\033[2J", "\u202ex", "name: it\n", "a=b", "0" * 32, "é" * 200, "%s%n", "y" * 5000]

    def __init__(self, rng, **claims):
        self.rng, self.claims = rng, claims

    def value(self, name, kind, depth):
        rng = self.rng
        if kind in MESSAGES:
            return self.draw(kind, depth + 1)
        if name in self.claims and rng.random() < 0.97:
            return rng.choice(self.claims[name])
        if kind == "bool":
            return rng.random() < 0.5
        if kind in ENUMS:
            return rng.choice([*ENUMS[kind], 99, -1])
        if kind in ("double", "float"):
            return rng.choice([0.0, 1.5, -1e300, float("inf"), float("nan")])
        if kind in INTEGERS:
            return rng.choice([*self.NUMBERS, rng.getrandbits(40)])
        return rng.choice([*self.TEXTS, f"{rng.getrandbits(40):x}"]) if kind == "string" else rng.randbytes(rng.choice([0, 1, 16, 32, 33]))

    def draw(self, message, depth=0):
        """Fields in any number of a message; of a oneof one, or now and then none."""
        rng, fields = self.rng, {}
        spec = MESSAGES[message]
        ones = [n for n, s in spec.items() if s[3]]
        chosen = rng.choice(ones) if ones and rng.random() < 0.98 else None
        for name, (_, kind, repeated, one) in spec.items():
            if (one and name != chosen) or (not one and rng.random() < 0.1) or depth > 6:
                continue
            if repeated:
                fields[name] = [self.value(name, kind, depth) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
            else:
                fields[name] = self.value(name, kind, depth)
        return fields

    def spoil(self, raw):
        """The bytes of a message with some changed, lost or added."""
        rng, raw = self.rng, bytearray(raw)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(raw) + 1)
            kind = rng.randrange(3)
            if kind == 0 and at < len(raw):
                raw[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del raw[at:at + rng.choice([1, 2, 20])]
            else:
                raw[at:at] = rng.randbytes(rng.choice([1, 3, 30]))
        return bytes(raw)
