# SPDX-License-Identifier: Apache-2.0
"""One command on every node: index 0 leads, the others are its agents. The leader is killed at random moments, all are
stopped, agents go; who has no token, an old one or another secret joins nothing. It ends with the bits of a run on one
host."""
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time

import allocation
import pytest
import runs
from allocation import STEPS, Allocation, ended


@pytest.fixture
def pair(place, noise):
    a = Allocation(runs.Run(place, runs.busy_job(noise, 2, train__steps=STEPS), "mine"), 2)
    yield a
    for p in a.processes:
        p.kill()
        p.communicate()


def await_checkpoint(a):
    assert a.run.wait_until(lambda: a.processes[0].poll() is not None or (a.run.stores() and a.run.checkpoints()))


@pytest.mark.parametrize("scheduler", [allocation.slurm, allocation.pod])
def test_it_trains_over_its_hosts_to_the_bits_of_one(place, noise, calm, scheduler):
    a = Allocation(runs.Run(place, runs.busy_job(noise, 2, train__steps=STEPS), "mine"), 2, scheduler)
    a.start()
    codes, ends = a.codes()
    assert codes == [0, 0], ends
    assert "2 ranks placed: 1 on " in ends[0].out and "joined its leader" in ends[1].err, ends
    assert a.run.final() == calm
    assert oct(a.file().stat().st_mode & 0o777) == "0o600" and oct(a.file().parent.stat().st_mode & 0o777) == "0o700"
    assert list(place.glob("node-0/weft-*/*/.weft/test/log")) and not list(place.glob("node-*/weft-*/*/.weft/test/tls"))
    # Started once more, all of them find it finished.
    a.start()
    codes, ends = a.codes()
    assert codes == [0, 0], ends
    assert len(a.run.stores()) == 1
    # Beside the job file, and where the checkpoints lie: a pod's job file lies in a folder that nobody writes to.
    for folder in (place, a.file().parent.parent):
        why = runs.weft("why", "test", cwd=folder)
        assert why.code == 0 and "SUCCEEDED at step" in why.out and why.out.count("  submitted  ") == 2, why


@pytest.mark.parametrize("seed", runs.seeds(1, 12))
def test_the_leader_is_killed_at_random_moments_and_whoever_starts_next_continues(place, noise, calm, seed):
    rng = random.Random(seed)
    a = Allocation(runs.Run(place, runs.busy_job(noise, 2, train__steps=STEPS), "mine"), 2)
    for _ in range(3):
        leader, agent = a.start(WEFT_WAIT="3s")
        time.sleep(rng.random() * 2)
        leader.kill()
        assert ended(leader).code in (-signal.SIGKILL, 0)
        end = ended(agent)
        assert end.code in (75, 0) or (end.code == 78 and not a.file().exists()), end
        a.starts += 1
        if rng.random() < 0.7:  # another node leads, which has nothing of before
            os.rename(place / "node-0", place / f"gone-{a.starts}")
    a.start()
    codes, ends = a.codes()
    assert codes == [0, 0], ends
    assert a.run.final() == calm and len(a.run.stores()) == 1


def test_all_are_stopped_and_the_next_start_continues(pair):
    pair.start("-s", "train.steps=1000000")
    await_checkpoint(pair)
    for pid in runs.processes_naming(pair.run.place):  # the ranks too, as Slurm does
        runs.kill_pid(pid, signal.SIGTERM)
    codes, ends = pair.codes()
    assert codes == [75, 75], ends
    assert "DRAINING committed" in ends[0].out, ends
    saved = pair.run.checkpoints()[-1].step
    pair.start("-s", f"train.steps={saved + 20}")
    codes, ends = pair.codes()
    assert codes == [0, 0] and f"continues from step-{saved:08d}" in ends[0].out, (saved, ends)
    assert pair.run.checkpoints()[-1].step == saved + 20


def test_an_agent_of_slurm_does_not_come_back_and_its_leader_says_so(place, noise):
    a = Allocation(runs.Run(place, runs.busy_job(noise, 2, train__steps=1000000), "mine"), 2)
    a.start()
    await_checkpoint(a)
    a.processes[1].kill()
    codes, ends = a.codes()
    assert codes == [75, -signal.SIGKILL] and "1 of 2 hosts are here, others are gone" in ends[0].err, ends


def test_a_pod_comes_again_and_the_job_continues(place, noise):
    a = Allocation(runs.Run(place, runs.busy_job(noise, 2, train__steps=1000000), "mine"), 2, allocation.pod)
    a.start()
    await_checkpoint(a)
    a.processes[1].kill()
    ended(a.processes[1])
    before = a.run.checkpoints()[-1].step
    a.processes[1] = a.start_one(1)
    assert a.run.wait_until(lambda: a.processes[0].poll() is not None or a.run.checkpoints()[-1].step > before + 50)
    a.processes[0].terminate()
    codes, ends = a.codes()
    assert codes == [75, 75], ends


