# SPDX-License-Identifier: Apache-2.0
"""The coordinator by itself, without any worker: how it starts, what it refuses, what it keeps, what it
tells machines, and whom it lets in."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import time

import cluster
import pytest
import runs


class Coordinator:
    """One weft-coordinator; its addresses are those that its log tells."""

    def __init__(self, place, *args, env=None):
        self.place = pathlib.Path(place)
        self.log = self.place / "coordinator.log"
        before = len(self.text()) if self.log.exists() else 0
        with open(self.log, "ab") as log:
            self.p = subprocess.Popen(
                [cluster.COORDINATOR, "--state", str(self.place / "state"), *args],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **(env or {})},
            )  # fmt: skip
        doors = max(1, args.count("--listen")) + args.count("--http") + args.count("--probes")
        self.bound, end = [], time.monotonic() + runs.WATCHDOG
        while len(self.bound) < doors and self.p.poll() is None:
            assert time.monotonic() < end, self.text()
            time.sleep(0.005)
            self.bound = re.findall(r" coordinator (?:listens on |(?=http at |probes at ))(.*)", self.text()[before:])

    @property
    def http(self):
        return next(b.removeprefix("http at ") for b in self.bound if b.startswith("http at "))

    def weft(self, *args, tls=None):
        more = ["--tls", str(tls)] if tls else []
        return runs.weft(*args, "--coordinator", self.bound[0], *more)

    def jobs(self):
        end = self.weft("jobs", "--all", "--json")
        assert end.code == 0, end
        return json.loads(end.out)["jobs"]

    def submit(self, data, name, *more):
        path = self.place / f"{name}.yaml"
        path.write_text(json.dumps(runs.job(data, 2, name=name)))
        end = self.weft("submit", str(path), "--json", *more)
        assert end.code == 0, end
        return json.loads(end.out)["job"]

    def end(self, sig=None):
        if sig is not None:
            self.p.send_signal(sig)
        return self.p.wait(runs.WATCHDOG)

    def text(self):
        return self.log.read_text(errors="replace")


@pytest.fixture
def start(place):
    """Starts coordinators in `place`; a short folder for their sockets lies in start.sockets."""
    started = []
    sockets = pathlib.Path(tempfile.mkdtemp(prefix="weft-test-", dir="/tmp"))

    def one(*args, at=None, env=None, listen=True):
        where = pathlib.Path(at or place)
        where.mkdir(exist_ok=True)
        c = Coordinator(where, *(["--listen", f"unix:{sockets}/c.sock"] if listen else []), *args, env=env)
        started.append(c)
        return c

    one.sockets = sockets
    yield one
    for c in started:
        with contextlib.suppress(ProcessLookupError):
            c.p.kill()
        c.p.wait()
    shutil.rmtree(sockets, ignore_errors=True)


def curl(url, *args):
    if not shutil.which("curl"):
        pytest.skip("SKIP: curl is not installed")
    p = subprocess.run(["curl", "-sS", "-m", "20", "-w", "\n%{http_code}", *args, url], capture_output=True, text=True, check=False)
    body, _, code = p.stdout.rpartition("\n")
    return int(code), body, p.stderr


# ---- starting and stopping -----------------------------------------------------------------------


def test_it_logs_every_address_it_bound_and_answers_there(start):
    c = start("--listen", "127.0.0.1:0", "--listen", "[::1]:0" if socket.has_ipv6 and os.path.exists("/proc/net/if_inet6") else "localhost:0", "--http", "127.0.0.1:0")
    assert c.bound[0] == f"unix:{start.sockets}/c.sock"
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", c.bound[1])
    assert re.search(r":[1-9]\d*$", c.bound[2])
    assert len(c.bound) == 4
    assert (start.sockets / "c.sock").stat().st_mode & 0o777 == 0o600
    for address in c.bound[:3]:
        assert runs.weft("jobs", "--coordinator", address).code == 0, address
    assert curl(f"http://{c.http}/healthz")[0] == 200


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_ends_with_0(start, sig):
    c = start()
    assert c.end(sig) == 0


def test_the_supervisor_hears_when_it_is_ready_alive_and_stopping(start, place):
    path = str(start.sockets / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(path)
        s.settimeout(runs.WATCHDOG)
        c = start(env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"})
        assert s.recv(100) == b"READY=1"
        assert [s.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        c.p.send_signal(signal.SIGTERM)
        said = s.recv(100)
        while said == b"WATCHDOG=1":
            said = s.recv(100)
        assert said == b"STOPPING=1"
        assert c.end() == 0


# ---- what it refuses -----------------------------------------------------------------------------


def test_a_second_one_on_a_state_directory_is_refused_naming_the_first(start):
    first = start()
    second = start("--listen", f"unix:{start.sockets}/d.sock", listen=False)
    assert second.end() == 78
    assert f"pid {first.p.pid}" in second.text()
    assert first.weft("jobs").code == 0


def test_a_living_socket_is_not_taken_from_its_owner(start, place):
    first = start()
    second = start(at=place / "other")
    assert second.end() == 78
    assert f"pid {first.p.pid}" in second.text()
    assert first.weft("jobs").code == 0
    first.p.kill()
    first.end()
    third = start(at=place / "third")  # what a dead one left is no obstacle
    assert third.weft("jobs").code == 0


@pytest.mark.parametrize(
    "args, names",
    [
        (["--listen", "0.0.0.0:0"], "0.0.0.0"),
        (["--listen", "[::]:0"], "::"),
        (["--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"], "0.0.0.0"),
        (["--listen", "unix:relative.sock:1:2", "--http", "unix:/x"], ""),
        (["--listen", "nonsense"], "nonsense"),
        (["--tls", "/nowhere/at/all", "--listen", "127.0.0.1:0"], "/nowhere/at/all/ca.pem"),
        (["--state", "gs://bucket/x"], "--state: gs://bucket/x is a URL"),
        (["--lease", "fast"], "--lease: must be a duration such as 5s, not 'fast'"),
        (["--lease"], "--lease"),
        (["--nonsense", "1"], "--nonsense\n  to do: see weft-coordinator --help\n"),
        (["stray"], "stray"),
    ],
)
def test_what_is_not_safe_or_not_meant_ends_with_78(start, args, names):
    c = start(*args, listen=False)
    assert c.end() == 78, c.text()
    assert names in c.text()


@pytest.mark.parametrize("env, says", [
    ({}, "--state is needed: there is no HOME"),
    ({"HOME": "here"}, "--state is needed: there is no HOME"),
    ({"HOME": "/here", "XDG_RUNTIME_DIR": "/proc/none"}, "no place for the default socket: give --listen, or set XDG_RUNTIME_DIR"),
])  # fmt: skip
def test_a_user_without_a_session_learns_which_flag_is_needed(env, says):
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}  # root has folders of its own
    with tempfile.TemporaryDirectory() as here:  # where that user may run it
        os.chmod(here, 0o777)
        env = {name: value.replace("/here", here) for name, value in env.items()}
        end = subprocess.run([shutil.copy(cluster.COORDINATOR, here)], cwd=here, env=env, capture_output=True, text=True, **user)
    assert end.returncode == 78 and says in end.stderr, end


def test_a_socket_whose_folder_is_missing_is_refused_with_that(start, place):
    c = start("--listen", f"unix:{place}/none/c.sock", listen=False)
    assert c.end() == 70, c.text()
    assert f"its folder {place}/none: No such file or directory" in c.text()


def test_a_database_of_a_newer_version_or_another_cluster_is_refused(start, place):
    c = start()
    assert c.end(signal.SIGTERM) == 0
    kept = (place / "state" / "cluster").read_text()
    (place / "state" / "cluster").write_text("0123456789abcdef" * 2 + "\n")
    assert start().end() == 78
    assert kept.split()[0] in (place / "coordinator.log").read_text()
    (place / "state" / "cluster").write_text(kept)
    with contextlib.closing(sqlite3.connect(place / "state" / "weft.db")) as db:
        db.execute("PRAGMA user_version = 1000000")
    newer = start()
    assert newer.end() == 78
    assert "1000000" in newer.text()


def test_garbage_on_its_ports_does_not_bring_it_down(start):
    c = start("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    noise = os.urandom(1 << 16)
    for address in (c.bound[1], c.http):
        host, port = address.rsplit(":", 1)
        for data in (noise, b"GET / HTTP/1.1\r\n" + b"A" * (1 << 16), b"\x16\x03\x01" + noise, b""):
            with socket.create_connection((host, int(port)), timeout=20) as s, contextlib.suppress(OSError):
                s.sendall(data)
    assert c.weft("jobs").code == 0
    assert curl(f"http://{c.http}/healthz")[0] == 200
    assert c.p.poll() is None


# ---- what it keeps -------------------------------------------------------------------------------


def test_jobs_and_answers_outlive_a_kill(start, toy):
    c = start()
    request = "0123456789abcdef0123456789abcdef"
    ids = [c.submit(toy, "first", "--request", request), c.submit(toy, "second")]
    assert c.weft("hold", ids[1]).code == 0
    c.end(signal.SIGKILL)
    again = start()
    kept = {j["job"]: j["state"] for j in again.jobs()}
    assert kept == {ids[0]: "QUEUED", ids[1]: "HELD"}
    assert again.submit(toy, "first", "--request", request) == ids[0]
    assert len(again.jobs()) == 2
    events = json.loads(again.weft("why", ids[1], "--json").out)["events"]
    assert [e["state"] for e in events] == ["QUEUED", "HELD"]


def test_a_lost_database_does_not_make_another_cluster(start, place):
    c = start()
    before = json.loads(c.weft("jobs", "--json").out)["cluster"]
    assert c.end(signal.SIGTERM) == 0
    for f in (place / "state").glob("weft.db*"):
        f.unlink()
    assert json.loads(start().weft("jobs", "--json").out)["cluster"] == before


def audit(place):
    with contextlib.closing(sqlite3.connect(f"file:{place}/state/weft.db?mode=ro", uri=True)) as db:
        return db.execute("SELECT role, verb, target, result FROM audit ORDER BY seq").fetchall()


def test_every_call_that_changes_something_leaves_an_audit_row(start, place, toy):
    c = start()
    job = c.submit(toy, "first")
    assert c.weft("hold", job).code == 0
    assert c.weft("cancel", "nosuchjob").code == 4
    assert c.weft("jobs").code == 0  # changes nothing
    rows = audit(place)
    assert rows[:2] == [("local", "submit", job, "ok"), ("local", "hold", job, "ok")]
    assert len(rows) == 3 and rows[2][1:3] == ("cancel", "nosuchjob") and rows[2][3] != "ok"


# ---- for machines --------------------------------------------------------------------------------


def test_readiness_comes_after_the_grace_of_a_lease(start):
    c = start("--lease", "2s", "--http", "127.0.0.1:0")
    code, why, _ = curl(f"http://{c.http}/readyz")
    assert code == 503 and "lease" in why
    end = time.monotonic() + runs.WATCHDOG
    while curl(f"http://{c.http}/readyz")[0] != 200:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_metrics_are_what_prometheus_wants_and_count_what_is_there(start, toy):
    c = start("--http", "127.0.0.1:0")
    c.submit(toy, "first")
    job = c.submit(toy, "second")
    assert c.weft("hold", job).code == 0
    code, text, _ = curl(f"http://{c.http}/metrics")
    assert code == 200
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    states = {k: v for k, v in values.items() if k.startswith("weft_jobs{")}
    assert sorted(v for v in states.values() if v != "0") == ["1", "1"]
    assert int(values["weft_commit_seconds_count"]) >= 3
    buckets = [int(v) for k, v in values.items() if k.startswith("weft_commit_seconds_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == int(values["weft_commit_seconds_count"])
    if not shutil.which("promtool"):
        pytest.skip("SKIP: promtool (prometheus) is not installed")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "args, path, code",
    [
        (["-X", "POST"], "/metrics", 405), (["-X", "DELETE"], "/healthz", 405), (["-I"], "/healthz", 200),
        (["-X", "GET", "-d", "x=1"], "/metrics", 413), ([], "/", 404), ([], "/metrics/../etc/passwd", 404),
    ],
)  # fmt: skip
def test_http_answers_nothing_but_its_pages(start, args, path, code):
    c = start("--http", "127.0.0.1:0")
    assert curl(f"http://{c.http}{path}", "--path-as-is", *args)[0] == code


# ---- certificates --------------------------------------------------------------------------------


def command(*args, code=0):
    p = subprocess.run([cluster.COORDINATOR, *map(str, args)], capture_output=True, text=True, timeout=runs.WATCHDOG, check=False)
    assert p.returncode == code, p
    return p.stdout


def test_a_door_without_certificates_says_who_may_come_in(start, authority):
    doors = (["--listen", "127.0.0.1:0"], ["--listen", "127.0.0.1:0", "--tls", str(authority)],
             ["--listen", f"unix:{start.sockets}/d.sock"])  # fmt: skip
    for args in doors:
        c = start(*args, listen=False)
        assert c.end(signal.SIGTERM) == 0
        warned = c.text().count("asks for no certificate: every user of this machine may see, submit and cancel jobs")
        assert warned == 1, c.text()  # of the first alone


@pytest.fixture
def authority(place):
    """The cluster's folder, and folders of a client and a worker with certificates of their own."""
    tls = place / "tls"
    command("init", "--tls", tls)
    for role in ("client", "worker"):
        command("issue", "--tls", tls, "--role", role, "--out", place / role, f"some-{role}")
    shutil.copy(place / "worker" / "worker.pem", place / "worker" / "client.pem")  # what the client looks for
    shutil.copy(place / "worker" / "worker.key", place / "worker" / "client.key")
    return tls


