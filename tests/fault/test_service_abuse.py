# SPDX-License-Identifier: Apache-2.0
"""Peers that misbehave: whoever reads nothing, says nothing or says nonsense, the daemons stay up, others
are served, and the job ends in the bits of an undisturbed run."""
import collections
import contextlib
import json
import os
import random
import resource
import signal
import socket
import ssl
import subprocess
import threading
import time

import cluster
import h2
import pytest
import runs
from cluster import wait_until

STEPS = 150
FLOOD = (200 if runs.LONG else 80) << 20  # over what a stream may hold back


@pytest.fixture(scope="module")
def calm(tmp_path_factory, noise):
    made = runs.busy_job(noise, 2, train__steps=STEPS)
    return runs.train(tmp_path_factory.mktemp("calm"), made, "calm").final()


@pytest.fixture
def one(place):
    c = cluster.Cluster(place)
    yield c
    c.kill_all()


@pytest.fixture
def on_tcp(place):
    """Its coordinator listens on a port of loopback too, any that is free."""
    c = cluster.Cluster(place, start=False)
    c.start_coordinator("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", prefix=["prlimit", "--nofile=512:"])
    c.wait_ready(0)
    c.start_worker(0)
    c.wait_ready()
    yield c
    c.kill_all()


def submit(c, noise, **changes):
    return c.submit(runs.busy_job(c.put_data(noise), 2, **{"train__steps": STEPS, **changes}))


def assert_unharmed(c, job, calm):
    done = c.succeed(job)
    assert done["restarts"] == 0, c.why(job)
    assert c.final(job) == calm, c.why(job)
    assert c.coordinator.starts == 1 and [w.starts for w in c.workers] == [1] * len(c.workers), c.logs_text()


def own_ports(c):
    """host:port of what the coordinator listens on besides its socket, as far as it does by now."""
    own = set()
    for fd in os.listdir(f"/proc/{c.coordinator.pid}/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/{c.coordinator.pid}/fd/{fd}"))
    return [f"127.0.0.1:{p}" for p, inode in cluster.listening(c.coordinator.pid).items() if f"socket:[{inode}]" in own]


def ports(c):
    """gRPC's and HTTP's."""
    found = own_ports(c)
    assert len(found) == 2, found
    return found