@pytest.mark.parametrize("env, words", [({}, ("-s", "train.until=20s")), ({"SLURM_JOB_END_TIME": "soon"}, ())])
def test_it_stops_before_its_time_is_over_saves_and_asks_to_be_started_again(place, noise, env, words):
    a = Allocation(runs.Run(place, runs.busy_job(noise, 2, train__steps=1000000), "mine"), 2)
    end = time.time() + 20
    a.start(*words, **{k: str(int(end)) for k in env})
    codes, ends = a.codes()
    assert codes == [75, 75], ends
    assert f"{'train.until' if words else 'SLURM_JOB_END_TIME'}: " in ends[0].err and "three steps, twice the slowest save" in ends[0].err, ends
    last = int(re.findall(r"step (\d+)/", ends[0].out)[-1])
    assert a.run.checkpoints()[-1].step >= last, (last, ends)


def test_the_schedulers_signal_after_a_stop_by_the_clock_lets_the_ranks_save(place, noise):
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=1000000, restart={"hang_after": "600s"}), "mine")
    words = ["run", str(run.file), "-s", "train.until=20s"]
    with open(place / "said", "w") as said:
        leader = runs.watch_over(subprocess.Popen([runs.WEFT, *words], stdout=said, stderr=said, env=allocation.clean()))

    def says(text):
        return lambda: leader.poll() is not None or text in (place / "said").read_text()

    assert run.wait_until(lambda: leader.poll() is not None or (run.stores() and run.checkpoints()))
    ranks = runs.ranks_of(leader)
    for pid in ranks:
        runs.kill_pid(pid, signal.SIGSTOP)
    assert ranks and run.wait_until(says("it saves and stops"))
    leader.terminate()
    status = f"/proc/{leader.pid}/status"
    assert run.wait_until(lambda: not int(re.search(r"ShdPnd:\s*(\w+)", open(status).read())[1], 16))
    for pid in ranks:
        runs.kill_pid(pid, signal.SIGCONT)
    code = leader.wait(timeout=runs.WATCHDOG)
    said = (place / "said").read_text()
    assert code == 75 and run.checkpoints()[-1].step >= int(re.findall(r"step (\d+)/", said)[-1]), said


def test_a_run_that_is_alone_stops_by_the_clock_too(place, noise):
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=1000000), "mine")
    end = runs.weft("run", str(run.file), "-s", "train.until=12s")
    assert end.code == 75 and "it saves and stops" in end.err and run.checkpoints(), end
    bad = runs.weft("run", str(run.file), "-s", "train.until=25:00")
    assert bad.code == 2 and "train.until" in bad.err, bad


# ---- what is refused --------------------------------------------------------------------------------


def test_an_end_of_time_that_is_past_is_left_out(place, noise):
    a = Allocation(runs.Run(place, runs.busy_job(noise, 1, train__steps=20), "mine"), 1)
    a.start(SLURM_JOB_END_TIME="1000")
    codes, ends = a.codes()
    assert codes == [0] and "SLURM_JOB_END_TIME is 1000, which was " in ends[0].err and "squeue: error" not in ends[0].err, ends


def test_what_contradicts_itself_is_refused_before_anything_is_made(pair):
    end = ended(pair.start_one(0, JOB_COMPLETION_INDEX="0"))
    assert end.code == 78 and "JOB_COMPLETION_INDEX" in end.err and "to do" in end.err, end
    end = ended(pair.start_one(0, SLURM_NTASKS="8"))
    assert end.code == 78 and "--ntasks-per-node=1" in end.err, end
    end = ended(pair.start_one(0, "--new"))
    assert end.code == 78 and "--new" in end.err, end
    assert not pair.file().parent.parent.exists() and not list((pair.run.place / "node-0").iterdir())


def test_an_agent_that_sees_no_leader_says_where_it_looked(pair):
    end = ended(pair.start_one(1, "-s", "checkpoint.dir=elsewhere", WEFT_WAIT="1s"))
    assert end.code == 78 and "elsewhere/.weft" in end.err and "one storage" in end.err, end
    assert not (pair.run.place / "elsewhere").exists()


