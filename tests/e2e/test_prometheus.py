# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus: what the dashboard and the alerts ask for is said by a coordinator with a job, in words that
Prometheus parses."""
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request

import cluster
import pytest
import runs

FOLDER = runs.REPO / "deploy" / "prometheus"
PROMTOOL = pytest.mark.skipif(not shutil.which("promtool"), reason="SKIP: promtool (prometheus) is not installed")


def expressions():
    panels = json.loads((FOLDER / "weft-dashboard.json").read_text())["panels"]
    return [t["expr"].replace("$name", ".*") for p in panels for t in p["targets"]]


def test_every_metric_that_is_asked_for_is_said_of_a_running_job(place, toy):
    c = cluster.Cluster(place, start=False)
    try:
        c.start_coordinator("--http", f"unix:{c.sockets}/http.sock", "--notify", "ops=http://127.0.0.1:9/")
        c.start_worker(0)
        c.wait_ready()
        job = c.submit(runs.busy_job(c.put_data(toy), 2, train__steps=100000, eval={"every": 5}))
        asked = set(re.findall(r"\bweft_\w+", " ".join(expressions()) + (FOLDER / "weft-alerts.yaml").read_text()))
        asked.remove("weft_job_tokens_per_second")  # a classifier has none
        end = time.monotonic() + runs.WATCHDOG
        missing = asked
        while missing:
            assert time.monotonic() < end, missing
            text = subprocess.run(["curl", "-s", "--unix-socket", f"{c.sockets}/http.sock", "http://localhost/metrics"],
                                  capture_output=True, text=True, check=True).stdout
            missing = asked - set(re.findall(r"^(weft_\w+)[{ ]", text, re.M))
        labels = set(re.findall(r'on="(\w+)"', text))
        assert {"running", "queued", "held", "failed", "cancelled", "unknown"} <= labels
        assert f'weft_job_step{{job="{job}"' in text and 'part="compute"' in text
        assert c.status(job)["tokens_per_s"] is None
    finally:
        c.kill_all()


@PROMTOOL
def test_prometheus_parses_all_of_it(tmp_path):
    rules = {"groups": [{"name": "dashboard", "rules": [{"record": f"weft:{i}", "expr": e} for i, e in enumerate(expressions())]}]}
    (tmp_path / "dashboard.yaml").write_text(json.dumps(rules))
    for file in (FOLDER / "weft-alerts.yaml", tmp_path / "dashboard.yaml"):
        done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "SUCCESS" in done.stdout, done
    done = subprocess.run(["promtool", "check", "config", str(FOLDER / "prometheus.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done


# ---- alerts --------------------------------------------------------------------------------------

# Of each alert: series of a sample a minute, from minute 0 on; when it fires, with which labels beside its severity, and
# what it then says in part; and when it does not, though it might seem to. `job` stands for a job's labels.
JOB = {"job": "j1", "name": "big"}
RUNNING, QUEUED = "weft_job_spent_seconds{job, on='running'}", "weft_job_spent_seconds{job, on='queued'}"
STEP, SAVED, LOSS = "weft_job_step{job}", "weft_job_checkpoint_timestamp_seconds{job}", "weft_job_loss{job}"
UP = "up{service='weft', instance='localhost:7701'}"
HOST, WRITABLE = "weft_hosts{state='away'}", "weft_writable"
STATE, SAVES = [[f"weft_host_{what}_bytes{{host='n1', folder='{folder}'}}" for what in ("free", "size")] for folder in ("state", "checkpoints")]
REFUSED = "weft_notices_total{receiver='ops', result='refused'}"
COMMITS = ("weft_commit_seconds_bucket{le='0.1'}", "weft_commit_seconds_bucket{le='1'}", "weft_commit_seconds_bucket{le='+Inf'}")


def fires(series, at, text, **labels):
    return series, at, labels, text


def silent(series, at):
    return series, at, None, None


# It trains for 20 minutes and then reports no step, or takes 40 minutes for one, or waits for its devices.
HANGS = {STEP: "0+5x20 100x60", RUNNING: "0+60x80"}
WAITS = {STEP: "0+5x20 100x60", RUNNING: "0+60x20 1200x60", QUEUED: "0x20 0+60x60"}
# Saved at minute 60, and then no more; saved each hour; trained for an hour and queued since.
STALE = {SAVED: "_x60 3600x200", RUNNING: "0+60x260"}
FRESH = {SAVED: "_x60 3600x60 7200x60 10800x60", RUNNING: "0+60x240"}
PARKED = {SAVED: "_x60 3600x200", RUNNING: "0+60x60 3600x200", QUEUED: "0x60 0+60x200"}
ALERTS = {
    "WeftCoordinatorAway": [
        fires({UP: "1x9 0x9"}, 12, "ranks keep training", service="weft", instance="localhost:7701"),
        silent({UP: "1x9 0x9"}, 11),  # for less than two minutes
        silent({UP: "1x9 0 1x9"}, 14),
        silent({UP.replace("weft", "other"): "0x20"}, 15),
    ],
    "WeftJobStalled": [
        fires(HANGS, 41, "big holds its devices and has not reported a step", **JOB),
        silent(HANGS, 39),  # the last 15 minutes without a step began at minute 35
        silent({STEP: "0x9 1x9 2x9 3x9 4x9 5x9", RUNNING: "0+60x60"}, 55),
        silent(WAITS, 60),
        silent({STEP: "100x60", RUNNING: "1200x60", "weft_job_spent_seconds{job, on='held'}": "0+60x60"}, 40),
    ],
    "WeftCheckpointStale": [
        fires(STALE, 181, "nothing of the last two hours is saved", **JOB),
        silent(STALE, 180),
        silent(FRESH, 239),
        silent(PARKED, 240),
        fires({RUNNING: "0+60x130"}, 121, "big trains, and nothing", **JOB, on="running"),  # it saved nothing yet
        silent({RUNNING: "0+60x130"}, 120),
    ],
    "WeftJobRestarts": [
        fires({"weft_job_restarts{job}": "0x9 1x9 2x9 3x40"}, 35, "big was started again 3 times within an hour", **JOB),
        silent({"weft_job_restarts{job}": "0x9 1x9 2x60"}, 35),
        silent({"weft_job_restarts{job}": "0x49 1x49 2x49 3x49"}, 160),  # in two and a half hours
    ],
    "WeftLossNotFinite": [
        fires({LOSS: "2 NaN NaN NaN"}, 3, "the loss of big is not finite", **JOB),
        fires({LOSS: "2 Inf Inf Inf"}, 3, "the loss of big is not finite", **JOB),
        fires({LOSS: "2 -Inf -Inf -Inf"}, 3, "the loss of big is not finite", **JOB),
        silent({LOSS: "2 NaN 1.5x5"}, 3),  # one step
        silent({LOSS: "2 1e38 -7 0 0 0"}, 3),
    ],
    "WeftHostLost": [
        fires({HOST: "0x9 2x20"}, 21, "2 hosts of weft are away", state="away"),
        silent({HOST: "0x9 2x20"}, 19),
        silent({HOST: "0x9 1x5 0x9 1x5"}, 29),  # two that were away for six minutes each
        silent({HOST.replace("away", "ready"): "3x40"}, 30),
    ],
    "WeftStorageFull": [
        fires({WRITABLE: "1x5 0x5"}, 7, "its disk is full or fails"),
        silent({WRITABLE: "1x5 0 1x5"}, 7),
    ],
    "WeftHostStorageLow": [
        fires({STATE[0]: "50x9 4x20", STATE[1]: "100x40"}, 15, "where n1 keeps its worker's folder", host="n1", folder="state"),
        silent({STATE[0]: "50x9 4x20", STATE[1]: "100x40"}, 13),
        silent({STATE[0]: "6x40", STATE[1]: "100x40", SAVES[0]: "1x40", SAVES[1]: "100x40"}, 30),  # the checkpoints' is another's
    ],
    "WeftCheckpointStorageLow": [
        fires({SAVES[0]: "50x9 4x20", SAVES[1]: "100x40", SAVES[0].replace("n1", "n2"): "4x40", SAVES[1].replace("n1", "n2"): "100x40"}, 15,
              "soon nothing more is saved"),  # once, of a storage that all hosts see
        silent({SAVES[0]: "50x9 4x20", SAVES[1]: "100x40"}, 13),
        silent({SAVES[0]: "6x40", SAVES[1]: "100x40", STATE[0]: "1x40", STATE[1]: "100x40"}, 30),
    ],
    "WeftNoticesUnsent": [
        fires({REFUSED: "0x9 1x60"}, 30, "ops has refused notices", receiver="ops"),
        silent({REFUSED: "0x9 1x90"}, 80),
        silent({REFUSED.replace("refused", "failed"): "0+1x60", "weft_notices_waiting{receiver='ops'}": "0x9 1x10 0x40"}, 40),
        fires({"weft_notices_waiting{receiver='ops'}": "0x9 1x50"}, 41, "ops has refused notices, or has taken none", receiver="ops"),
    ],
    "WeftCommitsSlow": [
        fires(dict(zip(COMMITS, ("0+95x60", "0+100x60", "0+100x60"))), 30, "its disk is slow"),
        silent(dict(zip(COMMITS, ("0+95x60", "0+100x60", "0+100x60"))), 14),
        silent(dict(zip(COMMITS, ("0+100x60", "0+100x60", "0+100x60"))), 30),
        silent(dict(zip(COMMITS, ("5x60", "9x60", "9x60"))), 30),  # no commit of late
    ],
}  # fmt: skip


def alert_rules():
    """Names of the alerts, with their severity and what they say, as the file has them."""
    text = (FOLDER / "weft-alerts.yaml").read_text()
    found = re.findall(r"- alert: (\w+)\n.*?severity: (\w+)\}.*?summary: (['\"])(.*?)\3\n", text, re.S)
    return {name: (severity, summary) for name, severity, _, summary in found}


def as_test(alert, case, severity, summary):
    """A case in promtool's words. It wants the whole text of an alert."""
    series, at, labels, said = case
    names = [s.replace("{job", '{job="j1", name="big"').replace("'", '"') for s in series]
    wanted = []
    if labels is not None:
        text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda m: labels[m[1]], summary)
        value = re.search(r"\b(\d+) (?:times|hosts)", said)
        text = re.sub(r"\{\{[^}]*\$value \}\}", value[1] if value else "?", text)
        assert said in text and "{{" not in text, (alert, text)
        wanted = [{"exp_labels": {"severity": severity, **labels}, "exp_annotations": {"summary": text}}]
    return {"interval": "1m", "input_series": [{"series": n, "values": v} for n, v in zip(names, series.values())],
            "alert_rule_test": [{"eval_time": f"{at}m", "alertname": alert, "exp_alerts": wanted}]}  # fmt: skip