@pytest.mark.parametrize("verb", ["init", "token", "issue", "renew"])
def test_a_verb_of_certificates_lists_its_flags(verb):
    assert f"weft-coordinator {verb} [--tls DIR]" in command(verb, "--help")


@pytest.mark.parametrize("args, says", [
    (["iniit"], "weft-coordinator: no verb 'iniit'; did you mean init?"),
    (["init", "folder"], "weft-coordinator init: unexpected argument 'folder'"),
    (["init", "--nonsense"], "weft-coordinator init: unknown flag, or a flag without its value: --nonsense"),
    (["token"], "weft-coordinator token: say who joins with it: a host's NAME, or --hosts N for so many new hosts"),
    (["token", "--hosts", "2", "w0"], "weft-coordinator token: say who joins with it: a host's NAME, or --hosts N for so many new hosts"),
    (["token", "--ttl", "1d"], "weft-coordinator token: --ttl: 'd' is not a unit of time: ns, us, ms, s, m or h"),
    (["issue", "--role", "client", "a", "b"], "weft-coordinator issue: unexpected argument 'b'"),
    (["issue", "x"], "weft-coordinator issue: say what x is: --role client (a user), worker (a host) or admin"),
    (["issue", "--role", "client"], "weft-coordinator issue: issue needs a NAME"),
    (["token", "--role", "client", "jane"], "weft-coordinator token: --role client: only a worker joins with a token; "
                                    "a user's certificate is made by: weft-coordinator issue --role client NAME"),
])  # fmt: skip
def test_what_is_wrong_with_a_verb_of_certificates_is_named(place, args, says):
    end = subprocess.run([cluster.COORDINATOR, *args], capture_output=True, text=True,
                         env={**os.environ, "WEFT_TLS": str(place / "tls")})
    assert end.returncode == 78 and not (place / "tls").exists(), end
    said, advice = end.stderr.splitlines()
    assert said == says and "--help" in advice, end


