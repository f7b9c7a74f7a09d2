# SPDX-License-Identifier: Apache-2.0
"""A Slurm of the test's own: munged, slurmctld and a slurmd for each node, all on this machine, with configuration, keys
and state in one folder and ports that were free. Nothing of a Slurm that is installed here is read or touched. A node is
a name: all of them are this host, with a port each, so `kill_node` is what the loss of a machine looks like from outside.

    PARTITIONS  low (the default) and high, whose jobs take nodes from low's: those are asked to stop, and queued again

A requeued job may start CRED_S after it was queued: Slurm waits for the old start's credentials to expire."""
import contextlib
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
import warnings

import pytest
import runs

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
CRED_S = 5
GRACE_S = 60  # that a preempted job has; a save takes less than a second
SBIN = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
CONF = """\
ClusterName=weft
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock,cred_expire={cred}
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=10
KillWait=30
InactiveLimit=0
MinJobAge=3600
ReturnToService=2
SlurmdParameters=config_overrides
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def missing():
    """The first program that is not installed, or None."""
    return next((p for p in PROGRAMS if not shutil.which(p, path=SBIN["PATH"])), None)


def need():
    """Skips, so that it is seen, where Slurm is not installed."""
    if absent := missing():
        warnings.warn(f"SKIPPED: {absent} is not installed (slurm-wlm, munge)")
        pytest.skip(f"SKIP: {absent} is not installed (slurm-wlm, munge)")


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


class Slurm:
    def __init__(self, place, nodes=4, cpus=1):
        self.place, self.daemons = pathlib.Path(place), {}
        self.nodes = [f"n{i}" for i in range(nodes)]
        self.cpus = cpus
        self.env = {k: v for k, v in SBIN.items() if not k.startswith(("SLURM", "SBATCH", "SQUEUE", "SRUN", "SCANCEL"))}
        self.env["PATH"] = f"{runs.BUILD}:{self.env['PATH']}"
        self.env["SLURM_CONF"] = str(self.place / "slurm.conf")
        try:
            for attempt in range(5):  # a port may be taken between two calls
                if self.start():
                    return
                self.stop()
            raise AssertionError("Slurm does not start:\n" + self.logs())
        except BaseException:
            self.stop()
            raise

    # -- the daemons
    def start(self):
        for folder in ("state", *self.nodes):
            (self.place / folder).mkdir(exist_ok=True)
        ports = free_ports(1 + len(self.nodes))
        lines = [f"NodeName={n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={p} CPUs={self.cpus} RealMemory=100000"
                 for n, p in zip(self.nodes, ports[1:])]  # fmt: skip
        (self.place / "slurm.conf").write_text(CONF.format(
            ctld=ports[0], user=pwd.getpwuid(os.geteuid()).pw_name, place=self.place, cred=CRED_S, grace=GRACE_S, nodes="\n".join(lines)))  # fmt: skip
        key = self.place / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.spawn("munged", "munged", "--foreground", "--force", f"--socket={self.place}/munge.sock", f"--key-file={key}",
                   f"--pid-file={self.place}/munged.pid", f"--seed-file={self.place}/munged.seed", f"--log-file={self.place}/munged.log")  # fmt: skip
        if not self.wait(lambda: (self.place / "munge.sock").exists(), "munged"):
            return False
        self.spawn("slurmctld", "slurmctld", "-D", "-c")
        for n in self.nodes:
            self.start_node(n)
        return self.wait(self.is_up, *self.daemons)

    def spawn(self, name, *words):
        with open(self.place / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                  env=self.env, start_new_session=True)  # fmt: skip

    def start_node(self, name):
        self.spawn(name, "slurmd", "-D", "-N", name)

    def wait(self, what, *daemons, timeout=60):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if any(self.daemons[d].poll() is not None for d in daemons):
                return False
            if what():
                return True
            time.sleep(0.02)
        return False

    def is_up(self):
        return self.ask("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split() == ["idle"] * len(self.nodes)

    def processes_of(self, node):
        """A slurmd, its slurmstepds and their tasks, in this order: who would report the end of others ends before them."""
        parents, tasks = {}, set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                parents[int(pid)] = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
                environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if b"SLURM_CONF=" + os.fsencode(self.env["SLURM_CONF"]) in environ and b"SLURMD_NODENAME=" + node.encode() in environ:
                    tasks.add(int(pid))
        # A stepd is no child of slurmd's, and names no node; its tasks do.
        stepds = {parents[pid] for pid in tasks if b"".join(runs.cmdline(parents[pid])).startswith(b"slurmstepd")}
        return [self.daemons[node].pid, *stepds, *(tasks - stepds)]

    def kill_node(self, name):
        """Slurm sees the loss when it next looks, or is told by `mark_down`."""
        for pid in self.processes_of(name):
            runs.kill_pid(pid, signal.SIGKILL)
        self.daemons[name].wait()

    def mark_down(self, name):
        self.call("scontrol", "update", f"nodename={name}", "state=down", "reason=test")

    def resume_node(self, name):
        self.start_node(name)
        self.call("scontrol", "update", f"nodename={name}", "state=resume", check=False)

    def stop(self):
        for n in self.nodes:
            if n in self.daemons:
                for pid in self.processes_of(n):
                    runs.kill_pid(pid, signal.SIGKILL)
        for daemon in self.daemons.values():
            runs.kill_pid(daemon.pid, signal.SIGKILL)
            daemon.wait()
        self.daemons = {}

    # -- as a user
    def call(self, *words, check=True, **more):
        end = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.env, timeout=runs.WATCHDOG, **more)
        assert not check or end.returncode == 0, (words, end, self.logs())
        return runs.Ended(end.returncode, end.stdout, end.stderr)

    def ask(self, *words):
        return self.call(*words, check=False).out

    def job(self, job):
        """What Slurm says of a job, a dict: JobState, Reason, Restarts, ExitCode, NodeList, …"""
        return dict(re.findall(r"(\S+?)=(\S*)", self.ask("scontrol", "show", "job", "-o", str(job))))

    def await_job(self, job, what, timeout=runs.WATCHDOG):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            now = self.job(job)
            if what(now):
                return now
            time.sleep(0.02)
        raise AssertionError(f"waited in vain: {self.job(job)}\n{self.logs()}")

    def await_end(self, job):
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
        return self.await_job(job, lambda j: j.get("JobState") in ends)

    def await_idle(self):
        """Until no job has a node, and those that were down are back."""
        assert self.wait(self.is_up, *self.daemons), self.ask("sinfo", "-N") + self.logs()

    def logs(self):
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in [self.place / "slurmctld.log"])
