# SPDX-License-Identifier: Apache-2.0
"""Checkpoints whose manifest was forged and sealed anew: COMMIT is the digest of what MANIFEST.json now says, so
only what it says can give it away; and shards whose head was forged, with its digest in the manifest made anew.
`weft ckpt verify` and `ls` refuse each with a reason, in bounded memory; a run passes all of them over and goes on
from the true one before. What a forger may say without harm is told apart, and then the run that believes it ends
with the true numbers. Nothing is written where a forged name points to."""
import copy
import ctypes
import hashlib
import json
import os
import re
import resource
import shutil

import pytest
import tiny

STEP, TRUE = 6, 4
MEMORY = 3 << 30  # of address space: a forged count that is believed asks for more
HUGE = [2**31, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]


@pytest.fixture(scope="module")
def stopped(shared, data):
    """A job killed once the checkpoint of step 6 was acknowledged."""
    job = tiny.Tiny(shared / "to-be-forged", data)
    run = job.run({0: tiny.shim(job.ckpt, arm="step-00000008", at=1, do="kill")})
    assert run.committed() == [2, 4, 6] and job.committed() == [(1, 4), (1, 6)]
    return job


# ---- what is forged ------------------------------------------------------------------------------


def put(*path_and_value):
    *path, value = path_and_value

    def forge(m):
        at = m
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value(at.get(path[-1]) if isinstance(at, dict) else at[path[-1]]) if callable(value) else value
    return forge


def drop(*path):
    def forge(m):
        at = m
        for part in path[:-1]:
            at = at[part]
        del at[path[-1]]
    return forge


def more(n):
    return lambda was: was + n


def twice(of):
    return lambda was: was + [copy.deepcopy(was[of])]


def swap_slices(m):
    """Two slices trade places: every byte is still accounted for."""
    like = [t["slices"][0] for t in m["tensors"]]
    one, other = [s for s in like if s["bytes"] == like[0]["bytes"]][:2]
    for key in ("file", "offset", "xxh3"):
        one[key], other[key] = other[key], one[key]