def test_readers_that_never_read_slow_nobody(one, noise):
    """Streams that stay unread, stopped clients, a client nobody reads from; and a rank that prints much."""
    job = submit(one, noise, train__steps=1000000)
    one.wait(job, ("RUNNING",), step=2)
    raw = []
    for _ in range(4):
        r = h2.Connection(one.address, receive_buffer=4096)
        r.greet()
        r.call("/weft.v1.Weft/Watch", h2.text(1, job))
        r.call("/weft.v1.Weft/Logs", h2.text(1, job) + h2.number(2, -1) + h2.number(3, 1))
        raw.append(r)
    clients = [one.popen("watch", job), one.popen("logs", job, "-f"), one.popen("logs", job, "-f")]
    good = subprocess.Popen([runs.WEFT, "logs", job, "-f"], stdin=subprocess.DEVNULL, env={**os.environ, **one.env},
                            stdout=open(one.place / "good", "wb"), stderr=subprocess.STDOUT)
    time.sleep(0.2)
    for p in clients[:2]:
        p.send_signal(signal.SIGSTOP)
    line = b"x" * 999 + b"\n"
    with open(f"/proc/{one.rank_pids()[0]}/fd/1", "wb", buffering=0) as out:
        for _ in range(FLOOD // 64000):
            out.write(line * 64)
        end = time.monotonic() + runs.WATCHDOG
        while b"the last word" not in (one.place / "good").read_bytes() and one.rank_pids():
            out.write(b"the last word\n")
            assert one.weft("jobs").code == 0
            assert time.monotonic() < end
    now = one.status(job)
    assert now["state"] == "RUNNING" and now["attempt"] == 1, one.why(job)
    one.wait(job, ("RUNNING",), step=now["step"] + 20)
    assert one.weft("cancel", job).code == 0
    one.wait(job, ("CANCELLED",))
    assert good.wait(runs.WATCHDOG) == 0
    assert b"the last word" in (one.place / "good").read_bytes()
    assert one.coordinator.starts == 1 and one.workers[0].starts == 1, one.logs_text()
    assert "does not read" not in one.workers[0].text(), "the worker has kept its stream"
    for p in clients:
        p.kill()
        p.communicate()
    for r in raw:
        r.close()


def test_a_reader_that_was_cut_off_gets_the_rest_and_learns_what_it_missed(one, noise):
    """It stands still until the coordinator has cut it, and all the time the rank prints lines without a time. Then
    every byte of the log was shown, once, or counted as left out."""
    job = submit(one, noise, train__steps=1000000)
    one.wait(job, ("RUNNING",), step=2)
    shown = one.place / "shown"
    reader = subprocess.Popen([runs.WEFT, "logs", job, "-f", "--json"], stdin=subprocess.DEVNULL,
                              stdout=open(shown, "wb"), stderr=subprocess.STDOUT, env={**os.environ, **one.env})
    wait_until(lambda: shown.stat().st_size > 0)
    reader.send_signal(signal.SIGSTOP)
    n = 0
    with open(f"/proc/{one.rank_pids()[0]}/fd/1", "wb", buffering=0) as out:
        end, after = time.monotonic() + runs.WATCHDOG, None
        # On after the cut, until more has come than the rank's two files of 4 MiB hold.
        while after is None or n - after < 3 * 4096:
            for _ in range(16):
                out.write(b"".join(b"line %09d %s\n" % (n + i, b"x" * 984) for i in range(64)))
                n += 64
            if after is None and "is cut off" in one.coordinator.text():
                after = n
            assert time.monotonic() < end
        reader.send_signal(signal.SIGCONT)
        wait_until(lambda: out.write(b"the last word\n") and b'"the last word"' in shown.read_bytes())
    assert one.weft("cancel", job).code == 0
    assert reader.wait(runs.WATCHDOG) == 0
    rows = [json.loads(line) for line in shown.read_text().splitlines()]
    for rank in range(2):
        logs = sorted((one.place / "worker-0" / "jobs").glob(f"*.a1/rank-000{rank}.log*"))
        full = int(logs[1].suffix[1:]) if logs[1:] else 0
        came = sum(r["left_out"] + len(r["text"].encode()) + 1 for r in rows if r["rank"] == rank)
        assert came == full * (4 << 20) + logs[0].stat().st_size, logs
    assert sum(r["left_out"] for r in rows) > 0
    numbers = [int(r["text"][5:14]) for r in rows if r["text"].startswith("line ")]
    assert numbers == sorted(set(numbers))


def test_a_thousand_connections_that_say_nothing(on_tcp, noise, calm):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    tcp = ports(on_tcp)
    idle = []
    try:
        for i in range(1000):
            s = h2.Connection([on_tcp.address, *tcp][i % 3])
            if i % 4 < 2:
                s.greet()
            idle.append(s)
        job = submit(on_tcp, noise)
        assert_unharmed(on_tcp, job, calm)
        assert on_tcp.weft("workers").code == 0
    finally:
        for s in idle:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def nonsense(rng):
    """What may come along on a port, by many hands."""
    yield bytes(rng.randrange(256) for _ in range(5000))
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n"
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(rng.randrange(256) for _ in range(500))
    yield h2.PREFACE + bytes(rng.randrange(256) for _ in range(2000))
    yield h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.DATA, 0, 99, b"x" * 100)
    yield h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff" * 200)
    yield h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"
    yield h2.PREFACE + h2.frame(h2.SETTINGS, 0, 0) + h2.frame(h2.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff")
    yield b""


def test_garbage_on_the_ports(on_tcp, noise, calm):
    rng = random.Random(7)
    job = submit(on_tcp, noise)
    for address in [*ports(on_tcp), on_tcp.address]:
        for _ in range(5 if runs.LONG else 1):
            for raw in nonsense(rng):
                s = h2.Connection(address)
                with contextlib.suppress(OSError):  # it may be hung up on in the middle
                    s.send(raw)
                s.close()
    for method in ("/weft.v1.Weft/Submit", "/weft.v1.Weft/Status", "/weft.v1.Hosts/Attach", "/weft.v1.Hosts/Join",
                   "/weft.v1.Weft/Watch", "/no/such", "//", "/weft.v1.Weft/" + "a" * 100):
        s = h2.Connection(on_tcp.address)
        s.greet()
        s.call(method, bytes(rng.randrange(256) for _ in range(300)))
        s.call(method, b"")
        s.call(method)
        s.s.settimeout(0.05)
        s.ended()
        s.close()
    assert_unharmed(on_tcp, job, calm)


def test_messages_over_the_limit_are_refused_and_nothing_grows(on_tcp, noise, calm):
    job = submit(on_tcp, noise)
    on_tcp.wait(job, ("RUNNING", "SUCCEEDED"))  # of so short a job its end may be seen first
    pid = on_tcp.coordinator.pid

    def memory():
        return int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096

    before = memory()
    for method, size in (("/weft.v1.Weft/Submit", 3 << 20), ("/weft.v1.Weft/Status", 1 << 20), ("/weft.v1.Hosts/Attach", 1 << 30)):
        streams = []
        for _ in range(20):
            s = h2.Connection(on_tcp.address)
            s.greet()
            with contextlib.suppress(OSError):
                s.call(method, b"x" * 10000, claimed=size)
                for _ in range(3):
                    s.send(h2.frame(h2.DATA, 0, s.stream, b"x" * 16000))
            streams.append(s)
        assert on_tcp.weft("jobs").code == 0
        for s in streams:
            s.close()
    assert memory() - before < 64 << 20
    assert_unharmed(on_tcp, job, calm)


def test_requests_that_never_end_hold_neither_memory_nor_places(on_tcp, noise, calm):
    """64 callers send all but the last byte of 15 MiB each, and stay."""
    job = submit(on_tcp, noise)
    on_tcp.wait(job, ("RUNNING", "SUCCEEDED"))  # of so short a job its end may be seen first
    callers, poured = [], 0
    for _ in range(64):
        s = h2.Connection(on_tcp.address)
        s.greet()
        s.call("/weft.v1.Weft/Submit", b"x", claimed=15 << 20)
        poured += s.pour((15 << 20) - 2)
        callers.append(s)
    assert poured > 64 << 20, "there were too few callers to prove anything"
    assert int(open(f"/proc/{on_tcp.coordinator.pid}/statm").read().split()[1]) * 4096 < 512 << 20
    end = time.monotonic() + runs.WATCHDOG
    while not all(s.refused for s in callers):  # others come, and late ones go
        assert time.monotonic() < end, f"{sum(not s.refused for s in callers)} still hold a place"
        assert on_tcp.weft("jobs").code == 0
        for s in callers:
            s.listen(0.005)
    for s in callers:
        s.close()
    assert_unharmed(on_tcp, job, calm)


def test_a_second_daemon_on_one_state_is_refused(one, toy):
    job = one.submit(runs.job(one.put_data(toy), 2))
    other = f"unix:{one.sockets}/other.sock"
    for args, pid in (
        ([cluster.COORDINATOR, "--state", str(one.place / "coordinator"), "--listen", other], one.coordinator.pid),
        (one.worker_argv(0), one.workers[0].pid),
    ):
        p = subprocess.run(args, capture_output=True, text=True, timeout=runs.WATCHDOG, check=False)
        assert p.returncode == 78 and str(pid) in p.stderr, p
    one.succeed(job)
    assert one.coordinator.starts == 1 and one.workers[0].starts == 1


def test_many_workers_that_join_at_once_are_all_served(place, toy):
    """Eight hosts come in one moment, and come again when the coordinator is killed."""
    c = cluster.Cluster(place, workers=0, devices=1)
    try:
        threads = [threading.Thread(target=c.start_worker, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        c.wait_ready(8)
        c.coordinator.kill()
        c.coordinator.wait_start(2)
        c.wait_ready(8)
        job = c.submit(runs.job(c.put_data(toy), 8))
        c.succeed(job)
    finally:
        c.kill_all()


# ---- whose certificate it is ---------------------------------------------------------------------


@pytest.fixture
def with_tls(place):
    """A coordinator that serves TLS alone, on any free port, and the folder of its authority."""
    tls = place / "tls"
    subprocess.run([cluster.COORDINATOR, "init", "--tls", tls], check=True, capture_output=True)
    c = cluster.Cluster(place, start=False, lease="2s")
    c.address = "127.0.0.1:0"
    c.start_coordinator("--tls", str(tls))
    end = time.monotonic() + runs.WATCHDOG
    while not own_ports(c):
        assert time.monotonic() < end, c.logs_text()
        time.sleep(0.02)
    (c.address,) = own_ports(c)
    c.env = {"WEFT_COORDINATOR": c.address, "WEFT_TLS": str(tls)}
    c.wait_ready(0)
    yield c
    c.kill_all()


HALF_OPEN = 24000 if runs.LONG else 6000  # connections, of which so many are held at a time:
HELD = 2000
FLOOD_S = 120  # a bound; it takes some seconds


def client_hello():
    """The first message of a handshake that goes no further."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


class HalfOpen:
    """Connections to one port of loopback that say hello and then nothing: when HELD are there the oldest goes."""

    def __init__(self, port):
        self.port, self.held, self.greeted = port, collections.deque(), 0
        self.hello = client_hello()

    def add(self):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", self.port))  # a server that is full lets it wait
        self.held.append([s, False])
        if len(self.held) > HELD:
            self.held.popleft()[0].close()

    def greet(self):
        for pair in self.held:
            if not pair[1]:
                with contextlib.suppress(BlockingIOError, OSError):
                    pair[0].send(self.hello)
                    pair[1] = True
                    self.greeted += 1

    def close(self):
        while self.held:
            self.held.pop()[0].close()


def memory_of(pid):
    """{"VmRSS": MiB, "VmHWM": MiB, ...} of a process: what it has now, and the most it ever had."""
    rows = (line.split() for line in open(f"/proc/{pid}/status"))
    return {r[0][:-1]: int(r[1]) / 1024 for r in rows if r[0].startswith("Vm")}


def test_handshakes_that_go_no_further_cost_bounded_memory_which_is_given_back(with_tls):
    """Nobody needs a certificate for this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, HELD + 1000)), hard))
    before = memory_of(with_tls.coordinator.pid)["VmRSS"]
    flood = HalfOpen(int(with_tls.address.rsplit(":", 1)[1]))
    end = time.monotonic() + FLOOD_S
    try:
        for i in range(HALF_OPEN):
            flood.add()
            if i % 50 == 0:
                flood.greet()
                assert time.monotonic() < end
    finally:
        flood.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert flood.greeted > HALF_OPEN // 20, "the flood did not get as far as handshakes"
    wait_until(lambda: memory_of(with_tls.coordinator.pid)["VmRSS"] < before + 40)
    assert memory_of(with_tls.coordinator.pid)["VmHWM"] < before + 250
    assert with_tls.weft("jobs").code == 0


