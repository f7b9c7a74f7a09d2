# SPDX-License-Identifier: Apache-2.0
"""tokens.py BUILD: `weft data prepare`, from a .jsonl to shards on the disk, beside encode_batch of PyPI's `tokenizers` on
the same documents, which lie in memory: one thread and all cores, in turns; and learning a BPE beside its trainer.
TOKENIZERS_PYTHON is an interpreter that has `tokenizers`. MEGABYTES (40) of this machine's own texts: code,
documents, licences and the words of many languages."""
import gzip
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(os.environ.get("ROUNDS", 3))
MEGABYTES = int(os.environ.get("MEGABYTES", 40))
PYTHON = os.environ.get("TOKENIZERS_PYTHON", sys.executable)
VOCAB = 32000
PEER = """
import json, resource, sys, time
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
kind, lines, file = sys.argv[1:]
texts = [json.loads(line)["text"] for line in open(lines)]
t = Tokenizer.from_file(file) if kind == "encode" else Tokenizer(models.BPE())
def used():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return time.monotonic(), r.ru_utime + r.ru_stime
a = used()
if kind == "encode":
    n = sum(len(e.ids) for i in range(0, len(texts), 1000) for e in t.encode_batch_fast(texts[i : i + 1000], add_special_tokens=False))
else:
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=int(file), special_tokens=["<|endoftext|>"], show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    n = t.get_vocab_size()
b = used()
print(json.dumps([b[0] - a[0], b[1] - a[1], n]))
"""


def texts(limit):
    """Pieces of 20 KB at most, of files that lie on every Debian machine, until there are so many bytes."""
    folders = ["/usr/share/i18n/locales", "/usr/share/common-licenses", "/usr/lib/python3", "/usr/lib/python3.11", "/usr/share/perl",
               "/usr/include", "/usr/share/doc", "/usr/share/zoneinfo"]  # fmt: skip
    found = {f: [p for p in sorted(pathlib.Path(f).rglob("*")) if p.is_file()] for f in folders if pathlib.Path(f).exists()}
    took = 0
    for at in range(max(len(v) for v in found.values())):  # of each in turn
        for files in found.values():
            if at >= len(files):
                continue
            try:
                raw = files[at].read_bytes()
                text = (gzip.decompress(raw) if files[at].suffix == ".gz" else raw).decode()
            except (OSError, UnicodeDecodeError, EOFError):
                continue
            for i in range(0, min(len(text), 200000), 20000):
                part = text[i : i + 20000]
                took += len(part.encode())
                yield part
            if took > limit:
                return


def timed(args, env=None):
    """Wall and processor seconds of a process."""
    began = time.monotonic()
    p = subprocess.Popen(args, env={**os.environ, **(env or {})}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = status
    assert status == 0, args
    return time.monotonic() - began, used.ru_utime + used.ru_stime


def peer(kind, lines, what, threads):
    out = subprocess.run([PYTHON, "-c", PEER, kind, str(lines), str(what)], check=True, capture_output=True, text=True,
                         env={**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"})  # fmt: skip
    return json.loads(out.stdout)


def row(name, threads, size, ours, theirs):
    wall, used = (statistics.median(x[i] for x in ours) for i in (0, 1))
    peer_wall, peer_used = (statistics.median(x[i] for x in theirs) for i in (0, 1))
    print(f"{name:28} {threads:7} {size / wall:9.1f} {size / used:9.1f} {size / peer_wall:9.1f} {size / peer_used:9.1f} "
          f"{peer_wall / wall:7.2f} {peer_used / used:9.2f}", flush=True)  # fmt: skip


def main():
    weft, cores = str(pathlib.Path(sys.argv[1]) / "weft"), len(os.sched_getaffinity(0))
    place = pathlib.Path(tempfile.mkdtemp(prefix="weft-tokens-"))
    try:
        lines, made, size = place / "in.jsonl", list(texts(MEGABYTES * 1e6)), 0
        with open(lines, "w", encoding="utf8") as f:
            for t in made:
                f.write(json.dumps({"text": t}, ensure_ascii=False) + "\n")
                size += len(t.encode())
        size /= 1e6
        print(f"{size:.1f} MB of text in {len(made)} documents; medians of {ROUNDS} turns; MB/s of wall and of processor time")
        print(f"{'':28} {'threads':>7} {'weft':>9} {'cpu':>9} {'peer':>9} {'cpu':>9} {'x wall':>7} {'x cpu':>9}")
        own = place / "own.json"
        learn = [weft, "data", "train-tokenizer", str(lines), "--vocab", str(VOCAB), "--out", str(own)]
        for threads in sorted({1, cores}):
            ours, theirs = [], []
            for _ in range(ROUNDS):
                ours.append(timed([*learn, "--threads", str(threads)]))
                theirs.append(peer("train", lines, VOCAB, threads))
            row(f"learn {VOCAB} tokens", threads, size, ours, theirs)
        shapes = pathlib.Path("tests/unit/tokenizers")
        for file in [own, *(shapes / f"{n}.json" for n in ("gpt2", "llama3", "llama2", "gemma2"))]:
            for threads in sorted({1, cores}):
                ours, theirs = [], []
                for i in range(ROUNDS):
                    out = place / f"out-{i}"
                    ours.append(timed([weft, "data", "prepare", str(lines), "--tokenizer", str(file), "--out", str(out),
                                       "--end", end_of(file), "--threads", str(threads)]))  # fmt: skip
                    theirs.append(peer("encode", lines, file, threads))
                    index = json.loads((out / "index.json").read_text())
                    tokens = sum(s["tokens"] - s["documents"] for s in index["shards"])
                    assert tokens == theirs[-1][2], (file, tokens, theirs[-1][2])
                    shutil.rmtree(out)
                row(f"prepare, {file.stem}", threads, size, ours, theirs)
    finally:
        shutil.rmtree(place)


def end_of(file):
    """Any special token of its own."""
    return next(t["content"] for t in json.loads(file.read_text())["added_tokens"] if t["special"])


main()