def fields():
    """{name: what it does to the manifest}"""
    f, t, s = ("files", 0), ("tensors", 0), ("tensors", 0, "slices", 0)
    found = {
        "version 2": put("version", 2), "version 5": put("version", 5), "version as text": put("version", "1"), "no version": drop("version"),
        "a key more": put("more", 1), "cluster of nobody": put("cluster", ""), "job above": put("job", "../../evil"),
        "job of another": put("job", "0" * 32), "attempt 0": put("attempt", 0), "attempt of another": put("attempt", more(1)),
        "step of another": put("step", STEP + 1), "negative step": put("step", -STEP), "step as text": put("step", "6"),
        "negative samples": put("samples", -1), "samples of nowhere": put("samples", more(16)),
        "negative seed": put("seed", "-1"), "seed beyond": put("seed", str(2**64)), "seed as number": put("seed", 1.5),
        "optimizer as number": put("optimizer", 7), "parent as text": put("parent", "none"),
        "negative parent": put("parent", {"attempt": -1, "step": -5}),
        "mesh of none": put("mesh", {"dp": 0}), "negative mesh": put("mesh", {"dp": -2}),
        "mesh of many axes": put("mesh", {f"a{i}": 1 for i in range(1000)}), "mesh as list": put("mesh", [2]),
        "no numerics": drop("numerics"), "negative threads": put("numerics", "threads", -1),
        "changes as number": put("changes", 5), "a change before the first step": put("changes", [{"step": -9, "what": "x"}]),
        "resolved as number": put("resolved", 5),
        "no files": put("files", []), "a file twice": put("files", twice(0)), "a file less": drop("files", 1),
        "file above": put(*f, "name", "../../../evil"), "file of the system": put(*f, "name", "/etc/passwd"),
        "file with a nul": put(*f, "name", "shard\0"), "file without name": put(*f, "name", ""),
        "file that is the manifest": put(*f, "name", "MANIFEST.json"), "file longer": put(*f, "bytes", more(8)),
        "file shorter": put(*f, "bytes", more(-8)), "negative file": put(*f, "bytes", -1),
        "negative head": put(*f, "head_bytes", -8), "head longer": put(*f, "head_bytes", more(8)),
        "digest of a head": put(*f, "head_xxh3", "0" * 32), "digest that is none": put(*f, "head_xxh3", "zz"),
        "no tensors": put("tensors", []), "a tensor twice": put("tensors", twice(0)), "a tensor less": drop("tensors", 0),
        "tensor without name": put(*t, "name", ""), "tensor renamed": put(*t, "name", "../../evil"),
        "dtype of nobody": put(*t, "dtype", "F64"), "dtype of another size": put(*t, "dtype", "U8"),
        "scalar": put(*t, "shape", []), "negative shape": put(*t, "shape", [-1, 64]), "empty shape": put(*t, "shape", [0, 0]),
        "shape that overflows": put(*t, "shape", [2**31, 2**31, 4]), "shape of many": put(*t, "shape", [1] * 64),
        "no slices": put(*t, "slices", []), "a slice twice": put(*t, "slices", twice(0)),
        "slice of no file": put(*s, "file", "shard-00009-of-00002.safetensors"), "slice above": put(*s, "file", "../evil"),
        "slice further": put(*s, "offset", more(4)), "slice in the head": put(*s, "offset", 0),
        "negative offset": put(*s, "offset", -8), "slice longer": put(*s, "bytes", more(4)), "slice of none": put(*s, "bytes", 0),
        "slice that begins before": put(*s, "start", lambda was: [-1] * len(was)),
        "slice that begins late": put(*s, "start", lambda was: [2**62] * len(was)),
        "slice of more": put(*s, "shape", lambda was: [was[0] + 1, *was[1:]]),
        "slice of less rows": put(*s, "shape", lambda was: [was[0] - 1, *was[1:]]),
        "digest of a slice": put(*s, "xxh3", "0" * 32), "slices that trade places": swap_slices,
    }
    numbers = [("attempt",), ("step",), ("samples",), ("version",), ("numerics", "threads"), (*f, "bytes"), (*f, "head_bytes"),
               (*s, "offset"), (*s, "bytes"), (*s, "start", 0), (*s, "shape", 0), (*t, "shape", 0), ("mesh", "dp")]
    for at in numbers:
        for n in HUGE:
            found[f"{'.'.join(map(str, at))} is {n}"] = put(*at, n)
    return found


