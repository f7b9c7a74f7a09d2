# SPDX-License-Identifier: Apache-2.0
"""A storm over the wire, with TLS: a worker with a valid certificate and clients that lie, one message after
the other, against the rule table of coordinator/README.md. Between them innocent jobs are submitted, and each
ends in its first attempt with the bits of an undisturbed run; nobody's name is taken, and nothing grows.

WEFT_SEED=N draws other lies; WEFT_STORM=N is how many; WEFT_STORM_COORDINATOR names a program built otherwise,
such as build/asan/weft-coordinator of `make BUILD=build/asan OPT="-O1 -g" SAN=… build/asan/weft-coordinator`."""
import contextlib
import os
import random
import subprocess
import threading
import time

import cluster
import forge
import h2
import pytest
import runs

STORM = int(os.environ.get("WEFT_STORM", 24000 if runs.LONG else 1600))
ROUNDS = 10 if STORM > 10000 else 2  # each with an innocent job
STEPS = 150
BATCH = 40
GROWTH = 32 << 20  # of the coordinator's memory, after the first round
ATTEMPTS = [0, 1, 1, 1, 2, 3, 7, 2**31, 10**17, 2**64 - 1]
UNKNOWN = ["", "x", "f" * 32, "0" * 32, "../innocent", "%s"]


@pytest.fixture(scope="module")
def calm(tmp_path_factory, noise):
    return runs.train(tmp_path_factory.mktemp("calm"), runs.busy_job(noise, 2, train__steps=STEPS), "calm").final()


class Stormy(cluster.Cluster):
    """A coordinator that serves TLS and has lost its database, so that it asks hosts for jobs; one honest worker."""

    def __init__(self, place):
        super().__init__(place, start=False, lease="20s")
        try:
            self.begin()
        except BaseException:
            self.kill_all()
            raise

    def begin(self):
        self.tls = self.place / "tls"
        subprocess.run([cluster.COORDINATOR, "init", "--tls", self.tls], check=True, capture_output=True)
        program = os.environ.get("WEFT_STORM_COORDINATOR", cluster.COORDINATOR)
        env = {"ASAN_OPTIONS": "quarantine_size_mb=8:malloc_context_size=5",
               "LSAN_OPTIONS": f"suppressions={runs.REPO}/tests/lint/lsan.supp:print_suppressions=0"}
        self.address = "127.0.0.1:0"
        argv = [program, *self.coordinator_args()[1:], "--tls", str(self.tls)]
        self.coordinator = cluster.Daemon("coordinator", argv, self.place / "coordinator.log", env=env)
        self.find_address()
        self.coordinator.down()
        for f in (self.place / "coordinator").glob("weft.db*"):
            f.unlink()
        self.coordinator.up()
        self.find_address()
        self.env = {"WEFT_COORDINATOR": self.address, "WEFT_TLS": str(self.tls)}
        self.start_worker(0, "--tls", str(self.issue("worker", "honest")))
        self.wait_ready()

    def issue(self, role, name):
        to = self.place / name
        made = [cluster.COORDINATOR, "issue", "--tls", self.tls, "--role", role, "--out", to, name]
        subprocess.run(made, check=True, capture_output=True)
        return to

    def find_address(self):
        end = time.monotonic() + runs.WATCHDOG
        while True:
            own = set()
            for fd in os.listdir(f"/proc/{self.coordinator.pid}/fd"):
                with contextlib.suppress(OSError):  # it is closed by now
                    own.add(os.readlink(f"/proc/{self.coordinator.pid}/fd/{fd}"))
            ports = [p for p, i in cluster.listening(self.coordinator.pid).items() if f"socket:[{i}]" in own]
            if ports:
                self.address = f"127.0.0.1:{ports[0]}"
                return
            assert time.monotonic() < end, self.coordinator.text()
            time.sleep(0.02)

    def memory(self):
        return int(open(f"/proc/{self.coordinator.pid}/statm").read().split()[1]) * 4096

    def disk(self):
        return sum(f.stat().st_size for f in (self.place / "coordinator").glob("weft.db*"))


