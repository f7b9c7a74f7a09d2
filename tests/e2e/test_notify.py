# SPDX-License-Identifier: Apache-2.0
"""Notices to URLs: what a receiver gets of a served job and of a `weft run`, each once, also over a kill -9. Servers
that hang, redirect or answer without end are in tests/unit/test_coord_webhooks.c, pauses in test_coord_notices.c."""
import http.server
import json
import pathlib
import signal
import subprocess
import threading
import time

import cluster
import pytest
import runs

SECRET = "T0K3N-of-a-chat"


class Receiver:
    """A server that keeps what it is sent. `answer` is its status, or that of the event `answers` has; None: it never answers."""

    def __init__(self):
        self.got, self.answer, self.answers, self.over = [], 204, {}, threading.Event()
        mine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == f"/{SECRET}", self.path
                mine.got.append(body)
                answer = mine.answers.get(body["event"], mine.answer)
                if answer is None:
                    mine.over.wait()
                else:
                    self.send_response(answer)
                    self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=[0.02], daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/{SECRET}"

    def wait(self, n):
        end = time.monotonic() + runs.WATCHDOG
        while len(self.got) < n:
            assert time.monotonic() < end, self.got
            time.sleep(0.01)
        return [(n["name"], n["event"]) for n in self.got]

    def close(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receivers():
    made = [Receiver(), Receiver()]
    yield made
    for r in made:
        r.close()


@pytest.fixture
def served(place, receivers):
    """A coordinator that sends to `ops`, whose URL lies in a file, and to `slow`, which never answers."""
    secret = place / "ops.url"
    secret.write_text(receivers[0].url + "\n")
    secret.chmod(0o600)
    receivers[1].answer = None
    c = cluster.Cluster(place, start=False)
    c.start_coordinator("--notify", f"ops=@{secret}", "--notify", f"slow={receivers[1].url}", "--http", f"unix:{c.sockets}/h")
    c.wait_ready()
    yield c
    c.kill_all()


def hold(c, job):
    end = c.weft("hold", job)
    assert end.code == 0, end


def submit_held(c, toy, name):
    job = c.submit(runs.job(c.put_data(toy), 1, name=name, notify=["ops"]))
    hold(c, job)
    return job


def test_a_served_job_is_noticed_though_another_receiver_hangs(served, receivers, toy):
    served.start_worker(0)
    served.wait_ready()
    job = served.submit(runs.job(served.put_data(toy), 2, name="mine", notify=["slow", "ops"]))
    assert served.wait(job)["state"] == "SUCCEEDED"
    assert receivers[0].wait(2) == [("mine", "started"), ("mine", "succeeded")]
    assert receivers[1].wait(1) == [("mine", "started")]
    first, last = receivers[0].got
    assert first["weft"] == 1 and first["job"] == job and first["attempt"] == 1, first
    assert last["step"] == last["steps"] and last["reason"] == "its last step is done and saved", last
    assert last["text"] == last["content"] == f"mine ({job[:8]}) succeeded at step {last['steps']} of {last['steps']}, attempt 1: {last['reason']}"
    assert first["id"] != last["id"] and last["t_ms"] >= first["t_ms"] > 1.6e12
    why, status = served.weft("why", job, "--full"), served.weft("status", job, "--json")
    said = [served.coordinator.text(), why.out, why.err, status.out, pathlib.Path(f"/proc/{served.coordinator.pid}/cmdline").read_text()]
    said[-1] = said[-1].replace(receivers[1].url, "")  # who gives it there shows it
    said += [f.read_text(errors="replace") for f in (served.place / "coordinator").glob("weft.db*")]
    assert not [s for s in said if SECRET in s]
    assert served.coordinator.stop() == 0


def test_over_a_kill_what_was_not_taken_comes_and_nothing_comes_twice(served, receivers, toy):
    ops = receivers[0]
    ops.answer = 500
    one = submit_held(served, toy, "one")
    ops.wait(1)
    ops.answer = 204
    starts = served.coordinator.starts
    served.coordinator.kill()  # long before its next try
    served.coordinator.wait_start(starts + 1)
    served.wait_ready()
    assert ops.wait(2) == [("one", "held")] * 2
    assert ops.got[0] == ops.got[1]
    submit_held(served, toy, "two")
    ops.wait(3)
    submit_held(served, toy, "three")  # once that is here, the one before is written down as taken
    ops.wait(4)
    served.coordinator.kill()
    served.coordinator.wait_start(starts + 2)
    served.wait_ready()
    ops.answer = 404
    four = submit_held(served, toy, "four")
    names = [n for n, _ in ops.wait(5)]
    assert names[:4] == ["one", "one", "two", "three"] and names[4] in ("three", "four"), names
    runs_out = time.monotonic() + runs.WATCHDOG
    while "notify: ops was not sent 'held': it answered 404" not in (out := served.weft("why", four, "--full").out):
        assert time.monotonic() < runs_out, out
    assert "unsent" not in served.weft("why", one, "--full").out
    assert SECRET not in served.coordinator.text()


def test_names_are_the_operators_and_urls_are_no_names(served, toy, place):
    job = runs.job(served.put_data(toy), 1, name="mine", notify=["opps"])
    path = place / "job.yaml"
    path.write_text(json.dumps({**job, "checkpoint": {"dir": "."}}))
    end = served.weft("submit", str(path))
    assert end.code != 0 and "this coordinator has no receiver opps, only ops, slow" in end.err, end
    path.write_text(json.dumps({**job, "checkpoint": {"dir": "."}, "notify": ["http://169.254.169.254/"]}))
    end = served.weft("submit", str(path))
    assert end.code == 2 and "notify" in end.err and "will not do" in end.err, end


def scrape(c):
    import socket  # over a Unix socket, which urllib does not know

    s = socket.socket(socket.AF_UNIX)
    s.connect(f"{c.sockets}/h")
    s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    text = b"".join(iter(lambda: s.recv(65536), b""))
    s.close()
    return text.decode()


def test_metrics_count_what_a_receiver_took(served, receivers, toy):
    submit_held(served, toy, "mine")
    receivers[0].wait(1)
    end = time.monotonic() + runs.WATCHDOG
    while 'weft_notices_total{receiver="ops",result="taken"} 1' not in (text := scrape(served)):
        assert time.monotonic() < end, text
    assert 'weft_notices_waiting{receiver="ops"} 0' in text and 'weft_notices_total{receiver="slow",result="failed"} 0' in text
    assert SECRET not in text


def test_a_run_sends_its_last_notice_before_it_ends(place, receivers, toy):
    run = runs.Run(place, runs.job(toy, 1, name="mine", notify=["me"]), "mine")
    end = runs.weft("run", str(run.file))
    assert end.code == 2 and "nobody said what me is: give --notify me=URL" in end.err, end
    end = runs.weft("run", str(run.file), "-s", "notify=[other]")
    assert end.code == 2 and f"{run.file}: notify: nobody said what other is" in end.err, end
    end = runs.weft("run", str(run.file), "--notify", f"me={receivers[0].url}")
    assert end.code == 0, end
    assert [(n["name"], n["event"]) for n in receivers[0].got] == [("mine", "started"), ("mine", "succeeded")]
    assert SECRET not in end.out + end.err + next(place.rglob(".weft/mine/log")).read_text()


def test_the_last_notice_goes_though_its_receiver_failed_before(place, receivers, toy):
    run = runs.Run(place, runs.job(toy, 1, name="mine", notify=["me"]), "mine")
    receivers[0].answers = {"started": 500}
    end = runs.weft("run", str(run.file), "--notify", f"me={receivers[0].url}")
    assert end.code == 0 and "notices that were not sent: 1 to me" in end.err, end
    assert [n["event"] for n in receivers[0].got].count("succeeded") == 1, receivers[0].got


def test_a_signal_ends_the_wait_for_the_last_notices(place, receivers, toy):
    run = runs.Run(place, runs.job(toy, 1, name="mine", notify=["me"]), "mine")
    receivers[0].answers = {"succeeded": None}
    p = subprocess.Popen([runs.WEFT, "run", str(run.file), "--notify", f"me={receivers[0].url}"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # fmt: skip
    runs.watch_over(p)
    assert [line for line in p.stderr if line == "sending the last notices; Ctrl-C: do not wait\n" and not p.send_signal(signal.SIGINT)]
    assert p.wait(timeout=runs.WATCHDOG) == 0


@pytest.mark.parametrize("given", ["me=ftp://x/", "me=", "Me=http://x/", "me=@/nowhere/at/all", "http://x/"])
def test_a_run_with_a_wrong_receiver_makes_nothing(place, toy, given):
    run = runs.Run(place, runs.job(toy, 1, name="mine"), "mine")
    end = runs.weft("run", str(run.file), "--notify", given)
    assert end.code == 2 and "--notify" in end.err and not (place / ".weft").exists(), end
    end = runs.weft("run", str(run.file), "--notify", "me=http://x/", "--notify", "me=http://y/")
    assert end.code == 2 and "there is a receiver me already" in end.err and not (place / ".weft").exists(), end
