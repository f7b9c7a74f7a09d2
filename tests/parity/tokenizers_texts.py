#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Texts through weft's tokenizers and through PyPI's `tokenizers`: the same ids, and the same text of them.

    tokenizers_texts.py TOKENIZE [--megabytes N] [--seed N] [--time] [SHAPE…]

TOKENIZE is build/tests/tokenize. The texts, N MB (20) for each shape of tests/unit/tokenizers, are made from the
seed out of what a Debian machine has (licences, headers, Python and Perl, translations), characters of every
class and damaged UTF-8. --time compares processor seconds instead, in turns: `encode_batch` on one thread. Less than
5 times as fast (SentencePiece-style: 2) fails."""
import argparse
import glob
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402: it reads the number of threads when it is loaded

SHAPES = pathlib.Path(__file__).resolve().parents[1] / "unit" / "tokenizers"
SOURCES = ["/usr/share/common-licenses/*", "/usr/include/**/*.h", "/usr/lib/python3*/**/*.py", "/usr/share/perl/5*/**/*.p?",
           "/usr/share/locale/*/LC_MESSAGES/*.mo"]
ODD = [" ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "'ſ", "'re", "\u0085", "\u00a0", "\u180e", "\u200b", "\u200d", "\u2028", "\u3000",
       "\u0301", "\u0323", "e\u0301", "\u212b", "\u1100\u1161\u11a8", "\uac00\u11a7", "\u2581", "\u01c5", "\u02b0", "12345", "٠١",
       "日本", "ひら", "カタ", "\U0001f468\u200d\U0001f469", "<0x41>", "//\n/", "ABCdef", "\u0f73\u0f75", "\U00011935\U00011930"]


def read_sources(rng):
    """Whole files, in an order of the seed; of a catalogue of translations its texts."""
    files = sorted(path for pattern in SOURCES for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    rng.shuffle(files)
    for path in files:
        content = pathlib.Path(path).read_bytes()[:200000]
        yield content.replace(b"\0", b"\n") if path.endswith(".mo") else content


def make_character(rng):
    draw = rng.random()
    if draw < 0.5:
        return rng.choice(ODD)
    code = rng.randrange(0x20, 0x3000) if draw < 0.7 else rng.randrange(0x10000) if draw < 0.9 else rng.randrange(0x10000, 0x110000)
    return "a" if 0xD800 <= code < 0xE000 else chr(code)


def damage(rng, text):
    text = bytearray(text)
    for _ in range(rng.randrange(1, 20)):
        text[rng.randrange(len(text))] = rng.choice([0x80, 0xBF, 0xC0, 0xE2, 0xED, 0xF0, 0xF4, 0xFF, rng.randrange(256)])
    return bytes(text)


def make_texts(seed, size, added):
    rng = random.Random(seed)
    sources, made = [], 0
    for source in read_sources(rng):
        sources.append(source)
        made += len(source)
        if made > size:
            break
    made = 0
    while made < size:
        source = rng.choice(sources)
        start = rng.randrange(len(source) + 1)
        text = source[start:start + rng.randrange(1, 20000)]
        draw = rng.random()
        if draw < 0.35 or not text:
            words = [rng.choice(added) if added and rng.random() < 0.1 else make_character(rng) * rng.choice([1, 1, 1, 2, 5])
                     for _ in range(rng.randrange(1, 300))]
            text = "".join(words).encode()
        if draw < 0.1 or draw > 0.8:
            text = damage(rng, text)
        made += len(text)
        yield text


class Ours:
    def __init__(self, program, path):
        self.process = subprocess.Popen([program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, size):
        (n,) = struct.unpack("<I", self.process.stdout.read(4))
        return self.process.stdout.read(n * size)

    def encode(self, text):
        """(ids, what they decode to)"""
        self.process.stdin.write(struct.pack("<I", len(text)) + text)
        self.process.stdin.flush()
        ids = self.read(4)
        return list(struct.unpack(f"<{len(ids) // 4}i", ids)), self.read(1).decode()


def compare(program, path, texts):
    theirs, ours = Tokenizer.from_file(str(path)), Ours(program, path)
    made = panics = n = 0
    for text in texts:
        n += 1
        as_read = text.decode("utf-8", "replace")
        try:
            want = theirs.encode(as_read, add_special_tokens=False).ids
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: B902: a panic of theirs, which is no Exception
            panics += 1
            continue
        ids, decoded = ours.encode(text)
        made += len(text)
        if ids != want or decoded != theirs.decode(want, skip_special_tokens=False):
            at = next((i for i, pair in enumerate(zip(ids, want)) if pair[0] != pair[1]), min(len(ids), len(want)))
            sys.exit(f"{path.stem}: other {'ids' if ids != want else 'text'}, from id {at}: {ids[at:at + 8]}, "
                     f"theirs {want[at:at + 8]}, of {theirs.decode(want[max(0, at - 5):at + 8])!r}")
    if panics > n // 20:
        sys.exit(f"{path.stem}: theirs panics at {panics} of {n} texts: too few were compared")
    ours.process.stdin.close()
    if ours.process.wait():
        sys.exit(f"{path.stem}: weft's ended with {ours.process.returncode}")
    print(f"{path.stem:20} {made / 1e6:6.1f} MB the same{f', left out {panics} at which theirs panics' if panics else ''}", flush=True)


def measure(program, path, texts):
    texts = [text.decode("utf-8", "replace").encode() for text in texts]
    stream = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    theirs, size = Tokenizer.from_file(str(path)), sum(map(len, texts)) / 1e6
    best_ours = best_theirs = 0.0
    for _ in range(2):
        ran = subprocess.run([program, str(path), "--time"], input=stream, capture_output=True, check=True)
        best_ours = max(best_ours, size / float(ran.stdout.split()[0]))
        before = time.process_time()
        theirs.encode_batch([text.decode() for text in texts], add_special_tokens=False)
        best_theirs = max(best_theirs, size / (time.process_time() - before))
    byte_level = "ByteLevel" in json.dumps(json.loads(path.read_text())["pre_tokenizer"])
    style, asked = ("byte-level", 5) if byte_level else ("SentencePiece", 2)
    print(f"{path.stem:20} {style:13} {best_ours:6.1f} MB/s, tokenizers {best_theirs:5.2f} MB/s: {best_ours / best_theirs:5.1f} times as "
          f"fast{f', not {asked} times' if best_ours < asked * best_theirs else ''}", flush=True)
    return best_ours >= asked * best_theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("shapes", nargs="*")
    args = parser.parse_args()
    fast = True
    for path in sorted(SHAPES.glob("*.json")):
        if args.shapes and path.stem not in args.shapes:
            continue
        theirs = Tokenizer.from_file(str(path))
        added = [] if args.time else [token.content for token in theirs.get_added_tokens_decoder().values()]
        texts = make_texts(args.seed, int(args.megabytes * 1e6), added)
        if args.time:
            fast &= measure(args.program, path, texts)
        else:
            compare(args.program, path, texts)
    if not fast:
        sys.exit("slower than is promised")


if __name__ == "__main__":
    main()