def test_one_certificate_is_for_one_host_at_a_time(with_tls, place):
    issue = [cluster.COORDINATOR, "issue", "--tls", place / "tls", "--role", "worker"]
    subprocess.run([*issue, "--out", place / "mine", "w0"], check=True, capture_output=True)
    subprocess.run([*issue, "--hosts", "2", "--out", place / "fleet", "fleet"], check=True, capture_output=True)
    first = with_tls.start_worker(0, "--tls", str(place / "mine"))
    with_tls.wait_ready(1)
    second = with_tls.start_worker(1, "--tls", str(place / "mine"))
    end = time.monotonic() + runs.WATCHDOG
    while "is for 1 host at a time" not in second.text():
        assert time.monotonic() < end, second.text()
        time.sleep(0.02)
    assert [w["name"] for w in with_tls.json("workers")["workers"]] == ["w0"]
    first.stop()  # its machine is set up anew, say: another id may use the certificate now
    while [(w["name"], w["state"]) for w in with_tls.json("workers")["workers"]] != [("w1", "ready")]:
        assert time.monotonic() < end, with_tls.logs_text()
        time.sleep(0.02)
    for i in (2, 3):
        with_tls.start_worker(i, "--tls", str(place / "fleet"))
    with_tls.wait_ready(3)
