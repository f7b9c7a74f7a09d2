# SPDX-License-Identifier: Apache-2.0
"""Samples at evaluations: the text a decoder gives is its checkpoint's, on any mesh, and stands in the
logs, the rows of metrics and before the eyes of who watches."""
import json
import math
import pathlib
import subprocess

import numpy
import pytest
import solo

PERIOD = b"the quick brown fox jumps over the lazy dog. "
LICENCES = pathlib.Path("/usr/share/common-licenses")
MESHES = [{"dp": 1}, {"dp": 2}, {"fsdp": 2}, {"tp": 2}, {"cp": 2}, {"dp": 2, "tp": 2}, {"pp": 2}]
LAYERS, EMBED, HEADS, SEQ = 2, 32, 4, 32


def prepare(place, text):
    (place / "text").write_bytes(text)
    end = solo.weft("data", "prepare", "--tokenizer", "bytes", str(place / "text"), str(place / "tokens"))
    assert end.code == 0, end
    return str(place / "tokens")


@pytest.fixture(scope="module")
def periodic(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("periodic"), PERIOD * 200)


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("prose"), (LICENCES / "GPL-3").read_bytes())


def job(tokens, mesh, sample, **changes):
    made = {
        "name": "sample",
        "model": {"program": "gpt2", "layers": LAYERS, "embed": EMBED, "heads": HEADS,
                  "seq": SEQ, "vocab": 128, "vocab_multiple": 96},
        "mesh": mesh,
        "data": {"format": "tokens", "train": {"tokens": tokens}, "eval": {"tokens": tokens}, "batch": 8},
        "optimizer": {"kind": "adamw"},
        "schedule": {"kind": "constant", "value": 0.01},
        "eval": {"batches": 1, "sample": sample},
        "train": {"steps": 80, "seed": 3},
        "checkpoint": {"dir": "ckpt"},
    }  # fmt: skip
    for key, value in changes.items():
        made[key] = {**made[key], **value}
    return made


def samples(run):
    return [(r["step"], r["samples"]) for r in run.metrics() if "samples" in r]


# ---- the same model in numpy, from its definition ------------------------------------------------


def layer_norm(x, p, name):
    x = x - x.mean(-1, keepdims=True)
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}/weight"] + p[f"{name}/bias"]


def attention(x, p, at):
    q, k, v = numpy.einsum("se,nehd->nshd", x, p[f"{at}/attn/qkv/weight"]) + p[f"{at}/attn/qkv/bias"][:, None]
    scores = numpy.einsum("shd,thd->hst", q, k) / math.sqrt(q.shape[-1])
    scores = numpy.where(numpy.tri(len(x), dtype=bool), scores, -numpy.inf)
    scores = numpy.exp(scores - scores.max(-1, keepdims=True))
    y = numpy.einsum("hst,thd->shd", scores / scores.sum(-1, keepdims=True), v)
    return numpy.einsum("shd,hde->se", y, p[f"{at}/attn/out/weight"]) + p[f"{at}/attn/out/bias"]


def mlp(x, p, at):
    h = x @ p[f"{at}/mlp/in/weight"] + p[f"{at}/mlp/in/bias"]
    h = h / 2 * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    return h @ p[f"{at}/mlp/out/weight"] + p[f"{at}/mlp/out/bias"]


def next_logits(p, ids):
    x = p["embed/tokens"][ids] + p["embed/positions"][: len(ids)]
    for n in range(LAYERS):
        at = f"layers/{n}"
        x = x + attention(layer_norm(x, p, f"{at}/norm1"), p, at)
        x = x + mlp(layer_norm(x, p, f"{at}/norm2"), p, at)
    return (layer_norm(x, p, "norm") @ p["embed/tokens"].T)[-1][:128]


def greedy(p, prompt, tokens):
    """The text, and the smallest lead of a chosen token over the next."""
    ids, lead = list(prompt), math.inf
    for _ in range(tokens):
        logits = next_logits(p, ids[-SEQ:])
        ids.append(int(logits.argmax()))
        second, first = numpy.sort(logits)[-2:]
        lead = min(lead, first - second)
    return bytes(ids[len(prompt) :]).decode("ascii"), lead


# ---- what a user sees ----------------------------------------------------------------------------


