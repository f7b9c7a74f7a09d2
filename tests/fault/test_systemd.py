# SPDX-License-Identifier: Apache-2.0
"""The units under a real systemd: this machine's own root, seen through an overlay, with weft installed into
it, booted in a container. The overlay lies in a mount namespace that ends with the test; a network of its own
keeps its daemons from ours. The cluster is set up by the words of deploy/README.md, with certificates."""
import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time
import types

import netns
import pytest
import runs
from disks import skip_loudly

CLEAN = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"]
ADDRESS = "127.0.0.1:7700"
STEPS = 1000
USER = "daemon"  # somebody who is neither root nor weft
pytestmark = pytest.mark.skipif(not runs.LONG, reason="a machine is booted in check-long")
# Only our daemons are wanted: what else this machine starts at boot stays off.
TARGET = """[Unit]
Requires=basic.target
After=basic.target
AllowIsolate=yes
"""


def sh(*args, **more):
    return subprocess.run(args, capture_output=True, text=True, timeout=runs.WATCHDOG, check=False, **more)


def first_of_its_namespace(pid):
    """nspawn has helpers too; what they would run, they would run here."""
    try:
        return re.search(r"^NSpid:\s+\d+\s.*\b1$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)
    except OSError:
        return None


class Machine:
    def __init__(self, place):
        self.place, self.over = place, place / "o"
        self.nspawn, self.leader, self.holder, self.root = None, None, None, None
        self.log = place / "boot.log"

    def mount(self):
        self.over.mkdir()
        self.holder, pid = netns.hold("unshare", "-m")
        self.within = ["nsenter", "-t", str(pid), "-m", "--"]
        upper, work, root = (self.over / d for d in ("upper", "work", "root"))
        for command in (["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", self.over],
                        ["mkdir", upper, work, root],
                        ["mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root]):
            end = sh(*self.within, *command)
            if end.returncode:
                skip_loudly(f"no overlay of this root: {end.stderr.strip()}")
        self.root = pathlib.Path(f"/proc/{pid}/root{root}")  # as seen from here
        for left in ("var/lib/weft", "etc/weft"):  # what a weft of this machine has there is not this machine's
            assert sh(*self.within, "rm", "-rf", root / left).returncode == 0
        if not (self.root / "usr/lib/systemd/systemd").exists():
            skip_loudly("no systemd in the file system that / is on")

    def boot(self):
        with open(self.log, "wb") as log:
            self.nspawn = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *self.within,
                 "systemd-nspawn", "-q", "-D", self.over / "root", "-b", "--register=no", "--keep-unit", "--private-network",
                 "--link-journal=no", "--resolv-conf=off", "--timezone=off", "--console=pipe", "-M", f"weft-{os.getpid()}",
                 "--setenv=SYSTEMD_COLORS=0", "--", "--unit=weft-test.target"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.until("systemd answers", self._booted)

    def _booted(self):
        assert self.nspawn.poll() is None, self.log.read_text(errors="replace")
        children = pathlib.Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children").read_text().split()
        self.leader = next(filter(first_of_its_namespace, children), None)
        return self.leader and self.run("systemctl", "is-active", "basic.target").stdout.strip() == "active"

    def until(self, what, is_true, timeout=runs.WATCHDOG):
        end = time.monotonic() + timeout
        while not (value := is_true()):
            assert time.monotonic() < end, f"waited in vain: {what}\n{self.log_and_journal()}"
            time.sleep(0.1)
        return value

    def run(self, *args, user=None, env=()):
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return sh("nsenter", "-t", self.leader, *"-m -u -i -n -p -r -w".split(), "--", *CLEAN, *env, *who, *args)

    def ok(self, *args, **more):
        end = self.run(*args, **more)
        assert end.returncode == 0, f"{shlex.join(args)}: {end.stdout}{end.stderr}\n{self.log_and_journal()}"
        return end.stdout

    def log_and_journal(self):
        log = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""
        return log + (self.run("journalctl", "--no-pager", "-n", "60").stdout if self.leader else "")

    def close(self):
        if self.nspawn and self.nspawn.poll() is None:
            self.nspawn.send_signal(signal.SIGTERM)  # powers it off
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.nspawn.wait(30)
            self.nspawn.kill()
            self.nspawn.wait()
        if self.holder:
            self.holder.kill()
            self.holder.communicate()

    # -- the service in it
    def unit(self, name, *properties):
        out = self.ok("systemctl", "show", f"weft-{name}", *(f"-p{p}" for p in properties))
        return dict(line.split("=", 1) for line in out.splitlines())

    def pid(self, name):
        return self.unit(name, "MainPID")["MainPID"]

    def weft(self, *args):
        """As a user of the cluster, with nothing but a certificate."""
        return self.run("weft", *args, user=USER, env=(f"WEFT_COORDINATOR={ADDRESS}", "WEFT_TLS=/srv/alice"))

    def status(self, job):
        end = self.weft("status", job, "--json")
        return json.loads(end.stdout) if end.returncode == 0 else {"state": None, "step": None}

    def until_job(self, job, state, step=0):
        def there():
            s = self.status(job)
            return s if s["state"] == state and (s["step"] or 0) >= step else None
        return self.until(f"{job} {state} at {step}", there)


def install(m, noise):
    end = sh("make", "-o", "all", "install", f"BUILD={runs.BUILD}", f"DESTDIR={m.root}", "PREFIX=/usr", cwd=runs.REPO)
    assert end.returncode == 0, end.stdout + end.stderr
    (m.root / "etc/systemd/system/weft-test.target").write_text(TARGET)
    shutil.copytree(pathlib.Path(noise.train["images"]).parent, m.root / "srv/data")
    for d in ("srv", "srv/data"):
        (m.root / d).chmod(0o755)


def administer(m):
    """Everything that the one who administers the machine does before the first job. The user and the
    folders were made by the boot itself."""
    (m.root / "etc/weft/coordinator.env").write_text(
        f"WEFT_COORDINATOR_FLAGS=--lease 3s --tls /etc/weft/tls --listen {ADDRESS} --listen unix:/run/weft/coordinator.sock\n")
    (m.root / "etc/weft/worker.env").write_text(
        f"WEFT_WORKER_FLAGS=--coordinator {ADDRESS} --cpu-devices 2 --data-root /srv/data --checkpoint-root /srv/ckpt\n")
    m.ok("install", "-d", "-o", "weft", "/srv/ckpt", "/srv/alice")
    m.ok("weft-coordinator", "init", "--san", "127.0.0.1", user="weft")
    m.ok("weft-coordinator", "issue", "--role", "client", "--out", "/srv/alice", "alice", user="weft")
    m.ok("chown", "-R", f"{USER}:", "/srv/alice")
    m.ok("systemctl", "start", "weft-coordinator")
    token = m.ok("weft-coordinator", "token", "here", user="weft").strip()
    m.ok("weft-worker", "join", token, "--coordinator", ADDRESS, "--state", "/var/lib/weft/worker", user="weft")
    m.ok("systemctl", "start", "weft-worker")
    m.until("the worker is ready", lambda: "ready" in m.weft("workers").stdout)


@pytest.fixture(scope="module")
def machine(tmp_path_factory, noise):
    for tool in ("systemd-nspawn", "setpriv", "nsenter", "unshare"):
        if not shutil.which(tool):
            skip_loudly(f"no {tool}")
    if os.geteuid() != 0:
        skip_loudly("a container that boots needs root")
    m = Machine(tmp_path_factory.mktemp("machine"))
    try:
        m.mount()
        install(m, noise)
        m.boot()
        administer(m)
        yield m
    finally:
        m.close()


def submit(m, noise, name, **changes):
    files = {k: pathlib.Path(v).name for k, v in noise.train.items()}
    data = types.SimpleNamespace(features=noise.features, classes=noise.classes, train=files, eval=None)
    job = runs.busy_job(data, 2, **{"name": name, "checkpoint__dir": ".", "train__steps": STEPS, **changes})
    text = re.sub(r'"(\d+m?s)"', r"\1", json.dumps(job, indent=1))
    (m.root / "srv" / f"{name}.yaml").write_text(text)
    end = m.weft("submit", f"/srv/{name}.yaml", "--json")
    assert end.returncode == 0, end.stderr + m.log_and_journal()
    return json.loads(end.stdout)["job"]


def test_stopping_the_worker_drains_and_starting_it_continues(machine, noise):
    m = machine
    job = submit(m, noise, "drained", checkpoint__every=0)  # no checkpoint but the drain's own
    m.until_job(job, "RUNNING", step=5)
    m.ok("systemctl", "stop", "weft-worker")
    worker = m.unit("worker", "ActiveState", "Result", "ExecMainStatus")
    assert worker == {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}, m.log_and_journal()
    waiting = m.until_job(job, "QUEUED")
    saved = waiting["checkpoint_step"]
    assert 5 <= saved < STEPS and waiting["restarts"] == 0, waiting
    m.ok("systemctl", "start", "weft-worker")
    done = m.until_job(job, "SUCCEEDED")
    assert done["attempt"] == 2 and done["checkpoint_step"] == STEPS, done
    assert f"step {saved}" in m.weft("logs", job).stdout + m.weft("why", job).stdout


@pytest.mark.parametrize("name", ["coordinator", "worker"])
def test_a_killed_daemon_is_started_again_and_the_job_ends(machine, noise, name):
    m = machine
    job = submit(m, noise, f"{name}-killed")
    m.until_job(job, "RUNNING", step=10)
    before, was = m.pid(name), int(m.unit(name, "NRestarts")["NRestarts"])
    m.ok("kill", "-9", before)
    m.until(f"the {name} is back", lambda: m.pid(name) not in ("0", before))
    assert int(m.unit(name, "NRestarts")["NRestarts"]) == was + 1
    done = m.until_job(job, "SUCCEEDED")
    assert done["attempt"] == (1 if name == "coordinator" else 2), m.weft("why", job).stdout


def test_ranks_do_not_outlive_a_worker_that_is_killed(machine, noise):
    m = machine
    job = submit(m, noise, "reaped", train__steps=100000)
    m.until_job(job, "RUNNING", step=5)
    old = m.ok("pgrep", "-x", "weft-rank").split()
    assert len(old) == 2
    m.ok("kill", "-9", m.pid("worker"))
    m.until("the old ranks are gone", lambda: not set(old) & set(m.run("pgrep", "-x", "weft-rank").stdout.split()))
    assert m.weft("cancel", job).returncode == 0
    m.until_job(job, "CANCELLED")


def test_what_a_person_must_mend_is_not_started_again(machine):
    """A second coordinator on one state directory ends with 78, and stays down."""
    m = machine
    m.ok("cp", "/usr/lib/systemd/system/weft-coordinator.service", "/etc/systemd/system/weft-second.service")
    m.ok("systemctl", "daemon-reload")
    end = m.run("systemctl", "start", "weft-second")
    assert end.returncode != 0
    m.until("it is given up", lambda: m.unit("second", "ActiveState")["ActiveState"] == "failed")
    time.sleep(1.5)  # thrice RestartSec: it would be back by now
    second = m.unit("second", "ActiveState", "NRestarts", "ExecMainStatus")
    assert second == {"ActiveState": "failed", "NRestarts": "0", "ExecMainStatus": "78"}, m.log_and_journal()
    assert m.unit("coordinator", "ActiveState")["ActiveState"] == "active"
    said = m.ok("journalctl", "--no-pager", "-u", "weft-second")
    assert m.pid("coordinator") in said, said


def test_the_whole_machine_goes_down_in_order(machine, noise):
    """Shutdown is a drain: the job is saved before its host is gone."""
    m = machine
    job = submit(m, noise, "shutdown", train__steps=100000, checkpoint__every=0)
    m.until_job(job, "RUNNING", step=5)
    m.run("systemctl", "poweroff")
    assert m.nspawn.wait(runs.WATCHDOG) == 0
    m.leader = None
    store = [d for d in (m.root / "srv/ckpt").iterdir() if d.name.endswith(job[:8])]
    assert len(store) == 1 and runs.checkpoints_of(store[0]), list((m.root / "srv/ckpt").rglob("*"))
