# SPDX-License-Identifier: Apache-2.0
"""The Python package: the wheel that `make wheel` makes, against daemons, runs, and checkpoints of several ranks."""
import hashlib
import importlib
import json
import subprocess
import sys
import zipfile

import numpy
import pytest
import runs

MAKE = runs.REPO / "deploy" / "python" / "make_wheel.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    made = subprocess.run([sys.executable, MAKE, "1.2.3", out], capture_output=True, text=True, check=True)
    return out / "weft-1.2.3-py3-none-any.whl", made.stdout.strip()


@pytest.fixture
def weft(wheel, tmp_path_factory, monkeypatch):
    """The package as pip would lay it out."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel[0]) as z:
        z.extractall(site)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("WEFT", runs.WEFT)
    for name in [n for n in sys.modules if n.split(".")[0] == "weft"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("weft")


def test_the_wheel_lists_every_file_with_its_digest_and_is_the_same_bytes_again(wheel, tmp_path):
    path, said = wheel
    assert said == str(path)
    with zipfile.ZipFile(path) as z:
        record = dict(line.split(",", 1) for line in z.read("weft-1.2.3.dist-info/RECORD").decode().split())
        assert set(record) == set(z.namelist()) and "weft/py.typed" in record
        assert "Requires-Dist: numpy;" in z.read("weft-1.2.3.dist-info/METADATA").decode()
    subprocess.run([sys.executable, MAKE, "1.2.3", tmp_path], check=True, capture_output=True)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_a_job_is_submitted_watched_and_measured(weft, one, toy):
    job_file = one.place / "mine.yaml"
    job_file.write_text(json.dumps({**runs.job(one.put_data(toy), 2), "checkpoint": {"dir": "."}}))
    with pytest.raises(weft.WeftError, match="such: a.dir"):  # a text is that text, whatever YAML would read in it
        weft.submit(job_file, {"data.train.images": "no such: a.dir"}, coordinator=one.address)
    job = weft.submit(job_file, {"train.steps": 12, "name": "mine"}, coordinator=one.address)
    assert job.name == "mine" and len(job.id) == 32
    updates = list(weft.watch(job))
    assert [u.job.state for u in updates if u.job][-1] == "SUCCEEDED"
    assert {u.report["step"] for u in updates if u.report} <= set(range(1, 13))
    done = weft.status(job)
    assert done.state == "SUCCEEDED" and done["step"] == 12
    assert weft.jobs(coordinator=one.address) == []
    assert [j.id for j in weft.jobs(all=True, coordinator=one.address)] == [job.id]
    metrics = weft.metrics(job)
    assert metrics["step"] == list(range(1, 13)) and all(x > 0 for x in metrics["loss"])
    assert metrics["eval_loss"][:-1] == [None] * 11 and metrics["eval_loss"][-1] == done["eval_loss"]
    with pytest.raises(KeyError):
        metrics["nothing"]
    params = weft.load(one.store(job.id))
    assert params.step == 12 and not any(name.startswith("momentum/") for name in params)


def test_what_weft_says_is_the_error(weft, one, toy, place):
    bad = place / "bad.yaml"
    bad.write_text("name: x\nmodle: {}\n")
    with pytest.raises(weft.WeftError, match="modle") as refused:
        weft.submit(bad, coordinator=one.address)
    assert refused.value.code == 2
    with pytest.raises(weft.WeftError, match="not reached") as away:
        weft.jobs(coordinator=f"unix:{place}/nobody")
    assert away.value.code == 3
    with pytest.raises(weft.WeftError) as unknown:
        list(weft.watch("--help", coordinator=one.address))  # a name, whatever it looks like
    assert unknown.value.code == 4


def test_a_run_is_stopped_by_who_stops_reading_and_continues(weft, place, noise):
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=60), "mine")
    for update in weft.run(run.file):
        if update.report and update.report["step"] >= 10:
            break
    left = weft.metrics("test", coordinator=str(place / ".weft" / "test"))
    assert 10 <= len(left) < 60
    *_, last = weft.run(run.file)
    assert last.job.state == "SUCCEEDED"
    assert weft.metrics(last.job)["step"] == list(range(1, 61))


def test_tensors_of_four_ranks_are_put_together(weft, place, toy):
    run = runs.train(place, runs.job(toy, 4, mesh={"dp": 2, "tp": 2}, model__classes=5, train__steps=3))
    (store,) = {c.path.parent for c in run.checkpoints()}
    theirs = run.checkpoints()[-1]
    mine = weft.load(store, optimizer=True)
    assert mine.folder == theirs.path and any(len(t["slices"]) > 1 for t in mine.manifest["tensors"])
    assert set(mine) == set(theirs.numbers())
    for t in mine.manifest["tensors"]:
        box = tuple(slice(n) for n in t["unpadded"])
        numpy.testing.assert_array_equal(mine[t["name"]], theirs.numbers()[t["name"]][box])
    assert all(name.startswith("layers/0/") for name in weft.load(store, tensors="layers/0/*"))
    weights = weft.load(theirs.path)
    assert 0 < len(weights) < len(mine) and {f"momentum/{name}" for name in weights} == set(mine) - set(weights)


def forge(folder, shard, tensors, **manifest):
    folder.mkdir()
    (folder / "a.safetensors").write_bytes(shard)
    files = [{"name": "a.safetensors", "bytes": len(shard)}]
    text = json.dumps({"step": 1, "files": files, "tensors": tensors, **manifest}).encode()
    (folder / "MANIFEST.json").write_bytes(text)
    (folder / "COMMIT").write_text(hashlib.sha256(text).hexdigest() + "\n")
    return folder


def tensor(dtype, shape, *pieces):
    slices = [{"file": "a.safetensors", "offset": o, "bytes": b, "start": at, "shape": box} for o, b, at, box in pieces]
    return {"name": "w", "dtype": dtype, "shape": shape, "unpadded": shape, "slices": slices}


def test_bf16_becomes_the_same_numbers_of_f32(weft, place):
    bits = numpy.array([0x3F80, 0xBF00, 0x7F80, 0x0001], numpy.uint16)
    folder = forge(place / "step-00000001.a1", bits.tobytes(), [tensor("BF16", [2, 2], (0, 8, [0, 0], [2, 2]))])
    want = (bits.astype(numpy.uint32) << 16).view(numpy.float32).reshape(2, 2)
    got = weft.load(folder)["w"]
    assert got.dtype == numpy.float32
    numpy.testing.assert_array_equal(got, want)


def test_what_is_damaged_or_points_elsewhere_is_refused(weft, place):
    whole = numpy.arange(4, dtype=numpy.float32).tobytes()
    good = forge(place / "good", whole, [tensor("F32", [4], (0, 16, [0], [4]))])
    assert weft.load(good)["w"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="slice lies outside"):
        weft.load(forge(place / "outside", whole, [tensor("F32", [4], (4, 16, [0], [4]))]))["w"]
    with pytest.raises(ValueError, match="do not cover"):
        weft.load(forge(place / "hole", whole, [tensor("F32", [4], (0, 8, [0], [2]))]))["w"]
    elsewhere = tensor("F32", [4], (0, 16, [0], [4]))
    elsewhere["slices"][0]["file"] = "../good/a.safetensors"
    with pytest.raises(ValueError, match="no file of this checkpoint"):
        weft.load(forge(place / "elsewhere", whole, [elsewhere]))["w"]
    (good / "a.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="15 bytes, not 16"):
        weft.load(good)["w"]
    (good / "MANIFEST.json").write_text("{}")
    with pytest.raises(ValueError, match="does not seal"):
        weft.load(good)
    with pytest.raises(FileNotFoundError):
        weft.load(place)
