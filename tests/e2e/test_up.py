# SPDX-License-Identifier: Apache-2.0
"""`weft up`: a job on bare machines by ssh. Most hosts here are folders behind a script that stands for ssh; two are network
namespaces, and some are reached through a real sshd. Whatever is killed, cut or missing is named, and nothing is left running."""
import fcntl
import getpass
import hashlib
import hmac
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess

import allocation
import pytest
import runs
from allocation import STEPS, ended

SECRET = re.compile(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
SSH = """#!/bin/sh
# A host NAME is the folder hosts/NAME: what it is found by is in its bin, how it is entered in its file "enter".
while :; do case $1 in -p) shift 2 ;; -*) shift ;; *) break ;; esac; done
host={hosts}/${{1#*@}}
[ -d "$host" ] || {{ echo "ssh: Could not resolve hostname $1" >&2; exit 255; }}
cd / && exec $(cat "$host/enter" 2>/dev/null) env -i HOME=/ PATH="$host/bin:/usr/bin:/bin" TMPDIR="$host" sh -c "$2"
"""


class Hosts:
    def __init__(self, run, *names, script=SSH):
        self.run, self.names = run, names
        self.folder = run.place / "hosts"
        for name in names:
            (self.folder / name).mkdir(parents=True)
        self.ssh = run.place / "ssh"
        self.ssh.write_text(script.format(hosts=self.folder))
        self.ssh.chmod(0o755)

    def up(self, *words, hosts=None, job=None, ssh=None):
        return runs.watch_over(subprocess.Popen(
            [runs.WEFT, "up", "--hosts", hosts or ",".join(self.names), "--ssh", str(ssh or self.ssh), *words, str(job or self.run.file)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=allocation.clean()))  # fmt: skip

    def processes(self, name="", program=b"weft"):
        """Of ours that live on the host, by where they keep what is the host's own; all of them without a name."""
        found = []
        for proc in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                mine = f"TMPDIR={self.folder / name}".encode() in (proc / "environ").read_bytes()
                if mine and program in (proc / "cmdline").read_bytes() and runs.alive(proc.name):
                    found.append(int(proc.name))
            except OSError:
                continue
        return found

    def none_is_left(self):
        return self.run.wait_until(lambda: not self.processes())

    def await_checkpoint(self, p):
        assert self.run.wait_until(lambda: p.poll() is not None or (self.run.stores() and self.run.checkpoints()))
        assert p.poll() is None, ended(p)


@pytest.fixture
def two(place, noise):
    hosts = Hosts(runs.Run(place, runs.busy_job(noise, 2, train__steps=STEPS), "mine"), "a", "b")
    yield hosts
    for pid in hosts.processes():
        runs.kill_pid(pid)


def leader_file(run):
    return run.place / f"{run.dir.name}-ckpt" / ".weft" / f"{run.job['name']}.leader"


def opens(secret, text):
    """Whether this secret has sealed the leader's file."""
    sealed, mac = text.split(b"mac ", 1)
    return hmac.compare_digest(hmac.new(secret, sealed, hashlib.sha256).hexdigest().encode(), mac[:64])


def test_it_trains_on_its_hosts_to_the_bits_of_one(two, calm):
    end = ended(two.up())
    assert end.code == 0, end
    assert "a: " in end.out and "2 ranks placed: 1 on " in end.out and "b: index 1 of 2, " in end.err, end
    assert all(line.startswith("a: ") for line in end.out.splitlines()), end
    assert two.run.final() == calm and two.none_is_left()
    again = ended(two.up("-s", f"train.steps={STEPS + 10}"))
    assert again.code == 0 and two.run.checkpoints()[-1].step == STEPS + 10, again
    why = runs.weft("why", "test", cwd=two.run.place)
    assert why.code == 0 and f"SUCCEEDED at step {STEPS + 10}" in why.out and why.out.count("  submitted  ") == 2, why


def test_its_json_is_the_leaders(two):
    end = ended(two.up("--json"))
    assert end.code == 0 and all(line.startswith("{") for line in end.out.splitlines()) and "SUCCEEDED" in end.out, end


def test_who_sees_the_processes_of_a_host_learns_no_secret(two):
    p = two.up("-s", "train.steps=1000000")
    two.await_checkpoint(p)
    text = leader_file(two.run).read_bytes()
    token = re.search(rb"token ([0-9a-f]+)", text)[1]
    shown = b""
    for pid in [p.pid, *two.processes(program=b"")]:
        for what in ("cmdline", "environ"):
            shown += pathlib.Path(f"/proc/{pid}/{what}").read_bytes() + b"\n"
    assert len(two.processes()) > 3 and b"--member" in shown
    assert token not in shown and not any(opens(s, text) for s in [b"", *SECRET.findall(shown)])
    p.send_signal(signal.SIGINT)
    assert ended(p).code == 130


@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_saves_and_ends_all_and_the_same_command_continues(two, sent, code):
    p = two.up("-s", "train.steps=1000000")
    two.await_checkpoint(p)
    p.send_signal(sent)
    end = ended(p)
    assert end.code == code and "DRAINING committed" in end.out and two.none_is_left(), end
    assert ("the same command continues it" in end.err) == (sent == signal.SIGINT), end
    saved = two.run.checkpoints()[-1].step
    end = ended(two.up("-s", f"train.steps={saved + 20}"))
    assert end.code == 0 and f"continues from step-{saved:08d}" in end.out, (saved, end)


def test_a_killed_weft_up_leaves_nothing_running(two):
    p = two.up("-s", "train.steps=1000000")
    two.await_checkpoint(p)
    p.kill()
    ended(p)
    assert two.none_is_left()
    saved = two.run.checkpoints()[-1].step
    end = ended(two.up("-s", f"train.steps={saved + 20}"))
    assert end.code == 0 and f"continues from step-{saved:08d}" in end.out, (saved, end)


def test_a_member_whose_lines_nobody_takes_ends_too(two):
    """As when the network has gone: its input ends, and what it prints goes into a pipe that is full."""
    run, (there, here) = two.run, os.pipe()
    size = fcntl.fcntl(here, fcntl.F_SETPIPE_SZ, 4096)
    member = runs.watch_over(subprocess.Popen([runs.WEFT, "--member"], stdin=subprocess.PIPE, stdout=here, stderr=here,
                                              env={**allocation.clean(), "TMPDIR": str(two.folder / "a")}))  # fmt: skip
    words = ["0", "1", "0123456789abcdef" * 2, "sixteen and more of them", "a", str(run.place), "-s", "train.steps=1000000", "--", str(run.file)]
    order = "".join(f"{w}\0" for w in words).encode()
    assert os.read(there, size).startswith(b"weft up: this is weft ")
    member.stdin.write(b"weft up 1 %d\n" % len(order) + order)
    member.stdin.flush()
    assert run.wait_until(lambda: member.poll() is not None or (run.stores() and run.checkpoints()))
    assert member.poll() is None, os.read(there, size)
    filler = os.open(f"/proc/self/fd/{here}", os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(filler, b"x")
    member.stdin.close()
    assert member.wait(runs.WATCHDOG) == 75 and two.none_is_left()
    for fd in (there, here, filler):
        os.close(fd)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_host_that_is_lost_ends_the_others(two, lost):
    p = two.up("-s", "train.steps=1000000")
    two.await_checkpoint(p)
    for pid in two.processes(lost):
        runs.kill_pid(pid)
    end = ended(p)
    assert end.code == 75 and f"{lost}: the connection is lost" in end.err and two.none_is_left(), end


def test_a_second_interruption_ends_at_once(two):
    p = two.up("-s", "train.steps=1000000")
    two.await_checkpoint(p)
    for pid in two.processes(program=b"weft-rank"):
        runs.kill_pid(pid, signal.SIGSTOP)  # they never save
    p.send_signal(signal.SIGINT)
    said = b""
    while b"saving and stopping" not in said:
        more = os.read(p.stderr.fileno(), 4096)
        assert more, said
        said += more
    p.send_signal(signal.SIGINT)
    end = ended(p)
    assert end.code == 130 and two.none_is_left(), end


def make_program(hosts, name, text):
    bin_folder = hosts.folder / name / "bin"
    bin_folder.mkdir()
    if text:
        (bin_folder / "weft").write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / "weft").chmod(0o755)


OTHER = 'echo "weft up: this is weft 0.0.1"; exec cat'
REFUSES = f'case $1 in --member) echo "weft: unknown verb --member" >&2; exit 2 ;; esac; exec {runs.WEFT} "$@"'


@pytest.mark.parametrize("there, words", [
    ("", "c has no weft"), (OTHER, "c has weft 0.0.1, and this is weft "), (REFUSES, "c has no weft of this version at weft"),
    (None, "c is not reached by ssh"), ("exec sleep 1000 <&-", None)])  # fmt: skip
def test_a_host_that_is_not_fit_is_named_and_nothing_begins(place, noise, there, words):
    hosts = Hosts(runs.Run(place, runs.busy_job(noise, 2), "mine"), "a", "b", "c")
    for name in "ab":
        make_program(hosts, name, f'exec {runs.WEFT} "$@"')
    if there is None:
        shutil.rmtree(hosts.folder / "c")
    else:
        make_program(hosts, "c", there)
    p = hosts.up("--weft", "weft")
    if words is None:  # it does not answer: whoever waits may leave
        assert hosts.run.wait_until(lambda: len(hosts.processes(program=b"--member")) == 2 and hosts.processes("c", b"sleep"))
        p.send_signal(signal.SIGINT)
    end = ended(p)
    assert end.code == (130 if words is None else 78) and (words or "") in end.err and end.err.count("to do:") == (words is not None), end
    assert hosts.none_is_left() and not hosts.processes(program=b"sleep") and not (place / "mine-ckpt").exists()


def test_one_machine_under_two_names_is_found_before_anything_begins(two):
    (two.folder / "b").rmdir()
    (two.folder / "b").symlink_to("a")
    end = ended(two.up())
    assert end.code == 78 and re.search("(a and b|b and a) are one machine", end.err) and end.err.count("to do:") == 1, end
    assert two.none_is_left() and not two.run.stores()


def test_a_long_line_stays_one(place, noise):
    """The text of an event, which is one line of JSON, has up to 64 KiB, and more with its escapes."""
    hosts = Hosts(runs.Run(place, runs.busy_job(noise, 2), "mine"), "a")
    make_program(hosts, "a", "head -c 300000 /dev/zero | tr '\\0' x; echo; exit 127")
    end = ended(hosts.up("--weft", "weft"))
    assert end.code == 78 and end.out == f"a: {'x' * 300000}\n", (end.code, len(end.out), end.err)


def test_hosts_are_checked_before_anything_is_called(two):
    for hosts, words in (("a,-oProxyCommand=true", "'-oProxyCommand=true' is no host"), ("a,[-Fevil]", "'[-Fevil]' is no host"), ("[]", "'[]' is no host"),
                         ("a,,b", "'' is no host"), ("a,b;true", "is no host"),
                         ("a,b,a", "a stands there twice")):  # fmt: skip
        end = ended(two.up(hosts=hosts))
        assert end.code == 2 and words in end.err, end
    assert "--hosts a,b,c says on which hosts" in runs.weft("up", str(two.run.file)).err
    assert ended(two.up(ssh="/nowhere/ssh")).code == 78
    assert not two.processes()


def test_a_folder_that_hosts_do_not_see_is_named(two, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("here")
    # What makes the folder one of this machine alone: it is gone once the hosts are asked.
    two.ssh.write_text(two.ssh.read_text().replace("exec $(cat", f"rm -rf {elsewhere}\nexec $(cat"))
    p = runs.watch_over(subprocess.Popen([runs.WEFT, "up", "--hosts", "a,b", "--ssh", str(two.ssh), str(two.run.file)], cwd=elsewhere, text=True,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE))  # fmt: skip
    end = ended(p)
    assert end.code == 78 and re.search(rf"^[ab]: weft up: there is no folder {elsewhere} here", end.err, re.M) and two.none_is_left(), end


def test_two_hosts_with_a_cable_between_them(place, noise, cable, calm):
    hosts = Hosts(runs.Run(place, runs.busy_job(noise, 2, train__steps=STEPS), "mine"), "a", "b")
    for name, enter in zip("ab", cable.enter):
        (hosts.folder / name / "enter").write_text(" ".join(enter))
    end = ended(hosts.up(hosts="someone@a,b"))
    assert end.code == 0 and f"joined its leader at {cable.address[0]}:" in end.err, end
    assert hosts.run.final() == calm and hosts.none_is_left()


# ---- a real sshd ---------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def sshd(place, noise):
    """One on this machine, which is a and b by ssh's configuration, with keys of the test's own."""
    program = "/usr/sbin/sshd"
    if not os.path.exists(program):
        pytest.skip("SKIP: openssh-server is not installed")
    keys, port = place / "keys", free_port()
    keys.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True)
    if os.geteuid() == 0:
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    (keys / "config.sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {keys}/host\nAuthorizedKeysFile {keys}/user.pub\nStrictModes no\nUsePAM no\n"
        f"PidFile none\nPermitRootLogin yes\nPrintMotd no\n"
        + "".join(f"Match LocalAddress 127.0.0.{i}\n SetEnv TMPDIR={place}/hosts/{h}\n" for i, h in ((1, "a"), (2, "b"))))  # fmt: skip
    (keys / "known").write_text(f"[127.0.0.1]:{port},[127.0.0.2]:{port} {(keys / 'host.pub').read_text()}")
    (keys / "config").write_text(
        f"Host a\n HostName 127.0.0.1\nHost b\n HostName 127.0.0.2\nHost *\n Port {port}\n User {getpass.getuser()}\n IdentityFile {keys}/user\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {keys}/known\n GlobalKnownHostsFile none\n")  # fmt: skip
    daemon = subprocess.Popen([program, "-D", "-e", "-f", str(keys / "config.sshd")], stderr=open(keys / "log", "w"))
    hosts = Hosts(runs.Run(place, runs.busy_job(noise, 2, train__steps=STEPS), "mine"), "a", "b",
                  script=f'#!/bin/sh\nexec ssh -F {keys}/config "$@"\n')  # fmt: skip
    assert hosts.run.wait_until(lambda: daemon.poll() is not None or "listening" in (keys / "log").read_text())
    assert daemon.poll() is None, (keys / "log").read_text()
    hosts.daemon = daemon
    yield hosts
    for pid in [*sessions(daemon), *hosts.processes()]:
        runs.kill_pid(pid)
    daemon.kill()
    daemon.wait()


def children(pid):
    try:
        found = [int(p) for t in pathlib.Path(f"/proc/{pid}/task").iterdir() for p in (t / "children").read_text().split()]
    except OSError:
        return []
    return found + [q for p in found for q in children(p)]


def sessions(daemon):
    """Pids of sshd's own processes, a few a connection."""
    return [p for p in children(daemon.pid) if b"sshd" in runs.cmdline(p)[0]]


def test_through_a_real_sshd(sshd, calm):
    end = ended(sshd.up())
    assert end.code == 0 and "b: index 1 of 2, " in end.err, end
    assert sshd.run.final() == calm and sshd.none_is_left()


@pytest.mark.parametrize("how", [signal.SIGINT, "cut", *(["stand still"] if runs.LONG else [])])
def test_a_real_connection_that_ends_takes_all_with_it(sshd, how):
    p = sshd.up("-s", "train.steps=1000000")
    sshd.await_checkpoint(p)
    if how == "cut":  # as if the network went: sshd ends, and nobody says a word to the job
        for pid in sessions(sshd.daemon):
            runs.kill_pid(pid)
    elif how == "stand still":  # this machine sleeps, the connections are there
        for pid in [p.pid, *children(p.pid)]:
            runs.kill_pid(pid, signal.SIGSTOP)
        assert sshd.none_is_left()
        for pid in [p.pid, *children(p.pid)]:
            runs.kill_pid(pid, signal.SIGCONT)
    else:
        p.send_signal(how)
    end = ended(p)
    assert end.code == (130 if how == signal.SIGINT else 75) and sshd.none_is_left(), end
    saved = sshd.run.checkpoints()[-1].step
    end = ended(sshd.up("-s", f"train.steps={saved + 20}"))
    assert end.code == 0 and f"continues from step-{saved:08d}" in end.out, (saved, end)
