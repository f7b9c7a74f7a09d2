# SPDX-License-Identifier: Apache-2.0
"""The service as a user meets it: daemons, submit, watch, why, and every verb's effect on real jobs."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import cluster
import pytest
import runs


def long_job(c, data, **changes):
    return runs.busy_job(c.put_data(data), 2, **{"train__steps": 100000, **changes})


def test_a_submitted_job_runs_to_its_end_and_has_a_history(one, toy):
    job = one.submit(runs.job(one.put_data(toy), 2))
    done = one.succeed(job)
    assert done["step"] == done["steps"] == 30
    assert done["checkpoint_step"] == 30
    assert done["exit"] == 0
    why = one.json("why", job)
    states = [e["state"] for e in why["events"]]
    assert [s for i, s in enumerate(states) if i == 0 or s != states[i - 1]][-1] == "SUCCEEDED"
    assert "STARTING" in states and "RUNNING" in states
    assert 0 < why["goodput"] <= 1
    ended = one.weft("watch", job)
    assert ended.code == 0 and "30" in ended.out
    assert job in one.weft("jobs", "--all").out or done["name"] in one.weft("jobs", "--all").out
    verify = one.weft("ckpt", "verify", str(one.store(job)))
    assert verify.code == 0, verify


def test_the_numbers_are_those_of_a_solo_run(one, place, toy):
    job = one.submit(runs.job(one.put_data(toy), 2))
    one.succeed(job)
    run = runs.Run(place, runs.job(toy, 2))
    run.finish()
    assert one.final(job) == run.final()


def put_job(c, job):
    path = c.place / f"{job['name']}-by-hand.yaml"
    path.write_text(json.dumps({**job, "checkpoint": {"dir": "."}}))
    return str(path)


def test_a_job_whose_data_is_not_there_is_refused_or_fails_at_once_and_says_which_path_and_where(one, toy):
    data = one.put_data(toy)
    missing = runs.job(data, 2)
    missing["data"]["train"] = {key: "nowhere/" + path for key, path in missing["data"]["train"].items()}
    refused = one.popen("submit", put_job(one, missing))
    told = refused.communicate()[1]
    assert refused.returncode == 2, told
    path = missing["data"]["train"]["images"]
    assert f"data.train.images: {path} cannot be opened (w0: beneath {one.data}: cannot open {path}: No such file" in told, told
    assert "no worker here" in told and "relative paths of submitted jobs start at the workers' --data-root" in told, told
    # Gone only after it was submitted:
    shutil.copytree(one.data, one.data / "nowhere")
    assert one.weft("cordon", "w0").code == 0
    job = one.submit(missing)
    shutil.rmtree(one.data / "nowhere")
    assert one.weft("uncordon", "w0").code == 0
    failed = one.wait(job)
    assert failed["state"] == "FAILED" and failed["restarts"] == 0, one.why(job)
    for told in (failed["text"], one.weft("status", job).out, one.weft("jobs", "--all").out, one.why(job)):
        assert "cannot open nowhere/" in told and "No such file" in told and "w0" in told, told
        assert str(one.data) in told, told


def test_a_checkpoint_folder_behind_a_link_out_of_the_root_is_refused(one, toy):
    (one.ckpt / "link").symlink_to("/tmp")
    path = one.place / "out.yaml"
    path.write_text(json.dumps({**runs.job(one.put_data(toy), 2), "checkpoint": {"dir": "link/x"}}))
    refused = one.weft("submit", str(path))
    assert refused.code == 2 and "checkpoint.dir: link/x leaves the --checkpoint-root (w0: " in refused.err, refused
    path.write_text(json.dumps({**runs.job(one.put_data(toy), 2), "checkpoint": {"dir": "new/x"}}))
    assert one.weft("submit", str(path)).code == 0
    one.succeed("test")


@pytest.fixture
def bare(place):
    """As `one`, and the data root of a second worker, which has not started, is empty."""
    c = cluster.Cluster(place)
    (place / "bare").mkdir()
    yield c
    c.kill_all()


def start_bare(c):
    argv = c.worker_argv(1)
    argv[argv.index("--data-root") + 1] = str(c.place / "bare")
    argv[argv.index("--name") + 1] = "bare"
    c.workers.append(cluster.Daemon("bare", argv, c.place / "bare.log"))


def test_a_worker_whose_tls_folder_lacks_a_file_ends_with_78(place):
    (place / "tls").mkdir()
    end = subprocess.run([cluster.WORKER, "--coordinator", "127.0.0.1:1", "--state", str(place / "state"), "--cpu-devices", "1",
                          "--tls", str(place / "tls")], capture_output=True, text=True, timeout=runs.WATCHDOG, check=False)  # fmt: skip
    assert end.returncode == 78 and f"--tls: {place}/tls/ca.pem: No such file" in end.stderr, end


def test_a_rank_that_finds_no_data_on_its_host_goes_to_one_that_has_it(bare, toy):
    assert bare.weft("cordon", "w0").code == 0
    job = bare.submit(runs.job(bare.put_data(toy), 2, restart={"budget": 0}))
    start_bare(bare)  # it has not been asked
    end = time.monotonic() + runs.WATCHDOG
    while "could not open its data" not in ((waiting := bare.status(job))["text"] or ""):
        assert time.monotonic() < end, bare.why(job)
        time.sleep(0.05)
    assert waiting["state"] == "QUEUED" and "2 on w0 (cordoned)" in waiting["text"], waiting
    assert "exit 66" in waiting["text"] and "No such file" in waiting["text"], waiting
    assert re.search(r"It tries there again in \d+ s$", waiting["text"]), waiting
    assert re.search(r"^last lines of rank \d, before the first step:$", bare.weft("why", job).out, re.M), bare.why(job)
    assert bare.weft("uncordon", "w0").code == 0
    assert bare.succeed(job)["restarts"] == 1
    assert "counts against host bare, which this job avoids" in bare.why(job)


def test_jobs_wait_for_devices_in_order_and_why_says_so(one, toy, noise):
    first = one.submit(long_job(one, noise))
    one.wait(first, ("RUNNING",), step=1)
    second = one.submit(runs.job(one.put_data(toy), 2, name="second"))
    waiting = one.status(second)
    assert waiting["state"] == "QUEUED"
    text = one.why(second)
    assert "device" in text
    assert one.weft("cancel", first).code == 0
    assert one.wait(first, ("CANCELLED",))["exit"] == 1
    one.succeed(second)


def test_hold_keeps_a_checkpoint_and_resume_continues_from_it(one, noise):
    job, pids = one.submit_and_stop(lambda: one.submit(long_job(one, noise, train__steps=400)), 2, 200)
    assert one.weft("hold", job).code == 0
    cluster.go_on(pids)
    held = one.wait(job, ("HELD",))
    assert held["checkpoint_step"] == held["step"] > 0
    assert not one.rank_pids()
    assert one.weft("resume", job).code == 0
    done = one.succeed(job)
    assert done["attempt"] > held["attempt"]
    assert any("restored" in e["text"] or e["kind"] == "restored" for e in one.events(job))


def test_a_higher_priority_takes_the_devices_and_gives_them_back(one, toy, noise):
    low = one.submit(long_job(one, noise))  # longer than the grace of a coordinator that has just begun
    one.wait(low, ("RUNNING",), step=3)
    high = one.submit(runs.job(one.put_data(toy), 2, name="urgent", resources={"priority": 10}))
    one.succeed(high)
    back = one.wait(low, ("RUNNING",), step=1)
    assert back["attempt"] == 2 and back["checkpoint_step"] > 0
    assert any("urgent" in e["text"] or "preempt" in e["kind"] + e["text"] for e in one.events(low)), one.why(low)
    assert one.weft("cancel", low).code == 0
    one.wait(low, ("CANCELLED",))


def test_a_cordoned_worker_takes_nothing_new_and_a_drained_one_gives_back(one, toy, noise):
    running = one.submit(long_job(one, noise))
    attempt = one.wait(running, ("RUNNING",), step=2)["attempt"]
    later = runs.watch_over(one.popen("logs", running, "-f", "--attempt", str(attempt + 1), "--json"))
    assert one.weft("cordon", "w0").code == 0
    assert one.json("workers")["workers"][0]["state"] == "cordoned"
    one.wait(running, ("RUNNING",), step=4)
    assert one.weft("drain", "w0").code == 0
    one.wait(running, ("QUEUED",))
    assert one.status(running)["checkpoint_step"] > 0
    assert one.weft("uncordon", "w0").code == 0
    assert one.wait(running, ("RUNNING",))["attempt"] == attempt + 1
    first = runs.next_line(later)  # while the job goes on
    assert one.weft("cancel", running).code == 0
    one.wait(running, ("CANCELLED",))
    out, err = later.communicate(timeout=runs.WATCHDOG)
    assert later.returncode == 0, (first, out, err)
    assert {json.loads(line)["attempt"] for line in [first, *out.splitlines()]} == {attempt + 1}


def test_logs_of_a_rank_can_be_read_and_followed(one, noise):
    job = one.submit(long_job(one, noise, train__steps=300))
    follow = one.popen("logs", job, "-f")
    one.succeed(job)
    out, err = follow.communicate(timeout=runs.WATCHDOG)
    assert follow.returncode == 0, err
    whole = one.weft("logs", job)
    assert whole.code == 0 and whole.out.strip()
    only = one.weft("logs", job, "--rank", "1")
    assert only.code == 0 and "rank=0" not in only.out
    newest = one.status(job)["attempt"]
    none = one.weft("logs", job, "--attempt", str(newest + 1))
    assert none.code == 2 and f"no attempt {newest + 1} of the job yet: its newest is {newest}\n" in none.err, none
    longer = one.weft("resume", job)
    assert longer.code == 4 and "it has succeeded: `weft submit --continue` trains it longer\n" in longer.err, longer


def test_bad_requests_are_refused_with_the_codes_of_the_contract(one, place, toy):
    assert one.weft("status", "nosuchjob").code == 4
    assert one.weft("cancel", "nosuchjob").code == 4
    bad = place / "bad.yaml"
    bad.write_text("name: x\nmodle: {}\n")
    refused = one.weft("submit", str(bad))
    assert refused.code == 2 and "modle" in refused.err
    job = one.submit(runs.job(one.put_data(toy), 2))
    one.succeed(job)
    assert one.weft("cancel", job).code == 4
    away = one.popen("jobs", "--coordinator", f"unix:{place}/nobody.sock")
    away.communicate(timeout=runs.WATCHDOG)
    assert away.returncode == 3


def test_why_no_host_has_a_gpu_is_shown_without_reading_its_log(one, toy):
    """The cause is the host's, who waits for it is another person."""
    if any(d["device"]["kind"] == "cuda" for d in one.json("workers")["workers"][0]["devices"]):
        pytest.skip("this machine has a GPU")
    cause = re.search(r"offers no GPU: (.+)", one.workers[0].text())
    assert cause, one.workers[0].text()
    job = one.submit({**runs.job(one.put_data(toy), 1), "resources": {"kind": "cuda"}})
    for told in (one.weft("status", job).out, one.why(job), one.weft("jobs").out):
        assert f"no known host has a cuda device, it needs 1 (w0: {cause[1]})" in " ".join(told.split()), told
    assert f"w0 has no cuda: {cause[1]}\n" in one.weft("workers").out
    assert one.json("workers")["workers"][0]["lacks"] == [{"kind": "cuda", "why": cause[1]}]
    watch = one.popen("watch", job)
    assert cause[1] in watch.stdout.readline()
    one.weft("cancel", job)
    watch.communicate(timeout=runs.WATCHDOG)


