# SPDX-License-Identifier: Apache-2.0
"""Faults of the network between a worker and its coordinator: two network namespaces with a cable, TCP
with TLS, and a firewall that drops packets of one direction or of both. The ranks' own connections are
left whole where the test does not say otherwise: a cut off rank that could still write is the worst case."""
import json
import random
import subprocess
import time

import cluster
import pytest
import runs

STEPS = 200
PORT = 7411  # in a namespace of our own: nobody else's
DIRECTIONS = {"to the coordinator": "to", "from the coordinator": "from", "both ways": "both", "the whole cable": "all"}


class Wired(cluster.Cluster):
    """The coordinator and worker 0 in the first namespace, worker 1 in the second; the client on the
    coordinator's own socket."""

    def __init__(self, place, pair, lease="3s"):
        super().__init__(place, devices=1, lease=lease, start=False)
        self.pair, self.tls = pair, self.place / "tls"
        self.at = f"{pair.address[0]}:{PORT}"
        self.run(cluster.COORDINATOR, "init", "--tls", self.tls, "--san", pair.address[0])
        self.coordinator = cluster.Daemon(
            "coordinator",
            [*self.coordinator_args(), "--listen", self.at, "--tls", str(self.tls)],
            self.place / "coordinator.log",
            pair.enter[0],
        )
        self.wait_ready(0)

    def run(self, *args, side=None):
        prefix = self.pair.enter[side] if side is not None else []
        p = subprocess.run([*prefix, *map(str, args)], capture_output=True, text=True, timeout=runs.WATCHDOG, check=False)
        assert p.returncode == 0, p
        return p.stdout

    def issued(self, i):
        """A folder with the certificate of a worker, as an admin would hand it over."""
        to = self.place / f"tls-{i}"
        self.run(cluster.COORDINATOR, "issue", "--tls", self.tls, "--role", "worker", "--out", to, f"worker-{i}")
        return to

    def add_worker(self, i, *more):
        return self.start_worker(i, "--coordinator", self.at, *more, prefix=self.pair.enter[i])

    # -- the firewall, at the coordinator's end
    def cut(self, how):
        peer = self.pair.address[1]
        rules = []
        if how in ("to", "both"):
            rules.append(f"in ip saddr {peer} tcp dport {PORT} drop")
        if how in ("from", "both"):
            rules.append(f"out ip daddr {peer} tcp sport {PORT} drop")
        if how == "all":
            rules += [f"in ip saddr {peer} drop", f"out ip daddr {peer} drop"]
        text = "table ip weft {\n"
        for hook, name in (("input", "in"), ("output", "out")):
            mine = "\n".join(r.split(" ", 1)[1] for r in rules if r.startswith(name + " "))
            text += f"chain {name} {{ type filter hook {hook} priority 0; policy accept;\n{mine}\n}}\n"
        file = self.place / "cut.nft"
        file.write_text(text + "}\n")
        self.run("nft", "-f", file, side=0)

    def heal(self):
        self.run("nft", "delete", "table", "ip", "weft", side=0)

    def state(self, name):
        """What the coordinator says about a host; nothing while it does not answer."""
        end = self.weft("workers", "--json")
        return {w["name"]: w["state"] for w in json.loads(end.out)["workers"]}.get(name) if end.code == 0 else None

    def wait_state(self, name, *states):
        end = time.monotonic() + runs.WATCHDOG
        begun = time.monotonic()
        while (now := self.state(name)) not in states:
            assert time.monotonic() < end, f"{name} is {now}, not {states}\n{self.logs_text()}"
            cluster.breathe(begun)
            begun = time.monotonic()


@pytest.fixture
def wired(place, cable):
    c = Wired(place, cable)
    yield c
    c.kill_all()


@pytest.fixture
def patient(place, cable):
    """For what is shorter than the lease, however slow the machine."""
    c = Wired(place, cable, lease="60s")
    yield c
    c.kill_all()


def trained_calmly(folder, noise, ranks):
    return runs.train(folder, runs.busy_job(noise, ranks, train__steps=STEPS), "calm").final()


@pytest.fixture(scope="module")
def calm(tmp_path_factory, noise):
    return trained_calmly(tmp_path_factory.mktemp("calm"), noise, 2)


@pytest.fixture(scope="module")
def calm_alone(tmp_path_factory, noise):
    return trained_calmly(tmp_path_factory.mktemp("alone"), noise, 1)


