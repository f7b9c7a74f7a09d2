#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The include arrows of the design: who may include whom, where foreign headers live, an SPDX line in
every source, no file over its length. Exits 1 naming each violation."""
import pathlib
import re
import subprocess
import sys

# room -> rooms it may include besides itself
ARROWS = {
    "common/base": [],
    "common/op": ["common/base"],
    "common/job": ["common/base", "common/op"],
    "common/compile": ["common/base", "common/op", "common/job"],
    "common/compile/layout": ["common/base", "common/op"],
    "common/compile/graph": ["common/base", "common/op", "common/job", "common/compile/layout"],
    "common/compile/shard": ["common/base", "common/op", "common/job", "common/compile/layout", "common/compile/graph"],
    "common/compile/program": ["common/base", "common/op", "common/job", "common/compile/layout", "common/compile/graph", "common/compile/shard"],
    "common/explain": ["common/base", "common/op", "common/job", "common/compile"],
    "common/data": ["common/base", "common/op"],
    "common/ckpt": ["common/base", "common/op"],
    "common/model": ["common/base", "common/op", "common/job", "common/compile"],
    "common/attempt": ["common/base", "proto"],
    "common/rpc": ["common/base", "proto"],
    "kernels": ["common/base", "common/op"],
    "worker/collective": ["common/base", "common/op", "common/attempt"],
    "worker/rank": ["proto", "common", "kernels", "worker/collective"],
    "worker/rank/link": ["proto", "common"],
    "worker/rank/lead": ["proto", "common", "worker/rank/link"],
    "worker/rank/exec": ["common", "kernels", "worker/collective"],
    "worker/rank/save": ["common", "kernels", "worker/rank/link", "worker/rank/exec"],
    "worker/rank/train": ["common", "kernels", "worker/collective", "worker/rank/link", "worker/rank/exec",
                          "worker/rank/save"],
    "worker": ["proto", "common/base", "common/op", "common/attempt", "common/rpc", "common/ckpt"],
    "coordinator": ["proto", "common"],
    "coordinator/cli": ["proto", "common"],
    "tests": ["common", "kernels", "worker", "coordinator", "proto"],
}
# model/schema_list.c is the one place above job/ that lists every module's rows.
# launch.h is where a kernel's source meets the emulator in the GPU's place.
EXCEPTIONS = {
    "kernels/cuda/launch.h": ["tests/cuda"],
    "common/model/schema_list.c": ["common/data", "common/ckpt"],
    # Findings are still phrased where they are found.
    "common/compile/compile.h": ["common/explain"],
    "common/compile/compile.c": ["common/explain"],
    "common/compile/graph/optimiser.h": ["common/explain"],
    "common/compile/shard/resolve.h": ["common/explain"],
    "common/compile/shard/refine.h": ["common/compile/program"],
    "common/model/model.c": ["common/explain"],
    "common/model/model.h": ["common/explain"],
}
HOMES = {  # header prefix -> the only place that may include it
    "yaml.h": "common/job/",
    "xxhash.h": "common/base/hash.c",
    "dnnl": "kernels/cpu/",
    "oneapi": "kernels/cpu/",
    "protobuf-c": ("common/rpc/",),
    "microhttpd.h": "coordinator/http.c",
    "gnutls/": "coordinator/http.c",
    "cuda": "kernels/cuda/",
    "nccl.h": "worker/collective/nccl.c",
    "grpc": "common/rpc/",
    "sqlite3.h": "coordinator/db",
    "openssl": "common/rpc/tls",
}
MAX_LINES = {".c": 800, ".cu": 800, ".h": 220}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def room_of(path):
    return max((r for r in ARROWS if path == r or path.startswith(r + "/")), key=len, default=None)


def problems(path):
    text = pathlib.Path(path).read_text()
    lines = text.splitlines()
    if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
        yield 1, "the first line is not the SPDX line"
    limit = MAX_LINES[pathlib.Path(path).suffix]
    if len(lines) > limit:
        yield len(lines), f"{len(lines)} lines; over {limit} a noun is hiding"
    room = room_of(path)
    if room is None:
        yield 1, "lies in no room of the layout"
        return
    allowed = [room] + ARROWS[room] + EXCEPTIONS.get(path, [])
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, name = match.groups()
        if kind == '"' and not any(name.startswith(a + "/") for a in allowed):
            yield number, f"{room} may not include {name}"
        for prefix, home in HOMES.items():
            if kind == "<" and name.startswith(prefix) and not path.startswith(((home,) if isinstance(home, str) else home) + ("tests/",)):
                yield number, f"{name} belongs to {home}"


def main():
    files = subprocess.run(["git", "ls-files", "*.c", "*.cu", "*.h"], capture_output=True, text=True, check=True)
    bad = 0
    for path in files.stdout.split():
        for line, what in problems(path):
            print(f"{path}:{line}: {what}")
            bad += 1
    print(f"includes: {bad} violations")
    sys.exit(1 if bad else 0)


main()
