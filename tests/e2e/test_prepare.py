# SPDX-License-Identifier: Apache-2.0
"""`weft data prepare` as a user has it: texts of all kinds to a folder of tokens, a training on them, and
what is there after a kill at any moment, on a full disk, after Ctrl-C."""
import gzip
import json
import os
import random
import signal
import subprocess
import time

import numpy
import pytest
import runs

SHIM = str(runs.BUILD / "libfaultshim.so")
LICENCES = runs.pathlib.Path("/usr/share/common-licenses")


def documents(n, seed=1):
    draw = random.Random(seed)
    words = (LICENCES / "GPL-3").read_text().split()
    return [" ".join(draw.choices(words, k=draw.randint(1, 120))) + " é😀" for _ in range(n)]


def put_lines(path, texts, field="text"):
    data = "".join(json.dumps({"n": i, field: t}) + "\n" for i, t in enumerate(texts)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def prepare(*args, **more):
    p = subprocess.run([runs.WEFT, "data", "prepare", *map(str, args)], capture_output=True, timeout=runs.WATCHDOG,
                       check=False, **more)  # fmt: skip
    return runs.Ended(p.returncode, p.stdout.decode(), p.stderr.decode())


def wait_for(path):
    end = time.monotonic() + runs.WATCHDOG
    while not path.exists():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.01)


def contents(folder):
    return {f.name: f.read_bytes() for f in folder.iterdir() if not f.name.startswith(".")}


def tokens_of(folder, split):
    ids = [numpy.frombuffer(f.read_bytes()[1024:], "<u2") for f in sorted(folder.glob(f"{split}-*.bin"))]
    return numpy.concatenate(ids).astype("u1").tobytes()


