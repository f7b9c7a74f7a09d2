# SPDX-License-Identifier: Apache-2.0
"""A thousand pretended hosts against a real coordinator (bench_hosts.c), with a restart by kill -9.

    hosts.py BUILD [HOSTS [JOBS [SECONDS]]]"""
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

os.environ["WEFT_BUILD"] = os.path.abspath(sys.argv[1])
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))

import cluster  # noqa: E402

HOSTS, JOBS, SECONDS = [int(a) for a in (sys.argv[2:] + ["1000", "200", "30"][len(sys.argv) - 2 :])][:3]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
    c = cluster.Cluster(folder, workers=0, lease="10s")
    try:
        bench = pathlib.Path(sys.argv[1]) / "tests" / "bench" / "bench_hosts"
        p = subprocess.Popen(
            [str(bench), c.address, str(c.coordinator.pid), str(HOSTS), str(JOBS), str(SECONDS), "restart"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in p.stdout:
            print(line, end="", flush=True)
            if line.startswith("waiting"):
                c.coordinator.kill()
        sys.exit(p.wait())
    finally:
        c.kill_all()
