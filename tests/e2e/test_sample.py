# SPDX-License-Identifier: Apache-2.0
"""Samples at evaluations: the text a decoder gives is its checkpoint's, on any mesh, and stands in the
logs, the rows of metrics and before the eyes of who watches."""
import json
import math
import pathlib
import re
import shutil
import subprocess

import cluster
import decoder
import meshes
import pytest
import runs

PERIOD = b"the quick brown fox jumps over the lazy dog. "
LICENCES = pathlib.Path("/usr/share/common-licenses")
MESHES = [{"dp": 1}, {"dp": 2}, {"fsdp": 2}, {"tp": 2}, {"cp": 2}, {"dp": 2, "tp": 2}, {"pp": 2}]
LAYERS, EMBED, HEADS, SEQ = 2, 32, 4, 32


def prepare(place, text):
    (place / "text").write_bytes(text)
    runs.put_tokens(place / "text", place / "tokens")
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


# ---- what a user sees ----------------------------------------------------------------------------


def test_a_greedy_text_is_what_the_checkpoints_weights_say(place, periodic):
    run = runs.train(place, job(periodic, {"dp": 2}, {"prompt": "the lic", "tokens": 48}, train={"steps": 40}))
    text, lead = decoder.greedy(run.checkpoints()[-1].numbers(), b"the lic", 48, SEQ, 128)  # beyond the window of 32
    text = text.decode("ascii")
    assert lead > 1e-3  # else rounding would choose
    assert samples(run) == [(40, [text])]
    assert len(set(text)) > 3


def test_a_periodic_text_continues_where_the_prompt_ends(place, periodic):
    run = runs.train(place, job(periodic, {"dp": 1}, {"prompt": "the quick ", "tokens": 60}, eval={"every": 40}))
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
            run = runs.train(place, job(prose, mesh, sample, train={"steps": 10}, eval={"every": 5}), f"run{i}-{k}")
            said.append(samples(run))
        assert [s for s, _ in said[0]] == [5, 10]
        assert all(len(texts) == sample.get("count", 1) for _, texts in said[0])
        assert all(s == said[0] for s in said), said
    assert len(set(said[0][-1][1])) == 3  # draws of their own


def test_killed_it_says_again_what_it_would_have_said(place, prose):
    sample = {"prompt": "x", "tokens": 10, "temperature": 1.0}
    changes = {"train": {"steps": 60}, "eval": {"every": 10}, "checkpoint": {"every": 5}}
    calm = runs.train(place, job(prose, {"fsdp": 2}, sample, **changes), "calm")
    run = runs.assert_killed_it_resumes(place, job(prose, {"fsdp": 2}, sample, **changes), calm)
    assert samples(run) == samples(calm)


def test_each_nth_evaluation_is_followed_by_samples_also_after_a_kill(place, prose):
    """Of the evaluations after 4, 8, …, 48 and 50 steps the third, sixth, ninth and twelfth, and the last. The
    run is killed between two of them and goes on from a checkpoint that lies at none."""
    sample = {"prompt": "x", "tokens": 6, "temperature": 1.0, "every": 3}
    changes = {"train": {"steps": 50}, "eval": {"every": 4}, "checkpoint": {"every": 5}}
    calm = runs.train(place, job(prose, {"fsdp": 2}, sample, **changes), "calm")
    assert [r["step"] for r in calm.metrics() if "eval_loss" in r] == [*range(4, 50, 4), 50]
    assert [step for step, _ in samples(calm)] == [12, 24, 36, 48, 50]
    run = runs.assert_killed_it_resumes(place, job(prose, {"fsdp": 2}, sample, **changes), calm)
    assert samples(run) == samples(calm)
    often = runs.train(place, job(prose, {"fsdp": 2}, {**sample, "every": 1}, **changes), "often")
    assert [s for s in samples(often) if s[0] in (12, 24, 36, 48, 50)] == samples(calm)  # the same texts
    assert len(samples(often)) == 13


