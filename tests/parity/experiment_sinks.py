# SPDX-License-Identifier: Apache-2.0
"""deploy/sinks beside what they feed: a real MLflow server, and the package of Weights & Biases, offline.

usage: experiment_sinks.py SCRATCH

A job's rows are given to each sink over two lives, the second an attempt that was resumed at an earlier step; as a
worker does it gives no step again. Both have to hold each step once in one run, with the value that it was given.
"""
import glob
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

SINKS = pathlib.Path(__file__).resolve().parents[2] / "deploy/sinks"
JOB = "0123456789abcdef0123456789abcdef"


def row(step, attempt):
    r = {"step": step, "attempt": attempt, "t_ms": 1700000000000 + 1000 * step, "loss": attempt + 1 / step,
         "grad_norm": None if step == 7 else 0.5, "kl": [0.25 * step, 4.0]}
    if step == 7:
        r["nonfinite"] = ["grad_norm"]
    if step % 50 == 0:
        r |= {"eval_loss": 2.0 / step, "samples": ["was a tree"], "prompt": "There "}
    return r


ROWS = {s: row(s, 1 if s <= 300 else 2) for s in range(1, 501)}


def feed(command, store, env):
    os.makedirs(store)
    for attempt, resumed_at, steps in (1, 0, range(1, 301)), (2, 250, range(301, 501)):
        header = {"weft": 1, "job": JOB, "name": "curve", "attempt": attempt, "resumed_at": resumed_at, "steps": 500,
                  "store": store, "resolved": {"name": "curve", "optimizer": {"lr": 0.001}}}
        text = "".join(json.dumps(x) + "\n" for x in [header, *(ROWS[s] for s in steps)])
        p = subprocess.run([sys.executable, *command], input=text, text=True, stdout=subprocess.PIPE,
                           env={**os.environ, **env}, check=True)
        assert p.stdout.split()[-1] == str(len(steps)), p.stdout


def check_curve(who, got):
    """`got` is a list of (step, loss)."""
    assert [s for s, _ in got] == sorted(ROWS), f"{who}: {len(got)} steps of {len(ROWS)}: a gap or a repeat"
    for s, v in got:
        assert abs(v - ROWS[s]["loss"]) < 1e-6, f"{who}: step {s} is {v}, not {ROWS[s]['loss']}"


# ---- MLflow ----


def call(uri, path, **fields):
    method = "POST" if fields.pop("post", False) else "GET"
    query = "" if method == "POST" else "?" + "&".join(f"{k}={v}" for k, v in fields.items())
    body = json.dumps(fields).encode() if method == "POST" else None
    request = urllib.request.Request(f"{uri}/api/2.0/mlflow/{path}{query}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def wait_for(server, uri):
    for _ in range(240):
        assert server.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(f"{uri}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError("the server does not answer")


def check_mlflow(scratch):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{scratch}/mlflow.db",
                               "--artifacts-destination", scratch + "/artifacts", "--host", "127.0.0.1", "--port", str(port)],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    try:
        wait_for(server, uri)
        feed([SINKS / "mlflow_sink.py", "--uri", uri], scratch + "/mlflow", {})
        experiment = call(uri, "experiments/get-by-name", experiment_name="weft")["experiment"]["experiment_id"]
        (run,) = call(uri, "runs/search", post=True, experiment_ids=[experiment])["runs"]
        told = {"run_id": run["info"]["run_id"], "max_results": 25000}
        loss = call(uri, "metrics/get-history", metric_key="loss", **told)["metrics"]
        check_curve("MLflow", sorted((int(m["step"]), float(m["value"])) for m in loss))
        norm = {int(m["step"]): float(m["value"]) for m in call(uri, "metrics/get-history", metric_key="grad_norm", **told)["metrics"]}
        assert math.isnan(norm[7]) and norm[8] == 0.5, (norm[7], norm[8])
        assert {p["key"]: p["value"] for p in run["data"]["params"]}["optimizer.lr"] == "0.001"
    finally:
        os.killpg(server.pid, 15)
        server.wait()
    print(f"MLflow: {len(ROWS)} steps over two lives are one curve of one run")


# ---- Weights & Biases ----


def records_of(path):
    """Of a file of the package's: LevelDB's log, blocks of 32 KiB behind 7 bytes of its own."""
    data, at, whole = pathlib.Path(path).read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if left < 7:  # no header has room: zeros to the next block
            at += left
            continue
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, or the last piece of one
            yield whole
            whole = b""


def check_wandb(scratch):
    feed([SINKS / "wandb_sink.py"], scratch + "/wandb", {"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    from wandb.proto import wandb_internal_pb2

    loss, runs = [], set()
    for path in glob.glob(scratch + "/wandb/wandb/offline-run-*/run-*.wandb"):
        for data in records_of(path):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                runs.add(record.run.run_id)
            items = {(i.key or "/".join(i.nested_key)): i.value_json for i in record.history.item}
            if "loss" in items:
                loss.append((record.history.step.num, json.loads(items["loss"])))
    assert runs == {JOB}, runs
    check_curve("W&B", sorted(loss))
    print(f"W&B: {len(ROWS)} steps over two lives are one curve of one run")


def main(scratch):
    os.makedirs(scratch)
    check_mlflow(scratch)
    check_wandb(scratch)


main(*sys.argv[1:])