def test_a_greedy_text_is_what_the_checkpoints_weights_say(place, periodic):
    run = solo.train(place, job(periodic, {"dp": 2}, {"prompt": "the lic", "tokens": 48}, train={"steps": 40}))
    text, lead = greedy(run.checkpoints()[-1].numbers(), b"the lic", 48)  # beyond the window of 32
    assert lead > 1e-3  # else rounding would choose
    assert samples(run) == [(40, [text])]
    assert len(set(text)) > 3


def test_a_periodic_text_goes_on_where_the_prompt_ends(place, periodic):
    run = solo.train(place, job(periodic, {"dp": 1}, {"prompt": "the quick ", "tokens": 60}, eval={"every": 40}))
    text = (PERIOD * 3)[10:70].decode()
    steps, texts = zip(*samples(run))
    assert steps == (40, 80)
    assert texts[-1] == [text]
    assert texts[0] != texts[1]
    assert text in run.log(0) and "sample after step 80: " + text not in run.log(0)  # a line of the log


def test_every_mesh_says_the_same(place, prose):
    for i, sample in enumerate([
        {"prompt": "a", "tokens": 40},
        {"prompt": "This\\n", "tokens": 20, "count": 3, "temperature": 0.9, "top_k": 20, "seed": 4},
    ]):  # fmt: skip
        said = []
        for k, mesh in enumerate(MESHES):
            run = solo.train(place, job(prose, mesh, sample, train={"steps": 10}, eval={"every": 5}), f"run{i}-{k}")
            said.append(samples(run))
        assert [s for s, _ in said[0]] == [5, 10]
        assert all(len(texts) == sample.get("count", 1) for _, texts in said[0])
        assert all(s == said[0] for s in said), said
    assert len(set(said[0][-1][1])) == 3  # draws of their own


def test_killed_it_says_again_what_it_would_have_said(place, prose):
    sample = {"prompt": "x", "tokens": 10, "temperature": 1.0}
    changes = {"train": {"steps": 60}, "eval": {"every": 10}, "checkpoint": {"every": 5}}
    calm = solo.train(place, job(prose, {"fsdp": 2}, sample, **changes), "calm")
    run = solo.assert_killed_it_resumes(place, job(prose, {"fsdp": 2}, sample, **changes), calm)
    assert samples(run) == samples(calm)


def test_without_a_vocabulary_samples_are_ids(place, prose):
    made = job(prose, {"dp": 1}, {"prompt": "84 104", "tokens": 5}, model={"vocab": 300}, train={"steps": 3})
    ids = samples(solo.train(place, made))[0][1][0].split()
    assert len(ids) == 5 and all(0 <= int(i) < 300 for i in ids)


def test_a_model_gone_mad_says_nothing_and_training_goes_on(place, prose):
    sample = {"prompt": "x", "tokens": 5}
    made = job(prose, {"dp": 2}, sample, schedule={"value": 1e6}, optimizer={"kind": "sgd"}, train={"steps": 8})
    run = solo.train(place, made)
    assert [r["step"] for r in run.metrics()] == list(range(1, 9))
    assert samples(run) == [(8, [""])]
    assert "ends after 0 of 5 tokens: the logits are not finite" in run.log(0)


def test_who_runs_it_reads_the_text_and_so_does_a_program(place, periodic):
    made = job(periodic, {"dp": 1}, {"prompt": "the quick ", "tokens": 10})
    (place / "job.yaml").write_text(json.dumps(made))
    run = subprocess.run([solo.WEFT, "run", str(place / "job.yaml"), "--json"], capture_output=True, text=True,
                         timeout=solo.WATCHDOG, check=True)  # fmt: skip
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    told = [r for r in rows if r["type"] == "step"]
    assert told[-1]["samples"] == ["brown fox "] and told[-1]["eval_accuracy"] is None
    assert all(r["samples"] == [] for r in told[:-1])
    assert told[-1]["prompt"] == "the quick " and told[0]["prompt"] is None
    again = solo.weft("run", str(place / "job.yaml"), "--new")
    assert again.code == 0 and " tokens/s" in again.out and "  0 tokens/s" not in again.out and "sample after step 80: the quick brown fox " in again.out, again
