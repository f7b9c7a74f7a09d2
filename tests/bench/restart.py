#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator with 10,000 queued jobs: its decider and database by themselves (bench_restart), then the whole
daemon on the same database, asked over gRPC.

    restart.py BUILD [JOBS]

The daemon's restart is the time from exec until a client that waits has its first answer, and until `weft jobs` has
printed all of them. A cancel is the time of a whole `weft cancel`, with the start of its process and its connection;
what a client costs that changes nothing is told beside it (`weft status` of the same jobs, in turns), and the median
of the differences is the cancel itself: the decision, its transaction on this disk, the answer.
"""
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TURNS = 100


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
        if len(jobs) < 2 * TURNS:
            fail(f"{len(jobs)} jobs wait: {end}")
        status, cancel = [], []
        for job in jobs[::len(jobs) // TURNS][:TURNS]:
            status.append(ask(weft, env, "status", job)[0])
            took, end = ask(weft, env, "cancel", job)
            cancel.append(took)
            if end.returncode:
                fail(end)
        own = statistics.median(c - s for c, s in zip(cancel, status, strict=True))
        print(f"`weft cancel` of one                    {1e3 * statistics.median(cancel):9.2f} ms")
        print(f"`weft status` of the same               {1e3 * statistics.median(status):9.2f} ms")
        print(f"so that a cancel over gRPC takes        {1e3 * own:9.2f} ms")
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
