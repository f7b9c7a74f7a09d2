# SPDX-License-Identifier: Apache-2.0
"""The life of an attempt: stopped and resumed, finished, refused; and what ranks write down about it all
(metrics, checkpoints, logs)."""
import math
import os
import re
import signal
import time

import pytest
import runs

RANKS = 2
SPENT = ("input_ms", "compute_ms", "communication_ms", "checkpoint_ms")  # of step_ms
ROW = {"step", "attempt", "t_ms", "loss", "loss_mean", "grad_norm", "lr", "tokens_per_s", "samples_per_s", "step_ms", *SPENT,
       "flops_per_s", "mfu", "memory_bytes", "memory_planned_bytes", "dropped"}  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, noise):
    return runs.train(tmp_path_factory.mktemp("undisturbed"), runs.busy_job(noise, RANKS), "calm")


# ---- stopping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_at_one_step_with_a_checkpoint(place, noise, undisturbed, sig):
    run = runs.Run(place, runs.busy_job(noise, RANKS), "stopped")
    parent = run.start_held(30)
    assert run.wait_until(run.at(0, step=17), parent)
    parent.signal(sig)
    run.wait_until(lambda: "asked to stop" in run.log(0))
    run.let_go()
    end = parent.wait()
    assert end.code == 75, end
    assert not run.sockets() and not run.pids()
    saved = run.checkpoints()[-1]
    assert 17 <= saved.step < runs.BUSY_STEPS
    rows = run.metrics()
    assert rows[-1]["step"] == saved.step
    assert [r["step"] for r in rows] == list(range(1, saved.step + 1))
    run.finish()
    assert run.final() == undisturbed.final()
    assert run.losses() == undisturbed.losses()
    assert run.checkpoints()[-1].manifest["parent"] == {"attempt": saved.attempt, "step": saved.step}


def test_a_signal_to_one_rank_stops_all(place, noise):
    run = runs.Run(place, runs.busy_job(noise, RANKS, train__steps=100000), "one")
    parent = run.start()
    assert run.wait_until(run.at(1, step=9), parent)
    runs.kill_pid(run.pids()[1], signal.SIGTERM)
    end = parent.wait()
    assert end.codes() == [75] * RANKS, end
    assert run.checkpoints()[-1].step == run.metrics()[-1]["step"]


@pytest.mark.parametrize("ms", [0, 5, 10, 20, 40] if not runs.LONG else range(0, 60, 1))
def test_a_signal_while_starting_ends_all_ranks_alike(place, noise, ms):
    """Wherever they are: joining, opening data, loading."""
    run = runs.Run(place, runs.busy_job(noise, RANKS, train__steps=100000), "early")
    parent = run.start()
    assert run.wait_until(lambda: len(run.pids()) == RANKS, parent)
    time.sleep(ms / 1000)
    parent.signal(signal.SIGTERM)
    end = parent.wait()
    assert end.codes() == [75] * RANKS, end  # all begin and stop at one step, or none begins
    assert not run.pids() and not run.sockets()


def test_a_second_signal_ends_it_at_once(place, noise):
    run = runs.Run(place, runs.busy_job(noise, RANKS, train__steps=100000, restart={"hang_after": "600s"}), "twice")
    parent = run.start()
    assert run.wait_until(run.at(1, step=9), parent)
    runs.kill_pid(run.pids()[1], signal.SIGSTOP)  # so that the first cannot succeed
    parent.signal(signal.SIGINT)
    run.wait_until(lambda: "asked to stop" in run.log(0))  # else the two might be one
    parent.signal(signal.SIGINT)
    end = parent.wait()
    assert end.code == 128 + signal.SIGINT, end
    assert not run.pids()


def test_many_interruptions_end_in_the_same_bits(place, noise, undisturbed):
    run = runs.Run(place, runs.busy_job(noise, RANKS), "many")
    for step in (5, 12, 13, 70, 141):
        parent = run.start()
        if run.wait_until(run.at(0, step=step), parent):
            parent.signal(signal.SIGTERM)
        assert parent.wait().code in (0, 75)
    run.finish()
    assert run.final() == undisturbed.final()
    assert run.losses() == undisturbed.losses()


