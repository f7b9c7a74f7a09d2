#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens a checkpoint of weft with the safetensors package, as anybody would.

    open_checkpoint.py DIR [EXPECT.safetensors]

DIR holds MANIFEST.json, COMMIT and the shard files. Says and exits 1 if the package reads other
tensors than the manifest names: names, types, shapes, bytes, digests, or a tensor whose slices leave
a hole or overlap. With EXPECT, the tensors put together must be EXPECT's within 1e-4 of their norm.
"""
import hashlib
import json
import pathlib
import sys

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

DTYPES = {"F32": np.float32, "I32": np.int32, "U8": np.uint8}


class Wrong(Exception):
    pass


def check(true, text):
    if not true:
        raise Wrong(text)


def check_seal(folder):
    digest = hashlib.sha256((folder / "MANIFEST.json").read_bytes()).hexdigest()
    check((folder / "COMMIT").read_text() == digest + "\n", "COMMIT is not the manifest's SHA-256")


def open_files(folder, manifest):
    """Every file as the package reads it: name → {tensor: array}."""
    files = {}
    for f in manifest["files"]:
        path = folder / f["name"]
        check(path.stat().st_size == f["bytes"], f"{f['name']}: has another size")
        head = path.read_bytes()[: f["head_bytes"]]
        check(xxhash.xxh3_128_hexdigest(head) == f["head_xxh3"], f"{f['name']}: head's digest")
        with safe_open(path, framework="np") as opened:
            files[f["name"]] = {name: opened.get_tensor(name) for name in opened.keys()}
    return files


def assemble(folder, files, tensor):
    """A tensor from its slices; each element comes from exactly one."""
    name = tensor["name"]
    whole = np.zeros(tensor["shape"], DTYPES[tensor["dtype"]])
    times = np.zeros(tensor["shape"], np.int32)
    for s in tensor["slices"]:
        where = f"{s['file']}: {name}"
        check(name in files[s["file"]], f"{where}: the package finds no such tensor")
        got = files[s["file"]].pop(name)
        check(got.dtype == whole.dtype, f"{where}: {got.dtype}, the manifest says {whole.dtype}")
        check(list(got.shape) == s["shape"], f"{where}: {got.shape}, the manifest says {s['shape']}")
        raw = (folder / s["file"]).read_bytes()[s["offset"] : s["offset"] + s["bytes"]]
        check(got.tobytes() == raw, f"{where}: the manifest's bytes are not the tensor's")
        check(xxhash.xxh3_128_hexdigest(raw) == s["xxh3"], f"{where}: digest")
        box = tuple(slice(a, a + n) for a, n in zip(s["start"], s["shape"]))
        whole[box] = got
        times[box] += 1
    check((times == 1).all(), f"{name}: its slices do not cover it once")
    return whole


def compare(tensors, expect):
    for name, want in expect.items():
        check(name in tensors, f"{name}: is not in the checkpoint")
        got, want = tensors[name].astype(np.float64), want.astype(np.float64)
        check(got.shape == want.shape, f"{name}: {got.shape}, expected {want.shape}")
        off = np.linalg.norm(got - want) / np.linalg.norm(want)
        check(off <= 1e-4, f"{name}: off by {off:.1e} of its norm")


def main(args):
    if len(args) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(args[0])
    try:
        check_seal(folder)
        manifest = json.loads((folder / "MANIFEST.json").read_text())
        files = open_files(folder, manifest)
        tensors = {t["name"]: assemble(folder, files, t) for t in manifest["tensors"]}
        for name, left in files.items():
            check(not left, f"{name}: holds {sorted(left)}, which the manifest does not name")
        if len(args) == 2:
            compare(tensors, load_file(args[1]))
    except (Wrong, OSError, ValueError, KeyError, SafetensorError) as e:
        print(f"{folder}: {type(e).__name__}: {e}")
        return 1
    print(f"{folder}: {len(tensors)} tensors in {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