def test_the_file_of_an_earlier_start_is_not_taken_for_this_ones(pair):
    """Nor one of a leader that is gone, where no variable says which start it is; nor its token."""
    pair.start()
    assert pair.codes()[0] == [0, 0]
    old = pair.file().read_text()
    end = ended(pair.start_one(1, WEFT_WAIT="1s"))  # of start 1
    assert end.code == 75 and "of another start" in end.err, end
    pair.scheduler = allocation.pod
    end = ended(pair.start_one(1, WEFT_WAIT="1s"))
    assert end.code == 75 and "has ended" in end.err, end
    pair.file().write_text(re.sub("ended .*\n", "", old))
    end = ended(pair.start_one(1, WEFT_WAIT="1s"))
    assert end.code == 75 and "Connection refused" in end.err, end
    assert not [p for p in runs.processes_naming(pair.run.place)]


@pytest.mark.parametrize("node", ["node-0", "another"])
def test_a_second_start_ends_and_the_first_one_does_not_notice(pair, node):
    pair.start("-s", "train.steps=1000000")
    await_checkpoint(pair)
    (pair.run.place / node).mkdir(exist_ok=True)
    second = pair.start_one(0, **allocation.slurm(0, 2, job=72), TMPDIR=str(pair.run.place / node))
    if node == "another":  # where it waits for the first one to end, until it is asked to stop
        assert pair.run.wait_until(lambda: second.poll() is not None or list((pair.run.place / node).glob("weft-*/*")))
        second.terminate()
    end = ended(second)
    assert end.code == 75 and ("wait for it, or stop it" if node == "node-0" else "it was asked to stop while it looked") in end.err, end
    before = pair.run.checkpoints()[-1].step
    time.sleep(2)  # the leader looks at its file each second
    assert pair.run.wait_until(lambda: pair.processes[0].poll() is not None or pair.run.checkpoints()[-1].step > before + 50)
    pair.processes[0].terminate()
    codes, ends = pair.codes()
    assert codes == [75, 75] and "taken this job over" not in ends[0].err, ends


def test_a_leader_that_cannot_work_ends_its_agents_with_it(pair):
    bad = ("-s", "data.train.images=nowhere")
    pair.start(*bad)
    codes, ends = pair.codes()
    assert codes == [66, 66] and "nowhere" in ends[0].err, ends
    assert "index 1: the leader ended with 66" in ends[1].err, ends[1]


def test_a_folder_that_others_may_write_to_ends_all_at_once_for_a_person(pair):
    """And not with a code by which a scheduler would start it again and again."""
    pair.file().parent.mkdir(parents=True)
    pair.file().parent.chmod(0o777)
    pair.start()
    codes, ends = pair.codes()
    assert codes == [78, 78] and all("others may write to" in e.err and "chmod go-w" in e.err for e in ends), ends
    assert not pair.file().exists() and not pair.run.stores()
    pair.file().parent.chmod(0o700)
    pair.start()
    assert pair.codes()[0] == [0, 0]


def test_a_link_in_place_of_the_folder_is_followed_by_nobody(pair):
    """Somebody else on the storage has made it; a secret is no reason to write where he likes."""
    secret, elsewhere = pair.run.place / "secret", pair.run.place / "elsewhere"
    secret.write_text("correct horse battery staple\n")
    elsewhere.mkdir()
    pair.file().parent.parent.mkdir()
    pair.file().parent.symlink_to(elsewhere)
    pair.start(WEFT_SECRET_FILE=str(secret))
    codes, ends = pair.codes()
    assert codes == [78, 78] and all("is no folder but a link" in e.err for e in ends), ends
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize("broken, code", [("gone", 66), ("cut short", 65)])
def test_a_job_that_fails_for_its_data_ends_with_the_code_that_says_so(pair, noise, broken, code):
    """Its data breaks while it is stopped: what continues is not held against its files before its ranks are."""
    images = pair.run.place / "images"
    shutil.copy(pair.run.job["data"]["train"]["images"], images)
    data = {**pair.run.job["data"], "train": {**pair.run.job["data"]["train"], "images": str(images)}}
    pair.run.save_job({**pair.run.job, "data": data})
    pair.start("-s", "train.steps=1000000")
    await_checkpoint(pair)
    pair.processes[0].terminate()
    assert pair.codes()[0] == [75, 75]
    images.unlink() if broken == "gone" else os.truncate(images, 1000)
    pair.start("-s", "train.steps=1000000")
    codes, ends = pair.codes()
    assert codes == [code, code] and "FAILED" in ends[0].out, ends