def texts(whole):
    """{name: what MANIFEST.json is}"""
    return {
        "nothing": "", "null": "null", "a list": "[]", "cut short": whole[: len(whole) // 2], "more behind": whole + "{}",
        "a key twice": whole.replace('"version": 4,', '"version": 4, "version": 4,', 1),
        "no number": whole.replace('"version": 4', '"version": NaN', 1),
        "a number beyond all": whole.replace('"version": 4', '"version": 1e999', 1),
        "deep": "[" * 200000, "deep within": whole.replace('"mesh": {', '"mesh": ' + '{"a":' * 100000, 1),
        "long": whole + " " * (65 << 20), "no text": whole.replace('"name"', '"\x00name"', 1),
        "files without end": whole.replace('"files": [', '"files": [' + "{}," * 300000, 1),
    }


# What decides nothing when a checkpoint is restored may be anything: tensors are cut again on whatever mesh the
# run has.
HARMLESS = {
    "mesh of many axes", *(f"{at} is {n}" for at in ("mesh.dp", "numerics.threads") for n in HUGE if n < 2**63),
}
# Nothing in the folder contradicts it, but the job does: its steps draw another number.
NO_SUCH_SAMPLES = {"samples of nowhere", *(f"samples is {n}" for n in HUGE if n < 2**63)}


def seal(folder, text):
    raw = text.encode()
    (folder / "MANIFEST.json").write_bytes(raw)
    (folder / "COMMIT").write_text(hashlib.sha256(raw).hexdigest() + "\n")


def forged(job, attempt, forge=None, text=None):
    """A copy of the newest checkpoint as one of another attempt, forged and sealed."""
    true, folder = job.path(1, STEP), job.path(attempt, STEP)
    folder.mkdir()
    for shard in true.glob("shard-*"):
        os.link(shard, folder / shard.name)
    m = json.loads((true / "MANIFEST.json").read_text())
    m["attempt"] = attempt
    if forge:
        forge(m)
    seal(folder, json.dumps(m) if text is None else text)


class Xxh128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3(data):
    library = ctypes.CDLL("libxxhash.so.0")
    library.XXH3_128bits.restype = Xxh128
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    digest = library.XXH3_128bits(data, len(data))
    return f"{digest.high:016x}{digest.low:016x}"


def forged_shard(job, attempt, forge_head, forge=None, length=None):
    """The same with a forged head of the first shard, whose digest the manifest has."""
    name = "shard-00000-of-00002.safetensors"
    whole = (job.path(1, STEP) / name).read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    head = json.loads(whole[8:data])
    text = forge_head(head) or json.dumps(head)
    text = text.encode() + b" " * (-(8 + len(text.encode())) % 64)
    sealed = (length or len(text)).to_bytes(8, "little") + text

    def reseal(m):
        (job.path(attempt, STEP) / name).unlink()
        (job.path(attempt, STEP) / name).write_bytes(sealed + whole[data:])
        m["files"][0].update(bytes=len(sealed) + len(whole) - data, head_bytes=len(sealed), head_xxh3=xxh3(sealed))
        for s in (s for t in m["tensors"] for s in t["slices"] if s["file"] == name):
            s["offset"] += len(sealed) - data
        if forge:
            forge(m)
    forged(job, attempt, forge=reseal)


def rename(to, was=None):
    def forge(head):
        head[to] = head.pop(was or first_tensor(head))
    return forge


def first_tensor(head):
    return next(name for name in head if name != "__metadata__")


def with_first(key, value):
    def forge(head):
        head[first_tensor(head)][key] = value
    return forge


STEERS = "\x1b]0;evil\x07\r\u202etxt"
HEADS = {
    "renamed": rename("w9"), "renamed to steer a terminal": rename(STEERS), "no tensors": lambda head: "{}",
    "shape that is no number": with_first("shape", [float("nan"), 4]), "shape of many": with_first("shape", [1] * 64),
    "negative shape": with_first("shape", [-64, -32]), "range beyond": with_first("data_offsets", [0, 2**62]),
    "range that ends before": with_first("data_offsets", [64, 0]), "dtype to steer": with_first("dtype", STEERS),
    "keys that steer": lambda head: head.update({STEERS: 1}), "deep": lambda head: "[" * 100000,
    "no head": lambda head: "null",
}


@pytest.fixture
def bounded():
    was = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, was[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, was)


def assert_nothing_outside(job):
    assert not [p for p in job.home.parent.rglob("*evil*")]


def test_a_checkpoint_that_is_only_copied_and_sealed_again_is_good(home, stopped):
    """So the forgeries below are refused for what they say."""
    job = stopped.copy(home / "job")
    forged(job, 2)
    shutil.rmtree(job.path(1, STEP))
    code, out = tiny.weft("ckpt", "verify", job.store())
    assert code == 0, out
    run = job.run()
    assert run.codes() == [0, 0] and job.restored() == STEP, run.text()


def test_no_forged_manifest_is_believed(home, stopped, reference, bounded):
    job = stopped.copy(home / "job")
    whole = (job.path(1, STEP) / "MANIFEST.json").read_text()
    names = {}
    for name, forge in fields().items():
        if name not in HARMLESS | NO_SUCH_SAMPLES:
            names[len(names) + 2] = name
            forged(job, len(names) + 1, forge=forge)
    for name, text in texts(whole).items():
        names[len(names) + 2] = name
        forged(job, len(names) + 1, text=text.replace('"attempt": 1,', f'"attempt": {len(names) + 1},', 1))
    assert len(names) > 100
    shutil.rmtree(job.path(1, STEP))

    code, out = tiny.weft("ckpt", "verify", "--json", job.store())
    assert code == 1, out
    listed = {c["attempt"]: c for c in json.loads(out)["checkpoints"] if c["step"] == STEP}
    assert set(listed) == set(names)
    believed = sorted(names[e] for e, c in listed.items() if c["ok"] or not c["errors"])
    assert not believed, "; ".join(believed)
    for command in (["verify"], ["ls"], ["ls", "--json"]):
        code, out = tiny.weft("ckpt", *command, job.store())
        assert code == 1, out[:1000]
        assert all(c.isprintable() or c == "\n" for c in out), out[:1000]

    run = job.run()
    assert run.codes() == [0, 0] and job.restored() == TRUE, run.text()[-3000:]
    assert job.final() == reference()
    assert_nothing_outside(job)


def assert_plain(text):
    assert all(c.isprintable() or c == "\n" for c in text), text[-3000:]


def test_no_forged_head_of_a_shard_is_believed(home, stopped, reference, bounded):
    job = stopped.copy(home / "job")
    for attempt, forge in enumerate(HEADS.values(), 2):
        forged_shard(job, attempt, forge)
    for attempt, length in enumerate([1, 2**24, 2**63, 2**64 - 1], 2 + len(HEADS)):
        forged_shard(job, attempt, lambda head: None, length=length)
    forged_shard(job, 100, lambda head: None)
    code, out = tiny.weft("ckpt", "verify", job.path(100, STEP))
    assert code == 0, out  # what is only sealed anew is good
    for attempt in (1, 100):
        shutil.rmtree(job.path(attempt, STEP))

    code, out = tiny.weft("ckpt", "verify", "--json", job.store())
    listed = [c for c in json.loads(out)["checkpoints"] if c["step"] == STEP]
    assert len(listed) == len(HEADS) + 4 and not [c for c in listed if c["ok"] or not c["errors"]], out
    code, out = tiny.weft("ckpt", "verify", job.store())
    assert code == 1
    assert_plain(out)
    run = job.run()
    assert run.codes() == [0, 0] and job.restored() == TRUE, run.text()[-3000:]
    assert_plain(run.text())
    assert job.final() == reference()


def test_a_checkpoint_that_agrees_with_itself_and_not_with_the_model_is_not_restored(home, stopped):
    """Head and manifest rename a tensor alike: nothing is wrong with it but that the model has no such tensor."""
    job = stopped.copy(home / "job")
    tensors = json.loads((job.path(1, STEP) / "MANIFEST.json").read_text())["tensors"]
    alone = ["shard-00000-of-00002.safetensors"]
    was = next(i for i, t in enumerate(tensors) if [s["file"] for s in t["slices"]] == alone)
    forged_shard(job, 2, rename(STEERS, tensors[was]["name"]), put("tensors", was, "name", STEERS))
    shutil.rmtree(job.path(1, STEP))
    code, out = tiny.weft("ckpt", "verify", job.path(2, STEP))
    assert code == 0, out
    run = job.run()
    assert run.codes() == [67, 67] and f"tensor '{tensors[was]['name']}' is not in it" in run.text(), run.text()
    assert_plain(run.text())


@pytest.mark.parametrize("name", sorted(NO_SUCH_SAMPLES))
def test_a_number_of_samples_that_no_such_job_has_drawn_is_not_restored(home, stopped, name):
    job = stopped.copy(home / "job")
    forged(job, 2, forge=fields()[name])
    shutil.rmtree(job.path(1, STEP))
    assert tiny.weft("ckpt", "verify", job.path(2, STEP))[0] == 0
    run = job.run()
    assert run.codes() == [67, 67] and re.search(rf"MANIFEST.json has \d+ samples after step {STEP} of ", run.text()), run.text()


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_may_be_said_without_harm(home, stopped, reference, bounded, name):
    job = stopped.copy(home / "job")
    forged(job, 2, forge=fields()[name])
    shutil.rmtree(job.path(1, STEP))
    code, _ = tiny.weft("ckpt", "verify", job.store())
    assert code == 0
    run = job.run()
    assert run.codes() == [0, 0] and job.restored() == STEP, run.text()
    assert job.final()[0] == reference()[0]
