# SPDX-License-Identifier: Apache-2.0
"""The example of `make demo` on the real Fashion-MNIST: it learns to tell clothes apart."""
import gzip
import pathlib

import pytest
import runs

PACKED = pathlib.Path("/usr/share/datasets/fashion-mnist")
FILES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


@pytest.fixture(scope="module")
def clothes(tmp_path_factory):
    if not PACKED.is_dir():
        pytest.fail("the package dataset-fashion-mnist is missing: make deps")
    folder = tmp_path_factory.mktemp("clothes")
    for f in FILES:
        (folder / f).write_bytes(gzip.decompress((PACKED / f"{f}.gz").read_bytes()))
    return folder


def test_the_example_learns_clothes(place, clothes):
    text = (runs.REPO / "deploy/examples/fashion-mnist.yaml").read_text()
    job = place / "job.yaml"
    job.write_text(text.replace("../../build/data", str(clothes)).replace("../../build/demo/ckpt", "ckpt"))
    steps, least = (2000, 0.85) if runs.LONG else (400, 0.80)
    end = runs.weft("run", str(job), "-s", f"train.steps={steps}")
    assert end.code == 0, end
    (rows,) = place.glob("ckpt/*/metrics.jsonl")
    last = runs.rows_of(rows.parent)[-1]
    assert last["step"] == steps and last["eval_accuracy"] >= least, last
    assert f"{rows}" in end.out, end