def test_from_text_to_a_training_and_back(place):
    texts = documents(1500)
    texts[7] = "one\0document\0"  # in JSON "\\u0000"
    put_lines(place / "a.jsonl", texts[:700])
    put_lines(place / "b.jsonl.gz", texts[700:])
    out = place / "tokens"
    end = prepare(place / "*.jsonl*", "--out", out, "--val-fraction", "0.1", "--shard-tokens", "200000", "--json")
    assert end.code == 0, end
    said = json.loads(end.out)
    assert said["train"]["documents"] == 1350 and said["val"]["documents"] == 150 and said["dtype"] == "u16", said
    split = {"train": [], "val": []}
    for i, text in enumerate(tokens_of(out, "train").split(b"\xff")[:-1]):
        split["train"].append(text.decode())
    for text in tokens_of(out, "val").split(b"\xff")[:-1]:
        split["val"].append(text.decode())
    assert sorted(split["train"] + split["val"]) == sorted(texts)  # each once
    assert split["train"] == [t for t in texts if t in set(split["train"])]  # and in their order
    assert said["val"]["bytes"] == sum(len(t.encode()) for t in split["val"])

    seen = runs.weft("data", "inspect", str(out), str(out / "index.json"), str(out / "val-*.bin"))
    assert seen.code == 0, seen
    assert seen.out.count("  val      ") == 2 and seen.out.count('  begins   "') == 3, seen
    assert f"{said['train']['tokens']} tokens, 1350 documents" in seen.out, seen

    job = {
        "name": "prepared",
        "model": {"program": "gpt2", "layers": 1, "embed": 16, "heads": 2, "seq": 32, "vocab": 256},
        "data": {"format": "tokens", "train": {"tokens": f"{out}/train-*.bin"}, "eval": {"tokens": f"{out}/val-*.bin"},
                 "batch": 8},
        "mesh": {"data": 2},
        "train": {"steps": 8},
        "eval": {"every": 4, "batches": 2},
    }  # fmt: skip
    (place / "job.yaml").write_text(json.dumps(job))
    ran = subprocess.run([runs.WEFT, "run", "job.yaml"], cwd=place, capture_output=True, text=True, timeout=runs.WATCHDOG,
                         check=False)  # fmt: skip
    assert ran.returncode == 0 and "eval loss" in ran.stdout, ran

    shard = out / "train-00001.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    assert "train-00001.bin: byte " in runs.weft("data", "inspect", str(out)).err
    head = bytearray(shard.read_bytes())
    head[8:12] = (len(head[1024:]) // 2).to_bytes(4, "little")
    shard.write_bytes(head)
    wrong = subprocess.run([runs.WEFT, "plan", "job.yaml"], cwd=place, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "train-00001.bin: it holds 199999 tokens" in wrong.stdout, wrong


def test_a_tokenizer_is_learned_and_used(place):
    texts = documents(3000)
    put_lines(place / "in.jsonl.gz", texts)
    made = runs.weft("data", "train-tokenizer", str(place / "in.jsonl.gz"), "--vocab", "700", "--out", str(place / "t.json"), "--json")
    assert made.code == 0 and json.loads(made.out)["vocab"] == 700, made
    end = prepare(place / "in.jsonl.gz", "--out", place / "out", "--tokenizer", place / "t.json", "--json")
    said = json.loads(end.out)
    assert said["vocab"] == 700 and said["end"] == 0 and said["tokenizer"].startswith("sha256:"), said
    assert said["train"]["tokens"] < said["train"]["bytes"] / 2, said
    ids = numpy.frombuffer((place / "out/train-00000.bin").read_bytes()[1024:], "<u2")
    assert (ids == 0).sum() == 3000
    seen = json.loads(runs.weft("data", "inspect", str(place / "out"), "--json").out)["files"][0]
    assert len(seen["begins"]) > 40 and (texts[0] + "<|endoftext|>" + texts[1]).startswith(seen["begins"]), seen
    assert (place / "out/tokenizer.json").read_bytes() == (place / "t.json").read_bytes()
    again = prepare(place / "in.jsonl.gz", "--out", place / "out", "--tokenizer", place / "t.json")
    assert "nothing was done" in again.out and f"model.vocab: 700, data: {{format: tokens, tokenizer: '{place}/out', " in again.out, again
    model = "{program: gpt2, layers: 1, embed: 16, heads: 2, seq: 32, vocab: 700}"
    data = again.out.splitlines()[-1].split("data: ", 1)[1][:-1] + ", batch: 8}"
    (place / "job.yaml").write_text(f"name: learned\nmodel: {model}\ndata: {data}\ntrain: {{steps: 2}}\n")
    ran = subprocess.run([runs.WEFT, "run", "job.yaml"], cwd=place, capture_output=True, text=True, timeout=runs.WATCHDOG,
                         check=False)  # fmt: skip
    assert ran.returncode == 0, ran


def test_standard_input_and_other_fields(place):
    texts = documents(40)
    put_lines(place / "in.jsonl", texts, "content")
    lines = (place / "in.jsonl").read_bytes()
    end = prepare("-", "--out", place / "out", "--format", "jsonl", "--field", "content", input=lines)
    assert end.code == 0 and "40 documents" in end.out, end
    assert tokens_of(place / "out", "train") == b"".join(t.encode() + b"\xff" for t in texts)
    end = prepare("-", "--out", place / "text", "--format", "text", input=lines)
    assert end.code == 0 and tokens_of(place / "text", "train") == lines + b"\xff", end


def test_text_of_another_encoding_is_said_to_be_one(place):
    tokenizer = runs.pathlib.Path(__file__).resolve().parents[1] / "unit" / "tokenizers" / "gpt2.json"
    (place / "good").write_text("café " * 9)
    (place / "latin1").write_bytes("café ".encode("latin1") * 7)
    end = prepare(place / "good", place / "latin1", "--tokenizer", tokenizer, "--out", place / "out")
    assert end.code == 0 and f"7 parts of the texts are no UTF-8 (the first of {place / 'latin1'})" in end.err, end
    end = prepare(place / "good", "--tokenizer", tokenizer, "--out", place / "whole")
    assert end.code == 0 and not end.err, end
    end = prepare(place / "latin1", "--out", place / "bytes")  # bytes are what they are
    assert end.code == 0 and not end.err, end


@pytest.mark.parametrize("args, says", [
    ([], "prepare takes texts (files, patterns, or - for standard input) and --out DIR"),
    (["in.jsonl"], "prepare takes texts (files, patterns, or - for standard input) and --out DIR"),
    (["in.jsonl", "--out", "o", "--ids", "u16"], "prepare takes no --ids: what the tokenizer has decides"),
    (["in.jsonl", "--out", "o", "--end", "<x>"], "no token of the tokenizer is '<x>'"),
    (["in.jsonl", "--out", "o", "--val-fraction", "1"], "--val-fraction is 0, or a number from 1e-9 to less than 1"),
    (["in.jsonl", "--out", "o", "--val-fraction", "1e-20"], "--val-fraction is 0, or a number from 1e-9 to less than 1"),
    (["in.jsonl", "--out", "o", "--val-fraction", "nan"], "--val-fraction is 0, or a number from 1e-9 to less than 1"),
    (["in.jsonl", "--out", "o", "--format", "csv"], "--format is text or jsonl, not 'csv'"),
    (["in.jsonl", "--out", "o", "--tokenizer", "ids"], "prepare makes tokens with bytes or a tokenizer's file"),
    (["-", "--out", "o"], "standard input has no name that says what it holds: --format text (one document) or --format "
     "jsonl (one a line)"),
    ([".", "--out", "o"], ". is a folder: name its files, as './*.jsonl'"),
])  # fmt: skip
def test_wrong_words_are_refused_and_leave_nothing(place, args, says):
    put_lines(place / "in.jsonl", documents(3))
    end = prepare(*args, cwd=place)
    assert end.code == 2 and end.err.splitlines()[0] == f"weft data: {says}", end
    assert not (place / "o").exists()


@pytest.mark.parametrize("lines, kept", [(3, False), (9000, True)])
def test_a_bad_line_ends_it_by_name_and_a_mended_file_is_another_input_of_work_that_was_kept(place, lines, kept):
    put_lines(place / "in.jsonl", documents(lines))
    with open(place / "in.jsonl", "a", encoding="utf8") as f:
        f.write('{"n": 7}\n')
    end = prepare("in.jsonl", "--out", "o", cwd=place)
    assert end.code == 1 and f"in.jsonl: line {lines + 1} (from byte " in end.err and "no field 'text': it has 'n'" in end.err, end
    assert not list((place / "o").glob("*.bin")) and not (place / "o/index.json").exists()
    assert (place / "o").exists() == kept
    put_lines(place / "in.jsonl", documents(lines + 1))
    end = prepare("in.jsonl", "--out", "o", cwd=place)
    if kept:
        assert end.code == 2 and "from other inputs, or they were changed since" in end.err, end
    else:
        assert end.code == 0, end


def test_a_parquet_file_is_refused_with_the_command_that_brings_it_in(place):
    for name, said in (("in.parquet", "in.parquet"), ("$(x) in", "FILE")):
        (place / name).write_bytes(b"PAR1 and more")
        end = prepare(name, "--out", "o", "--field", "content", cwd=place)
        assert end.code == 1 and not (place / "o").exists(), end
        command = end.err.splitlines()[1].strip()
        assert command.startswith('python3 -c "import sys, json, pyarrow.parquet as p; '), end
        assert command.endswith(f'" {said} | weft data prepare - --format jsonl --field content --out DIR'), end
        script = command.split('"')[1].replace("\\\\", "\\")
        compile(script, "command", "exec")


class Faulty:
    """A preparation of three MiB into shards of a third, with faults at its calls on the folder."""

    def __init__(self, place):
        self.place = place
        put_lines(place / "in.jsonl", documents(8000))
        self.calm = place / "calm"
        assert self.run(self.calm).code == 0
        self.wanted = contents(self.calm)
        log = place / "calls"
        assert self.run(place / "counted", FAULT_LOG=str(log)).code == 0
        self.calls = len(log.read_text().splitlines())

    def run(self, out, **fault):
        args = [self.place / "in.jsonl", "--out", out, "--val-fraction", "0.2", "--shard-tokens", "900000", "--threads", "2"]
        if not fault:
            return prepare(*args)
        out.mkdir(exist_ok=True)
        return prepare(*args, env={**os.environ, "LD_PRELOAD": SHIM, "FAULT_DIR": os.path.realpath(out), **fault})


@pytest.fixture(scope="module", name="faulty")
def make_faulty(tmp_path_factory):
    return Faulty(tmp_path_factory.mktemp("faulty"))


def test_killed_at_any_call_it_continues_to_the_same_bytes(faulty):
    assert faulty.calls > 30
    for at in range(1, faulty.calls + 1, 1 if runs.LONG else 7):
        out = faulty.place / f"killed-{at}"
        assert faulty.run(out, FAULT_AT=str(at), FAULT_DO="kill").code == -signal.SIGKILL
        assert not (out / "index.json").exists() or contents(out) == faulty.wanted, at
        assert faulty.run(out).code == 0
        assert contents(out) == faulty.wanted, at


def test_work_that_was_kept_is_not_done_again(faulty):
    out, log = faulty.place / "once", faulty.place / "once-calls"
    at = faulty.calls * 3 // 4
    faulty.run(out, FAULT_AT=str(at), FAULT_DO="kill")
    assert faulty.run(out, FAULT_LOG=str(log)).code == 0
    written = {line.split()[2] for line in log.read_text().splitlines() if line.split()[1] == "write"}
    assert "train-00000.bin.part" not in written and "train-00001.bin.part" not in written, written


def test_a_full_disk_is_said_and_continued_when_there_is_room(faulty):
    for at in (2, 9):
        out = faulty.place / f"full-{at}"
        end = faulty.run(out, FAULT_AT=f"{at}+", FAULT_KIND="write", FAULT_DO="ENOSPC")
        assert end.code == 1 and "No space left on device" in end.err, end
        kept = b'"tokens"' in (out / "prepare.json").read_bytes() if (out / "prepare.json").exists() else False
        assert ("what was done before is kept; the same command continues it" in end.err) == kept == (at > 2), end
        assert not list(out.glob("*.bin")), list(out.iterdir())
        assert faulty.run(out).code == 0 and contents(out) == faulty.wanted


@pytest.mark.parametrize("n, kept", [(50, False), (8000, True)])
def test_an_interrupt_leaves_what_the_same_command_continues_or_nothing(place, n, kept):
    texts = documents(n)
    put_lines(place / "in.jsonl", texts)
    lines = (place / "in.jsonl").read_bytes()
    args = [runs.WEFT, "data", "prepare", "-", "--format", "jsonl", "--out", str(place / "out")]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        p.stdin.write(lines)
        p.stdin.flush()
        wait_for(place / ("out/train-00000.bin.part" if kept else "out/prepare.json"))
        p.send_signal(signal.SIGINT)
        assert p.wait(runs.WATCHDOG) == 130
        said = b"interrupted; the same command continues it" if kept else b"interrupted before anything was kept: nothing was written"
        assert said in p.stderr.read()
        p.stdin.close()
    assert (place / "out").exists() == kept and not list((place / "out").glob("*.bin"))
    end = prepare(*args[3:], input=lines)
    assert end.code == 0 and tokens_of(place / "out", "train") == b"".join(t.encode() + b"\xff" for t in texts), end


def test_two_at_once_do_not_share_a_folder(place):
    args = [runs.WEFT, "data", "prepare", "-", "--format", "jsonl", "--out", str(place / "out")]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
        wait_for(place / "out/prepare.json")
        end = prepare(*args[3:], input=b"")
        assert end.code == 2 and "another process prepares into" in end.err, end
        p.communicate(b'{"text": "a"}\n', runs.WATCHDOG)
    assert p.returncode == 0 and tokens_of(place / "out", "train") == b"a\xff"
