# SPDX-License-Identifier: Apache-2.0
"""The client's verbs of the service by themselves, against a coordinator that answers from a script
(tests/support/coordinator_double.c): what --json holds, the exit codes, and what it does when the
coordinator dies. With real daemons the same verbs are driven by test_service.py."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
import runs
from screen import Screen

DOUBLE = str(runs.BUILD / "tests/coordinator-double")
ID = "0123456789abcdef0123456789abcdef"
STATUS = {
    "job", "name", "state", "goal", "attempt", "step", "steps", "reported", "loss", "tokens_per_s", "samples_per_s",
    "evaluated", "eval_loss", "eval_accuracy", "mesh", "hosts", "restarts", "checkpoint_step", "checkpoint_attempt",
    "exit", "failure", "priority", "ranks", "owner", "submitted_ms", "text", "store", "found", "unsaved", "unsaved_since_ms",
    "unsaved_for_ms", "unsaved_why", "in_trouble", "threads", "threads_why", "newest_event", "tags",
}  # fmt: skip


class Desk:
    """A coordinator double, the environment that leads to it, and what it has heard."""

    def __init__(self, place):
        self.place = place
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="weft-cli-", dir="/tmp"))
        self.path, self.log = self.sockets / "c.sock", place / "heard"
        self.env = {**os.environ, "WEFT_COORDINATOR": f"unix:{self.path}", "XDG_STATE_HOME": str(place / "state")}
        self.p = None

    def start(self, *words):
        self.stop()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        self.p = subprocess.Popen([DOUBLE, f"unix:{self.path}", str(self.log), *words])
        solo_wait(self.path.exists)
        return self

    def stop(self):
        if self.p:
            self.p.kill()
            self.p.wait()

    def heard(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    def popen(self, *args):
        return runs.watch_over(subprocess.Popen(
            [runs.WEFT, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", env=self.env,
        ))  # fmt: skip

    def weft(self, *args):
        p = self.popen(*args)
        out, err = p.communicate(timeout=runs.WATCHDOG)
        return runs.Ended(p.returncode, out, err)

    def json(self, *args, code=0):
        end = self.weft(*args, "--json")
        assert end.code == code, end
        return json.loads(end.out)


def solo_wait(what):
    import time

    end = time.monotonic() + runs.WATCHDOG
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def desk(place):
    d = Desk(place)
    yield d
    d.stop()
    shutil.rmtree(d.sockets, ignore_errors=True)


@pytest.fixture
def job(place):
    nowhere = {"images": "x", "labels": "y"}
    path = place / "small.yaml"
    path.write_text(json.dumps({
        "name": "small", "model": {"program": "mlp", "inputs": 4, "hidden": [8], "classes": 3}, "mesh": {"dp": 2},
        "data": {"train": nowhere, "batch": 12}, "train": {"steps": 30},
    }))  # fmt: skip
    return str(path)


# ---- readers -------------------------------------------------------------------------------------


def test_status_says_what_is_known_and_null_for_the_rest(desk):
    s = desk.start().json("status", ID[:8])
    assert set(s) == STATUS | {"nonfinite"}
    assert (s["job"], s["name"], s["state"], s["attempt"]) == (ID, "small", "RUNNING", 2)
    assert (s["step"], s["steps"], s["restarts"], s["samples_per_s"]) == (5, 30, 1, 1234.5)
    assert s["mesh"] == "{dp: 2}" and s["hosts"] == ["w0"]
    assert s["loss"] is None and s["nonfinite"] == ["loss"]  # infinite
    for unknown in ("tokens_per_s", "eval_loss", "eval_accuracy", "checkpoint_step", "exit", "goal", "unsaved_since_ms"):
        assert s[unknown] is None, unknown
    assert s["submitted_ms"] == 1700000000123
    assert (s["threads"], s["threads_why"]) == (3, "7 cores of w0 divided by 2 devices")
    assert "threads     3 a device: 7 cores of w0 divided by 2 devices\n" in desk.weft("status", ID[:8]).out


def test_jobs_lists_each_as_status_does(desk):
    jobs = desk.start().json("jobs")
    assert set(jobs) == {"jobs", "cluster", "next", "notice", "nonfinite"} and jobs["notice"] is None and jobs["cluster"] == "c1"
    (one,) = jobs["jobs"]
    assert set(one) == STATUS and one["state"] == "RUNNING" and (one["checkpoint_step"], one["checkpoint_attempt"]) == (10, 1)
    (ended,) = desk.json("jobs", "--all")["jobs"]
    assert ended["state"] == "SUCCEEDED" and ended["exit"] == 0
    table = desk.weft("jobs").out.splitlines()
    assert table[0].split()[:3] == ["JOB", "NAME", "STATE"] and "12/30" in table[1]


def names_of(desk, *flags):
    return [job["name"][:4] for job in desk.json("jobs", *flags)["jobs"]]


def test_jobs_are_chosen_by_state_age_and_tag_and_sorted(desk):
    desk.start("sweep")
    assert names_of(desk) == ["lr-1", "lr-2", "lr-3", "lr-4"]
    assert names_of(desk, "--state", "running,failed") == ["lr-1", "lr-2"]
    assert names_of(desk, "--state=SUCCEEDED") == ["lr-3"]
    assert names_of(desk, "--since", "2h") == ["lr-1", "lr-2"] and len(names_of(desk, "--since", "2023-11-28")) == 4
    assert names_of(desk, "--tag", "odd") == ["lr-1", "lr-3"] and names_of(desk, "--tag", "odd,sweep") == ["lr-1", "lr-3"]
    assert names_of(desk, "--tag", "sweep", "--state", "queued") == ["lr-4"] and names_of(desk, "--tag", "swee") == []
    assert names_of(desk, "--sort", "age") == ["lr-1", "lr-2", "lr-3", "lr-4"]
    assert names_of(desk, "--sort", "-age") == ["lr-4", "lr-3", "lr-2", "lr-1"]
    assert names_of(desk, "--sort", "loss") == ["lr-3", "lr-1", "lr-4", "lr-2"]  # not reported, then not a number
    assert names_of(desk, "--sort=-name")[0] == "lr-4"
    for flags, said in ((["--state", "lost"], "queued, starting"), (["--since", "soon"], "30m, 2h or 7d"),
                        (["--since", "-2h"], "30m, 2h or 7d"), (["--sort", "colour"], "prio, age or owner")):  # fmt: skip
        end = desk.weft("jobs", *flags)
        assert end.code == 2 and said in end.err, end


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 200])
def test_a_table_of_jobs_wraps_on_no_terminal(desk, columns):
    desk.start("sweep", "wordy")
    lines = runs.on_terminal([runs.WEFT, "jobs"], columns, env=desk.env).out.splitlines()
    assert len(lines) == 5 and max(len(line) for line in lines) <= columns, lines
    assert "NAME" in lines[0] and "STATE" in lines[0] and (columns < 60 or "STEP" in lines[0]), lines
    assert ("OWNER" in lines[0]) == (columns >= 120), lines
    assert max(len(line) for line in desk.weft("jobs").out.splitlines()) > 900  # a pipe gets all


def test_workers_and_checkpoints_are_lists_under_their_names(desk):
    (w,) = desk.start().json("workers")["workers"]
    assert set(w) == {"host", "name", "state", "version", "incarnation", "rack", "memory", "seen_ms_ago", "data_root",
                      "checkpoint_root", "address", "share", "address_doubt", "devices", "lacks"}  # fmt: skip
    assert w["state"] == "ready" and w["rack"] is None
    assert [(d["device"]["index"], d["job"], d["rank"]) for d in w["devices"]] == [(0, None, None), (1, ID, 0)]
    c = desk.json("checkpoints", "small")
    assert c["store"] == "/store/small-01234567"
    assert c["checkpoints"] == [{"job": None, "step": 10, "attempt": 1, "state": "COMMITTED", "bad": True,
                                 "why": None, "t_ms": 0, "evaluated": False, "eval_loss": None, "best": False}]  # fmt: skip


def test_why_folds_checkpoints_in_a_row(desk):
    desk.start("sweep")
    text = desk.weft("why", "small").out
    (row,) = [line for line in text.splitlines() if "39 checkpoints: steps 100 to 3900, every 100" in line]
    assert "3900" in row.partition("committed")[2], row
    assert "checkpoint of step 4000, the best" in text and "checkpoint of step 200" not in text, text
    full = desk.weft("why", "--full", "small").out
    assert full.count("checkpoint of step ") == 40 and "39 checkpoints" not in full, full
    assert len(desk.json("why", "small")["events"]) == 42


def test_why_prints_events_and_where_the_time_went(desk):
    why = desk.start().json("why", "small")
    assert [set(e) for e in why["events"]] == [{"job", "seq", "t_ms", "state", "kind", "rank", "host", "step", "text"}] * 2
    assert why["events"][1]["t_ms"] == 1700000001123 and why["events"][0]["rank"] is None
    assert {x["what"]: x["ms"] for x in why["spent"]} == {"queued": 1000, "running": 3000, "held": 3000}
    assert why["goodput"] == 0.75  # 3 of queued 1 + running 3; held by a person counts for nothing
    text = desk.weft("why", "small").out
    assert re.search(r"^  running +3.0s +43 %  █{17}$", text, re.M) and "time: 7.0s in all, goodput 75.0 %" in text, text
    assert "started" in text and "next: words" in text
    assert "\nthreads: 3 a device: 7 cores of w0 divided by 2 devices\n" in text
    assert why["status"]["threads_why"] == "7 cores of w0 divided by 2 devices"


# ---- acts ----------------------------------------------------------------------------------------


def test_each_act_says_its_verb_and_its_reason(desk):
    desk.start()
    verbs = ["cancel", "hold", "preempt", "resume", "cordon", "uncordon", "drain", "adopt"]
    for verb in verbs:
        said = desk.json(verb, "small", "--why", "because")
        assert said["verb"] == verb and said["text"] == "words of the coordinator"
    assert desk.heard() == [f"act {n} because small" for n in range(1, 9)]


def test_an_act_of_several_continues_after_a_refusal_and_ends_as_that_says(desk):
    desk.start()
    end = desk.weft("cancel", "small", "nosuch", "small", "--why", "because")
    assert end.code == 4 and len(end.err.splitlines()) == 3, end
    assert [line.split(": ")[1] for line in end.out.splitlines()] == 2 * ["words of the coordinator"], end
    end = desk.weft("hold", "small", "small", "--json")
    assert end.code == 0 and [json.loads(line)["verb"] for line in end.out.splitlines()] == 2 * ["hold"], end
    assert desk.heard() == 2 * ["act 1 because small"] + 2 * ["act 2  small"]


def test_refusals_end_with_4_and_three_lines(desk):
    desk.start()
    for args in (["status", "nosuchjob"], ["cancel", "nosuch"], ["cancel", "ended"], ["logs", "nosuch"],
                 ["watch", "nosuch"], ["why", "nosuch"], ["checkpoints", "nosuch"]):  # fmt: skip
        end = desk.weft(*args)
        assert end.code == 4 and not end.out, end
        lines = end.err.splitlines()
        assert len(lines) == 3 and lines[1].startswith("  where: ") and lines[2].startswith("  to do: "), end


def test_nobody_there_ends_with_3_naming_the_address(desk, job):
    for args in (["jobs"], ["status", "x"], ["watch", "x"], ["logs", "x"], ["cancel", "x"], ["submit", job]):
        end = desk.weft(*args)
        assert end.code == 3 and str(desk.path) in end.err and "WEFT_COORDINATOR" in end.err, end
    flag = desk.weft("jobs", "--coordinator", "127.0.0.1:9")
    assert flag.code == 3 and "--coordinator" in flag.err


@pytest.mark.parametrize(
    "args, names",
    [
        (["jobs", "--al"], "--all"), (["status"], "usage"), (["status", "a", "b"], "usage"),
        (["logs", "x", "--rank", "-1"], "--rank"), (["submit", "/no/such.yaml"], "/no/such.yaml"),
        (["run", "/no/such.yaml"], "/no/such.yaml"), (["submit", "x", "--request"], "--request"),
        (["jobs", "--coordinator", "10.1.2.3:7700"], "TLS"), (["jobs", "--json=yes"], "switch"),
        (["jobs", "--tls", "/no/such/folder"], "see `weft help jobs` on --coordinator and --tls"), (["completion", "fish"], "bash"), (["joobs"], "jobs"),
    ],
)  # fmt: skip
def test_wrong_use_ends_with_2_and_says_what_is_wrong(desk, args, names):
    end = desk.weft(*args)
    assert end.code == 2 and names in end.err and not end.out, end


def test_help_names_every_flag_of_a_verb():
    end = runs.weft("help", "logs")
    assert end.code == 0 and not end.err
    for flag in ("--follow", "--rank", "--lines", "--coordinator", "--tls", "--json"):
        assert flag in end.out
    assert runs.weft("logs", "--help").out == end.out
    assert runs.weft("help", "lgos").code == 2


# ---- submit --------------------------------------------------------------------------------------


def test_a_job_that_would_not_compile_is_reported_with_its_own_line_and_nobody_is_asked(desk, job):
    text = pathlib.Path(job).with_name("three.yaml")
    text.write_text("name: three\nmodel: {program: mlp, inputs: 4, hidden: [8], classes: 3}\n\nmesh:\n  tp: 3\n"
                    "data: {train: {images: x, labels: y}, batch: 12}\ntrain: {steps: 3}\n")  # fmt: skip
    end = desk.start().weft("submit", str(text))
    assert end.code == 2 and f"{text}: layers/0/weight: dimension mlp of size 8 does not divide by 3" in end.err, end
    assert "(line 4)" in end.err and not desk.heard(), end


@pytest.mark.parametrize("words, advice", [
    (["submit", "--continue", "small"], "change the job as it says, or submit it as a new one, without --continue"),
    (["resume", "found"], "do as it says, then give the same command again"),  # its text names a command
    (["resume", "ended"], "`weft status` and `weft why` say what it does now"),
])  # fmt: skip
def test_the_advice_after_a_refusal_is_about_that_refusal(desk, job, words, advice):
    end = desk.start().weft(*words[:1], *([job] if words[0] == "submit" else []), *words[1:])
    assert end.code == 4 and end.err.splitlines()[-1] == f"  to do: {advice}", end


def test_two_submits_that_are_answered_are_two_requests(desk, job):
    desk.start()
    ids = [desk.json("submit", job)["request"] for _ in range(2)]
    assert desk.heard() == [f"submit {i}" for i in ids] and ids[0] != ids[1]


def test_a_submit_that_heard_no_answer_is_repeated_with_its_request(desk, job):
    desk.start("mute")
    lost = desk.weft("submit", job)
    assert lost.code == 3, lost
    desk.start()
    again = desk.weft("submit", job)
    assert again.code == 0 and "repeats" in again.err and ID in again.out, again
    first, second = desk.heard()
    assert first == second
    third = desk.json("submit", job)  # answered: the next is a new job
    assert desk.heard()[2] == f"submit {third['request']}" != first


def test_a_killed_submit_is_repeated_too_and_another_job_is_not_confused_with_it(desk, job):
    desk.start()
    desk.p.send_signal(signal.SIGSTOP)
    p = desk.popen("submit", job)
    folder = desk.place / "state/weft/submit"
    solo_wait(lambda: folder.is_dir() and any(f.stat().st_size == 33 for f in folder.iterdir()))
    p.kill()
    p.communicate()
    desk.p.send_signal(signal.SIGCONT)
    (kept,) = [f.read_text().strip() for f in folder.iterdir()]
    other = desk.json("submit", job, "-s", "train.steps=31")
    assert other["request"] != kept
    assert desk.json("submit", job)["request"] == kept
    assert not list(folder.iterdir())


def test_the_request_of_a_flag_is_used_as_it_is(desk, job):
    desk.start()
    assert desk.json("submit", job, "--request", ID)["request"] == ID
    assert desk.heard() == [f"submit {ID}"]
    assert desk.weft("submit", job, "--request", "short").code == 2


def test_a_job_the_coordinator_finds_bad_ends_with_2(desk, job):
    desk.start()
    end = desk.weft("submit", job, "-s", "name=refused")
    assert end.code == 2 and "the job needs more than there is" in end.err, end


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state, code", [("SUCCEEDED", 0), ("FAILED", 1), ("CANCELLED", 1), ("HELD", 1)])
def test_watch_ends_as_the_job_does(desk, state, code):
    end = desk.start(state).weft("watch", "small")
    last = end.out.splitlines()[-1]
    assert end.code == code and state in last and "step 30/30" in end.out, end
    assert last.endswith("words of the coordinator"), end  # why it waits, and how it ended


def test_watch_says_a_line_of_json_an_update(desk):
    end = desk.start().weft("watch", "small", "--json")
    rows = [json.loads(line) for line in end.out.splitlines()]
    assert end.code == 0 and [set(r) - {"nonfinite"} for r in rows] == [{"status", "report", "event"}] * 5
    assert [r["status"]["step"] for r in rows if r["status"]] == [6, 12, 18, 24, 30] and rows[0]["event"]["kind"]
    assert rows[0]["nonfinite"] == ["status.loss"] and rows[0]["report"] is None and rows[-1]["status"]["exit"] == 0


def test_watch_outlives_the_coordinator(desk):
    p = desk.start("break").popen("watch", "small", "--json")
    for _ in range(3):
        assert runs.next_line(p)
    desk.start()
    out, err = p.communicate(timeout=runs.WATCHDOG)
    assert p.returncode == 0 and "away" in err, (out, err)
    assert json.loads(out.splitlines()[-1])["status"]["state"] == "SUCCEEDED"


def test_an_interrupted_watch_ends_with_130(desk):
    p = desk.start("break").popen("watch", "small", "--json")
    for _ in range(3):
        assert runs.next_line(p)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=runs.WATCHDOG)
    assert p.returncode == 130


def test_logs_of_all_ranks_or_of_one(desk):
    end = desk.start().weft("logs", "small")
    lines = end.out.splitlines()
    assert end.code == 0 and [line[:3] for line in lines] == ["[0]", "[0]", "[1]", "[1]", "[0]", "[0]"], end
    assert [line[4:23] for line in lines[::2]] == [f"2026-01-02T03:04:0{s}" for s in (5, 6, 7)]  # by time
    one = desk.weft("logs", "small", "--rank", "1", "--json")
    rows = [json.loads(line) for line in one.out.splitlines()]
    assert [(r["rank"], r["host"], r["attempt"]) for r in rows] == [(1, "w0", 1)] * 2
    assert rows[0]["text"].endswith("info one") and rows[1]["text"] == "bare � line"


def test_logs_of_one_attempt(desk):
    rows = [json.loads(line) for line in desk.start().weft("logs", "small", "--attempt", "2", "--json").out.splitlines()]
    assert [(r["rank"], r["attempt"]) for r in rows] == [(0, 2)] * 2


def test_followed_logs_end_with_the_job_and_say_no_stamped_line_twice(desk):
    end = desk.start().weft("logs", "small", "-f")
    assert end.code == 0, end
    assert end.out.count("[0] 2026") == 2 and end.out.count("[1] 2026") == 1
    assert desk.weft("logs", "nosuch", "-f").code == 4


def test_followed_logs_that_are_refused_end_saying_why(desk):
    desk.start("break")  # the job goes on
    for follow in ([], ["-f"]):
        end = desk.weft("logs", "small", "--rank", "99", *follow)
        assert end.code == 2 and not end.out, end
        said, where, advice = end.err.splitlines()
        assert said == "weft logs: the job has 2 ranks", end
        assert where.startswith("  where: ") and advice.startswith("  to do: "), end


def test_followed_logs_give_up_the_call_before_when_they_are_read_again(desk):
    """Else it stays open at the coordinator, unread. This job ends when that call was given up."""
    end = desk.start("moves").weft("logs", "small", "-f")
    assert end.code == 0, end
    assert end.out.count("[0] 2026") == 2 and end.out.count("[1] 2026") == 1, end


def test_who_is_cut_off_again_and_again_reads_fewer_lines(desk):
    """Else, of more ranks than it can read in time, it would for ever read the first."""
    end = desk.start("cuts").weft("logs", "small", "-f")
    assert end.code == 0 and end.out.count("[0] 2026") == 2 and end.out.count("[1] 2026") == 1, end
    asked = [int(line.split()[1]) for line in desk.heard()]
    assert asked[0] == 0 and asked[1] > asked[2] > asked[3] > 0, asked


def test_followed_logs_of_a_rank_that_never_pauses_are_shown_and_end(desk):
    """Else nothing is shown, and the job's end is not heard, or long after: behind each step's numbers."""
    end = desk.start("pours").weft("logs", "small", "-f")
    assert end.code == 0 and "[1] line 1\n" in end.out, end


@pytest.mark.parametrize("words", [["HELD"], ["HELD", "bare"]])  # bare: it was held before it ran anywhere
def test_followed_logs_continue_while_the_job_is_held(desk, words):
    p = desk.start(*words).popen("logs", "small", "-f")
    assert "small is held: what it writes follows here once it is resumed" in p.stderr.readline()
    time.sleep(0.5)
    assert p.poll() is None
    desk.stop()
    desk.start("SUCCEEDED")
    out, err = p.communicate(timeout=runs.WATCHDOG)
    assert p.returncode == 0 and out.count("info one") == 3, (out, err)


def test_followed_logs_outlive_the_coordinator(desk):
    p = desk.start("break").popen("logs", "small", "-f")
    assert runs.next_line(p)
    desk.start()
    out, err = p.communicate(timeout=runs.WATCHDOG)
    assert p.returncode == 0 and "away" in err, (out, err)


STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("args", [
    ["status", "small"], ["jobs"], ["workers"], ["checkpoints", "small"], ["why", "small"], ["watch", "small"],
    ["logs", "small"], ["logs", "small", "-f"], ["hold", "small"],
])  # fmt: skip
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_text_of_the_service_steers_the_terminal(desk, args, form):
    end = desk.start("hostile").weft(*args, *form)
    shown = end.out + end.err
    assert not STEERING.search(shown), ascii(shown)
    assert "\\u001b[2J" in shown if form else "\\x1b[2J" in shown, shown
    ours = re.sub("^last lines of rank .*\nforged", "", shown, flags=re.M)  # a log's lines stand as they are
    assert not re.search("^forged", ours, re.M), shown


def test_no_text_of_the_service_steers_a_live_terminal(desk):
    seen = Screen(60, 24)  # fails on what steers it
    end = runs.on_terminal([runs.WEFT, "watch", "small"], 60, 24, env=desk.start("hostile").env)
    seen.feed(end.out.replace("\n", "\r\n").encode())
    assert end.code == 0 and "\\x1b[2J" in end.out and seen.sequences <= {"A", "J", "m"}, end
    assert not [line for line in seen.text() if line.startswith("forged")], seen.text()


def test_who_decides_threads_is_shown_in_one_line_whatever_it_says(desk):
    desk.start("hostile")
    for verb, before in (("status", "threads     "), ("why", "threads: ")):
        told = [line for line in desk.weft(verb, "small").out.splitlines() if line.startswith(before)]
        assert told == [before + "3 a device: 7 cores of w0 divided by 2 devices"
                        r"\x1b[2J\u009b1m\u202e!\nforged"], told


# ---- doctor, completion --------------------------------------------------------------------------


def test_doctor_says_of_each_check_how_it_is_and_what_to_do(desk, place):
    desk.start()
    end = desk.weft("doctor", "--json", "--dir", str(place))
    report = json.loads(end.out)
    checks = {c["name"]: c for c in report["checks"]}
    assert list(checks) == ["programs", "devices", "cuda", "files", "memlock", "clock", "sockets", "allocation", "storage", "tls",
                            "coordinator", "workers", "jobs"]  # fmt: skip
    for c in checks.values():
        assert c["state"] in ("ok", "warn", "bad") and c["text"]
        assert (c["todo"] is None) == (c["state"] == "ok"), c
    for name in ("devices", "storage", "coordinator", "workers", "jobs"):
        assert checks[name]["state"] == "ok", checks[name]
    assert report["ok"] == all(c["state"] != "bad" for c in checks.values())
    assert end.code == (0 if report["ok"] else 1)
    assert not list(place.glob(".weft-doctor*"))


def test_the_time_that_is_left_stands_before_what_a_terminal_may_cut(desk):
    out = desk.start("evals").weft("watch", "small").out
    lines = [line for line in out.splitlines() if "  eta " in line]
    assert lines and all(line.index("/30  eta ") < line.index("  loss ") for line in lines), out


def test_why_a_job_ended_is_not_cut_where_there_is_no_terminal(desk):
    end = desk.start("FAILED", "wordy").weft("watch", "small")
    assert end.code == 1 and end.out.splitlines()[-1].endswith("w" * 900), end


def test_a_refusal_is_not_cut(desk):
    end = desk.start("wordy").weft("cancel", "ended")
    assert end.code == 4 and end.err.splitlines()[0] == "weft cancel: " + "w" * 900, end


def test_the_hosts_of_a_job_stand_behind_its_ranks(desk):
    said = desk.start().weft("status", "small").out
    assert "\nranks       2 {dp: 2} on w0\npriority    0\n" in said, said


def test_doctor_waits_for_no_device_that_does_not_let_go(desk, place):
    """A rank that has said all it will, and lives on."""
    folder = place / "bin"
    folder.mkdir()
    for name in ("weft", "weft-coordinator", "weft-worker"):
        shutil.copy(runs.BUILD / name, folder / name)
    gpu = json.dumps({"kind": "cuda", "devices": [{"index": 0, "model": "slow to let go", "memory": 1}]})
    (folder / "weft-rank").write_text(f"#!/bin/sh\n[ $3 = cpu ] || echo '{gpu}'\nexec >&- 2>&- sleep 1000\n")
    (folder / "weft-rank").chmod(0o755)
    end = subprocess.run([folder / "weft", "doctor", "--dir", place], stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, timeout=runs.WATCHDOG)
    assert end.returncode == 1 and "killed by signal 9" in end.stdout, end
    assert re.search(r"^ok +cuda +0: slow to let go", end.stdout, re.M) and "jobs of kind cuda cannot" not in end.stdout, end


def test_doctor_finds_what_is_bad(desk):
    report = desk.json("doctor", "--dir", "/proc", code=1)
    bad = {c["name"] for c in report["checks"] if c["state"] == "bad"}
    assert {"storage", "coordinator"} <= bad and not report["ok"]
    (said,) = [c["text"] for c in report["checks"] if c["name"] == "coordinator"]
    assert said.endswith(": No such file or directory") and "last error" not in said, said


def test_doctor_names_a_host_that_the_others_cannot_reach(desk, place):
    checks = {c["name"]: c for c in json.loads(desk.start("apart").weft("doctor", "--json", "--dir", str(place)).out)
              ["checks"]}
    assert checks["workers"]["state"] == "warn" and "cannot reach w0" in checks["workers"]["text"], checks["workers"]
    assert "--address" in checks["workers"]["todo"]


def complete(*words):
    script = f'eval "$("{runs.WEFT}" completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _weft; ' \
             'printf "%s\\n" "${COMPREPLY[@]}"'  # fmt: skip
    p = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, check=True)
    return p.stdout.split()


def test_zsh_gets_every_verb_and_flag():
    """What zsh itself makes of it was tried by hand; if it is here, it reads it."""
    text = runs.weft("completion", "zsh").out
    for verb in runs.verbs():
        assert f"    {verb}) _arguments" in text, verb
    assert "'*--since[those submitted since\\: 30m" in text and text.startswith("#compdef weft\n")
    if shutil.which("zsh"):
        assert subprocess.run(["zsh", "-f", "-n"], input=text, text=True, check=False).returncode == 0


def test_the_shell_completes_verbs_and_flags():
    assert complete("weft", "unc") == ["uncordon"]
    assert complete("weft", "jobs", "--a") == ["--all"]
    assert set(complete("weft", "logs", "--")) >= {"--follow", "--rank", "--json"}
    assert complete("weft", "completion", "") == ["bash", "zsh"]