class Liar:
    """A worker with a certificate of its own: it registers one device and starts what is placed there, as far as
    an honest coordinator can tell. All else that it says is drawn."""

    def __init__(self, c, rng, cluster_id, jobs):
        self.address, self.folder, self.rng, self.cluster = c.address, c.issue("worker", "liar"), rng, cluster_id
        self.host, self.incarnation = f"{rng.getrandbits(128):032x}", f"{rng.getrandbits(128):032x}"
        self.jobs, self.own, self.acts, self.find = jobs, {}, [], False
        self.conn, self.said, self.seq = None, 0, 0
        self.forger = forge.Forger(
            rng, job=jobs, attempt=ATTEMPTS, rank=[-1, 0, 0, 0, 1, 7], host=[self.host], incarnation=[self.incarnation],
            cluster=[cluster_id], step=[-1, 0, 1, 7, 40, STEPS, 2**62], device=[0, 0, 1, 2000, -1])

    # -- what an honest worker says
    def send(self, **body):
        return self.conn.say(forge.pack("Up", body))

    def hear(self, seconds=0.0):
        self.conn.listen(seconds)
        for raw in self.conn.messages(self.conn.stream):
            down = forge.unpack("Down", raw)
            (kind, body), = down.items()
            if kind == "challenge":
                self.nonce = body["nonce"]
            elif kind == "registered":
                self.registered = True
            elif kind == "ack":
                self.acked = body.get("seq", 0)
            elif kind == "storage":
                self.acts.append(body)
            elif kind == "start":
                self.own[body["job"]] = body["attempt"]

    def attach(self):
        self.detach()
        self.nonce = self.registered = self.acked = None
        self.conn = h2.Client(self.address, self.folder)
        self.conn.call("/weft.v1.Hosts/Attach")
        self.send(hello={"host": self.host, "incarnation": self.incarnation, "cluster": self.cluster})
        self.wait(lambda: self.nonce)
        here = [{"job": j, "attempt": e} for j, e in self.own.items()]
        here += [self.forger.draw("AttemptHere") for _ in range(self.rng.choice([0, 0, 1, 3]))]
        self.send(register={
            "nonce": self.nonce, "cluster": self.cluster, "host": self.host, "incarnation": self.incarnation,
            "name": self.rng.choice(["liar", "honest", "w0", "x"]), "devices": [{"index": 0, "kind": "cpu", "model": "x"}],
            "memory": 1 << 30, "data_root": "/", "checkpoint_root": "/tmp", "attempts": here})
        self.wait(lambda: self.registered)

    def wait(self, what):
        end = time.monotonic() + runs.WATCHDOG
        while not what():
            if self.ended():
                raise ConnectionError
            assert time.monotonic() < end
            self.hear(0.2)

    def ended(self):
        return self.conn is None or self.conn.lost or self.conn.stream in self.conn.over

    def detach(self):
        if self.conn:
            self.conn.close()
            self.conn = None

    def answer(self):
        """What it was asked about storage, so that jobs get as far as running here; and jobs that nobody lost."""
        for ask in self.acts:
            done = {"op": ask["op"], "ok": True, "store": "/tmp/none"}
            done |= {k: ask[k] for k in ("job", "attempt", "attempt_id") if k in ask}
            if "job" not in ask:
                done["found"] = [self.invent(i) for i in range(40)]
            self.send(storage=done)
        self.acts.clear()

    def invent(self, i):
        """A job of the innocents' name, as if it had been found in a folder; or one that is there already."""
        there = self.jobs[len(UNKNOWN):]
        job = self.rng.choice(there) if there and i % 8 == 0 else f"{self.rng.getrandbits(128):032x}"
        return {"job": job, "name": "innocent", "resolved": FOUND, "store": "/tmp/none", "attempt": self.rng.choice(ATTEMPTS),
                "committed": [{"attempt": self.rng.choice(ATTEMPTS), "step": self.rng.choice([0, 7, STEPS])}]}

    # -- what a liar says
    def lie(self):
        kind = self.rng.random()
        if kind < 0.02:  # these end the stream, or begin another life
            return {self.rng.choice(["hello", "register"]): {}} if kind < 0.01 else {"leaving": {}}
        while True:
            up = self.forger.draw("Up")
            if not {"hello", "register", "leaving"} & up.keys():
                return up

    def storm(self):
        """A batch; how many messages of it were certainly read."""
        try:
            if self.ended():
                self.attach()
            if self.rng.random() < 0.05:  # another life of the same host: the one before is fenced
                self.incarnation = f"{self.rng.getrandbits(128):032x}"
                self.forger.claims["incarnation"].append(self.incarnation)
                self.attach()
            self.answer()
            for _ in range(BATCH):
                raw = forge.pack("Up", self.lie())
                if self.rng.random() < 0.03:
                    raw = self.forger.spoil(raw)
                self.conn.say(raw)
            self.seq += 1
            self.send(heartbeat={"seq": self.seq})
            self.wait(lambda: self.acked == self.seq)
            return BATCH
        except (ConnectionError, OSError):
            self.detach()
            return 1  # the one that ended it