@pytest.mark.parametrize("verb, state", [("hold", "HELD"), ("cancel", "CANCELLED")])
def test_a_job_that_a_person_stopped_is_not_started_again(pair, verb, state):
    """It waits for a person: each start would spend the budget of restarts once more, and find the storage as full."""
    pair.start("-s", "train.steps=1000000")
    await_checkpoint(pair)
    (folder,) = pair.run.place.glob("node-0/weft-*/test-*/.weft/test")
    stopped = runs.weft(verb, "test", "--coordinator", str(folder))
    assert stopped.code == 0, stopped
    codes, ends = pair.codes()
    assert codes == [78, 78] and state in ends[0].out, ends


# ---- who stands before the door ---------------------------------------------------------------------


def leader_of(a):
    before = a.file().read_text() if a.file().exists() else ""
    a.start()
    assert a.run.wait_until(lambda: a.processes[0].poll() is not None or (a.file().exists() and a.file().read_text() != before))
    text = a.file().read_text()
    token = bytes.fromhex(re.search("^token (.*)$", text, re.M)[1]).decode()
    return re.findall("^address (.*)$", text, re.M), token


def join(place, token, address, name):
    return subprocess.run([str(runs.BUILD / "weft-worker"), "join", "--coordinator", address, "--state", str(place / name), token],
                          capture_output=True, text=True, timeout=runs.WATCHDOG)  # fmt: skip


def test_only_who_has_this_starts_token_comes_in(place, noise):
    a = Allocation(runs.Run(place, runs.busy_job(noise, 2, train__steps=1000000), "mine"), 2)
    addresses, token = leader_of(a)
    try:
        wrong = token[:70] + ("0" if token[70] != "0" else "1") + token[71:]
        assert join(place, token, addresses[0], "friend").returncode == 0  # so that the refusals mean something
        for bad in {wrong, token[:-8] + "00000000"}:
            end = join(place, bad, addresses[0], "neighbour")
            assert end.returncode != 0, (bad, end)
            assert not (place / "neighbour/tls/worker.pem").exists()
        # Without a certificate, or none of TLS at all.
        port = int(addresses[0].rsplit(":", 1)[1])
        end = runs.weft("jobs", "--coordinator", f"127.0.0.1:{port}")
        assert end.code == 3, end
        with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            with contextlib.suppress(ConnectionResetError):
                assert s.recv(100)[:1] in (b"", b"\x15")  # nothing, or an alert of TLS
    finally:
        for p in a.processes:
            p.terminate()
    assert a.codes()[0] == [75, 75]
    # The next start's leader knows nothing of that token, nor has it that authority.
    addresses, newer = leader_of(a)
    try:
        assert newer != token
        end = join(place, token, addresses[0], "late")
        assert end.returncode != 0 and not (place / "late/tls/worker.pem").exists(), end
    finally:
        for p in a.processes:
            p.terminate()
    a.ends()


def test_with_a_secret_the_storages_other_users_lead_nobody(pair):
    secret, other = pair.run.place / "secret", pair.run.place / "other"
    secret.write_text("correct horse battery staple\n")
    other.write_text("another secret, as long as it must be\n")
    leader = pair.start_one(0, WEFT_SECRET_FILE=str(secret))
    pair.processes = [leader]
    assert pair.run.wait_until(lambda: leader.poll() is not None or pair.file().exists())
    assert "776566742d" not in pair.file().read_text().split("token ")[1][:12]  # "weft-" of a token that is not sealed
    for env in ({}, {"WEFT_SECRET_FILE": str(other)}):
        end = ended(pair.start_one(1, WEFT_WAIT="1s", **env))
        assert end.code in (75, 78) and "WEFT_SECRET_FILE" in end.err, end
    end = ended(pair.start_one(1, WEFT_SECRET_FILE=str(pair.run.place / "absent")))
    assert end.code == 78 and "absent" in end.err, end
    agent = pair.start_one(1, WEFT_SECRET_FILE=str(secret))
    pair.processes.append(agent)
    assert pair.codes()[0] == [0, 0]


def test_doctor_says_which_one_a_run_would_be(place):
    def doctor(**env):
        end = subprocess.run([runs.WEFT, "doctor", "--json"], capture_output=True, text=True, cwd=place, env={**allocation.clean(), **env})
        return next(c for c in json.loads(end.stdout)["checks"] if c["name"] == "allocation")

    assert "alone" in doctor()["text"]
    assert doctor(**allocation.slurm(1, 4))["text"].startswith("weft run is index 1 of 4, an agent of index 0 (SLURM_JOB_ID=71")
    assert doctor(**allocation.pod(0, 2))["text"].startswith("weft run is index 0 of 2, the leader")
    two = doctor(**allocation.slurm(1, 4), JOB_COMPLETION_INDEX="1")
    assert two["state"] == "bad" and "JOB_COMPLETION_INDEX" in two["text"]
