# SPDX-License-Identifier: Apache-2.0
"""What a training may continue with: other settings, the same data by another path, the same program spelt otherwise, an
older checkpoint. KEYS.md has the table."""
import json
import pathlib
import signal
import subprocess

import numpy
import pytest
import runs
import test_own_model


def begin(place, job):
    run = runs.Run(place, job, "mine")
    end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    return run


def carry_on(run, job, *flags):
    run.carry_on_as(job)
    return runs.weft("run", str(run.file), *flags)


# ---- the data ------------------------------------------------------------------------------------


def tokens_job(path, **changes):
    return runs.pinned({
        "name": "test", "mesh": {"dp": 1}, "checkpoint": {"dir": "ckpt"}, "schedule": {"kind": "constant", "value": 1e-3},
        "model": {"program": "gpt2", "layers": 1, "embed": 16, "heads": 2, "seq": 8, "vocab": 256},
        "data": {"format": "tokens", "train": {"tokens": str(path)}, "batch": 4}, "train": {"steps": 10}, **changes,
    })  # fmt: skip


@pytest.fixture
def corpus(place):
    """Large enough that only parts of it are looked at."""
    text = place / "text"
    text.write_bytes(bytes(i * 7919 % 251 for i in range(500000)))
    runs.put_tokens(text, place / "tokens")
    return place / "tokens"


def test_the_same_data_by_another_path_is_the_same(place, corpus):
    run = begin(place, tokens_job("tokens"))
    (place / "elsewhere").mkdir()
    corpus.rename(place / "elsewhere" / "renamed")
    longer = tokens_job(place.resolve() / "elsewhere" / "renamed", train={"steps": 20})
    end = carry_on(run, longer)
    assert end.code == 0, end
    newest = run.checkpoints()[-1]
    assert newest.step == 20 and newest.manifest["data"]["bytes"] == 1000000 and newest.manifest["data"]["files"] == 1
    straight = runs.train(place, longer, "straight")
    assert newest.tensors() == straight.final()


OTHERWISE = {
    "truncated": (lambda raw: raw[:-2000], "trained with 1000000 bytes in 1 file, and now there are 998000 bytes in 1 file"),
    "another": (lambda raw: raw[::-1], "it is as large as that of the checkpoint of step 10 (1000000 bytes in 1 file)"),
    "another end": (lambda raw: raw[:-2] + b"\xfa\x00", "holds something else"),
}


@pytest.mark.parametrize("change, words", OTHERWISE.values(), ids=OTHERWISE)
def test_other_data_of_the_same_name_is_refused_before_anything_begins(place, corpus, change, words):
    run = begin(place, tokens_job("tokens"))
    raw = corpus.read_bytes()
    corpus.write_bytes(change(raw))
    end = carry_on(run, tokens_job("tokens", train={"steps": 20}))
    assert end.code == 2 and words in end.err and "put the data back" in end.err and not end.out, end
    assert [c.step for c in run.checkpoints()] == [10]
    corpus.write_bytes(raw)
    assert runs.weft("run", str(run.file)).code == 0 and run.checkpoints()[-1].step == 20


