#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A sink of weft for Kubeflow Trainer: a TrainJob's status gets progress and metrics; needs Python 3.9 and nothing else.

    weft run job.yaml --sink kubeflow=/usr/share/weft/sinks/kubeflow_sink.py

Kubeflow sets KUBEFLOW_TRAINER_SERVER_URL, and with _CA_CERT and _TOKEN names files, which it replaces while the job
runs: they are read for each update. The newest row goes, at most every 5 s; one that fails is replaced by the next.
Without the variables rows are taken and nothing is sent."""
import datetime
import json
import os
import select
import ssl
import sys
import time
import urllib.error
import urllib.request

APART_S, TIMEOUT_S = 5, 4
NO_METRIC = {"step", "attempt", "t_ms", "prompt", "samples", "nonfinite", "detail"}


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """The token is for the server that Kubeflow names, not for one that this names."""

    def redirect_request(self, *_):
        return None


def status_of(row, steps):
    """What the newest row says of a job of so many steps."""
    step = row["step"]
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"lastUpdatedTime": now, "metrics": [
        {"name": key, "value": repr(value)} for key, value in row.items()
        if key not in NO_METRIC and isinstance(value, (int, float)) and not isinstance(value, bool)]}
    if steps:
        status["progressPercentage"] = min(100, 100 * step // steps)
        if isinstance(row.get("step_ms"), (int, float)):
            status["estimatedRemainingSeconds"] = max(0, round((steps - step) * row["step_ms"] / 1000))
    return {"trainerStatus": status}


def send(body):
    """True once the server has taken it."""
    try:
        with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]) as f:
            token = f.read().strip()
        context = ssl.create_default_context(cafile=os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
        request = urllib.request.Request(os.environ["KUBEFLOW_TRAINER_SERVER_URL"], json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "Authorization": f"Bearer {token}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect,
                                             urllib.request.HTTPSHandler(context=context))
        with opener.open(request, timeout=TIMEOUT_S) as reply:
            reply.read(1 << 16)
        return True
    except urllib.error.HTTPError as e:
        why = f"{e.code} {e.read(500).decode(errors='replace')}"
    except (OSError, ValueError, KeyError) as e:
        why = repr(e)
    print(f"Kubeflow did not take the status: {why}", file=sys.stderr, flush=True)
    return False


def read_rows(until):
    """(lines that are there by then, whether more may come); waits for the first without end where nothing is due."""
    wait = None if until is None else max(0, until - time.monotonic())
    if not select.select([0], [], [], wait)[0]:
        return b"", True
    piece = os.read(0, 1 << 16)
    return piece, bool(piece)


def main():
    sends = "KUBEFLOW_TRAINER_SERVER_URL" in os.environ
    print(0, flush=True)
    rest, header, newest, taken, open_, last_sent = b"", None, None, 0, True, -APART_S
    while open_:
        piece, open_ = read_rows(last_sent + APART_S if newest and sends else None)
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if header is None:
                header = json.loads(line)
                continue
            taken += 1
            try:
                row = json.loads(line)
                status_of(row, header["steps"])
                newest = row
            except (ValueError, KeyError, TypeError, AttributeError):
                print("left out a line that is no row", file=sys.stderr)
        if lines:
            print(taken, flush=True)
        if sends and open_ and newest and time.monotonic() >= last_sent + APART_S:
            last_sent = time.monotonic()
            newest = None if send(status_of(newest, header["steps"])) else newest
    if sends and newest:
        time.sleep(max(0, last_sent + APART_S - time.monotonic()))
        send(status_of(newest, header["steps"]))


main()