FOUND = "name: innocent\nmodel: {program: mlp, inputs: 4, hidden: [4], classes: 2}\nmesh: {dp: 2}\n" \
        "data: {train: {images: i, labels: l}, batch: 4}\ntrain: {steps: 10}\ncheckpoint: {dir: .}\n"


class Callers:
    """Clients that ask for what cannot be: one with a client's certificate, a worker, and one with none."""

    METHODS = {"Submit": "SubmitRequest", "Act": "ActRequest", "Jobs": "JobsRequest", "Status": "JobRequest",
               "Why": "JobRequest", "Workers": "WorkersRequest", "Checkpoints": "JobRequest", "Watch": "JobRequest",
               "Logs": "LogsRequest"}
    DRAWN = [*METHODS, "Act", "Act", "Act", "Act", "Act", "Status", "Why", "Attach", "Join"]

    def __init__(self, c, rng, names, worker):
        self.address, self.rng, self.names = c.address, rng, names
        self.folders = [c.issue("client", "mallory"), worker, None]
        self.forger = forge.Forger(rng, request_id=[f"{i:032x}" for i in range(16)], resolved=[FOUND[:60], "a: [", "&a [*a, *a]", FOUND * 30],
                                   job=UNKNOWN, target=[t for t in UNKNOWN if t != "0" * 32], continues=UNKNOWN, role=["worker", "client"])

    def ask(self, conn, folder):
        method = self.rng.choice(self.DRAWN)
        if method == "Submit" and self.rng.random() < 0.8:
            method = "Act"  # a plan costs the coordinator more than it costs us
        service = "Hosts" if method in ("Attach", "Join") else "Weft"
        message = {"Attach": "Up", "Join": "JoinRequest"}.get(method) or self.METHODS[method]
        fields = self.forger.draw(message)
        if folder is not self.folders[0] and self.rng.random() < 0.5:  # who may not ask asks about who is there
            fields |= {k: self.rng.choice(self.names) for k in ("job", "target") if k in forge.MESSAGES[message]}
        raw = forge.pack(message, fields)
        if self.rng.random() < 0.05:
            raw = self.forger.spoil(raw)
        conn.call(f"/weft.v1.{service}/{method}", raw)
        return conn.stream if method not in ("Watch", "Logs") else None

    def storm(self):
        """A batch; how many calls of it were answered."""
        folder = self.rng.choice(self.folders)
        conn = h2.Client(self.address, folder)
        asked = []
        try:
            for _ in range(BATCH):
                asked.append(self.ask(conn, folder))
                conn.listen(0)
            asked = {a for a in asked if a}
            end = time.monotonic() + runs.WATCHDOG
            while not asked <= conn.over and not conn.lost:
                assert time.monotonic() < end, "calls that nobody answers"
                conn.listen(0.2)
        except OSError:
            pass
        finally:
            conn.close()
        return len(conn.over)