def test_a_verb_without_an_authority_says_how_to_make_one(place):
    end = subprocess.run([cluster.COORDINATOR, "token", "--tls", place / "nowhere", "w0"], capture_output=True, text=True)
    assert end.returncode == 78 and f"weft-coordinator init --tls {place}/nowhere" in end.stderr, end


def test_an_authority_is_made_once_and_by_whoever_may(place, authority):
    command("init", "--tls", authority, code=78)
    command("issue", "--tls", authority, "--role", "king", "me", code=78)
    command("issue", "--tls", authority, "me", code=78)  # a role is said, never guessed
    assert not (authority / "me").exists()
    command("issue", "--tls", authority, "--role", "admin", code=78)
    command("token", "--tls", place / "nowhere", "w0", code=78)
    assert authority.stat().st_mode & 0o777 == 0o700
    for f in authority.rglob("*.key"):
        assert f.stat().st_mode & 0o777 == 0o600
    tokens = {command("token", "--tls", authority, "w0").strip() for _ in range(3)}
    assert len(tokens) == 3 and all(len(t.split()) == 1 for t in tokens)
    secrets = b"".join(f.name.encode() + f.read_bytes() for f in (authority / "tokens").iterdir())
    assert all(t.encode() not in secrets for t in tokens)  # hashed


