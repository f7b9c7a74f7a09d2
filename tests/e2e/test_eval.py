# SPDX-License-Identifier: Apache-2.0
"""weft eval: the numbers of a checkpoint's model on a data set, on any mesh, and those of evaluations in a training."""
import json
import math
import pathlib
import time

import decoder
import numpy
import pytest
import runs

SEQ, VOCAB = 32, 256
MESHES = ["dp=2", "tp=2", "cp=2", "{pp: 2}", "{dp: 2, tp: 2}", "{fsdp: 2, cp: 2}"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    place = tmp_path_factory.mktemp("text")
    whole = pathlib.Path("/usr/share/common-licenses/GPL-3").read_bytes()
    (place / "text").write_bytes(whole[:9000])
    (place / "more").write_bytes(whole[9000 : 9000 + 45 * SEQ + 10])  # 45 samples
    for name in ("text", "more"):
        runs.put_tokens(place / name, place / f"{name}.tokens")
    return place


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    made = {
        "name": "scored",
        "model": {"program": "gpt2", "layers": 2, "embed": 32, "heads": 4, "seq": SEQ, "vocab": VOCAB, "vocab_multiple": 96},
        "mesh": {"dp": 2},
        "data": {"format": "tokens", "train": {"tokens": str(text / "text.tokens")}, "eval": {"tokens": str(text / "more.tokens")}, "batch": 8},
        "optimizer": {"kind": "adamw"},
        "schedule": {"kind": "constant", "value": 0.01},
        "train": {"steps": 30, "seed": 3},
        "checkpoint": {"dir": "ckpt"},
    }  # fmt: skip
    return runs.train(place, made)


def safetensors(path):
    with path.open("rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        body = f.read()
    kinds = {"F32": "<f4", "I32": "<i4", "I64": "<i8"}
    return {name: numpy.frombuffer(body[slice(*t["data_offsets"])], kinds[t["dtype"]]).reshape(t["shape"]) for name, t in head.items() if name != "__metadata__"}


def evaluate(run, *args, code=0):
    ckpt = pathlib.Path(run.checkpoints()[-1].path)
    end = runs.weft("eval", str(ckpt), "--json", *args)
    assert end.code == code, end
    return json.loads(end.out) if code == 0 else end.err


def by_numpy(run, tokens):
    """Loss and accuracy, a row of the model's own logits for each token."""
    p = run.checkpoints()[-1].numbers()
    loss, right, n = 0.0, 0, (len(tokens) - 1) // SEQ
    for i in range(n):
        ids = tokens[i * SEQ : i * SEQ + SEQ + 1]
        logits = decoder.all_logits(p, list(ids[:-1]), VOCAB)
        most = logits.max(-1, keepdims=True)
        shares = logits - most - numpy.log(numpy.exp(logits - most).sum(-1, keepdims=True))
        loss -= shares[numpy.arange(SEQ), list(ids[1:])].sum()
        right += (logits.argmax(-1) == list(ids[1:])).sum()
    return loss / (n * SEQ), right / (n * SEQ), n


def test_the_numbers_are_those_of_the_weights_on_any_mesh_and_batch(trained, text):
    loss, accuracy, n = by_numpy(trained, (text / "more").read_bytes())
    assert n == 45
    for more in [[], ["--batch", "1"], ["--batch", "64"], *[["--mesh", m] for m in MESHES]]:
        got = evaluate(trained, "--data", str(text / "more.tokens"), *more)
        assert (got["samples"], got["tokens"], got["step"]) == (45, 45 * SEQ, 30)
        assert math.isclose(got["loss"], loss, rel_tol=2e-6), (more, got, loss)
        assert math.isclose(got["accuracy"], accuracy, rel_tol=1e-9), (more, got, accuracy)
        assert math.isclose(got["perplexity"], math.exp(got["loss"]), rel_tol=1e-12)
        assert math.isclose(got["bits_per_byte"], got["loss"] / math.log(2), rel_tol=1e-12)


def test_an_evaluation_of_a_training_takes_the_remainder_too(trained, text):
    """45 samples in batches of eight, five of them in the last."""
    (row,) = [r for r in trained.metrics() if "eval_loss" in r]
    assert math.isclose(row["eval_loss"], by_numpy(trained, (text / "more").read_bytes())[0], rel_tol=2e-6)


def test_the_remainder_counts_for_classifiers_on_any_mesh_and_not_twice(place, toy):
    said = []
    for k, (batch, mesh) in enumerate([(24, {"dp": 2}), (7, {"dp": 1}), (200, {"tp": 2})]):  # 96 samples: 4, 13 and 0 whole
        run = runs.train(place, runs.job(toy, 1, mesh=mesh, train__steps=3, data__batch=batch), f"run{k}")
        row = [r for r in run.metrics() if "eval_loss" in r][-1]
        got = evaluate(run, "--data", toy.eval["images"], "--labels", toy.eval["labels"])
        assert math.isclose(row["eval_loss"], got["loss"], rel_tol=2e-5), (row, got)
        assert math.isclose(row["eval_accuracy"], got["accuracy"], rel_tol=1e-6)
        assert got["tokens"] is None and got["bits_per_byte"] is None
        said.append(got["samples"])
    assert len(set(said)) == 1


def evaluation_of(base, frm, name, **changes):
    """A job that only evaluates the parameters of another's checkpoint."""
    return {**base, "name": name, "train": {**base["train"], "steps": 0}, "checkpoint": {"dir": "ckpt", "from": frm}, **changes}


@pytest.mark.parametrize("mesh", [{"dp": 1}, {"tp": 2}, {"pp": 2}])
def test_a_job_without_steps_evaluates_and_saves_nothing(trained, text, tmp_path, mesh):
    frm = str(pathlib.Path(trained.checkpoints()[-1].path))
    made = evaluation_of(trained.job, frm, "only", mesh=mesh, schedule={"kind": "warmup_cosine", "peak": 1e-3, "warmup": 7})
    (tmp_path / "only.yaml").write_text(json.dumps(runs.pinned(made)))
    want = by_numpy(trained, (text / "more").read_bytes())[0]
    for _ in range(2):  # the second run says what the first found
        end = runs.weft("run", "only.yaml", cwd=tmp_path)
        assert end.code == 0 and f"eval loss {want:.4g}" in end.out, end
    (rows,) = tmp_path.glob("ckpt/*/metrics.jsonl")
    (row,) = [json.loads(line) for line in rows.read_text().splitlines()]
    assert math.isclose(row["eval_loss"], want, rel_tol=2e-6)
    assert row["step"] == 0 and row["loss"] is row["lr"] is row["grad_norm"] is None and "nonfinite" not in row, row
    assert not list(rows.parent.glob("step-*"))
    end = runs.weft("run", "only.yaml", "-s", "eval.batches=1", cwd=tmp_path)  # another result
    assert end.code == 0 and "evaluation is done" in runs.weft("why", "only", cwd=tmp_path).out, end
    assert len(rows.read_text().splitlines()) == 2
    for changes, says in (
        ({"data": {k: v for k, v in made["data"].items() if k != "eval"}}, "train.steps: is 0: then data.eval must be given"),
        ({"checkpoint": {**made["checkpoint"], "first": True}}, "checkpoint.first: acts only when train.steps is more than 0"),
    ):
        (tmp_path / "bad.yaml").write_text(json.dumps({**made, **changes}))
        refused = runs.weft("plan", str(tmp_path / "bad.yaml"))
        assert refused.code == 2 and says in refused.err, refused


def test_a_served_evaluation_is_restarted_after_a_fault_and_says_its_numbers(one, toy):
    made = runs.job(one.put_data(toy), 2, name="base")
    base = one.submit(made)
    one.succeed(base)
    want = one.status(base)
    job = one.submit(evaluation_of(made, "base", "judged"))
    end = time.monotonic() + runs.WATCHDOG
    while not (pids := one.attempts(job).get(1)):  # they start for longer than a look takes
        assert time.monotonic() < end and one.status_or_none(job) != "SUCCEEDED", one.why(job)
    runs.kill_pid(pids[0])
    done = one.succeed(job)
    assert done["restarts"] == 1, done
    assert (done["eval_loss"], done["eval_accuracy"]) == (want["eval_loss"], want["eval_accuracy"])
    assert done["checkpoint_step"] is None and not list(one.store(job).glob("step-*"))
    said = f"loss {done['eval_loss']:.6g}, perplexity {math.exp(done['eval_loss']):.6g}, accuracy {100 * done['eval_accuracy']:.2f} %"
    assert f"evaluated: {said}" in one.why(job), one.why(job)


def test_bits_per_byte_are_known_of_prepared_text(trained, text, tmp_path):
    end = runs.weft("data", "prepare", str(text / "more"), "--out", str(tmp_path / "shards"), "--tokenizer", "bytes")
    assert end.code == 0, end
    index = tmp_path / "shards" / "index.json"
    made = json.loads(index.read_text())
    (shard,) = [s for s in made["shards"] if s["bytes"]]
    for times in (1, 3):  # the text of a token is longer
        shard["bytes"] *= times
        index.write_text(json.dumps(made))
        got = evaluate(trained, "--data", str(tmp_path / "shards" / shard["file"]))
        assert math.isclose(got["bits_per_byte"], got["loss"] / math.log(2) * shard["tokens"] / shard["bytes"], rel_tol=1e-9), (got, shard)


@pytest.mark.parametrize("name", ["gpt2", "llama3", "gemma2", "mixtral", "deepseek-v2-lite"])
def test_an_imported_model_scores_and_writes_what_transformers_logits_say(tmp_path, name):
    folders = pathlib.Path(__file__).parent.parent / "parity" / "folders"
    golden = safetensors(folders / f"{name}.safetensors")
    end = runs.weft("import", str(folders / name), "--out", str(tmp_path / "made"))
    assert end.code == 0, end
    logits = golden["logits"].astype(float)
    shares = logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))
    for row, ids in enumerate(golden["tokens"]):
        end = runs.weft("generate", str(tmp_path / "made"), "--prompt", " ".join(map(str, ids[:-1])), "--tokenizer", "ids", "--tokens", "1", "--json")
        assert end.code == 0, end
        said = json.loads(end.out)
        assert said["ids"] == [logits[row, -2].argmax()], (row, said)
        assert abs(said["log_probabilities"][0] - shares[row, -2].max()) < 1e-4
        numpy.append(ids, 0).astype("<u2").tofile(tmp_path / "tokens")  # what follows the last one is nobody's word
        end = runs.weft("eval", str(tmp_path / "made"), "--data", str(tmp_path / "tokens"), "-s", "data.ids=u16", "--json")
        assert end.code == 0, end
        want = -(shares[row, numpy.arange(len(ids)), numpy.append(ids[1:], 0)]).mean()
        assert abs(json.loads(end.out)["loss"] - want) < 1e-4, (row, end.out, want)