# ---- finished ------------------------------------------------------------------------------------


def test_a_finished_job_run_again_says_so(place, toy):
    run = runs.Run(place, runs.job(toy, RANKS), "done")
    run.finish()
    before = run.final()
    again = run.run()
    assert again.code == 0 and "finished" in again.out, again
    assert run.final() == before
    assert len(run.metrics()) == 30


# ---- what is wrong with the input ----------------------------------------------------------------


def test_a_bad_job_file_is_refused_with_every_violation(place, toy):
    job = runs.job(toy, RANKS)
    job["train"]["stepz"] = 3
    job["data"]["batch"] = "many"
    job["model"]["activation"] = "swish"
    job["optimizer"] = {"kind": "adamw", "betas": [0.9, 1.5]}
    job["mash"] = {"dp": 2}
    run = runs.Run(place, job, "bad")
    wrong = ["stepz", "data.batch", "model.activation", "optimizer.betas", "mash"]
    lines = run.file.read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if '"stepz"' in text)
    end, plan = runs.weft("run", str(run.file)), runs.weft("plan", str(run.file))
    assert (end.code, plan.code) == (2, 2), (end, plan)
    for text in (end.err, plan.err):
        for w in wrong:
            assert w in text, (w, text)
        assert f"{run.file}:{line}:" in text or f"{run.file.name}:{line}:" in text, text
        assert "steps" in text  # the nearest known key


def test_very_many_violations_are_all_reported(place, toy):
    job = runs.job(toy, RANKS)
    for i in range(40):
        job["train"][f"unheard_of_{i:02}"] = i
    run = runs.Run(place, job, "very-bad")
    end, plan = runs.weft("run", str(run.file)), runs.weft("plan", str(run.file))
    assert (end.code, plan.code) == (2, 2)
    for i in range(40):
        assert f"unheard_of_{i:02}" in plan.err
        assert f"unheard_of_{i:02}" in end.err, end


def test_all_that_the_compiler_refuses_is_reported_once_with_fixes_and_no_rank_starts(place, toy):
    job = runs.job(toy, 1, sharding={"rules": {"batch": ["dp"], "mlp": ["tp"], "inputs": ["tp"]}})
    job["mesh"] = {"tp": 7, "dp": 1}
    run = runs.Run(place, job, "uncut")
    end = runs.weft("run", str(run.file))
    assert end.code == 2 and not end.out, end
    for width in (64, 32):
        assert f"of size {width} does not divide by 7" in end.err, end
    assert "fix: -s " in end.err and end.err.count("layers/0/weight") == 1, end
    assert not (place / ".weft").exists()


def test_a_missing_job_file_is_named(place):
    end = runs.weft("run", str(place / "none.yaml"))
    assert end.code == 2 and "none.yaml" in end.err, end


def test_a_job_larger_than_the_machine_is_refused_before_it_takes_memory(place, toy):
    run = runs.Run(place, runs.job(toy, RANKS, model__hidden=[1 << 20, 1 << 20]), "large")
    end = run.run()
    assert end.code == 78 and "GiB of device memory" in end.err, end
    told = re.search(r"`weft plan (--device here:memory=\d+MiB)` says what would make it fit", end.err)
    plan = runs.weft("plan", str(run.file), *told[1].split())
    assert plan.code == 2 and "DOES_NOT_FIT" in plan.out, plan


def test_synchronous_saves_may_follow_each_other(place, toy):
    checkpoint = {"dir": "ckpt", "every": 1, "keep": 6, "async": False}
    run = runs.Run(place, runs.job(toy, RANKS, train__steps=6, checkpoint=checkpoint), "each")
    end = run.run()
    assert end.code == 0, end
    assert sorted(c.step for c in run.checkpoints()) == [1, 2, 3, 4, 5, 6]