def test_a_wrong_file_of_data_costs_no_checkpoint(place, corpus):
    run = begin(place, tokens_job("tokens"))
    runs.put_tokens(run.file, place / "short")
    short = (place / "short").read_bytes()
    (place / "short").write_bytes(short[:len(short) // 2])  # cut off: bad data, which the ranks find
    end = carry_on(run, tokens_job("short", train={"steps": 20}))
    assert end.code == 65, end
    end = carry_on(run, tokens_job("tokens", train={"steps": 20}))
    assert end.code == 0 and "damaged" not in end.out and run.checkpoints()[-1].step == 20, end


def test_ranks_refuse_other_data_where_nobody_else_can_look(one, place, toy):
    data = one.put_data(toy)
    job = one.submit(runs.job(data, 1, train__steps=10))
    one.succeed(job)
    images = one.data / data.train["images"]
    raw = images.read_bytes()
    images.write_bytes(raw[:-64] + raw[:64])
    assert one.submit(runs.job(data, 1, train__steps=20), "--continue", job) == job
    assert one.wait(job)["state"] == "FAILED"
    assert "the training data has changed" in one.why(job), one.why(job)
    images.write_bytes(raw)
    assert one.weft("resume", job).code == 0 and one.succeed(job)["step"] == 20


def test_ranks_of_one_attempt_must_see_the_same_data(place, toy):
    """Two ranks whose files differ would train on a mixture and never know."""
    run = runs.Run(place, runs.job(toy, 2, train__steps=3))
    images = pathlib.Path(toy.train["images"])
    other = images.read_bytes()[:-64] + bytes(64)
    (place / "other").write_bytes(other)
    wrapper = place / "wrapper"
    wrapper.write_text(f"#!/bin/sh\nexec unshare -m sh -c 'mount --bind {place}/other {images} && exec \"$@\"' - \"$@\"\n")
    wrapper.chmod(0o755)
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("SKIP: no mount namespaces here")
    end = run.run(*runs.on_rank(1, {"WEFT_RANK_WRAPPER": str(wrapper)}))
    assert end.code and "the plan or the data of rank 0 differs from that of rank 1" in end.out + end.err, end


def test_other_data_continues_where_it_is_named_otherwise_and_is_recorded(place, corpus):
    run = begin(place, tokens_job("tokens"))
    (place / "more").write_bytes(numpy.frombuffer(corpus.read_bytes(), "<u2")[::-1].tobytes())
    end = carry_on(run, tokens_job("more", train={"steps": 20}))
    assert end.code == 0 and "data.train.tokens from tokens to more" in end.err, end
    assert "data.train names other data than that of step 10: its samples are drawn from the first one on" in end.err, end
    newest = run.checkpoints()[-1]
    assert newest.step == 20 and newest.manifest["samples"] == 40
    assert "data.train.tokens from tokens to more" in newest.manifest["changes"][0]["what"]
    said = runs.weft("why", "--coordinator", str(place / ".weft" / "test"), "test").out
    assert "from step 10 on samples are of other data: they are drawn from the first one on" in said, said
    # from then on that is its data: what was named before is other data again, and the same name is not
    end = carry_on(run, tokens_job("more", train={"steps": 30}))
    assert end.code == 0 and run.checkpoints()[-1].manifest["samples"] == 80, end
    (place / "more").write_bytes(corpus.read_bytes())
    end = carry_on(run, tokens_job("more", train={"steps": 40}))
    assert end.code == 2 and "name other data by another path" in end.err, end


LLAMA = {"program": "llama", "layers": 2, "embed": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 32, "tied": 0,
         "seq": 8, "vocab": 256, "theta": 10000.0, "stretch": 1.0}  # fmt: skip
CONTEXT = {
    "longer": {"seq": 16},
    "longer with another base": {"seq": 16, "theta": 500000.0},
    "stretched": {"seq": 32, "stretch": 4.0, "length": 8},
}


@pytest.mark.parametrize("change", CONTEXT.values(), ids=CONTEXT)
def test_a_training_continues_with_a_longer_context(place, corpus, change):
    """Rotary positions are no parameters. Samples of another length are others, so they are drawn from the first one on."""
    run = begin(place, tokens_job("tokens", model=LLAMA))
    before = run.checkpoints()[-1].numbers()
    end = carry_on(run, tokens_job("tokens", model={**LLAMA, **change}, train={"steps": 12}))
    assert end.code == 0 and all(f"model.{key} from" in end.err for key in change), end
    newest = run.checkpoints()[-1]
    assert newest.step == 12 and newest.manifest["samples"] == 8 and newest.numbers().keys() == before.keys()


def test_learned_positions_do_not_become_longer(place, corpus):
    run = begin(place, tokens_job("tokens"))
    job = tokens_job("tokens", train={"steps": 12})
    job["model"]["seq"] = 16
    end = carry_on(run, job)
    assert end.code == 2 and "differs in model.seq" in end.err, end


# ---- settings ------------------------------------------------------------------------------------

BASE = {"train__steps": 20, "optimizer": {"kind": "adamw"}, "checkpoint__every": 10}
OTHERS = {
    "clip_norm": {"optimizer": {"kind": "adamw", "clip_norm": 1e-3}},
    "weight_decay": {"optimizer": {"kind": "adamw", "weight_decay": 0.2}},
    "precision": {"precision": {"compute": "bf16"}},
    "activation": {"model__activation": "tanh"},
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_what_leaves_the_parameters_alone_may_change_and_is_recorded(place, toy, change):
    begun, longer = runs.job(toy, 1, **BASE), runs.job(toy, 1, **{**BASE, **change, "train__steps": 30})
    run = begin(place, begun)
    end = carry_on(run, longer)
    assert end.code == 0, end
    (record,) = run.checkpoints()[-1].manifest["changes"]
    (key,) = {k.replace("__", ".") for k in change}
    assert record["step"] == 20 and key in record["what"] and "train.steps from 20 to 30" in record["what"], record
    hand = runs.train(place, begun, "byhand")
    hand.carry_on_as(longer)
    hand.finish()
    straight = runs.train(place, runs.job(toy, 1, **{**BASE, "train__steps": 30}), "straight")
    assert run.final() == hand.final() != straight.final()


def test_another_optimiser_begins_with_state_of_its_own(place, toy):
    run = begin(place, runs.job(toy, 1, train__steps=20))
    before = run.checkpoints()[-1].numbers()
    adam = {"optimizer": {"kind": "adamw", "weight_decay": 0.0}, "schedule": {"kind": "constant", "value": 1e-3}}
    end = carry_on(run, runs.job(toy, 1, train__steps=21, **adam))
    assert end.code == 0 and "optimizer.kind from momentum to adamw" in end.err, end
    said = runs.weft("why", "--coordinator", str(place / ".weft" / "test"), "test").out
    assert "the state of momentum is left behind at step 20: that of adamw begins at zero" in said, said
    newest = run.checkpoints()[-1]
    assert newest.manifest["optimizer"] == "adamw" and newest.manifest["updates"] == 1
    now = newest.numbers()
    assert not any(name.startswith("momentum/") for name in now)
    # Adam's first update, whatever the gradient: one learning rate where it is not tiny. Uncorrected, as at step 21, it would be more.
    for name, value in before.items():
        if not name.startswith("momentum/"):
            moved = abs(now[name] - value)
            assert moved.max() <= 1.01e-3, (name, moved.max())
    assert max(abs(now[k] - before[k]).max() for k in before if not k.startswith("momentum/")) > 0.99e-3
    end = carry_on(run, runs.job(toy, 1, train__steps=30, **{**adam, "optimizer": {"kind": "adam"}}))
    assert end.code == 0 and run.checkpoints()[-1].manifest["updates"] == 10, end


def test_another_batch_continues_behind_the_sample_that_was_drawn_last(place, toy):
    run = begin(place, runs.job(toy, 1, train__steps=20))
    end = carry_on(run, runs.job(toy, 1, train__steps=30, data__batch=48))
    assert end.code == 0 and "data.batch from 24 to 48" in end.err, end
    end = carry_on(run, runs.job(toy, 1, train__steps=40, data__batch=48))
    assert end.code == 0, end
    assert [c.manifest["samples"] for c in run.checkpoints()] == [20 * 24, 20 * 24 + 10 * 48, 20 * 24 + 20 * 48]
    assert [c["step"] for c in run.checkpoints()[-1].manifest["changes"]] == [20, 30]


def test_another_folder_of_checkpoints_is_taken_once_they_were_moved_there(place, toy):
    job = runs.job(toy, 1, train__steps=10)
    run = begin(place, job)
    (store,) = run.stores()
    elsewhere = ("-s", "checkpoint.dir=kept", "-s", "train.steps=20")
    end = runs.weft("run", str(run.file), *elsewhere)
    kept = place.resolve() / "kept" / store.name
    assert end.code == 2 and f"its checkpoints are in {store.resolve()}: move it to {kept}" in end.err, end
    kept.parent.mkdir(exist_ok=True)
    store.rename(kept)
    end = runs.weft("run", str(run.file), *elsewhere)
    assert end.code == 0 and [c.step for c in runs.checkpoints_of(kept)] == [10, 20], end


def test_a_program_of_another_name_and_spelling_is_the_same_program(place, toy):
    job = test_own_model.job(toy)
    (place / "own.model").write_text(test_own_model.OWN)
    run = begin(place, job)
    spaced = test_own_model.OWN.replace(", ", " ,  ").replace("\n\n", "\n\n\n# More of it.\n")
    assert spaced != test_own_model.OWN
    (place / "own.model").unlink()
    (place / "other.model").write_text(spaced)
    steps = job["train"]["steps"]
    longer = test_own_model.job(toy, train__steps=steps + 10)
    longer["model"]["program"] = "./other.model"
    end = carry_on(run, longer)
    assert end.code == 0 and "model.text" not in end.err, end
    assert run.checkpoints()[-1].step == steps + 10


# ---- an older checkpoint -------------------------------------------------------------------------

SAVING = {"train__steps": 30, "checkpoint__every": 10, "checkpoint__async": False, "checkpoint__keep": 9}


def names(store):
    return sorted(d.name for d in store.iterdir() if "step-" in d.name and d.is_dir())


def test_a_run_goes_back_to_an_older_checkpoint_and_sets_the_later_ones_aside(place, toy):
    run = begin(place, runs.job(toy, 1, **SAVING))
    (store,) = run.stores()
    slower = runs.job(toy, 1, **SAVING, schedule__value=0.01)
    end = carry_on(run, slower, "--from-step", "10")
    assert end.code == 0 and "it continues from step 10 with a changed job: schedule.value from 0.05 to 0.01" in end.err, end
    assert "restored: continues from step-00000010.a1, as was asked" in end.out, end
    assert names(store) == ["aside-step-00000020.a1", "aside-step-00000030.a1", "step-00000010.a1", "step-00000020.a2",
                            "step-00000030.a2"]  # fmt: skip
    newest = run.checkpoints()[-1]
    assert newest.manifest["parent"] == {"attempt": 1, "step": 10}
    assert newest.manifest["changes"][0]["step"] == 10
    rows = [row["step"] for row in runs.rows_of(store)]
    assert rows == list(range(1, 31))
    hand = runs.train(place, runs.job(toy, 1, **SAVING), "byhand")
    hand.forget(10)
    hand.carry_on_as(slower)
    hand.finish()
    assert newest.tensors() == hand.final()
    listed = json.loads(runs.weft("ckpt", "ls", "--json", str(store)).out)["checkpoints"]
    assert sorted(c["step"] for c in listed if c["aside"]) == [20, 30]
    assert runs.weft("ckpt", "verify", str(store)).code == 0


def test_without_a_change_it_goes_back_too_and_ends_on_the_same_bits(place, toy):
    run = begin(place, runs.job(toy, 1, **SAVING))
    before = run.final()
    end = runs.weft("run", str(run.file), "--from-step=20")
    assert end.code == 0 and "it continues from step 20\n" in end.err, end
    assert run.checkpoints()[-1].attempt == 2 and run.final() == before
    again = runs.weft("run", str(run.file))
    assert again.code == 0 and "is finished" in again.out, again


REFUSED = {
    "no such step": (["--from-step", "15"], "there is no checkpoint of step 15, only of steps: 30, 20, 10"),
    "nothing left": (["--from-step", "30"], "train.steps: is 30, and it is to continue from step 30"),
    "new as well": (["--from-step", "10", "--new"], "--new starts over and --from-step continues"),
}


@pytest.mark.parametrize("flags, words", REFUSED.values(), ids=REFUSED)
def test_where_it_cannot_go_back_nothing_changes(place, toy, flags, words):
    run = begin(place, runs.job(toy, 1, **SAVING))
    (store,) = run.stores()
    before = names(store)
    end = runs.weft("run", str(run.file), *flags)
    assert end.code == 2 and words in end.err and names(store) == before, end


def test_what_was_never_started_has_no_step_to_go_back_to(place, toy):
    run = runs.Run(place, runs.job(toy, 1, **SAVING), "mine")
    end = runs.weft("run", str(run.file), "--from-step", "10")
    assert end.code == 2 and "nothing was started" in end.err and not (place / ".weft").exists(), end


def test_killed_at_once_it_still_continues_from_there(place, noise):
    """What was asked is durable: no restart brings back what was set aside."""
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=100000, checkpoint__keep=100000), "mine")

    def start(*flags):
        return runs.watch_over(subprocess.Popen([runs.WEFT, "run", str(run.file), *flags], stdout=subprocess.PIPE,
                                                stderr=subprocess.PIPE, text=True))  # fmt: skip

    def end(p, sig):
        p.send_signal(sig)
        return p.communicate()

    p = start()
    assert run.wait_until(lambda: p.poll() is not None or (run.stores() and len(run.checkpoints()) > 3))
    end(p, signal.SIGINT)
    (store,) = run.stores()
    last = run.checkpoints()[-1].step
    p = start("--from-step", "7")
    assert run.wait_until(lambda: p.poll() is not None or list(store.glob("aside-*")))
    end(p, signal.SIGKILL)
    p = start()
    assert run.wait_until(lambda: p.poll() is not None or run.checkpoints()[-1].attempt > 2)
    out, err = end(p, signal.SIGINT)
    assert p.returncode == 130, (out, err)
    chain = [c for c in run.checkpoints() if c.attempt == 1]
    assert [c.step for c in chain] == [7] and f"aside-step-{last:08}.a1" in names(store)
    assert min(c.step for c in run.checkpoints() if c.attempt > 1) == 14


def test_a_served_job_goes_back_by_resume_and_by_submit(one, place, toy):
    data = one.put_data(toy)
    job = one.submit(runs.job(data, 1, **SAVING))
    one.succeed(job)
    refused = one.weft("resume", job, "--from-step", "10")
    assert refused.code == 4 and "it has succeeded" in refused.err, refused
    text = runs.job(data, 1, **{**SAVING, "train__steps": 40})
    text["checkpoint"]["dir"] = "."
    (place / "longer.yaml").write_text(json.dumps(text))
    for flags, words in ((("--continue", job, "--from-step", "15"), "only of steps: 10, 20, 30"), (("--from-step", "10"), "--continue")):
        end = one.weft("submit", str(place / "longer.yaml"), *flags)
        assert end.code in (2, 4) and words in end.err, end
    assert one.submit(runs.job(data, 1, **{**SAVING, "train__steps": 40}), "--continue", job, "--from-step", "10") == job
    assert one.succeed(job)["step"] == 40
    store = one.store(job)
    assert [n for n in names(store) if n.startswith("aside-")] == ["aside-step-00000020.a1", "aside-step-00000030.a1"]
    assert [c.step for c in runs.checkpoints_of(store) if c.attempt == 2] == [20, 30, 40]
    restored = [e["text"] for e in one.events(job) if e["kind"] == "restored"]
    assert len(restored) == 1 and "continues from step-00000010.a1, as was asked" in restored[0], restored


def test_a_held_job_resumes_from_the_step_that_is_asked_for(one, noise):
    data = one.put_data(noise)
    job = one.submit(runs.busy_job(data, 1, train__steps=100000, checkpoint__keep=100000))
    one.wait(job, states=("RUNNING",), step=30)
    assert one.weft("hold", job).code == 0 and one.wait(job)["state"] == "HELD"
    store = one.store(job)
    later = [c.step for c in runs.checkpoints_of(store) if c.step > 7]
    refused = one.weft("resume", job, "--from-step", "8")
    listed = ", ".join(str(s) for s in [7, *later])
    assert refused.code == 4 and f"no checkpoint of step 8 to continue from, only of steps: {listed}"[:150] in refused.err, refused
    assert one.weft("resume", job, "--from-step", "7").code == 0
    one.wait(job, states=("RUNNING",))
    assert sorted(n for n in names(store) if n.startswith("aside-")) == [f"aside-step-{s:08}.a1" for s in later]
    assert any(e["kind"] == "resumed" and "from step 7" in e["text"] for e in one.events(job))
    one.weft("cancel", job)
    one.wait(job)