def test_hosts_that_have_no_gpu_for_the_same_cause_are_one_line(place):
    c = cluster.Cluster(place, workers=3, devices=1)
    try:
        workers = c.json("workers")["workers"]
        if any(d["device"]["kind"] == "cuda" for w in workers for d in w["devices"]):
            pytest.skip("this machine has a GPU")
        (lack,) = workers[0]["lacks"]
        assert [w["lacks"] for w in workers] == 3 * [[lack]]
        told = [line for line in c.weft("workers").out.splitlines() if lack["why"] in line]
        assert told == [f"3 hosts have no cuda: {lack['why']}"]
    finally:
        c.kill_all()


@pytest.mark.parametrize("args, code, says", [
    (["join", "--help"], 0, "usage: weft-worker"),
    (["--data-root", "/no/such"], 78, "--data-root: cannot find /no/such: No such file or directory"),
    (["--checkpoint-root", "/no/such"], 78, "--checkpoint-root: cannot find /no/such: No such file"),
    (["--data-root", "gs://bucket"], 78, "--data-root: gs://bucket is a URL"),
    (["--checkpoint-root", "hdfs:/ckpt"], 78, "--checkpoint-root: hdfs:/ckpt is a URL"),
    (["--grace", "5"], 78, "--grace: 5 has no unit: ns, us, ms, s, m or h"),
    (["--grace", "1e1s"], 78, "--grace: 'e1s' is not a unit of time"),
    (["joni"], 78, "unexpected argument 'joni'; did you mean join?"),
    (["--address", ""], 78, "--address: '' is empty"),
    (["--address", "a b"], 78, "--address: 'a b' has a blank in it"),
    (["--address", "999.1.1.1"], 78, "--address: '999.1.1.1' is no IPv4 address"),
    (["--address", "fd00::zz"], 78, "--address: 'fd00::zz' is no IPv6 address"),
    (["--address", "host:77"], 78, "--address: 'host:77' has a port: ranks choose their own"),
    (["--address", "0.0.0.0"], 78, "--address: '0.0.0.0' is the address of no single host"),
])  # fmt: skip
def test_a_worker_names_the_flag_that_is_wrong(place, args, code, says):
    end = subprocess.run([cluster.WORKER, *args, *([] if code == 0 else ["--state", place / "w"])],
                         capture_output=True, text=True, env={**os.environ, "WEFT_COORDINATOR": f"unix:{place}/c"})
    assert end.returncode == code and says in end.stdout + end.stderr, end


