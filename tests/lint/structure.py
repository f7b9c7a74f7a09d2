#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The house in numbers: what a person has to find, read and change in it.

    structure.py [--root DIR] [--build DIR]     --root: of another checkout, say an older one

Needs git and, for the cycles, nm and a build's objects. The paths below are lists of files that one
reads to follow a thing from end to end, by hand; a file that has moved is named as missing."""
import argparse
import collections
import pathlib
import re

import chained_rc
import cycles
from source import Tree, without_comments

# One follows a call where it leads; helpers of common/base that a name explains are not counted.
PATHS = {
    "a `mesh` key to a collective": [
        "common/job/job_schema.c", "common/job/parse.c", "common/job/job_mesh.c",
        "common/job/job_sharding.c", "common/job/check.c", "common/plan/plan.c", "common/compile/compile.c",
        "common/compile/layout/mesh.c", "common/compile/layout/spec.c", "common/compile/layout/reshard.c",
        "common/compile/shard/sharding.c", "common/compile/shard/resolve.c", "common/compile/shard/refine.c",
        "common/compile/shard/op_rules.c", "common/compile/shard/partition.c", "common/compile/graph/optable.c",
        "common/compile/program/order.c", "common/compile/program/schedule.c", "common/compile/program/group.c",
        "common/compile/program/lower.c", "worker/rank/train/trainer.c", "worker/rank/train/train.c",
        "worker/rank/exec/exec.c", "worker/rank/exec/run.c", "worker/rank/exec/segments.c", "worker/collective/host_transport.c",
        "worker/collective/communicator.c", "worker/collective/operation.c", "worker/collective/world.c",
        "worker/collective/process_world.c", "worker/collective/greet.c", "worker/collective/sum_tree.c",
        "worker/collective/shm.c", "worker/collective/tcp.c",
    ],
    "a shard to COMMIT": [
        "worker/rank/train/train.c", "worker/rank/exec/model_state.c", "worker/rank/save/saver.c",
        "worker/rank/save/snapshot.c", "common/ckpt/deal.c", "common/ckpt/slice.c", "common/ckpt/shard_file.c",
        "common/ckpt/store.c", "common/ckpt/store_write.c", "common/ckpt/durable.c", "common/ckpt/manifest.c",
        "worker/rank/link/rank_link.c", "worker/rank/link/rank_frames.c", "common/attempt/frame.c",
        "worker/supervise.c", "worker/worker_daemon.c", "worker/agent/agent.c", "worker/agent/agent_ranks.c",
        "worker/agent/agent_messages.c", "coordinator/serve/service.c", "coordinator/coord_daemon.c",
        "coordinator/decide/coord.c", "coordinator/decide/frames.c", "coordinator/decide/attempt.c", "coordinator/decide/attempt_leader.c",
        "coordinator/decide/checkpoint.c", "common/attempt/leader.c", "common/attempt/saves.c", "common/ckpt/commit.c",
        "common/ckpt/manifest_json.c", "coordinator/decide/outbox.c", "coordinator/decide/row.c", "coordinator/store/db.c",
        "worker/storage.c",
    ],
    "a submit to a running rank": [
        "coordinator/cli/main.c", "coordinator/cli/flags.c", "coordinator/cli/verb_submit.c",
        "coordinator/cli/resolved_job.c", "coordinator/cli/request.c", "coordinator/cli/cli_link.c",
        "coordinator/serve/service.c", "coordinator/serve/planner.c", "coordinator/coord_daemon.c", "coordinator/decide/coord.c",
        "coordinator/decide/acts.c", "coordinator/decide/requests.c", "coordinator/decide/job_record.c", "coordinator/decide/settle.c",
        "coordinator/decide/queue.c", "coordinator/decide/placement.c", "coordinator/decide/host.c", "coordinator/decide/attempt.c",
        "coordinator/decide/attempt_storage.c", "coordinator/decide/outbox.c", "coordinator/decide/row.c", "coordinator/store/db.c",
        "worker/worker_daemon.c", "worker/agent/agent.c", "worker/agent/attempts.c", "worker/agent/agent_ranks.c",
        "worker/agent/agent_messages.c", "worker/storage.c", "worker/supervise.c", "worker/rankslock.c",
        "worker/rank/main.c",
    ],
}
# What the recipes of the rooms' READMEs touch, tried by making the change; tests are not counted.
RECIPES = {
    "an elementwise op": [
        "common/op/ops.def", "kernels/cpu/vec.c", "kernels/cuda/elementwise.cu",
    ],
    "a model (its new file, and KEYS.md)": [
        "Makefile",
    ],
    "a job key (and KEYS.md)": [
        "common/job/job.h", "common/job/job_schema.c",
    ],
    "a verb (and its new file)": [
        "Makefile", "coordinator/cli/main.c", "coordinator/cli/verbs.h",
    ],
    "a verb with a call (and its new file)": [
        "Makefile", "coordinator/cli/main.c", "coordinator/cli/verbs.h", "coordinator/cli/cli_link.c",
        "coordinator/cli/cli_link.h", "coordinator/decide/coord.h", "coordinator/serve/service.c", "coordinator/decide/views.c",
        "proto/weft.proto",
    ],
    "a transport (and its new file)": [
        "Makefile", "worker/rank/train/trainer.c",
    ],
}
STATIC = re.compile(r"^static (?!inline)[^=;{}()]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)


def count_lines(tree, files):
    return sum(len(tree.lines(f)) for f in files)


def static_functions(tree):
    return [m[1] for f in tree.product() if not f.endswith(".h")
            for m in STATIC.finditer(without_comments(tree.text(f)))]


def find_circles(tree):
    found = []
    for folder, objects in sorted(cycles.folders_with_objects(tree).items()):
        for members in cycles.find_circles(cycles.find_needs(cycles.read_symbols(objects))):
            found.append((folder, [pathlib.Path(m).stem.removesuffix(".cu") for m in members]))
    return found


def print_lists(title, lists, tree):
    for name, files in lists.items():
        missing = [f for f in files if f not in tree.files]
        print(f"{title + ' ' + name:<60} {len(files)} files{': missing ' + ' '.join(missing) if missing else ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=pathlib.Path)
    args = parser.parse_args()
    build = args.build or args.root / "build"
    tree = Tree(args.root, objects=build / "obj" if (build / "obj").exists() else None)
    product, statics = tree.product() + tree.named(".def"), static_functions(tree)
    names = collections.Counter(f.rsplit("/", 1)[-1] for f in product)
    tests = [f for f in tree.files if f.startswith("tests/") and f.endswith((".c", ".h", ".cu", ".py", ".sh"))]
    rooms = {f.rsplit("/", 1)[0] for f in product}
    fullest = collections.Counter(f.rsplit("/", 1)[0] for f in product if not f.endswith(".h")).most_common(3)
    code = [without_comments(tree.text(f)) for f in product]
    circles = find_circles(tree) if tree.objects else []
    rows = [
        ("product: lines", count_lines(tree, product)),
        ("product: files", len(product)),
        ("product: rooms (folders)", len(rooms)),
        ("product: files that are not headers in the fullest rooms", ", ".join(f"{n} {r}" for r, n in fullest)),
        ("product: files over 700 lines", sum(len(tree.lines(f)) > 700 for f in product)),
        ("product: basenames that recur, main.c aside", sum(n > 1 for b, n in names.items() if b != "main.c")),
        ("product: static functions of one word", f"{sum('_' not in s for s in statics)} of {len(statics)}"),
        ("product: `rc = rc ? rc :`", sum(len(chained_rc.CHAINED.findall(c)) for c in code)),
        ("tests: lines", count_lines(tree, tests)),
        ("rooms' READMEs", sum(f.endswith("README.md") and "/" in f for f in tree.files)),
        ("top README.md: lines", len(tree.lines("README.md"))),
        ("cycles between object files of one folder", len(circles) if tree.objects else "not built"),
        ("files in such cycles", sum(len(c) for _, c in circles)),
    ]
    for name, value in rows:
        print(f"{name:<60} {value}")
    for folder, members in circles:
        print(f"    {folder}: {' '.join(members)}")
    print_lists("read", PATHS, tree)
    print_lists("change for", RECIPES, tree)


if __name__ == "__main__":
    main()
