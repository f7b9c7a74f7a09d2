#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator with 10,000 queued jobs: its decider and database by themselves (bench_restart), then the whole
daemon on the same database, asked over gRPC.

    restart.py BUILD [JOBS]

The daemon's restart is the time from exec until a client that waits has its first answer, and until `weft jobs` has
printed all of them. What a cancel takes of the daemon is measured over a connection that is open (bench_cancel): the
request, the decision, its transaction on this disk, the answer. Beside it: a whole `weft cancel`, with the start of
its process and its connection; `weft --version`, which starts alike and asks nobody; and one `weft cancel` of many jobs.
"""
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TURNS = 100  # whole clients
OPEN = 500  # cancels over one connection
MANY = 500  # in one `weft cancel`


def ask(weft, env, *args):
    at = time.monotonic()
    end = subprocess.run([weft, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
    return time.monotonic() - at, end


def fail(text):
    sys.exit(f"restart.py: {text}")


def measure_daemon(build, state, address):
    weft, env = build / "weft", {**os.environ, "WEFT_COORDINATOR": address}
    begun = time.monotonic()
    log = open(state / "log", "wb")
    daemon = subprocess.Popen([build / "weft-coordinator", "--state", state, "--listen", address],
                              stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while ask(weft, env, "workers")[1].returncode:
            if daemon.poll() is not None or time.monotonic() - begun > 60:
                fail((state / "log").read_text())
        print(f"the daemon with them: it answers        {time.monotonic() - begun:9.2f} s")
        took, end = ask(weft, env, "jobs")
        jobs = [line.split()[0] for line in end.stdout.splitlines()[1:] if "QUEUED" in line]
        print(f"`weft jobs` of {len(jobs):6d} that wait           {took:9.2f} s")
        if len(jobs) < TURNS + OPEN + MANY:
            fail(f"{len(jobs)} jobs wait: {end}")
        one, over, many = jobs[:TURNS], jobs[TURNS:TURNS + OPEN], jobs[TURNS + OPEN:TURNS + OPEN + MANY]
        sys.stdout.flush()
        subprocess.run([build / "tests/bench/bench_cancel", address, state], input="".join(f"{j}\n" for j in over),
                       text=True, check=True)
        start, cancel = [], []
        for job in one:
            start.append(ask(weft, env, "--version")[0])
            took, end = ask(weft, env, "cancel", job)
            cancel.append(took)
            if end.returncode:
                fail(end)
        took, end = ask(weft, env, "cancel", *many)
        if end.returncode:
            fail(end)
        print(f"`weft cancel` of one                    {1e3 * statistics.median(cancel):9.2f} ms")
        print(f"`weft --version`                        {1e3 * statistics.median(start):9.2f} ms")
        print(f"one `weft cancel` of {MANY:4d}, a job        {1e3 * took / MANY:9.2f} ms")
    finally:
        daemon.terminate()
        daemon.wait()


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    state = pathlib.Path(tempfile.mkdtemp(prefix="restart.", dir=build))
    sockets = pathlib.Path(tempfile.mkdtemp(prefix="weft-", dir="/tmp"))
    try:
        subprocess.run([build / "tests/bench/bench_restart", state, *sys.argv[2:]], check=True)
        sys.stdout.flush()
        measure_daemon(build, state, f"unix:{sockets}/c")
    finally:
        shutil.rmtree(state, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)


if __name__ == "__main__":
    main()