class Weather(threading.Thread):
    """The storm itself, until it is to end."""

    def __init__(self, liar, callers):
        super().__init__(daemon=True)
        self.liar, self.callers = liar, callers
        self.over, self.frames, self.calls, self.failed = threading.Event(), 0, 0, None

    def run(self):
        try:
            while not self.over.is_set():
                self.frames += self.liar.storm()
                if self.frames >= self.calls:
                    self.calls += self.callers.storm()
        except BaseException as e:  # noqa: BLE001
            self.failed = e


def test_a_greeting_that_is_none_takes_no_host_s_place(place):
    """A certificate is for one host, and another id takes the place of one that is away: but no text that is no id."""
    c = Stormy(place)
    try:
        liar = Liar(c, random.Random(1), c.json("jobs")["cluster"], list(UNKNOWN))
        for _ in range(20):  # what it says it has is drawn, and may be refused
            with contextlib.suppress(ConnectionError):
                liar.attach()
                break
        liar.detach()
        for host in ("x", "../../etc", "y" * 32, liar.host.upper() + "0"):
            conn = h2.Client(c.address, liar.folder)
            conn.call("/weft.v1.Hosts/Attach")
            conn.say(forge.pack("Up", {"hello": {"host": host, "incarnation": liar.incarnation, "cluster": liar.cluster}}))
            while conn.stream not in conn.over and not conn.lost:
                conn.listen(1)
            conn.close()
        assert liar.host in [w["host"] for w in c.json("workers")["workers"]]
    finally:
        c.kill_all()


def submit_innocent(c, data):
    """A job for the honest host alone: it is the only one with two devices."""
    return c.submit({**runs.busy_job(data, 2, name="innocent", train__steps=STEPS), "resources": {"priority": 50, "hosts": 1}})


def assert_innocent(c, job, calm):
    done = c.succeed(job)
    assert done["restarts"] == 0 and done["attempt"] == 1, c.why(job)
    assert c.final(job) == calm, c.why(job)
    assert c.json("status", "innocent")["job"] == job, "a forgery has its name"


def test_lies_over_the_wire_touch_nobody_else(place, noise, calm):
    c, rng = Stormy(place), random.Random(runs.SEED)
    jobs, names, made = list(UNKNOWN), ["innocent"], set()
    print(f"WEFT_SEED={runs.SEED}: {STORM} messages")
    try:
        data = c.put_data(noise)
        liar = Liar(c, rng, c.json("jobs")["cluster"], jobs)
        weather = Weather(liar, Callers(c, rng, names, liar.folder))
        weather.start()
        for turn in range(1, ROUNDS + 1):
            job = submit_innocent(c, data)
            jobs.append(job)
            names.append(job)
            c.wait(job, ("RUNNING", "SUCCEEDED"))
            own = c.submit(runs.job(data, 1, name=f"own{turn}"))  # the honest host is busy: mostly the liar gets it
            jobs += [own] * 3
            made |= {job, own}
            while weather.frames + weather.calls < turn * STORM // ROUNDS and not weather.failed:
                time.sleep(0.05)
            assert not weather.failed, (weather.failed, c.logs_text())
            assert_innocent(c, job, calm)
            memory = c.memory()
            before = memory if turn == 1 else before
            print(f"round {turn}: {weather.frames} frames, {weather.calls} calls, {len(liar.own)} attempts of the liar, "
                  f"{memory >> 20} MiB, {c.disk() >> 10} KiB")
        weather.over.set()
        weather.join(runs.WATCHDOG)
        assert not weather.failed, (weather.failed, c.logs_text())
        assert memory - before < GROWTH
        others = [j for j in c.json("jobs", "--all")["jobs"] if j["job"] not in made]
        assert all(j["found"] for j in others), "a forgery made a job"
        assert c.coordinator.starts == 2 and c.workers[0].starts == 1, c.logs_text()
        assert c.workers[0].stop() == 0 and c.coordinator.stop() == 0, c.logs_text()
        for word in ("AddressSanitizer", "runtime error", "LeakSanitizer"):
            assert word not in c.coordinator.text()
    finally:
        c.kill_all()
