# SPDX-License-Identifier: Apache-2.0
"""Token files as users have them: bytes of text, llm.c's, ids alone, many files by a pattern. The same
ids train to the same numbers whatever file they come in."""
import io
import json
import struct

import cluster
import numpy
import pytest
import runs

IDS = numpy.arange(4000) * 7919 % 251


def llmc(magic, version, dtype):
    return struct.pack("<256i", magic, version, len(IDS), *[0] * 253) + IDS.astype(dtype).tobytes()


def npy(dtype):
    out = io.BytesIO()
    numpy.save(out, IDS.astype(dtype))
    return out.getvalue()


FORMATS = {
    "raw-u16": (IDS.astype("<u2").tobytes(), "u16"),
    "raw-u32": (IDS.astype("<u4").tobytes(), "u32"),
    "llmc-u16": (llmc(20240520, 1, "<u2"), "u32"),  # its header knows better than the job
    "llmc-u32": (llmc(20240801, 7, "<u4"), "u16"),
    "npy-u16": (npy("<u2"), "u32"),
    "npy-u32": (npy("<u4"), "auto"),
}


def job(tokens, mesh, ids="u16", **changes):
    made = {
        "name": "tokens",
        "model": {"program": "llama", "layers": 1, "embed": 16, "heads": 2, "kv_heads": 1,
                  "mlp": 16, "seq": 16, "vocab": 251, "vocab_multiple": 64},
        "mesh": mesh,
        "data": {"format": "tokens", "ids": ids, "train": {"tokens": str(tokens)}, "batch": 8},
        "train": {"steps": 6, "seed": 3},
        "checkpoint": {"dir": "ckpt"},
    }  # fmt: skip
    for key, value in changes.items():
        made[key] = {**made[key], **value}
    return made


def test_the_same_ids_train_alike_in_every_format(place):
    losses = {}
    for name, (raw, said) in FORMATS.items():
        (place / name).write_bytes(raw)
        losses[name] = runs.train(place, job(place / name, {"dp": 1}, said), f"of-{name}").losses()
    assert all(x == losses["raw-u16"] for x in losses.values()), losses


def test_many_files_by_a_pattern_resume_to_the_same_bits(place):
    for i, part in enumerate(numpy.array_split(IDS, 3)):
        (place / f"train-{i}.bin").write_bytes(part.astype("<u2").tobytes())
    changes = {"train": {"steps": 80}, "checkpoint": {"every": 5}}  # two epochs and a half
    calm = runs.train(place, job(place / "train-*.bin", {"dp": 2}, **changes), "calm")
    runs.assert_killed_it_resumes(place, job(place / "train-*.bin", {"dp": 2}, **changes), calm, saved=30)


def test_a_pattern_may_be_submitted_and_one_that_no_file_matches_is_refused(place):
    c = cluster.Cluster(place, devices=1)
    try:
        for i, part in enumerate(numpy.array_split(IDS, 3)):
            (c.data / f"train-{i}.bin").write_bytes(part.astype("<u2").tobytes())
        c.succeed(c.submit(job("train-*.bin", {"dp": 1})))
        (place / "none.yaml").write_text(json.dumps(job("valid-*.bin", {"dp": 1}, checkpoint={"dir": "."})))
        refused = c.weft("submit", str(place / "none.yaml"))
        assert refused.code == 2 and "data.train.tokens: valid-*.bin cannot be opened (w0: " in refused.err, refused
        assert "no file matches" in refused.err, refused
    finally:
        c.kill_all()


@pytest.mark.parametrize("name, raw, says", [
    ("cut", llmc(20240520, 1, "<u2")[:-100], "byte 8924: the file ends here, but its header asks for 4000 elements"),
    ("old", llmc(20240520, 3, "<u2"), "byte 4: version 3 of llm.c's tokens, not 1"),
    ("weights", struct.pack("<256i", 20240326, 3, *[0] * 254), "byte 0: weights of llm.c's, no tokens"),
    ("empty", b"", "byte 0: the file is empty"),
    ("odd", b"123", "byte 3: the file ends here, not a whole number of u16"),
    ("wide", FORMATS["raw-u16"][0][:998] + b"\xff\xff" + FORMATS["raw-u16"][0][1000:],
     "byte 998: token 65535 is not in 0 … 250"),
], ids=lambda x: x if isinstance(x, str) and x.isalpha() else "")  # fmt: skip
def test_a_file_that_cannot_be_ends_the_run_naming_file_and_byte(place, name, raw, says):
    (place / name).write_bytes(raw)
    end = runs.Run(place, job(place / name, {"dp": 1}, train={"steps": 80})).run()
    assert end.code == 65, end
    assert f"{name}: {says}" in end.out + end.err, end


def test_inspect_needs_to_hear_what_ids_alone_are(place):
    (place / "llmc").write_bytes(FORMATS["llmc-u32"][0])
    said = runs.weft("data", "inspect", str(place / "llmc"))
    assert said.code == 0 and "llm.c, u32, shape [4000]" in said.out and "elements from byte 1024" in said.out, said
    (place / "ids").write_bytes(FORMATS["raw-u16"][0])
    said = runs.weft("data", "inspect", "--ids", "u16", str(place / "ids"))
    assert said.code == 0 and "raw, u16, shape [4000]" in said.out and "min 0, max 250" in said.out, said
    (place / "unknown").write_bytes(bytes([1, 2, 3, 4]) * 5)
    unknown = runs.weft("data", "inspect", str(place / "unknown"))
    assert unknown.code == 1 and "--ids" in unknown.err, unknown
    (place / "job.yaml").write_text("name: a\nmodel: {program: gpt2}\n")
    text = runs.weft("data", "inspect", str(place / "job.yaml"))
    assert text.code == 1 and "this is text, no array and no tokens: `weft data prepare" in text.err and "job files" in text.err, text
    wrong = runs.weft("data", "inspect", "--ids", "u8", str(place / "ids"))
    assert wrong.code == 2 and "--ids is u16 or u32" in wrong.err, wrong