def test_without_a_vocabulary_samples_are_ids(place, prose):
    made = job(prose, {"dp": 1}, {"prompt": "84 104", "tokens": 5}, model={"vocab": 300}, train={"steps": 3})
    ids = samples(runs.train(place, made))[0][1][0].split()
    assert len(ids) == 5 and all(0 <= int(i) < 300 for i in ids)


def test_a_model_gone_mad_says_nothing_and_training_continues(place, prose):
    sample = {"prompt": "x", "tokens": 5}
    made = job(prose, {"dp": 2}, sample, schedule={"value": 1e6}, optimizer={"kind": "sgd"}, train={"steps": 8})
    run = runs.Run(place, made)
    assert run.run().code == 65  # once it was at its last step, which was not finite
    assert [r["step"] for r in run.metrics()] == list(range(1, 9))
    assert samples(run) == [(8, [""])]
    assert "ends after 0 of 5 tokens: the logits are not finite" in run.log(0)


def test_samples_that_keep_no_keys_are_made_slowly_and_it_is_said_why(place, prose):
    (place / "mixed.model").write_text("""sizes
  seq = 16
  embed = 8
  vocab = 128
model
  x = embed(tokens, table[vocab, embed])
  x = x + mean(x, seq)
  logits = x @ head[embed, vocab]
  loss = cross_entropy(logits, targets)
""")
    made = {**job(prose, {"dp": 2}, {"prompt": "x", "tokens": 3}), "model": {"program": "./mixed.model"}}
    made["train"]["steps"] = 4
    made["eval"]["every"] = 2
    run = runs.train(place, made)
    assert [step for step, _ in samples(run)] == [2, 4]
    why = "the model's line 7: sum over seq: a token would see those behind it"
    assert run.log(0).count(f"no keys are kept, so each token takes a whole forward pass: {why}") == 1
    (place / "job.yaml").write_text(json.dumps(made))
    plan = runs.weft("plan", str(place / "job.yaml"))
    assert plan.code == 0 and plan.out.count("no keys are kept") == 1, plan


def test_who_runs_it_reads_the_text_and_so_does_a_program(place, periodic):
    made = job(periodic, {"dp": 1}, {"prompt": "the quick ", "tokens": 10})
    (place / "job.yaml").write_text(json.dumps(made))
    run = subprocess.run([runs.WEFT, "run", str(place / "job.yaml"), "--json"], capture_output=True, text=True,
                         timeout=runs.WATCHDOG, check=True)  # fmt: skip
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    told = [r["report"] for r in rows if r["report"]]
    assert told[-1]["samples"] == ["brown fox "] and told[-1]["eval_accuracy"] is None
    assert all(r["samples"] == [] for r in told[:-1])
    assert told[-1]["sample_prompt"] == "the quick " and told[0]["sample_prompt"] is None
    again = runs.weft("run", str(place / "job.yaml"), "--new")
    assert again.code == 0 and " tokens/s" in again.out and "  0 tokens/s" not in again.out and "sample after step 80: the quick brown fox " in again.out, again


def mean_of_late(rows):
    """ms a step: of about the newest ten seconds, and of sixteen steps at least (worker/rank/train/pace.h)."""
    steps = ms = 0
    for r in rows:
        keep = math.exp(-min(r["step_ms"] / 1e4, 1 / 16))
        steps, ms = keep * steps + 1, keep * ms + r["step_ms"]
    return ms / steps


def test_a_served_decoder_shows_its_mean_speed_and_its_samples_with_their_prompt(place, periodic):
    c = cluster.Cluster(place, devices=1)
    shutil.copy(periodic, c.data / "tokens")
    made = job("tokens", {"dp": 1}, {"prompt": "the quick ", "tokens": 10}, eval={"every": 40})
    ran = c.submit(made)
    told = c.succeed(ran)
    rows = runs.rows_of(c.store(ran))
    assert len(rows) == 80
    assert {r["step"]: r["prompt"] for r in rows if "prompt" in r} == {40: "the quick ", 80: "the quick "}
    assert math.isclose(told["tokens_per_s"], 8 * SEQ * 1000 / mean_of_late(rows), rel_tol=1e-6), told
    assert math.isclose(told["samples_per_s"] * SEQ, told["tokens_per_s"], rel_tol=1e-6), told
    log = c.weft("logs", ran).out
    speeds = re.findall(r"step \d+ of 80: loss \S+, (\S+) tokens/s", log)
    assert speeds and all(re.fullmatch(r"\d+(\.\d+)?", speed) for speed in speeds), log  # and no 1.6e+05
    assert int(speeds[-1]) == round(told["tokens_per_s"])
    assert re.search(r"info sample .* the quick brown fox $", log, re.M), log
    c.stop()