def test_data_outside_the_root_is_refused(one, toy):
    j = runs.job(toy, 2)  # absolute paths, not beneath the data root
    path = one.place / "outside.yaml"
    path.write_text(json.dumps(j))
    refused = one.weft("submit", str(path))
    assert refused.code == 2
    lines = refused.err.splitlines()
    assert lines[0].startswith("weft submit: data.train.images: ") and "leaves the --data-root" in lines[0], refused
    assert lines[1].startswith("    data.train.labels: "), refused
    assert not one.json("jobs", "--all")["jobs"]


def test_a_bad_job_fails_with_a_diagnosis_and_no_restart(one, toy):
    j = runs.job(one.put_data(toy), 2)
    j["data"]["train"]["labels"] = "no-labels"
    (one.data / "no-labels").write_text("no file of labels begins so")
    job = one.submit(j)
    failed = one.wait(job, ("FAILED",))
    assert failed["restarts"] == 0
    assert "no-labels" in one.why(job)


def test_a_job_over_two_workers_ends_in_the_bits_of_one(place, toy):
    c = cluster.Cluster(place, workers=2, devices=1)
    try:
        job = c.submit(runs.job(c.put_data(toy), 2))
        c.succeed(job)
        placed = [e["text"] for e in c.events(job) if e["kind"] == "placed"]
        assert len(placed) == 1 and "1 on w0" in placed[0] and "1 on w1" in placed[0]
        run = runs.Run(place, runs.job(toy, 2))
        run.finish()
        assert c.final(job) == run.final()
    finally:
        c.kill_all()


