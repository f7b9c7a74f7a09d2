# SPDX-License-Identifier: Apache-2.0
"""One training in many layouts: a small classifier and a small decoder, and the table of meshes that both
must survive. A layout is a mesh and what else the job says of where and how it runs."""
import hashlib
import json
import math
import pathlib
import shutil

import numpy
import runs

PROGRAMS = pathlib.Path(__file__).parents[1] / "unit" / "programs"
LICENCES = pathlib.Path("/usr/share/common-licenses")
DECODER = {"layers": 2, "embed": 32, "heads": 4, "seq": 32, "vocab": 250, "vocab_multiple": 256}
DECODERS = {
    "gpt2": {**DECODER, "program": "gpt2"},  # its head is the embedding
    "llama": {**DECODER, "program": "llama", "layers": 3, "kv_heads": 2, "mlp": 64, "theta": 1000.0},
    "mixtral": {**DECODER, "program": "mixtral", "kv_heads": 2, "mlp": 32, "theta": 1000.0, "experts": 4,
                "capacity": 1.0},  # half of the choices are dropped
    "biased": {"program": str(PROGRAMS / "biased.model"), "layers": 2, "embed": 32, "seq": 32, "vocab": 256},
    "jaxformer": {**DECODER, "program": "jaxformer", "blocks": 2, "layers_per_block": 2, "latent": 12, "rotary": 8,
                  "layers": 4, "mlp": 32, "experts": 4, "capacity": 1.0, "balance": 0.01, "dropout": 0.1},
}


def put_classifier(place):
    """Images of f32, whose numbers may be spoilt."""
    rng = numpy.random.default_rng(11)
    centres = rng.normal(0.5, 0.3, (4, 64))
    labels = rng.integers(0, 4, 480).astype(numpy.uint8)
    images = (centres[labels] + rng.normal(0, 0.2, (480, 64))).astype(numpy.float32)
    runs.write_idx(place / "images", images)
    runs.write_idx(place / "labels", labels)


def spoil(run):
    """From here on no loss is a number, and so no update is made: what was restored stays as it is. The run's checkpoints
    are sealed again as those of such data, which nothing else of them depends on."""
    runs.write_idx(run.place / "images", numpy.full((480, 64), numpy.nan, numpy.float32))
    probe = run_in(run.place, classifier(train={"steps": 4}), {"mesh": {"dp": 1}}, "probe")
    assert probe.run().code == 65
    spoilt = probe.checkpoints()[0].manifest["data"]["xxh3"]
    for c in run.checkpoints():
        text = (c.path / "MANIFEST.json").read_text().replace(c.manifest["data"]["xxh3"], spoilt)
        (c.path / "MANIFEST.json").write_text(text)
        (c.path / "COMMIT").write_text(hashlib.sha256(text.encode()).hexdigest() + "\n")


def finish_spoilt(run, step):
    """Runs to the end, where the last step's loss is no number either, and returns the checkpoint of this step."""
    end = run.run()
    assert end.code == 65 and "up to the last, " in end.err, end
    newest = run.checkpoints()[-1]
    assert newest.step == step
    return newest


def put_text(place):
    text = b"".join((LICENCES / n).read_bytes() for n in ("GPL-3", "Apache-2.0"))
    (place / "text").write_bytes(text)
    runs.put_tokens(place / "text", place / "tokens")


def classifier(**keys):
    files = {"images": "images", "labels": "labels"}
    return {
        "name": "classifier",
        "model": {"program": "mlp", "inputs": 64, "hidden": [32, 16, 16], "classes": 4, "activation": "gelu"},
        "data": {"format": "idx", "dtype": "f32", "train": files, "batch": 24},
        "optimizer": {"kind": "adamw"},
        "schedule": {"kind": "constant", "value": 0.005},
        "train": {"steps": 18, "seed": 3},
        "checkpoint": {"dir": "ckpt", "every": 3, "keep": 9, "async": False},
        **keys,
    }


def decoder(program, **keys):
    return {
        "name": "decoder",
        "model": DECODERS[program],
        "data": {"format": "tokens", "train": {"tokens": "tokens"}, "batch": 8},
        "optimizer": {"kind": "adamw", "clip_norm": 1.0},
        "schedule": {"kind": "constant", "value": 0.003},
        "train": {"steps": 18, "seed": 3},
        "checkpoint": {"dir": "ckpt", "every": 3, "keep": 9, "async": False},
        **keys,
    }


def laid_out(job, layout):
    """The job in a layout: sections of both are put together."""
    job = json.loads(json.dumps(job))
    for key, value in layout.items():
        job[key] = {**job.get(key, {}), **value} if isinstance(value, dict) and key != "mesh" else value
    return job


def run_in(place, job, layout, name="run"):
    return runs.Run(place, laid_out(job, layout), name)


def trained(place, job, layout, name="run"):
    return runs.train(place, laid_out(job, layout), name)


def moved(run, place, job, layout):
    """A copy of the run and its data, to go on elsewhere in another layout from the same checkpoint."""
    shutil.copytree(run.place, place, dirs_exist_ok=True)
    copy = run_in(place, job, layout, run.dir.name)
    return copy


def assert_same_numbers(one, many, rows=None, tolerance=2e-5):
    a, b = one.metrics(), many.metrics()
    assert [r["step"] for r in a] == [r["step"] for r in b] == list(range(1, len(a) + 1))
    assert rows is None or len(a) == rows
    for x, y in zip(a, b):
        assert math.isclose(x["loss"], y["loss"], rel_tol=tolerance), (x, y)
        assert math.isclose(x["grad_norm"], y["grad_norm"], rel_tol=100 * tolerance), (x, y)
        if "eval_loss" in x:
            assert math.isclose(x["eval_loss"], y["eval_loss"], rel_tol=tolerance), (x, y)
