# SPDX-License-Identifier: Apache-2.0
"""weft sbatch, before Slurm has the job: what it gives to sbatch, and what it refuses. A program of the test's own stands for
sbatch here; tests/e2e/test_slurm.py has the real one."""
import json
import os
import signal
import subprocess

import allocation
import pytest
import runs

SBATCH = """#!/bin/sh
for word; do printf '%s\\n' "$word" >>got-words; done
cat >got-script
{answer}
"""


@pytest.fixture
def job(tmp_path, toy):
    return runs.Run(tmp_path, runs.job(toy, 4), "mine")


def start_sbatch(job, *words, answer="echo 4711", **env):
    tools = job.place / "tools"
    tools.mkdir(exist_ok=True)
    if answer:
        (tools / "sbatch").write_text(SBATCH.format(answer=answer))
        (tools / "sbatch").chmod(0o755)
    return runs.watch_over(subprocess.Popen(
        [runs.WEFT, "sbatch", str(job.file), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=job.place,
        env={**allocation.clean(), "PATH": f"{tools}:/usr/bin:/bin" if answer else str(tools), **env}))  # fmt: skip


def sbatch(job, *words, **more):
    return allocation.ended(start_sbatch(job, *words, **more))


# ---- weft why ---------------------------------------------------------------------------------------


def why(job, squeue, *words):
    (job.place / "tools").mkdir(exist_ok=True)
    (job.place / "tools/squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    (job.place / "tools/squeue").chmod(0o755)
    end = subprocess.run([runs.WEFT, "why", "test", *words], capture_output=True, text=True, cwd=job.place,
                         env={**allocation.clean(), "PATH": f"{job.place}/tools:/usr/bin:/bin"}, timeout=runs.WATCHDOG)  # fmt: skip
    return runs.Ended(end.returncode, end.stdout, end.stderr)


LINE = "4711|PENDING|2|2026-11-28T13:17:19|N/A|0:00|"


@pytest.mark.parametrize("squeue, says", [
    (f"echo '{LINE}Priority'", "PENDING (Priority): jobs of a higher priority are in front of it; 2 nodes"),
    (f"echo '{LINE}ReqNodeNotAvail, UnavailableNodes:n[1-2]'", "UnavailableNodes:n[1-2]): nodes that it needs are down"),
    (f"echo '{LINE}a|b\x1b[31m'", "(a|b\\x1b[31m)"),
    ("exit 1", "4711: squeue does not list it"),
    ("echo oops", "which is no line of a job"),
    (f"yes '{LINE}None'", "PENDING (None)"),
    ("kill -9 $$", "squeue does not list it"),
])  # fmt: skip
def test_why_says_what_slurm_makes_it_wait_for(job, squeue, says):
    assert sbatch(job).code == 0
    end = why(job, squeue)
    assert end.code == 0 and says in end.out and "time: none yet" in end.out, end
    assert "what it did is not known yet: there is no " in end.err, end
    assert isinstance(json.loads(why(job, squeue, "--json").out)["slurm"], list)


def test_why_joins_it_with_what_every_start_did(job):
    assert sbatch(job, "-s", "mesh={dp: 2}").code == 0
    job.save_job({**job.job, "mesh": {"dp": 2}, "train": {"steps": 20}})
    two = allocation.Allocation(job, 2)
    for _ in range(2):  # the second finds all done
        two.start()
        assert two.codes()[0] == [0, 0]
    job.save_job({**job.job, "train": {"steps": 30}})
    two.start()
    assert two.codes()[0] == [0, 0]
    end = why(job, f"echo '{LINE}None'")
    assert "SUCCEEDED at step 30 of 30" in end.out and end.out.count("  submitted  ") == 3, end
    said = json.loads(why(job, "exit 1", "--json").out)
    assert said["slurm"] == [] and [e["step"] for e in said["events"] if e["kind"] == "succeeded"] == [20, 20, 30], said
    assert {s["what"]: s["ms"] for s in said["spent"]}["running"] > 0
    history = job.place / "mine-ckpt/.weft/test.history"
    assert history.stat().st_mode & 0o777 == 0o600
    raw = history.read_bytes()
    for bad in (raw[:-5], b"\xff" * 100, b""):
        history.write_bytes(bad)
        end = why(job, "exit 1")
        assert end.code == 0 and ("is no history of a job" in end.err or "time: none yet" in end.out), end
    history.write_bytes(raw)
    os.truncate(history, (16 << 20) + 1)
    job.save_job({**job.job, "train": {"steps": 31}})
    two.start()
    (code, _), (end, _) = two.codes()
    assert code == 0 and "what earlier starts did is not kept: " in end.err and " has 16777217 bytes, over 16777216" in end.err, end
    history.parent.chmod(0o777)
    end = why(job, "exit 1")
    assert end.code == 0 and "what it did is not known: " in end.err and "SUCCEEDED" not in end.out, end


def test_the_newer_one_of_a_run_here_and_one_in_slurm_is_asked_about(job):
    assert sbatch(job).code == 0
    record = job.place / ".weft/test.place"
    os.utime(record, (1, 1))
    assert runs.weft("run", str(job.file)).code == 0
    end = why(job, "echo must not be called >&2; exit 1")
    assert end.code == 0 and "SUCCEEDED" in end.out and "Slurm" not in end.out, end
    os.utime(record)
    end = why(job, f"echo '{LINE}Priority'")
    assert end.code == 0 and "Slurm's job 4711: PENDING" in end.out, end


@pytest.mark.parametrize("record", ["", "job 1\n", "root /a\njob x\n", "root a\njob 1\n", "root /a\nroot /b\n", "root /a\njob 1", "root /" + "a" * 5000 + "\n"])
def test_a_record_that_is_none_is_refused_by_its_name(job, record):
    (job.place / ".weft").mkdir(mode=0o700)
    (job.place / ".weft/test.place").write_text(record)
    end = why(job, "echo must not be called >&2", "--coordinator", "unix:nowhere")
    assert "test.place" not in end.err, end
    end = why(job, "echo must not be called >&2")
    assert end.code != 0 and ".weft/test.place" in end.err and "must not" not in end.err, end


def test_a_record_in_a_folder_of_others_is_not_opened(job):
    (job.place / ".weft").mkdir()
    os.mkfifo(job.place / ".weft/test.place")  # whoever opens it waits
    (job.place / ".weft").chmod(0o777)
    end = why(job, "echo must not be called >&2")
    assert end.code != 0 and "others may write to ./.weft" in end.err and "must not" not in end.err, end


# ---- weft sbatch ------------------------------------------------------------------------------------


def test_it_submits_what_render_prints_and_says_what_to_do_next(job):
    end = sbatch(job, "--per-node", "2", "-s", "train.steps=7", "--json", "--", "-p", "gpu", "--time=4:00:00")
    assert end.code == 0 and not end.err, end
    said = json.loads(end.out)
    assert (said["job"], said["name"], said["nodes"], said["devices_per_node"]) == ("4711", "test", 2, 2), said
    assert (job.place / "got-words").read_text().split() == ["--parsable", "-p", "gpu", "--time=4:00:00"]
    rendered = runs.weft("render", "--for", "slurm", str(job.file), "--per-node", "2", "-s", "train.steps=7").out
    # The nodes run this very program, which need not be in PATH there.
    assert (job.place / "got-script").read_text() == rendered.replace(" weft run ", f" '{os.path.realpath(runs.WEFT)}' run ")
    record = job.place / ".weft/test.place"
    assert record.read_text() == f"root {job.place}/mine-ckpt\njob 4711\n" and record.stat().st_mode & 0o777 == 0o600
    end = sbatch(job, answer="echo '4712;north'")
    assert end.code == 0 and end.out.startswith("4712  test: 1 node, 4 devices on each") and "weft why test" in end.out, end


@pytest.mark.parametrize("words, env, answer, code, says", [
    ((), {}, None, 4, "sbatch is not in PATH"),
    ((), {}, "echo no such account >&2; exit 1", 4, "sbatch ended with 1"),
    ((), {}, "echo fine", 4, "no number"),
    ((), {"RANK": "0"}, "echo 1", 2, "RANK is set"),
    ((), {"JOB_COMPLETION_INDEX": "0"}, "echo 1", 2, "JOB_COMPLETION_INDEX is set"),
    (("-s", "data.train.images=nowhere"), {}, "echo 1", 2, "nowhere"),
    (("-s", "train.stepz=1"), {}, "echo 1", 2, "stepz"),
    (("--device", "cpu:memory=1MB"), {}, "echo 1", 2, "a device needs"),
    (("other.yaml",), {}, "echo 1", 2, "after a --"),
])  # fmt: skip
def test_what_could_only_fail_is_refused_before_it_waits(job, words, env, answer, code, says):
    end = sbatch(job, *words, answer=answer, **env)
    assert end.code == code and says in end.err and not end.out, end
    assert not (job.place / ".weft").exists()
    assert (job.place / "got-script").exists() == (code == 4 and answer is not None)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("answer, says", [("echo 4711", "job 4711 stays in Slurm's queue; scancel 4711 ends it"), (":", "`squeue --me` shows whether")])
def test_an_interruption_ends_sbatch_too_and_says_what_becomes_of_the_job(job, sent, answer, says):
    p = start_sbatch(job, "--", "--wait", answer=f"{answer}; echo $$ >got-pid; exec sleep 1000")
    assert job.wait_until(lambda: p.poll() is not None or ((job.place / "got-pid").exists() and (job.place / "got-pid").read_text()))
    pid = int((job.place / "got-pid").read_text())
    if answer != ":":  # it is said at once, however long sbatch waits
        assert p.stdout.readline().startswith("4711  test: ")
    p.send_signal(sent)
    end = allocation.ended(p)
    assert end.code == 130 and says in end.err and not runs.alive(pid), end
    assert (job.place / ".weft/test.place").exists() == (answer != ":")


def test_a_job_that_sbatch_waits_for_and_that_fails_is_one_that_was_submitted(job):
    end = sbatch(job, "--", "--wait", answer="echo 4711; sleep 1; exit 3")
    assert end.code == 1 and end.out.startswith("4711  test: ") and "sbatch ended with 3" in end.err, end