def test_a_repeated_request_yields_one_job(one, toy):
    """Killing submit at any moment and repeating its request."""
    path = one.place / "once.yaml"
    path.write_text(json.dumps({**runs.job(one.put_data(toy), 2, name="once"), "checkpoint": {"dir": "."}}))
    ids = set()
    for _ in range(3):
        end = one.weft("submit", str(path), "--request", "0123456789abcdef0123456789abcdef", "--json")
        assert end.code == 0, end
        ids.add(json.loads(end.out)["job"])
    assert len(ids) == 1
    assert len(one.json("jobs", "--all")["jobs"]) == 1


def test_both_daemons_stop_in_order_and_leave_nothing(place, noise):
    c = cluster.Cluster(place)
    job = c.submit(long_job(c, noise))
    c.wait(job, ("RUNNING",), step=3)
    assert c.workers[0].stop() == 0  # drains: the ranks save
    assert not c.rank_pids()
    assert c.wait(job, ("QUEUED",))["checkpoint_step"] > 0
    assert c.coordinator.stop() == 0


def test_a_second_daemon_on_one_state_directory_is_refused_naming_the_first(one):
    second = cluster.Daemon("second", one.coordinator_args()[:3] + ["--listen", f"unix:{one.sockets}/d.sock"], one.place / "second.log")
    assert second.wait_end() == 78
    assert str(one.coordinator.pid) in second.text()
    twin = cluster.Daemon("second worker", one.worker_argv(0), one.place / "twin.log")
    assert twin.wait_end() == 78
    assert str(one.workers[0].pid) in twin.text()


def test_run_trains_here_and_says_where_everything_is(place, toy):
    run = runs.Run(place, runs.job(toy, 2), "here")
    end = runs.weft("run", str(run.file))
    assert end.code == 0, end
    assert "checkpoint" in end.out and "metrics" in end.out
    again = runs.weft("run", str(run.file))
    assert again.code == 0 and "finished" in again.out + again.err, again
    (store,) = run.stores()
    shutil.rmtree(max(store.glob("step-*")))
    gone = runs.weft("run", str(run.file))
    assert gone.code == 1 and "its result is gone" in gone.err and str(store) in gone.err, gone
    run.job["train"]["seed"] = 31
    run.save_job(run.job)
    changed = runs.weft("run", str(run.file))
    assert changed.code == 4 or changed.code == 2, changed
    assert "--new" in changed.err
    assert runs.weft("run", str(run.file), "--new").code == 0


def test_an_interrupted_run_saves_and_the_same_command_continues(place, noise):
    import subprocess

    run = runs.Run(place, runs.busy_job(noise, 2, train__steps=2000), "here")
    p = subprocess.Popen([runs.WEFT, "run", str(run.file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run.wait_until(lambda: any(next(s.glob("step-*"), None) for s in run.stores()))
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=runs.WATCHDOG)
    assert p.returncode == 130, out + err
    assert "weft run" in out + err
    assert not runs.processes_naming(place)
