#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records trainings for where no CPU backend is: jobs, their data, and the losses that the CPU has. Fifty steps of every
kind of model in f32 and bf16, and meshes of several ranks; tests/bench/gpu/checks.py holds a GPU against them. Tolerances
are test_cuda.py's, whose trainings these are.

    models.py FOLDER     in a built tree (WEFT_BUILD)
"""
import json
import pathlib
import shutil
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "e2e")]

import meshes  # noqa: E402
import runs  # noqa: E402
import test_cuda  # noqa: E402


def cases(place, toy):
    for kind in ("mlp", "vae", "gpt2", "llama"):
        for precision in ("f32", "bf16"):
            yield f"{kind}-{precision}", test_cuda.model(place, toy, kind, precision), test_cuda.LOSS[precision]
    for layout in test_cuda.LAYOUTS:
        name = "gpt2-" + "-".join(f"{axis}{n}" for axis, n in layout["mesh"].items())
        yield name, meshes.laid_out(meshes.decoder("gpt2"), layout), test_cuda.LOSS["f32"]


def record(to, wanted=lambda name: True):
    """In the place of what is there, once all of it is made."""
    folder = to.with_name(to.name + ".new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    expected = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, job, tolerance in cases(folder, runs.toy_set(folder)):
            if not wanted(name):
                continue
            near = json.loads(json.dumps(job).replace('"tokens": "tokens"', f'"tokens": "{folder}/tokens"'))
            run = runs.Run(pathlib.Path(scratch), near, name)
            run.finish()
            expected[name] = {"tolerance": tolerance, "losses": [row["loss"] for row in run.metrics()]}
            job = {**job, "resources": {"kind": "cuda"}, "checkpoint": {"dir": "ckpt"}}
            # Names of files are relative to the job's.
            (folder / f"{name}.yaml").write_text(json.dumps(job, indent=1).replace(f"{folder}/", ""))
    (folder / "expect.json").write_text(json.dumps(expected))
    (folder / "text").unlink(missing_ok=True)
    shutil.rmtree(to, ignore_errors=True)
    folder.rename(to)


if __name__ == "__main__":
    record(pathlib.Path(sys.argv[1]).resolve())