@PROMTOOL
def test_each_alert_fires_when_it_must_and_only_then(tmp_path):
    rules = alert_rules()
    assert set(rules) == set(ALERTS) == set(re.findall(r"- alert: (\w+)", (FOLDER / "weft-alerts.yaml").read_text()))
    tests = [as_test(alert, case, *rules[alert]) for alert, cases in ALERTS.items() for case in cases]
    for cases in ALERTS.values():
        assert {case[2] is None for case in cases} == {True, False}
    (tmp_path / "tests.yaml").write_text(
        json.dumps({"rule_files": [str(FOLDER / "weft-alerts.yaml")], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(["promtool", "test", "rules", str(tmp_path / "tests.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def wait_until(what):
    end = time.monotonic() + runs.WATCHDOG
    while not what():
        assert time.monotonic() < end
        time.sleep(0.2)


class Prometheus:
    """A real one, which scrapes each second; the rules' durations are shortened to seconds."""

    def __init__(self, place, target):
        text = (FOLDER / "weft-alerts.yaml").read_text()
        short = re.sub(r"for: \d+m", "for: 2s", text)
        assert short != text
        config = (FOLDER / "prometheus.yaml").read_text()
        (place / "weft-alerts.yaml").write_text(short)
        (place / "prometheus.yaml").write_text(
            config.replace("scrape_interval: 10s", "scrape_interval: 1s\n  evaluation_interval: 1s").replace("localhost:7701", target)
        )
        self.log = place / "prometheus.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={place}/prometheus.yaml", f"--storage.tsdb.path={place}/tsdb",
                 "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log)  # fmt: skip
        self.at = None

    def listens(self):
        found = re.search(r'msg="Listening on" address=(\S+)', self.log.read_text())
        self.at = found and found[1]
        return bool(found)

    def get(self, path, **query):
        url = f"http://{self.at}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def firing(self):
        return {a["labels"]["alertname"] for a in self.get("alerts")["alerts"] if a["state"] == "firing"}

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


@pytest.mark.skipif(not runs.LONG, reason="a real Prometheus runs in check-long")
@pytest.mark.skipif(not shutil.which("prometheus"), reason="SKIP: prometheus is not installed")
def test_a_real_prometheus_scrapes_a_coordinator_and_fires_for_a_lost_host(place, toy):
    c = cluster.Cluster(place, start=False)
    p = None
    try:
        c.start_coordinator("--http", "127.0.0.1:0")
        c.start_worker(0)
        c.wait_ready()
        job = c.submit(runs.busy_job(c.put_data(toy), 2, train__steps=100000, eval={"every": 5}))
        c.wait(job, ("RUNNING",), step=10)
        bound = re.search(r"coordinator http at (\S+)", c.coordinator.text())[1]
        p = Prometheus(place, bound)
        wait_until(p.listens)
        wait_until(lambda: [s for s in p.get("query", query="weft_job_step")["result"] if s["metric"]["job"] == job])
        rules = [r for g in p.get("rules")["groups"] for r in g["rules"]]
        assert {r["name"] for r in rules} == set(ALERTS)
        wait_until(lambda: all(r["health"] == "ok" for g in p.get("rules")["groups"] for r in g["rules"]))
        empty = [e for e in expressions() if "tokens" not in e and "restarts" not in e and not p.get("query", query=e)["result"]]
        assert all("[" in e for e in empty), empty  # rates want two scrapes of their window
        assert p.firing() == set()
        c.workers[0].down()
        wait_until(lambda: "WeftHostLost" in p.firing())
        c.coordinator.down()
        wait_until(lambda: "WeftCoordinatorAway" in p.firing())
    finally:
        if p:
            p.stop()
        c.kill_all()
