# SPDX-License-Identifier: Apache-2.0
"""A cluster of real daemons on this machine, driven through the client as a user would. Killed daemons
are restarted as systemd would do it by their exit codes: after a signal or 70 they are, after 0, 76 and
78 they are not. Sockets lie in a private short directory, since gRPC refuses long Unix paths."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import types

import runs

COORDINATOR, WORKER = str(runs.BUILD / "weft-coordinator"), str(runs.BUILD / "weft-worker")
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "HELD")
RESTART = (70,)


def listening(pid):
    """{port: inode} on which somebody listens over TCP in the network namespace of a process."""
    rows = []
    for table in ("tcp", "tcp6"):
        rows += [line.split() for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
    return {int(r[1].rsplit(":", 1)[1], 16): r[9] for r in rows if r[3] == "0A"}


class Daemon:
    """One daemon and its supervisor, a thread."""

    def __init__(self, name, args, log, prefix=(), env=None):
        self.name, self.args, self.log, self.prefix, self.env = name, args, log, list(prefix), env
        self.codes, self.starts = [], 0
        self.wanted = True
        self.lock = threading.Condition()
        self.p = None
        self.thread = threading.Thread(target=self._supervise, daemon=True)
        self.thread.start()
        with self.lock:
            assert self.lock.wait_for(lambda: self.p or self.codes, timeout=30)

    def _supervise(self):
        while True:
            with self.lock:
                if not self.wanted:
                    return
                with open(self.log, "ab") as log:
                    self.p = subprocess.Popen(
                        [*self.prefix, *self.args],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={**os.environ, **(self.env or {})},
                    )
                self.starts += 1
                self.lock.notify_all()
            code = self.p.wait()
            with self.lock:
                self.codes.append(code)
                self.lock.notify_all()
                if not self.wanted or (code >= 0 and code not in RESTART):
                    return
            time.sleep(0.1)

    @property
    def pid(self):
        return self.p.pid

    def kill(self, sig=signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            self.p.send_signal(sig)

    def running(self):
        return self.p is not None and self.p.poll() is None

    def wait_start(self, n, timeout=runs.WATCHDOG):
        with self.lock:
            assert self.lock.wait_for(lambda: self.starts >= n, timeout), f"{self.name} was not started again"

    def wait_end(self, timeout=runs.WATCHDOG):
        """Its exit code, once it is not restarted any more."""
        self.thread.join(timeout)
        assert not self.thread.is_alive(), f"{self.name} did not end: {self.text()[-2000:]}"
        return self.codes[-1]

    def down(self):
        """Kills it and keeps it down; up() starts it again."""
        with self.lock:
            self.wanted = False
        self.kill()
        self.thread.join(runs.WATCHDOG)

    def stop(self, timeout=runs.WATCHDOG):
        with self.lock:
            self.wanted = False
        self.kill(signal.SIGTERM)
        self.thread.join(timeout)
        if self.thread.is_alive():
            self.kill()
            raise AssertionError(f"{self.name} did not stop: {self.text()[-3000:]}")
        return self.codes[-1]

    def up(self):
        assert not self.thread.is_alive()
        self.wanted = True
        self.thread = threading.Thread(target=self._supervise, daemon=True)
        n = self.starts
        self.thread.start()
        self.wait_start(n + 1)

    def text(self):
        return pathlib.Path(self.log).read_text(errors="replace")


def breathe(begun):
    """Between two looks that start a client each: twice as long as the last one took, so that the cores are for those who
    are waited for."""
    time.sleep(min(max(0.02, 2 * (time.monotonic() - begun)), 0.25))


def wait_until(what):
    """What it is, once it is something."""
    end = time.monotonic() + runs.WATCHDOG
    while (begun := time.monotonic()) < end:
        if found := what():
            return found
        breathe(begun)
    raise AssertionError("waited in vain")


def go_on(pids):
    for pid in pids:
        runs.kill_pid(pid, signal.SIGCONT)


class Cluster:
    def __init__(self, place, workers=1, devices=2, lease="3s", worker_args=(), start=True):
        self.place = pathlib.Path(place)
        self.data, self.ckpt = self.place / "data", self.place / "ckpt"
        self.data.mkdir(exist_ok=True)
        self.ckpt.mkdir(exist_ok=True)
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="weft-test-", dir="/tmp"))
        self.address = f"unix:{self.sockets}/c.sock"
        self.devices, self.lease, self.worker_args = devices, lease, list(worker_args)
        self.coordinator, self.workers = None, []
        self.env = {"WEFT_COORDINATOR": self.address}
        if start:
            self.start_coordinator()
            for i in range(workers):
                self.start_worker(i)
            self.wait_ready()

    # -- daemons
    def coordinator_args(self):
        state = self.place / "coordinator"
        return [COORDINATOR, "--state", str(state), "--listen", self.address, "--lease", self.lease]

    def start_coordinator(self, *more, prefix=()):
        argv = [*self.coordinator_args(), *more]
        self.coordinator = Daemon("coordinator", argv, self.place / "coordinator.log", prefix)

    def copy_database(self):
        """A copy of the coordinator's state as it is now, for set_database."""
        copy = self.place / "old"
        shutil.rmtree(copy, ignore_errors=True)
        self.coordinator.down()
        shutil.copytree(self.place / "coordinator", copy)
        self.coordinator.up()
        return copy

    def set_database(self, copy=None):
        """Sets the coordinator's database back to a copy, or takes it away; it comes back with ready hosts."""
        state = self.place / "coordinator"
        self.coordinator.down()
        for f in state.glob("weft.db*"):
            f.unlink()
        for f in copy.glob("weft.db*") if copy else ():
            shutil.copy(f, state)
        self.coordinator.up()
        self.wait_ready()

    def worker_argv(self, i):
        return [WORKER, "--coordinator", self.address, "--state", str(self.place / f"worker-{i}"), "--name", f"w{i}",
                "--cpu-devices", str(self.devices), "--data-root", str(self.data), "--checkpoint-root", str(self.ckpt),
                *self.worker_args]

    def start_worker(self, i, *more, prefix=()):
        w = Daemon(f"worker {i}", [*self.worker_argv(i), *more], self.place / f"worker-{i}.log", prefix)
        self.workers.append(w)
        return w

    def ready(self):
        """How many workers are ready; -1 while the coordinator does not answer."""
        end = self.weft("workers", "--json")
        return sum(w["state"] == "ready" for w in json.loads(end.out)["workers"]) if end.code == 0 else -1

    def wait_ready(self, workers=None, timeout=runs.WATCHDOG):
        want = len(self.workers) if workers is None else workers
        end = (begun := time.monotonic()) + timeout
        while self.ready() < want:
            assert time.monotonic() < end, f"not {want} workers are ready\n{self.logs_text()}"
            breathe(begun)
            begun = time.monotonic()

    def stop(self):
        for w in self.workers:
            w.stop()
        if self.coordinator:
            self.coordinator.stop()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def kill_all(self):
        for d in [*self.workers, *([self.coordinator] if self.coordinator else [])]:
            with d.lock:
                d.wanted = False
            d.kill(signal.SIGCONT)
            d.kill()
            d.thread.join(10)
        shutil.rmtree(self.sockets, ignore_errors=True)

    # -- the client
    def popen(self, *args):
        return subprocess.Popen([runs.WEFT, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env={**os.environ, **self.env})

    def weft(self, *args, timeout=runs.WATCHDOG):
        p = subprocess.run([runs.WEFT, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           timeout=timeout, check=False, env={**os.environ, **self.env})
        return runs.Ended(p.returncode, p.stdout, p.stderr)

    def json(self, *args):
        end = self.weft(*args, "--json")
        assert end.code == 0, end
        return json.loads(end.out)

    # -- jobs
    def put_data(self, data):
        """Copies a data set beneath the data root; its paths then are what a submitted job may name."""
        copy = json.loads(json.dumps({"train": data.train, "eval": data.eval}))
        for part in copy.values():
            for key, path in (part or {}).items():
                path = pathlib.Path(path)
                part[key] = f"{path.parent.name}-{path.name}"  # sets have files of the same names
                if not (self.data / part[key]).exists():  # a running job may have it open
                    shutil.copy(path, self.data / part[key])
        return types.SimpleNamespace(features=data.features, classes=data.classes, **copy)

    def submit(self, job, *more):
        """The new job's id. job: a dict as runs.job makes it, with paths relative to the roots."""
        path = self.place / f"{job['name']}.yaml"
        text = json.dumps({**runs.pinned(job), "checkpoint": {**job.get("checkpoint", {}), "dir": "."}}, indent=1)
        path.write_text(re.sub(r'"(\d+m?s)"', r"\1", text))
        end = self.weft("submit", str(path), *more, "--json")
        assert end.code == 0, end
        return json.loads(end.out)["job"]

    def status(self, job):
        return self.json("status", job)

    def status_or_none(self, job):
        end = self.weft("status", job, "--json")
        return json.loads(end.out)["state"] if end.code == 0 else None

    def wait(self, job, states=ENDED, step=None, timeout=runs.WATCHDOG):
        """Waits until the job is in one of `states` (and at `step`); returns its status."""
        end = time.monotonic() + timeout
        s = None
        while (begun := time.monotonic()) < end:
            r = self.weft("status", job, "--json")
            if r.code == 0:
                s = json.loads(r.out)
                if s["state"] in states and (step is None or (s["step"] or 0) >= step):
                    return s
                if step is None or s["state"] in ENDED:
                    assert s["state"] not in ENDED, f"{s}\n{self.why(job)}\n{self.logs_text()}"
            breathe(begun)
        raise AssertionError(f"waited in vain for {states}: {s}\n{self.why(job)}\n{self.logs_text()}")

    def succeed(self, job, timeout=runs.WATCHDOG):
        return self.wait(job, ("SUCCEEDED",), timeout=timeout)

    def why(self, job):
        return self.weft("why", job).out

    def events(self, job):
        return self.json("why", job)["events"]

    def logs_text(self):
        return "\n".join(f"--- {d.name}\n{d.text()[-3000:]}" for d in [self.coordinator, *self.workers] if d)

    def attempts(self, job):
        """{attempt: pids} of the job's living rank processes, whoever their parent is."""
        found = {}
        for name in os.listdir("/proc"):
            a = runs.cmdline(name) if name.isdigit() else []
            if a and a[0].endswith(b"weft-rank") and b"--dir" in a and runs.alive(name):
                run = pathlib.Path(os.fsdecode(a[a.index(b"--dir") + 1])).name  # JOB.aATTEMPT
                if run.startswith(job + ".a"):
                    found.setdefault(int(run[len(job) + 2:]), []).append(int(name))
        return found

    def page(self, pid):
        """The progress page of a living rank."""
        a = [os.fsdecode(x) for x in runs.cmdline(pid)]
        raw = next(pathlib.Path(a[a.index("--dir") + 1]).glob("page-*")).read_bytes()
        return runs.Page(raw)

    def steps_of(self, pids):
        """How far each rank is; of one that starts or has ended, 0: it has no page."""
        steps = []
        for pid in pids:
            with contextlib.suppress(OSError, ValueError, StopIteration):
                steps.append(self.page(pid).step)
        return steps + [0] * (len(pids) - len(steps))

    def stop_ranks(self, job, ranks, most, attempt=1):
        """Stops the ranks of an attempt, all in training and none past step `most`; None if they were too quick."""
        now = heard = time.monotonic()
        end = now + runs.WATCHDOG
        pids = []
        while len(pids) < ranks or min(self.steps_of(pids)) < 5:
            now = time.monotonic()
            assert now < end, f"{self.why(job)}\n{self.logs_text()}"
            pids = self.attempts(job).get(attempt, [])
            if pids or now > heard + 3:  # the coordinator is asked now and then: an answer may take longer than the job
                heard = now
                if not pids and self.status_or_none(job) == "SUCCEEDED":
                    return None
            time.sleep(0.005)
        for pid in pids:
            runs.kill_pid(pid, signal.SIGSTOP)
        at = self.steps_of(pids)
        return pids if 0 < min(at) and max(at) <= most else None

    def submit_and_stop(self, submit, ranks, most):
        """A job whose ranks stand, stopped, none past step `most`, and their pids; a job that was too quick is let
        end, and another submitted. go_on(pids) lets them train: no test need be quicker than its job."""
        for _ in range(20):
            job = submit()
            pids = self.stop_ranks(job, ranks, most)
            if pids:
                return job, pids
            go_on(self.rank_pids())
            self.succeed(job)
        raise AssertionError("no job of twenty was seen before its end")

    def store(self, job):
        found = [d for d in self.ckpt.iterdir() if d.is_dir() and d.name.endswith(job[:8])]
        assert len(found) == 1, (job, sorted(self.ckpt.iterdir()))
        return found[0]

    def final(self, job):
        """{tensor: digest} of the newest checkpoint, by the tests' own reader."""
        return runs.checkpoints_of(self.store(job))[-1].tensors()

    def rank_pids(self, worker=None):
        """Pids of living rank processes; of one worker, its children."""
        of = {w.pid for w in ([self.workers[worker]] if worker is not None else self.workers)}
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and (a := runs.cmdline(name)) and a[0].endswith(b"weft-rank") and runs.alive(name):
                with contextlib.suppress(OSError):
                    if int(pathlib.Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()[1]) in of:
                        found.append(int(name))
        return sorted(found)


class Lookout:
    """Looks again and again which attempts of a job live: no two may at once."""

    def __init__(self, c, job):
        self.c, self.job, self.over, self.both = c, job, threading.Event(), []
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _look(self):
        while not self.over.is_set():
            now = self.c.attempts(self.job)
            if len(now) > 1:
                self.both.append(now)
            time.sleep(0.02)

    def end(self):
        self.over.set()
        self.thread.join()
        assert not self.both, f"two attempts lived at once: {self.both[0]}\n{self.c.why(self.job)}"