def test_a_token_that_was_used_says_where_another_comes_from(start, place, authority):
    c = start("--tls", str(authority), "--listen", "127.0.0.1:0", listen=False)
    token = command("token", "--tls", authority, "w0").strip()
    ends = [subprocess.run([cluster.WORKER, "join", token, "--coordinator", c.bound[0], "--state", place / f"w{n}"],
                           capture_output=True, text=True) for n in range(2)]
    assert ends[0].returncode == 0, ends
    assert ends[1].returncode == 78 and ends[1].stderr == ("weft-worker: cannot join: the join token is unknown "
                                                           "or was used: `weft-coordinator token` makes another\n")


def test_a_token_takes_over_no_host(start, place, authority):
    """Whoever has a token, or may ask for a name, becomes no host that has a certificate already."""
    c = start("--tls", str(authority), "--listen", "127.0.0.1:0", listen=False)

    def join(state, *args, text=None):
        return subprocess.run([cluster.WORKER, "join", *args, "--coordinator", c.bound[0], "--state", place / state],
                              capture_output=True, text=True, input=text)

    def token(*args):
        return command("token", "--tls", authority, *args).strip()

    assert join("w0", token("w0")).returncode == 0
    stolen = join("thief", token("--hosts", "1"), "--name", "w0")
    assert stolen.returncode == 78 and "another key has a certificate of the name 'w0'" in stolen.stderr, stolen
    stolen = join("thief", "--token", "-", text=token("w0"))
    assert stolen.returncode == 78 and "another key has a certificate of the name 'w0'" in stolen.stderr, stolen
    mine = token("w1")
    stolen = join("thief", mine, "--name", "w0")
    assert stolen.returncode == 78 and "the token is for 'w1' and --name says 'w0'" in stolen.stderr, stolen
    nameless = mine.rsplit(".", 1)[0]  # its name cut off by hand
    stolen = join("thief", nameless, "--name", "w0")
    assert stolen.returncode == 78 and "the join token is for 'w1', not for 'w0'" in stolen.stderr, stolen
    assert not (place / "thief" / "tls" / "worker.pem").exists()
    file = place / "token"  # the token stayed good, and need not be in a command line that others see
    file.write_text(mine + "\n")
    assert join("w1", "--token", file).returncode == 0
    key = (place / "w0" / "tls" / "worker.key").read_text()
    renewed = subprocess.run([cluster.COORDINATOR, "token", "--tls", authority, "w0"], capture_output=True, text=True)
    assert "w0 has a certificate already: the token renews it" in renewed.stderr, renewed
    before = (place / "w0" / "tls" / "worker.pem").read_text()
    assert join("w0", renewed.stdout.strip()).returncode == 0
    assert (place / "w0" / "tls" / "worker.key").read_text() == key
    assert (place / "w0" / "tls" / "worker.pem").read_text() != before