def test_a_missing_data_file_is_named(place, toy):
    run = runs.Run(place, runs.job(toy, RANKS, data__train__images=str(place / "no-such-images")), "missing")
    end = run.run()
    assert end.code == 66 and "no-such-images" in end.err, end
    assert not run.sockets()


def test_a_damaged_data_file_is_named(place, toy):
    damaged = place / "cut"
    damaged.write_bytes(open(toy.train["images"], "rb").read()[:-1])
    run = runs.Run(place, runs.job(toy, RANKS, data__train__images=str(damaged)), "damaged")
    end = run.run()
    assert end.code == 65 and str(damaged) in end.err and "byte" in end.err, end


def test_a_label_out_of_range_is_named(place, toy):
    run = runs.Run(place, runs.job(toy, RANKS, model__classes=4), "label")
    end = run.run()
    assert end.code == 65 and toy.train["labels"] in end.err and "label 4" in end.err, end


def test_images_of_another_size_than_the_model_are_refused(place, toy):
    run = runs.Run(place, runs.job(toy, RANKS, model__inputs=63), "size")
    end = run.run()
    assert end.code in (65, 78) and "63" in end.err and "64" in end.err, end


def test_ten_losses_in_a_row_that_are_no_numbers_end_the_job(place, toy):
    job = runs.job(toy, RANKS, optimizer={"kind": "sgd"}, schedule={"kind": "constant", "value": 1e6})
    job["model"]["activation"] = "relu"
    job["train"]["steps"] = 200
    run = runs.Run(place, job, "diverged")
    end = run.run()
    assert end.codes() == [65] * RANKS, end  # each by itself, not for the loss of a peer
    assert all("not finite for 10 steps in a row" in run.log(r) for r in range(RANKS)), end
    rows = run.metrics()
    bad = [r for r in rows if r["loss"] is None or r["grad_norm"] is None]
    assert len(bad) == 10 and rows[-10:] == bad
    assert all(set(r["nonfinite"]) <= {"loss", "loss_mean", "grad_norm"} and r["nonfinite"] for r in bad)
    assert f"up to {rows[-1]['step']}" in end.err and "not finite" in end.err, end


# ---- metrics -------------------------------------------------------------------------------------


def test_metrics_have_the_keys_of_the_contract(place, toy):
    run = runs.Run(place, runs.job(toy, RANKS, eval__every=15), "keys")
    run.finish()
    rows = run.metrics()
    assert len(rows) == 30
    for r in rows:
        expected = ROW | {"accuracy"} | ({"eval_loss", "eval_accuracy"} if r["step"] in (15, 30) else set())
        assert set(r) == expected, r
        assert r["tokens_per_s"] is None and r["mfu"] is None  # images, on a CPU
        assert r["attempt"] == 1 and r["dropped"] == 0 and r["loss_mean"] == r["loss"]
        for key in ("loss", "grad_norm", "lr", "samples_per_s", "step_ms", "compute_ms", "communication_ms", "flops_per_s"):
            assert isinstance(r[key], (int, float)) and r[key] > 0, r
        assert math.isclose(sum(r[key] for key in SPENT), r["step_ms"], rel_tol=1e-9), r
        assert 1 << 20 < r["memory_bytes"] < r["memory_planned_bytes"], r
    assert [r["t_ms"] for r in rows] == sorted(r["t_ms"] for r in rows)
    assert 0 <= rows[-1]["eval_accuracy"] <= 1


def test_rows_are_as_far_apart_as_the_job_asks(place, toy):
    """Of evaluations, of the last step and of the one at which a job stops there are rows too; what lies between two is
    in their means."""
    each = runs.train(place, runs.job(toy, RANKS, eval__every=15), "each").metrics()
    few = runs.train(place, runs.job(toy, RANKS, eval__every=15, train__log_every=4), "few").metrics()
    assert [r["step"] for r in few] == [4, 8, 12, 15, 16, 20, 24, 28, 30]
    done = 0
    for r in few:
        losses = [e["loss"] for e in each[done : r["step"]]]
        assert r["loss"] == losses[-1] and math.isclose(r["loss_mean"], sum(losses) / len(losses), rel_tol=1e-12), r
        done = r["step"]


