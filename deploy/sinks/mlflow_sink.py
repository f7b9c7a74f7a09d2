#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A sink of weft for MLflow, over its REST API; needs Python 3.9 and nothing else.

    weft-worker --sink 'mlflow=/usr/share/weft/sinks/mlflow_sink.py --uri http://mlflow:5000'

The job's attempts are one run, whose id is kept in STORE/sinks/mlflow.run. Rows go in batches of at most 1,000 metrics
and well below 1 MB. While the server does not answer it is asked again, after pauses up to a minute; rows wait meanwhile.
MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD, are sent where they are set."""
import argparse
import base64
import json
import os
import select
import stat
import sys
import time
import urllib.error
import urllib.request

METRICS_MAX, BYTES_MAX, PARAMS_MAX, VALUE_MAX, LAST_PAUSE_S = 1000, 500_000, 100, 500, 60
NO_CURVE = {"step", "attempt", "t_ms", "prompt", "samples", "nonfinite", "detail"}


class Refused(Exception):
    """The server does not take this, however often it is asked."""


def call(uri, path, body):
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    elif user := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        pair = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}".encode()
        headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
    request = urllib.request.Request(f"{uri}/api/2.0/mlflow/{path}", json.dumps(body).encode(), headers)
    pause = 1
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return json.loads(reply.read() or b"{}")
        except urllib.error.HTTPError as e:
            text = e.read(2000).decode(errors="replace")
            if e.code < 500 and e.code not in (408, 429):
                raise Refused(e.code, f"{path}: {e.code} {text}") from None
            why = f"{e.code} {text}"
        except (OSError, ValueError) as e:
            why = e
        print(f"{path}: {why}; again in {pause} s", file=sys.stderr, flush=True)
        time.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE_S)


def open_folder(header):
    """STORE/sinks, which is no link. It is made alone: a job's folder that was deleted stays away."""
    path = os.path.join(header["store"], "sinks")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def read_note(folder):
    try:
        fd = os.open("mlflow.run", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    with open(fd) as f:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            sys.exit("STORE/sinks/mlflow.run is no regular file")
        return f.read(200).strip()


def write_note(folder, run):
    try:
        os.unlink("mlflow.run.tmp", dir_fd=folder)
    except FileNotFoundError:
        pass
    with open(os.open("mlflow.run.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder), "w") as f:
        f.write(run + "\n")
        f.flush()
        os.fsync(f.fileno())
    os.rename("mlflow.run.tmp", "mlflow.run", src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def open_run(uri, experiment, header):
    """The run's id: of an earlier attempt, or a new run's; the job's settings become its parameters."""
    folder = open_folder(header)
    run = read_note(folder)
    if run:
        call(uri, "runs/update", {"run_id": run, "status": "RUNNING"})
    else:
        try:
            found = call(uri, "experiments/create", {"name": experiment})["experiment_id"]
        except Refused:  # it is there
            found = call(uri, "experiments/search", {"max_results": 1, "filter": f"name = '{experiment}'"})["experiments"][0]["experiment_id"]
        run = call(uri, "runs/create", {"experiment_id": found, "run_name": header["name"], "start_time": int(time.time() * 1000),
                                        "tags": [{"key": "weft.job", "value": header["job"]}]})["run"]["info"]["run_id"]
        write_note(folder, run)  # at once, so that no restart creates another
    os.close(folder)
    params = list(flatten(header["resolved"], ""))  # those that it has already change nothing
    for i in range(0, len(params), PARAMS_MAX):
        log_batch(uri, {"run_id": run, "params": params[i:i + PARAMS_MAX]})
    return run


def log_batch(uri, body):
    try:
        call(uri, "runs/log-batch", body)
    except Refused as e:
        if e.args[0] not in (400, 413, 422):  # not of what was sent: of a token, or a run that is gone
            raise
        print(f"MLflow refuses, and this is left out: {e.args[1]}", file=sys.stderr, flush=True)


def flatten(value, path):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flatten(inner, f"{path}.{key}" if path else key)
    elif value is not None and len(str(value)) <= VALUE_MAX:
        yield {"key": path[:250], "value": str(value)}


def metrics_of(row):
    for key, value in row.items():
        if key in NO_CURVE or value is None or isinstance(value, (str, bool)):
            continue
        for i, x in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(x, (int, float)) and not isinstance(x, bool):
                name = f"{key}/{i}" if isinstance(value, list) else key
                yield {"key": name, "value": x, "timestamp": row.get("t_ms") or int(time.time() * 1000), "step": row["step"]}
    for key in row.get("nonfinite") or []:
        if isinstance(key, str) and key in row and row[key] is None:
            yield {"key": key, "value": "NaN", "timestamp": row.get("t_ms") or int(time.time() * 1000), "step": row["step"]}


def send(uri, run, metrics):
    """In pieces that the server takes."""
    piece, size = [], 0
    for m in metrics:
        length = len(json.dumps(m)) + 2
        if piece and (len(piece) == METRICS_MAX or size + length > BYTES_MAX):
            log_batch(uri, {"run_id": run, "metrics": piece})
            piece, size = [], 0
        piece.append(m)
        size += length
    if piece:
        log_batch(uri, {"run_id": run, "metrics": piece})


def batches(lines):
    """What has come by now, at least a line each time; None at the end."""
    buffered = b""
    while True:
        piece = os.read(0, 1 << 16)
        if not piece:
            return
        buffered += piece
        while select.select([0], [], [], 0.5)[0] and len(buffered) < 1 << 18:
            piece = os.read(0, 1 << 16)
            if not piece:
                break
            buffered += piece
        *whole, buffered = buffered.split(b"\n")
        if whole:
            yield whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uri", default=os.environ.get("MLFLOW_TRACKING_URI"), help="of the server; else MLFLOW_TRACKING_URI")
    parser.add_argument("--experiment", default="weft")
    a = parser.parse_args()
    if not a.uri:
        parser.error("--uri is missing")
    print(0, flush=True)  # from here on a row counts as stored when it is reported
    uri = a.uri.rstrip("/")
    run, taken, last = None, 0, {}
    for lines in batches(0):
        if run is None:
            header = json.loads(lines.pop(0))
            run = open_run(uri, a.experiment, header)
        metrics = []
        for line in lines:
            taken += 1
            try:
                last = json.loads(line)
                metrics += metrics_of(last)
            except (ValueError, KeyError, TypeError, AttributeError):
                print("left out a line that is no row", file=sys.stderr)
        send(uri, run, metrics)
        print(taken, flush=True)
    # Without a row it had all of them before: a later attempt that has more opens it again.
    if run and (not taken or (isinstance(last, dict) and last.get("step", 0) >= header["steps"])):
        call(uri, "runs/update", {"run_id": run, "status": "FINISHED", "end_time": int(time.time() * 1000)})


try:
    main()
except Refused as e:
    sys.exit(f"MLflow refuses: {e.args[1]}")
