#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, where foreign headers live, and an SPDX line in every source.

The arrows between rooms have no circle: what a room stands on never stands on that room."""
import pathlib
import re
import sys

from source import Finding, Tree

# room -> rooms it may include besides itself
ARROWS = {
    "common/base": [],
    "common/op": ["common/base"],
    "common/tokenizer": ["common/base"],
    "common/language": ["common/base"],
    "common/job": ["common/base", "common/op", "common/language", "common/tokenizer"],
    "common/compile": ["common/base", "common/op", "common/job", "common/language"],
    "common/compile/layout": ["common/base", "common/op"],
    "common/compile/graph": ["common/base", "common/op", "common/job", "common/compile/layout"],
    "common/compile/shard": ["common/base", "common/op", "common/job", "common/compile/layout", "common/compile/graph"],
    "common/compile/program": ["common/base", "common/op", "common/job", "common/compile/layout", "common/compile/graph", "common/compile/shard"],
    "common/explain": ["common/base", "common/op", "common/job", "common/compile", "common/language"],
    "common/data": ["common/base", "common/op", "common/job", "common/language", "common/tokenizer"],
    "common/ckpt": ["common/base", "common/op", "common/tokenizer"],
    "common/model": ["common/base", "common/op", "common/compile", "common/language"],
    "common/plan": ["common/base", "common/op", "common/language", "common/job", "common/compile", "common/explain",
                    "common/model", "common/data", "common/ckpt"],
    "common/weights": ["common/tokenizer", "common/base", "common/op", "common/language", "common/job", "common/compile", "common/model",
                       "common/plan", "common/ckpt"],
    "common/metrics": ["common/base"],
    "common/attempt": ["common/base", "common/ckpt", "proto"],
    "common/rpc": ["common/base", "proto"],
    "kernels": ["common/base", "common/op"],
    "worker/collective": ["common/base", "common/op", "common/attempt", "kernels"],
    "worker/rank": ["proto", "common", "kernels", "worker/collective"],
    "worker/rank/link": ["proto", "common"],
    "worker/rank/exec": ["common", "kernels", "worker/collective"],
    "worker/rank/save": ["common", "kernels", "worker/rank/link", "worker/rank/exec"],
    "worker/rank/train": ["common", "kernels", "worker/collective", "worker/rank/link", "worker/rank/exec",
                          "worker/rank/save"],
    "worker/sinks": ["proto", "common"],
    "worker/agent": ["proto", "common/base", "common/attempt"],
    "worker": ["proto", "common/base", "common/op", "common/attempt", "common/rpc", "common/ckpt", "common/metrics"],
    "coordinator/decide": ["proto", "common"],
    "coordinator/store": ["proto", "common", "coordinator/decide"],
    "coordinator/serve": ["proto", "common", "coordinator/decide", "coordinator/store"],
    "coordinator": ["proto", "common"],
    "coordinator/cli": ["proto", "common"],
    "coordinator/cli/render": ["common"],
    "tests": ["common", "kernels", "worker", "coordinator", "proto"],
}
# storage.c looks for a job's data, which a pattern may name.
# launch.h is where a kernel's source meets the emulator in the GPU's place.
# `weft run` is one process: what in the client has a coordinator, a worker or their files in it; and what leads ranks itself.
EXCEPTIONS = {
    "coordinator/cli/local_ranks.h": ["worker"],
    "coordinator/cli/main.c": ["coordinator"],
    "coordinator/cli/own_coordinator.h": ["coordinator"],
    "coordinator/cli/own_worker.c": ["worker"],
    "coordinator/cli/run_agent.c": ["worker"],
    "coordinator/cli/stored.c": ["coordinator", "worker"],
    "kernels/cuda/launch.h": ["tests/cuda"],
    "worker/storage.c": ["common/data"],
}
HOMES = {  # header prefix -> the only place that may include it
    "yaml.h": "common/job/",
    "xxhash.h": "common/base/hash.c",
    "dnnl": "kernels/cpu/",
    "oneapi": "kernels/cpu/",
    "protobuf-c": ("common/rpc/",),
    "microhttpd.h": "coordinator/serve/http.c",
    "zlib.h": ("common/data/prepare/", "common/weights/npz.c"),
    "zstd.h": "common/data/prepare/",
    "cuda": "kernels/cuda/",
    "nccl.h": "kernels/cuda/nccl.h",
    "utf8proc.h": "common/tokenizer/",
    "pcre2.h": "common/tokenizer/",
    "grpc": "common/rpc/",
    "sqlite3.h": "coordinator/store/db",
    "curl": "coordinator/serve/webhooks.c",
    "openssl": ("common/rpc/tls", "worker/collective/seal.c"),
}
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def find_room(path):
    return max((r for r in ARROWS if path == r or path.startswith(r + "/")), key=len, default=None)


def stands_on(room):
    """The rooms that a room may include: those it names, and those beneath what it names and beneath itself."""
    named = [room, *ARROWS[room]]
    return {r for r in ARROWS if r != room for a in named if r == a or r.startswith(a + "/")}


def find_circle(room):
    """The shortest circle of rooms from a room back to itself, or None."""
    queue, came_from = [room], {}
    for at in queue:
        for below in sorted(stands_on(at)):
            if below == room:
                circle = [room, at]
                while at != room:
                    at = came_from[at]
                    circle.append(at)
                return circle[::-1]
            if below not in came_from:
                came_from[below] = at
                queue.append(below)
    return None


def check_file(path, lines):
    if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
        yield Finding(path, 1, "the first line is not the SPDX line")
    room = find_room(path)
    if room is None:
        yield Finding(path, 1, "lies in no room of the layout")
        return
    allowed = [room] + ARROWS[room] + EXCEPTIONS.get(path, [])
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        kind, name = match.groups()
        if kind == '"' and not any(name.startswith(a + "/") for a in allowed):
            yield Finding(path, number, f"{room} may not include {name}")
        for prefix, home in HOMES.items():
            homes = ((home,) if isinstance(home, str) else home) + ("tests/",)
            if kind == "<" and name.startswith(prefix) and not path.startswith(homes):
                yield Finding(path, number, f"{name} belongs to {home}")


def check(tree):
    for room in ARROWS:
        circle = find_circle(room)
        if circle and room == min(circle):  # once for a circle, not from each of its rooms
            yield Finding("tests/lint/includes.py", 1, f"rooms that may include each other: {' → '.join(circle)}")
    for path in tree.c_files():
        yield from check_file(path, tree.lines(path))


if __name__ == "__main__":
    found = list(check(Tree(pathlib.Path.cwd())))
    for finding in found:
        print(f"{finding.path}:{finding.line}: {finding.what}")
    sys.exit(1 if found else 0)