def test_a_role_may_do_what_it_is_for_and_nothing_else(start, place, authority, toy):
    c = start("--listen", "127.0.0.1:0", "--tls", authority, listen=False)
    path = place / "job.yaml"
    path.write_text(json.dumps(runs.job(toy, 2)))
    for who, submits, cordons in ((authority, 0, "no such host"), (place / "client", 0, "admin"), (place / "worker", 4, "role")):
        assert c.weft("submit", str(path), tls=who).code == submits, who
        refused = c.weft("cordon", "nosuchhost", tls=who)
        assert refused.code == 4, refused
        if who == place / "client":
            assert cordons in refused.err
    assert c.weft("jobs").code in (3, 4)  # plain text finds nobody
    owners = {row[1:4:2] for row in audit(place) if row[1] == "submit"}
    assert owners == {("submit", "ok")}
    denied = [row for row in audit(place) if row[0] == "client" and row[3] != "ok"]
    assert len(denied) == 1 and "admin" in denied[0][3]


def test_a_certificate_of_another_authority_is_not_let_in(start, place, authority):
    other = place / "other"
    command("init", "--tls", other)
    shutil.copy(authority / "ca.pem", other / "ca.pem")  # it trusts us, we do not trust it
    c = start("--listen", "127.0.0.1:0", "--tls", authority, listen=False)
    assert c.weft("jobs", tls=other).code != 0
    assert c.weft("jobs", tls=authority).code == 0


def test_across_the_network_only_probes_are_answered(start):
    c = start("--probes", "0.0.0.0:0", "--http", f"unix:{start.sockets}/h.sock")
    probes = next(line for line in c.bound if line.startswith("probes ")).split()[2]
    assert curl(f"http://{probes}/healthz")[0] == 200
    assert curl(f"http://{probes}/readyz")[0] in (200, 503)
    assert curl(f"http://{probes}/metrics")[0] == 404
    assert (start.sockets / "h.sock").stat().st_mode & 0o777 == 0o600
    assert "weft_jobs" in curl("http://localhost/metrics", "--unix-socket", start.sockets / "h.sock")[1]