def submit(c, noise, ranks=2):
    return c.submit(runs.busy_job(c.put_data(noise), ranks, train__steps=STEPS))


def submit_and_stop(c, noise, ranks=2):
    """A job whose ranks stand, stopped, with half of its steps left, and their pids."""
    return c.submit_and_stop(lambda: submit(c, noise, ranks), ranks, STEPS // 2)


def both_hosts(c):
    for i in range(2):
        c.add_worker(i, "--tls", str(c.issued(i)))
    c.wait_ready()


def cases():
    for longer in (False, True):
        for words, how in DIRECTIONS.items():
            if runs.LONG or (how in ("to", "from") if longer else how == "both"):
                yield pytest.param(how, longer, id=f"{words}, {'longer' if longer else 'shorter'} than the lease")


@pytest.mark.parametrize(("how", "longer"), cases())
def test_a_worker_cut_off_from_its_coordinator(request, noise, calm, how, longer):
    wired = request.getfixturevalue("wired" if longer else "patient")
    both_hosts(wired)
    job, pids = submit_and_stop(wired, noise)
    out = cluster.Lookout(wired, job)
    wired.cut(how)
    cluster.go_on(pids)
    if longer:
        wired.wait_state("w1", "fenced")
    else:
        time.sleep(0.7)
    wired.heal()
    wired.wait_state("w1", "ready")
    done = wired.succeed(job)
    out.end()
    assert wired.final(job) == calm, wired.why(job)
    attempts = [d.name for d in wired.store(job).iterdir() if d.name.startswith("attempt-")]
    assert len(attempts) == done["attempt"]
    assert done["restarts"] == (1 if longer else 0), wired.why(job)
    assert [w.starts for w in wired.workers] == [1, 1], "nobody had to start a daemon again"
    if longer:
        assert any("w1" in (e["host"] or e["text"]) and "not heard" in e["text"] for e in wired.events(job)), wired.why(job)


@pytest.mark.parametrize("seed", runs.seeds(1, 10))
def test_a_cable_that_comes_and_goes(wired, noise, calm, seed):
    """Cut and healed at any moment, from the job's first on, in any direction, for any time."""
    rng = random.Random(seed)
    both_hosts(wired)
    job = submit(wired, noise)
    out = cluster.Lookout(wired, job)
    for _ in range(4):
        time.sleep(rng.random() * 0.5)
        wired.cut(how := rng.choice(["to", "from", "both", "all"]))
        time.sleep(wait := rng.choice([0.1, 0.5, 4.5]) * (0.5 + rng.random() / 2))
        print(f"seed {seed}: cut {how} for {wait:.1f} s")
        wired.heal()
    wired.succeed(job)
    out.end()
    assert wired.final(job) == calm, wired.why(job)
    wired.wait_ready()
    assert [w.starts for w in wired.workers] == [1, 1] and wired.coordinator.starts == 1


def test_a_cut_off_hosts_whole_attempt_commits_nothing_beside_the_next(wired, noise, calm_alone):
    """One rank alone on a host that is cut off lives on: nobody can tell it. But the next attempt's fence
    keeps it from every commit, and when the cable is whole again it is ended."""
    both_hosts(wired)
    assert wired.weft("cordon", "w0").code == 0
    job, zombie = submit_and_stop(wired, noise, 1)
    assert wired.weft("uncordon", "w0").code == 0
    wired.cut("both")
    cluster.go_on(zombie)
    wired.wait_state("w1", "fenced")
    end = time.monotonic() + runs.WATCHDOG
    while not list(wired.store(job).glob("attempt-*2")):
        assert time.monotonic() < end, wired.why(job)
        time.sleep(0.005)
    first = {c.path.name for c in runs.checkpoints_of(wired.store(job)) if c.attempt == 1}
    done = wired.succeed(job)
    assert done["attempt"] == 2
    assert {c.path.name for c in runs.checkpoints_of(wired.store(job)) if c.attempt == 1} <= first
    assert wired.final(job) == calm_alone, wired.why(job)
    wired.heal()
    wired.wait_state("w1", "ready")
    assert not any(runs.alive(p) for p in zombie)
    assert {c.path.name for c in runs.checkpoints_of(wired.store(job)) if c.attempt == 1} <= first
    assert wired.final(job) == calm_alone


def test_a_coordinator_restarted_behind_a_cut_cable_takes_its_ranks_back(patient, noise, calm):
    """The worker finds its coordinator gone and another in its place: the job goes on, never restarted."""
    both_hosts(patient)
    job, pids = submit_and_stop(patient, noise)
    patient.cut("both")
    patient.coordinator.kill()
    patient.coordinator.wait_start(2)
    cluster.go_on(pids)
    time.sleep(0.3)
    assert sorted(sum(patient.attempts(job).values(), [])) == sorted(pids)
    patient.heal()
    done = patient.succeed(job)
    assert done["restarts"] == 0 and done["attempt"] == 1, patient.why(job)
    assert patient.final(job) == calm


def test_workers_that_join_with_a_token_train_over_the_cable(wired, noise, calm):
    for i in range(2):
        token = wired.run(cluster.COORDINATOR, "token", "--tls", wired.tls, f"host-{i}").strip()
        join = [cluster.WORKER, "join", token, "--coordinator", wired.at]
        wired.run(*join, "--state", wired.place / f"worker-{i}", side=i)
        again = subprocess.run([*wired.pair.enter[i], *join, "--state", wired.place / "other"], capture_output=True, text=True, check=False)
        assert again.returncode == 78 and "token" in again.stderr, again
        wired.add_worker(i)
    wired.wait_ready()
    job = submit(wired, noise)
    wired.succeed(job)
    assert wired.final(job) == calm


def test_garbage_on_the_port_with_tls(wired, noise, calm):
    both_hosts(wired)
    job = submit(wired, noise)
    assert PORT in cluster.listening(wired.workers[0].pid)
    for told in ("head -c 3000 /dev/urandom", "echo GET / HTTP/1.0", "printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n'", "true") * 3:
        shout = f"exec 3<>/dev/tcp/{wired.pair.address[0]}/{PORT} && {told} >&3"
        p = subprocess.run([*wired.pair.enter[1], "bash", "-c", shout], capture_output=True, check=False)
        assert b"refused" not in p.stderr, p
    done = wired.succeed(job)
    assert done["restarts"] == 0, wired.why(job)
    assert wired.final(job) == calm, wired.why(job)
    assert wired.coordinator.starts == 1 and [w.starts for w in wired.workers] == [1, 1]


def test_a_copied_identity_on_another_host_leaves_one_of_the_two(wired, noise):
    """The state of a host came along with its disk's image: the one that registered first is fenced."""
    both_hosts(wired)
    job, pids = submit_and_stop(wired, noise)
    copied = wired.place / "worker-2"
    copied.mkdir(mode=0o700)
    for f in (wired.place / "worker-0").iterdir():
        if f.is_file() and not f.name.endswith("lock"):
            (copied / f.name).write_bytes(f.read_bytes())
            (copied / f.name).chmod(0o600)
    cluster.go_on(pids)
    wired.start_worker(2, "--coordinator", wired.at, "--tls", str(wired.place / "tls-0"), prefix=wired.pair.enter[1])
    assert wired.workers[0].wait_end() == 76
    wired.succeed(job)
    assert wired.workers[2].starts == 1 and wired.workers[2].running()
    assert len(wired.json("workers")["workers"]) == 2


# ---- the address by which others reach a host ----


def addresses(c):
    return {w["name"]: w["address"] for w in c.json("workers")["workers"]}


def one_over_the_socket(c, *more):
    """Worker 0 attaches over the coordinator's own socket, which tells it nothing of a network; worker 1 over the cable."""
    c.start_worker(0, *more, prefix=c.pair.enter[0])
    c.add_worker(1, "--tls", str(c.issued(1)))
    c.wait_ready()


def add_interface(c, address):
    """A second network of the coordinator's host, of which the other host knows nothing."""
    link = ["ip", "link", "add", "weftc", "type", "veth", "peer", "name", "weftd"]
    for args in (link, ["ip", "addr", "add", f"{address}/24", "dev", "weftc"],
                 ["ip", "link", "set", "weftc", "up"], ["ip", "link", "set", "weftd", "up"]):
        c.run(*args, side=0)


def test_a_worker_on_the_socket_gives_its_only_interface_and_trains_with_another_host(wired, noise, calm):
    """Neither host has a default route."""
    assert wired.run("ip", "route", "show", "default", side=0) == ""
    one_over_the_socket(wired)
    assert addresses(wired) == {"w0": wired.pair.address[0], "w1": wired.pair.address[1]}
    job = submit(wired, noise)
    wired.succeed(job)
    assert wired.final(job) == calm


def wait_for_reason(c, job, why):
    end = time.monotonic() + runs.WATCHDOG
    while why not in (c.status(job)["text"] or ""):
        assert time.monotonic() < end, c.status(job)
        time.sleep(0.05)


def address_it(c, address):
    """Worker 0 again, with the address that it is given."""
    c.workers[0].stop()
    c.workers.pop(0)
    c.start_worker(0, "--address", address, prefix=c.pair.enter[0])


def test_an_address_that_others_do_not_reach_is_shown_while_the_job_waits(wired, noise, calm):
    """It is there, and so neither the worker nor placement can know that it is of another network."""
    add_interface(wired, "10.231.8.1")
    one_over_the_socket(wired, "--address", "10.231.8.1")
    job = submit(wired, noise)
    wait_for_reason(wired, job, "cannot reach rank 0 at 10.231.8.1:")
    wait_for_reason(wired, job, "weft-worker --address")
    wait_for_reason(wired, job, "This is a host's address that does not lead to it: it counts against host w0, not against the job, which stays there")
    told = {x["name"]: x for x in wired.json("doctor")["checks"]}["jobs"]
    assert told["state"] == "warn" and "cannot reach rank 0 at 10.231.8.1:" in told["text"], told
    address_it(wired, wired.pair.address[0])
    wired.succeed(job)
    assert wired.final(job) == calm


def test_with_two_interfaces_the_default_route_decides(wired):
    add_interface(wired, "10.231.8.1")
    wired.run("ip", "route", "add", "default", "via", wired.pair.address[1], side=0)
    one_over_the_socket(wired)
    assert addresses(wired)["w0"] == wired.pair.address[0]


def test_with_two_interfaces_and_no_default_route_the_job_says_whose_address_is_missing(wired, noise, calm):
    add_interface(wired, "10.231.8.1")
    one_over_the_socket(wired)
    assert addresses(wired) == {"w0": None, "w1": wired.pair.address[1]}
    job = submit(wired, noise)
    why = "others cannot reach w0, whose worker knows no address of its own (start it with --address)"
    wait_for_reason(wired, job, why)
    told = [x for x in wired.json("doctor")["checks"] if "w0" in (x["text"] or "")]
    assert any("--address" in (x["todo"] or "") for x in told), told
    address_it(wired, wired.pair.address[0])
    wired.succeed(job)
    assert wired.final(job) == calm


NAT = ("10.231.9.1", "10.231.9.2")


def put_behind_nat(c, side):
    """The other host reaches this one by an address that this one does not have: what comes for it is passed on."""
    c.run("ip", "route", "add", NAT[side], "via", c.pair.address[side], side=1 - side)
    file = c.place / f"nat-{side}.nft"
    file.write_text(f"table ip nat {{ chain in {{ type nat hook prerouting priority -100;\n"
                    f"ip daddr {NAT[side]} dnat to {c.pair.address[side]}\n}}\n}}\n")  # fmt: skip
    c.run("nft", "-f", file, side=side)


def workers_check(c):
    return {x["name"]: x for x in c.json("doctor")["checks"]}["workers"]


def test_doctor_names_a_host_whose_address_does_not_lead_to_it(wired):
    one_over_the_socket(wired, "--address", NAT[0])
    told = workers_check(wired)
    assert told["state"] == "warn" and f"w0 at {NAT[0]} (Network is unreachable)" in told["text"], told
    assert "--address" in told["todo"], told
    address_it(wired, wired.pair.address[0])
    wired.wait_ready()
    assert workers_check(wired)["state"] == "ok"


def test_hosts_behind_a_nat_train_by_the_addresses_that_they_are_given(wired, noise, calm):
    for side in range(2):
        put_behind_nat(wired, side)
        wired.add_worker(side, "--tls", str(wired.issued(side)), "--address", NAT[side])
    wired.wait_ready()
    assert addresses(wired) == {"w0": NAT[0], "w1": NAT[1]}
    job = submit(wired, noise)
    done = wired.succeed(job)
    assert done["restarts"] == 0, wired.why(job)
    assert wired.final(job) == calm
