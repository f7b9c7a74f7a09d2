# SPDX-License-Identifier: Apache-2.0
"""weft plan on devices of any kind: what does not fit, what would help, and pictures."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import numpy
import pytest
import runs


@pytest.fixture
def job(tmp_path):
    """A decoder of 25 million parameters over {data: 2, model: 2}; no data file exists."""
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: j\n"
        "model: {program: gpt2, layers: 8, embed: 512, heads: 8, seq: 64, vocab: 512}\n"
        "mesh: {data: 2, model: 2}\n"
        "data: {format: tokens, train: {tokens: nowhere}, batch: 8}\n"
        "train: {steps: 1}\n"
    )
    return str(path)


def plan(job, *args, code=0):
    end = runs.weft("plan", job, "--json", *args)
    assert end.code == code, end
    return json.loads(end.out)


def settings(way):
    """-s for each setting of one way of a fix."""
    return [word for text in way.split(" and ") for word in ("-s", text)]


def test_a_device_that_is_too_small_is_an_error_whose_fixes_fit(job):
    assert plan(job)["fits"] is True
    whole = plan(job, "--device", "tiny:memory=180MB,libraries=1MB", code=2)
    assert whole["fits"] is False and whole["device_model"] == "tiny"
    (one,) = whole["findings"]
    assert one["code"] == "DOES_NOT_FIT" and one["severity"] == "error"
    assert one["waste_bytes"] == whole["memory"]["arena"] + 10**6 - 180 * 10**6
    for part in ["params", "grads", "optimizer", "stash", "transient", "workspace", "libraries"]:
        assert f"{part} " in one["message"]
    ways = one["fix"].split(" or ")
    assert ways
    for way in ways:
        fixed = plan(job, "--device", "tiny:memory=180MB,libraries=1MB", *settings(way))
        assert fixed["fits"] is True and fixed["findings"] == []
        assert fixed["memory"]["arena"] + 10**6 <= 180 * 10**6


def test_what_does_not_fit_names_no_line_as_its_cause(job):
    whole = plan(job, "-s", "mesh={data: 1}", "-s", "data.batch=64", "--device", "tiny:memory=450MB,libraries=1MB", code=2)
    (one,) = whole["findings"]
    assert one["fix"].startswith("train."), one
    assert "(line " not in one["message"], one


@pytest.mark.parametrize("key, url", [("data.train.tokens", "gs://bucket/train.bin"), ("data.eval.tokens", "s3:/b"),
                                      ("checkpoint.dir", "hdfs:/ckpt")])
def test_a_url_is_refused_wherever_a_job_names_a_path(job, key, url):
    for verb in ("plan", "run", "submit"):
        end = runs.weft(verb, job, "-s", f"{key}={url}")
        assert end.code == 2 and f"{key}: '{url}' is a URL, and weft works on files and folders alone" in end.err, end


MANY = ["-s", "mesh={data: 2048}", "-s", "data.batch=2048"]


def test_a_plan_for_more_devices_than_a_job_runs_on_says_so(job):
    (one,) = [f for f in plan(job, *MANY)["findings"] if f["code"] == "TOO_MANY_DEVICES"]
    assert one["severity"] == "warning" and "a job runs on at most 1024 devices" in one["message"]
    end = runs.weft("plan", job, *MANY)
    assert end.code == 0 and "it would run" not in end.out and "no job runs on so many devices" in end.out, end
    assert "TOO_MANY_DEVICES" not in runs.weft("plan", job, "-s", "mesh={data: 1024}", "-s", "data.batch=1024").out


# Planning this job takes half a minute; nobody who is refused waits for it.
HUGE = ["-s", "mesh={pp: 64, tp: 64}", "-s", "model.layers=1024", "-s", "model.heads=64", "-s", "train.microbatches=8"]


# Runs a command and prints its greatest memory, KiB, behind what it says. The kernel counts to a process what its
# caller had when it was started: this caller is small.
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=float(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


@pytest.mark.parametrize("verb", ["submit", "run"])
def test_a_job_of_too_many_devices_is_refused_before_it_is_planned(job, verb, tmp_path):
    argv = [sys.executable, "-c", MEASURED, str(runs.WATCHDOG), runs.WEFT, verb, job, *HUGE]
    end = subprocess.run(argv, check=False, text=True,
                         stdout=subprocess.PIPE, env={**os.environ, "WEFT_COORDINATOR": f"unix:{tmp_path}/none"})
    assert end.returncode in (2, 78), end
    assert end.stdout.count("resources.devices: is 4096: a job runs on at most 1024 devices") == 1, end
    assert int(end.stdout.splitlines()[-1]) < 300 * 1024, "its plan takes more than a gigabyte"


def test_the_text_prints_each_way_as_it_is_typed(job):
    small = ["--device", "tiny:memory=180MB,libraries=1MB"]
    end = runs.weft("plan", job, *small)
    assert end.code == 2
    lines = [line.removeprefix("  fix: ") for line in end.out.splitlines() if line.startswith("  fix: ")]
    assert lines
    for line in lines:
        assert runs.weft("plan", job, *small, *shlex.split(line)).code == 0


def test_known_devices_and_those_of_a_file(job, tmp_path):
    for model in ["h200", "h100", "a100-80g", "a100-40g", "cpu"]:
        assert plan(job, "--device", model)["device_model"] == model
    devices = tmp_path / "devices"
    devices.write_text("# ours\nmi300x:memory=192GB,flops=1307e12\nslow:memory=1MB\n")
    assert plan(job, "--device-file", str(devices), "--device", "mi300x")["fits"] is True
    assert plan(job, "--device-file", str(devices), "--device", "slow", code=2)["fits"] is False
    end = runs.weft("plan", job, "--device-file", str(devices), "--device", "b200")
    assert end.code == 2 and "there are mi300x, slow, h200" in end.err
    devices.write_text("mi300x:memory=192GB\nslow:memory=lots\n")
    end = runs.weft("plan", job, "--device-file", str(devices), "--device", "mi300x")
    assert end.code == 2 and f"{devices}:2: slow: memory is 'lots'" in end.err
    end = runs.weft("plan", job, "--device-file", str(tmp_path / "none"))
    assert end.code == 2 and "No such file" in end.err


def test_a_batch_that_does_not_divide_is_planned_and_reported_with_sizes_to_try(job):
    whole = plan(job, "-s", "data.batch=7", code=2)
    (one,) = whole["findings"]
    assert one["code"] == "BATCH_INDIVISIBLE" and one["tensor"] == "data.batch"
    assert "7 is not a multiple of 2" in one["message"]
    assert one["fix"] == "data.batch=6 or data.batch=8"
    for way in one["fix"].split(" or "):
        assert plan(job, "-s", "data.batch=7", "-s", way)["findings"] == []


def test_pictures_leave_the_json_as_it_is(job):
    plain = plan(job)
    for word in ["mesh", "sharding", "schedule", "memory"]:
        assert plan(job, "--show", word) == plain
        end = runs.weft("plan", job, "--show", word)
        assert end.code == 0 and end.out and not end.err
    end = runs.weft("plan", job, "--show", "everything")
    assert end.code == 2 and "--show mesh, sharding, schedule or memory" in end.err


def test_the_mfu_line_says_its_convention(job):
    # 6·N + 6·L·C·T: the vocabulary of 512 needs no padding, the head is tied.
    layer = 12 * 512 * 512 + 13 * 512
    n = 512 * 512 + 64 * 512 + 8 * layer + 2 * 512
    token = 6 * n + 6 * 8 * 512 * 64
    line = next(text for text in runs.weft("plan", job, "--full", "--device", "h200").out.splitlines() if text.startswith("MFU"))
    assert f"6N + 6LCT FLOPs a token: N {n}, L 8, C 512, T 64: {token:.4g}" in line


UNUSABLE = {
    "is empty": (lambda p: p.touch(), "byte 0: the file is empty"),
    "holds one token": (lambda p: p.write_bytes(b"a\0"), "1 tokens: a sample takes 65"),
    "ends within a token": (lambda p: p.write_bytes(bytes(1001)), "byte 1001: the file ends here"),
    "holds ids beyond the vocabulary": (lambda p: p.write_bytes(b"\x00\x02" * 650),
                                        "token 512 is not in 0 … 511"),
    "is text": (lambda p: p.write_text("To be, or not to be. " * 50), "this is text, not token ids: `weft data prepare"),
    "has fewer samples than a batch": (lambda p: p.write_bytes(bytes(2 * 64 * 5)),
                                       "the training set has 4 samples of model.seq tokens, and data.batch is 8"),
    "is a pipe": (os.mkfifo, "not a regular file"),
    "is a folder": (lambda p: p.mkdir(), "not a regular file"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSABLE)
def test_a_plan_names_a_data_file_that_is_here_and_that_no_rank_could_read(job, tmp_path, what):
    make, told = UNUSABLE[what]
    make(tmp_path / "nowhere")
    (one,) = plan(job, code=2)["findings"]
    assert one["code"] == "DATA_UNUSABLE" and one["severity"] == "error" and one["tensor"] == "data.train.tokens"
    assert told in one["message"] and f"{tmp_path}/nowhere" in one["message"] and one["message"].endswith("(line 4)")
    text = runs.weft("plan", job)
    assert text.code == 2 and told in text.out and "refused, see above" in text.out, text
    run = runs.weft("run", job)
    assert run.code == 2 and f"{job}:4: data.train.tokens: " in run.err and told in run.err, run
    assert not (tmp_path / ".weft").exists()


def test_a_plan_says_of_a_file_that_this_user_may_not_read_that_it_is_there(job):
    """As nobody, in a folder that everybody may enter."""
    if os.geteuid():
        pytest.skip("SKIP: only root becomes nobody")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        for name in ("weft", "job.yaml", "nowhere"):
            shutil.copy({"weft": runs.WEFT, "job.yaml": job, "nowhere": job}[name], f"{place}/{name}")
        os.chmod(f"{place}/nowhere", 0o600)
        said = subprocess.run([f"{place}/weft", "plan", f"{place}/job.yaml"], user=65534, capture_output=True, text=True, check=False)
    assert said.returncode == 0 and "cannot open nowhere (this user may not read it) (paths" in said.stdout, said


def test_a_plan_looks_at_an_evaluations_data_as_a_rank_does(job, tmp_path):
    (tmp_path / "nowhere").write_bytes(bytes(2 * 64 * 20))
    assert plan(job)["absent"] is None
    (tmp_path / "few").write_bytes(bytes(2 * 64 * 3))  # not the eight samples of a batch: all that there are
    assert not plan(job, "-s", "data.eval.tokens=few")["findings"]
    assert plan(job, "-s", "data.eval.tokens=none")["absent"] == "none"
    (tmp_path / "t-0").write_bytes(bytes(2 * 64 * 20))
    (tmp_path / "t-1").symlink_to(tmp_path / "gone")  # of several, one is not here
    assert plan(job, "-s", "data.eval.tokens=t-*")["absent"] == "t-*"


def test_a_plan_holds_images_and_labels_against_the_job(tmp_path):
    for name, array in {"x": numpy.zeros((12, 5), numpy.uint8), "x4": numpy.zeros((12, 4), numpy.float32),
                        "fit": numpy.zeros((12, 4), numpy.uint8), "y": numpy.zeros(12, numpy.uint8),
                        "high": numpy.full(12, 3, numpy.uint8)}.items():  # fmt: skip
        runs.write_idx(tmp_path / name, array)
    path = tmp_path / "images.yaml"
    path.write_text(json.dumps({
        "name": "i", "model": {"program": "mlp", "inputs": 4, "hidden": [8], "classes": 3},
        "data": {"train": {"images": "fit", "labels": "y"}, "batch": 4}, "train": {"steps": 1},
    }))  # fmt: skip
    assert plan(str(path))["findings"] == []
    for key, file, told in (("images", "x", "an image has 5 values, but the job says model.inputs: 4"),
                            ("images", "x4", "the images are f32, but the job says data.dtype: u8"),
                            ("labels", "high", "label 3 of sample 0 is not in 0 … 2")):  # fmt: skip
        (one,) = plan(str(path), "-s", f"data.train.{key}={file}", code=2)["findings"]
        assert one["tensor"] == f"data.train.{key}" and told in one["message"], one


def test_a_plan_says_how_tensors_travel_between_hosts(job):
    assert plan(job)["network"] == "encrypted"
    assert "between hosts tensors travel encrypted and authenticated (resources.network: trusted" in runs.weft("plan", job, "--full").out
    trusted = ["-s", "resources.network=trusted"]
    assert plan(job, *trusted)["network"] == "trusted"
    assert "between hosts tensors travel plain: resources.network is trusted" in runs.weft("plan", job, *trusted).out
    assert "between hosts" not in runs.weft("plan", job, "-s", "mesh={data: 1}").out


@pytest.mark.parametrize("microbatches, schedule, most", [
    (1, "1f1b", "1 microbatch"), (4, "1f1b", "2 microbatches"), (4, "circular, chunks: 2", "chunks of microbatches")])
def test_a_plan_says_what_a_stage_keeps_and_where_tensors_lie(job, microbatches, schedule, most):
    said = runs.weft("plan", job, "--full", "-s", "mesh={pp: 2}", "-s", f"train.microbatches={microbatches}", "-s", f"pipeline={{schedule: {schedule}}}").out
    assert re.search(rf"; at most (\d+ )?{most} under way on a stage$", said, re.M), said
    assert "memory of a device on stage 1: " in said and " on stages 0,1\n" in said and "NCCL" not in said, said


@pytest.mark.parametrize("mesh, says", [
    ("{fsdp: 2}", "1 communicator of about 384.0 MiB: an estimate"), ("{dp: 2, tp: 2}", "communicators of about 384.0 MiB each: an estimate")])
def test_a_plan_for_gpus_says_what_nccl_takes_of_them(job, mesh, says, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.dirname(job))  # where nothing was measured
    said = runs.weft("plan", job, "-s", f"mesh={mesh}", "-s", "resources.kind=cuda").out
    assert says in said, said


def test_a_plan_of_generating_says_what_keys_take_and_what_a_step_reads_and_sends(job):
    """Counted here: 8 layers of keys and values of 512 numbers in f32."""
    token, rows = 8 * 2 * 512 * 4, 6
    one = plan(job, "--generate", "--batch", str(rows))
    assert (one["token_bytes"], one["row_bytes"], one["rows"]) == (token, token * 64, rows)
    assert one["mesh"] == {"dp": 1} and one["collectives"] == [] and one["sent"] == {"bytes": 0, "launches": 0, "along": []}
    assert one["memory"]["cache"] == one["keys_read"] == token * 64 * rows
    assert set(one["memory"]) == set(plan(job)["memory"]) - {"staging"}
    assert sum(one["memory"].values()) == 2 * one["memory"]["arena"] + one["memory"]["libraries"]
    assert one["rows_that_fit"] is None and one["tokens_per_s"] is None  # nothing is known of the machine
    # All weights but the tables: of the head's, which is the embedding, all; of the positions' a row a text.
    weights = one["memory"]["params"] - 64 * 512 * 4
    assert abs(one["weights_read"] - weights) < 0.001 * weights + rows * 512 * 4 * 2
    timed = plan(job, "--generate", "--batch", str(rows), "--device", "cpu:bandwidth=10GB")
    read = one["weights_read"] + one["keys_read"]
    assert timed["tokens_per_s"] == pytest.approx(rows / (read / 10e9), rel=1e-6)
    dealt = plan(job, "--generate", "--batch", str(rows), "--mesh", "dp=2")
    assert dealt["collectives"] == [] and dealt["sent"]["bytes"] == 0  # each chooses for its own texts
    two = plan(job, "--generate", "--batch", str(rows), "--mesh", "tp=2")
    assert two["memory"]["cache"] * 2 == one["memory"]["cache"] and two["row_bytes"] == one["row_bytes"]
    assert sum(c["count"] for c in two["collectives"] if c["op"] == "all_reduce") == 2 * 8 + 1
    assert two["sent"]["bytes"] == sum(c["bytes"] for c in two["collectives"]) > 0
    shorter = plan(job, "--generate", "--batch", str(rows), "--context", "16")
    assert shorter["row_bytes"] == token * 16 and shorter["context"] == 16
    text = runs.weft("plan", job, "--generate", "--mesh", "fsdp=2").out
    assert "keys: 32.0 KiB a token, 2.0 MiB a text" in text and "weights are gathered from other devices at each step" in text
    assert "tokens/s: not estimated for cpu: its bandwidth is not known" in text


def test_as_many_texts_fit_as_the_plan_of_generating_says(job):
    small = ["--device", "small:memory=200MB,libraries=1MB"]
    fit = plan(job, "--generate", *small)["rows_that_fit"]
    assert fit > 8
    assert plan(job, "--generate", "--batch", str(fit), *small)["fits"] is True
    assert plan(job, "--generate", "--batch", str(fit + 1), *small, code=2)["fits"] is False
    none = plan(job, "--generate", "--device", "tiny:memory=50MB,libraries=1MB", code=2)
    assert none["rows_that_fit"] == 0
    assert "it does not fit\n" in runs.weft("plan", job, "--generate", "--device", "tiny:memory=50MB,libraries=1MB").out
    assert f"it does not fit, --batch {fit} does\n" in runs.weft("plan", job, "--generate", "--batch", str(fit + 1), *small).out


def test_where_no_text_fits_a_shorter_one_may(job):
    whole = plan(job, "--generate", "--batch", "1", "--device", "any:memory=1TB,libraries=1MB")
    less = ["--device", f"less:memory={whole['memory']['arena'] - 100000 + (1 << 20)}B,libraries=1MB"]
    said = re.search(r"it does not fit, --batch 1 --context (\d+) does\n", runs.weft("plan", job, "--generate", "--batch", "1", *less).out)
    assert said and 1 < int(said[1]) < whole["context"]
    for context, fits in ((int(said[1]), True), (int(said[1]) + 1, False)):
        assert plan(job, "--generate", "--batch", "1", "--context", str(context), *less, code=0 if fits else 2)["fits"] is fits


def test_a_plan_of_generating_refuses_what_generate_would(job, tmp_path):
    for args, says in (
        (["--mesh", "tp=2"], "--generate's"),
        (["--generate", "--full"], "--generate"),
        (["--generate", "-s", "mesh={dp: 2}"], "use --mesh"),
        (["--generate", "--mesh", "tp=3"], "does not divide"),
    ):
        end = runs.weft("plan", job, *args)
        assert end.code == 2 and says in end.err, (args, end)
    (tmp_path / "m.yaml").write_text("name: m\nmodel: {program: mlp}\ndata: {train: {images: i, labels: l}, batch: 4}\ntrain: {steps: 1}\n")
    end = runs.weft("plan", str(tmp_path / "m.yaml"), "--generate")
    assert end.code == 2 and "names no `logits`" in end.err