@pytest.mark.parametrize(("args", "says"), [
    ([], "--data"),
    (["--data", "/nowhere/at/all"], "/nowhere/at/all"),
    (["--data", "/etc/hostname"], "hostname"),
    (["--data", "TEXT", "--mesh", "tp=3"], "3"),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_any_rank_starts(trained, text, args, says):
    args = [str(text / "more.tokens") if a == "TEXT" else a for a in args]
    assert says in evaluate(trained, *args, code=2)


def test_a_tokenizer_of_ones_own_goes_the_whole_way(place):
    """From text to tokens to a training, and then with the checkpoint alone: its folder holds the tokenizer."""

    def weft(*args):
        end = runs.weft(*args, cwd=place)
        assert end.code == 0, end
        return end.out

    for n in range(4):
        (place / f"{n}.txt").write_text(pathlib.Path("/usr/share/common-licenses/GPL-3").read_text()[n * 5000 :][:5000])
    weft("data", "train-tokenizer", "[0-3].txt", "--vocab", "300", "--out", "own.json")
    weft("data", "prepare", "[0-3].txt", "--tokenizer", "own.json", "--val-fraction", "0.5", "--out", "tokens")
    weft("data", "prepare", "0.txt", "--tokenizer", "bytes", "--out", "others")
    made = {
        "name": "own",
        "model": {"program": "gpt2", "layers": 1, "embed": 32, "heads": 4, "seq": SEQ, "vocab": 300},
        "data": {"tokenizer": "own.json", "train": {"tokens": "tokens/train-*.bin"}, "eval": {"tokens": "tokens/val-*.bin"}, "batch": 8},
        "train": {"steps": 4},
    }  # fmt: skip
    (place / "job.yaml").write_text(json.dumps(made))
    weft("run", "job.yaml")
    (ckpt,) = place.glob("ckpt/own-*")
    (place / "own.json").rename(place / "moved")
    row = runs.rows_of(ckpt)[-1]
    got = json.loads(weft("eval", str(ckpt), "--data", "tokens/val-*.bin", "--json"))
    assert math.isclose(got["loss"], row["eval_loss"], rel_tol=2e-6)
    assert 0 < got["bits_per_byte"] < got["loss"] / math.log(2)
    said = json.loads(weft("generate", str(ckpt), "--prompt", "This License", "--tokens", "8", "--json"))
    assert len(said["ids"]) == 8
    end = runs.weft("eval", str(ckpt), "--data", "others/train-*.bin", cwd=place)
    assert end.code != 0 and "its tokens were made by tokenizer bytes" in end.err, end
    weft("export", str(ckpt), "hf")
    assert (place / "hf/tokenizer.json").read_bytes() == (place / "moved").read_bytes()
    weft("import", "hf", "--out", "back")
    assert json.loads(weft("eval", "back", "--data", "tokens/val-*.bin", "--json"))["loss"] == got["loss"]
    assert json.loads(weft("generate", "back", "--prompt", "This License", "--tokens", "8", "--json"))["ids"] == said["ids"]