def test_no_metrics_are_written_when_none_are_wanted(place, toy):
    run = runs.Run(place, runs.job(toy, RANKS, metrics={"jsonl": False}), "silent")
    run.finish()
    assert not (run.dir / "metrics.jsonl").exists()


def test_on_resume_rows_stay_and_newer_ones_replace_them(place, noise):
    run = runs.Run(place, runs.busy_job(noise, RANKS), "append")
    parent = run.start_held(30)
    assert run.wait_until(run.saved(0), parent)
    assert run.wait_until(lambda: any(r["step"] == 29 for r in run.metrics()), parent)
    for pid in run.pids().values():
        runs.kill_pid(pid)
    assert parent.wait().code == 128 + signal.SIGKILL
    saved = run.checkpoints()[-1].step
    file = run.dir / "metrics.jsonl"
    before, text = run.metrics(), file.read_text()
    with open(file, "a", encoding="utf-8") as zombie:
        run.finish()
        zombie.write(text.splitlines()[-1] + "\n")
    after = run.metrics()
    assert file.read_text().startswith(text)
    assert [r["step"] for r in after] == list(range(1, runs.BUSY_STEPS + 1))
    assert after[:saved] == before[:saved]  # to the last digit of the timings
    assert [r["attempt"] for r in after] == [1] * saved + [2] * (runs.BUSY_STEPS - saved)


def test_a_torn_last_row_is_dropped_on_resume(place, noise):
    run = runs.Run(place, runs.busy_job(noise, RANKS), "torn")
    parent = run.start_held(31)
    assert run.wait_until(run.at(0, step=30), parent)
    parent.signal(signal.SIGTERM)
    run.wait_until(lambda: "asked to stop" in run.log(0))
    run.let_go()
    assert parent.wait().code == 75
    with open(run.dir / "metrics.jsonl", "r+b") as f:
        f.truncate(os.path.getsize(f.name) - 9)
    run.finish()
    steps = [r["step"] for r in run.metrics()]
    assert steps == sorted(set(steps)) and steps[-1] == runs.BUSY_STEPS and len(steps) == steps[-1] - 1


# ---- the folder ----------------------------------------------------------------------------------


def test_a_folder_with_a_very_long_name_is_no_trouble(place, toy):
    """Unix socket addresses hold 107 characters."""
    deep = place / ("long-" * 20) / ("longer-" * 15)
    deep.mkdir(parents=True)
    run = runs.Run(deep, runs.job(toy, RANKS), "deep")
    run.finish()
    assert len(run.metrics()) == 30


def test_retention_keeps_the_newest_and_the_chosen(place, noise):
    job = runs.busy_job(noise, RANKS, checkpoint={"every": 5, "keep": 2, "keep_every": 20})
    run = runs.Run(place, job, "keep")
    run.finish()
    steps = [c.step for c in run.checkpoints()]
    # A save that finds the one before it open is skipped, so not every fifth step need be there.
    assert steps[-1] == runs.BUSY_STEPS
    assert all(s % 5 == 0 for s in steps)
    young = [s for s in steps if s % 20]
    assert len(young) <= 2, steps
    left = [p.name for p in run.stores()[0].iterdir() if p.name.startswith((".tmp", ".trash", ".dead"))]
    assert not left


def test_overrides_act(place, toy):
    run = runs.Run(place, runs.job(toy, RANKS), "over")
    end = run.run("-s", "train.steps=4", "-s", "optimizer.kind=sgd")
    assert end.code == 0, end
    assert [r["step"] for r in run.metrics()] == [1, 2, 3, 4]
    assert run.checkpoints()[-1].manifest["optimizer"] == "sgd"
    assert not any(t.startswith("momentum/") for t in run.checkpoints()[-1].tensors())