# ---- JAXformer's own system, small ---------------------------------------------------------------

# (microbatch, batch, sequence) cut on pp, dp and tp, weights on dp too; two blocks of two layers a stage, in turns.
AS_PUBLISHED = {
    "mesh": {"dp": 2, "pp": 2, "tp": 2},
    "sharding": {"rules": {"embed": "dp"}, "gather": ["dp"], "activations": {"act_seq": ["batch", ["seq", "tp"]]}},
    "pipeline": {"schedule": "circular", "chunks": 2},
    "optimizer": {"kind": "adamw", "betas": [0.9, 0.999], "weight_decay": 1e-4, "clip_norm": 1.0},
    "schedule": {"kind": "warmup_cosine", "init": 0, "peak": 6e-3, "warmup": 5, "decay": 30, "end": 6e-5},
    "checkpoint": {"dir": "ckpt", "every": 5, "keep": 9},
}


def jaxformer(tokens, **changes):
    sample = {"prompt": "This ", "tokens": 12, "temperature": 1.0, "top_k": 20, "count": 2}
    made = {**job(tokens, {}, sample), **AS_PUBLISHED}
    made["model"] = {**meshes.DECODERS["jaxformer"], "blocks": 4, "layers": 8, "vocab": 128, "vocab_multiple": 128}
    made["train"] = {"steps": 30, "seed": 3, "microbatches": 2}
    made["eval"]["every"] = 5
    return {**made, **changes}


def test_a_small_jaxformer_reports_each_of_its_losses_and_samples_with_the_same_key(place, prose):
    calm = runs.train(place, jaxformer(prose), "calm")
    rows = calm.metrics()
    for r in rows:
        assert len(r["balance"]) == len(r["expert_tokens"]) == len(r["router_entropy"]) == 4  # of a block
        assert math.isclose(r["loss"], r["cross_entropy"] + sum(r["balance"]), rel_tol=1e-6)
        assert r["cross_entropy"] < r["loss"]
    assert sum(r["loss"] for r in rows[-5:]) < 0.9 * sum(r["loss"] for r in rows[:5])
    told = [r for r in rows if "samples" in r]
    assert [r["step"] for r in told] == [5, 10, 15, 20, 25, 30]
    assert all(math.isclose(r["eval_loss"], r["eval_cross_entropy"], rel_tol=1e-6) for r in told)
    assert all("eval_balance" not in r for r in told)  # which is training's
    assert all(r["eval_expert_dropped"] == [0] * 4 and max(r["expert_dropped"]) > 0.4 for r in told)
    assert all(r["samples"][0] != r["samples"][1] for r in told)
    assert len({r["samples"][0] for r in told}) > 3  # of other weights
    still = jaxformer(prose, schedule={"kind": "constant", "value": 0})
    still["train"]["steps"] = 15
    texts = [s for _, s in samples(runs.train(place, still, "still"))]
    assert len(texts) == 3 and texts[0] == texts[1] == texts[2]  # the same weights say the same at each evaluation
    assert texts[0] != told[0]["samples"]


def test_a_killed_jaxformer_continues_at_its_step_and_data(place, prose):
    calm = runs.train(place, jaxformer(prose), "calm")
    run = runs.assert_killed_it_resumes(place, jaxformer(prose), calm)
    same = ("step", "loss", "cross_entropy", "balance", "expert_tokens", "expert_dropped", "lr", "eval_loss", "samples")
    for a, b in zip(calm.metrics(), run.metrics(), strict=True):
        assert [a.get(k) for k in same] == [b.get(k) for k in same]
