# SPDX-License-Identifier: Apache-2.0
"""deploy/prometheus: what the dashboard and the alerts ask for is said by a coordinator with a job, in words that
Prometheus parses."""
import json
import re
import shutil
import subprocess
import time

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
        c.start_coordinator("--http", f"unix:{c.sockets}/http.sock")
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
