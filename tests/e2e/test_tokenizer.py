# SPDX-License-Identifier: Apache-2.0
"""A tokenizer's file on its way: text becomes tokens with it, a job names it, it lies beside the checkpoints
under one digest, and what continues a text needs no other copy of it."""
import hashlib
import json
import pathlib
import shutil

import cluster
import pytest
import runs

SHAPES = pathlib.Path(__file__).resolve().parents[1] / "unit" / "tokenizers"
TEXT = "Everyone is permitted to copy and distribute verbatim copies of this license document. "
VOCAB = 1626


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(SHAPES / "qwen2.json", place / "tokenizer.json")
    (place / "text").write_text(TEXT * 40)
    end = runs.weft("data", "prepare", "--tokenizer", str(place / "tokenizer.json"), "--out", str(place / "data"),
                    str(place / "text"))
    assert end.code == 0, end.err
    return place


def job(place, name, **data):
    made = {
        "name": name,
        "model": {"program": "gpt2", "layers": 1, "embed": 16, "heads": 2, "seq": 16, "vocab": VOCAB},
        "data": {"format": "tokens", "train": {"tokens": "data/train-*.bin"}, "eval": {"tokens": "data/train-*.bin"},
                 "batch": 4, **data},
        "train": {"steps": 2},
        "eval": {"every": 2, "batches": 1, "sample": {"prompt": "Everyone ", "tokens": 6}},
        "checkpoint": {"dir": "ckpt"},
    }
    path = place / f"{name}.yaml"
    path.write_text(json.dumps(made))
    return path


def test_it_lies_beside_the_checkpoints_and_is_all_that_generating_needs(trained):
    end = runs.weft("run", str(job(trained, "kept", tokenizer="tokenizer.json")), cwd=trained)
    assert end.code == 0, end.err
    [folder] = (trained / "ckpt").glob("kept-*")
    written = (trained / "tokenizer.json").read_bytes()
    assert (folder / "tokenizer" / "tokenizer.json").read_bytes() == written
    [manifest] = folder.glob("step-*/MANIFEST.json")
    assert json.loads(manifest.read_text())["tokenizer"] == "sha256:" + hashlib.sha256(written).hexdigest()
    rows = runs.rows_of(folder)
    assert [row["prompt"] for row in rows if "samples" in row] == ["Everyone "]
    (trained / "tokenizer.json").rename(trained / "away.json")
    try:
        end = runs.weft("generate", str(folder), "--prompt", "Everyone", "--tokens", "3", cwd=trained)
        assert end.code == 0, end.err
    finally:
        (trained / "away.json").rename(trained / "tokenizer.json")


def test_a_checkpoint_without_its_tokenizer_takes_it_again_and_needs_none_to_score(trained):
    assert runs.weft("run", str(job(trained, "alone", tokenizer="tokenizer.json")), cwd=trained).code == 0
    [folder] = (trained / "ckpt").glob("alone-*")
    prompt = ("generate", str(folder), "--prompt", "Everyone", "--tokens", "3")
    kept = runs.weft(*prompt)
    shutil.rmtree(folder / "tokenizer")
    end = runs.weft(*prompt)
    assert end.code == 2 and "has no tokenizer: give it with --tokenizer" in end.err, end
    end = runs.weft(*prompt, "--tokenizer", str(trained / "tokenizer.json"))
    assert end.code == 0 and end.out == kept.out, end
    end = runs.weft("eval", str(folder), "--data", str(trained / "data" / "train-*.bin"))
    assert end.code == 0, end


def test_a_link_in_its_place_leads_nowhere(trained):
    file, outside = job(trained, "linked", tokenizer="tokenizer.json"), trained / "outside"
    outside.mkdir()
    assert runs.weft("run", str(file), cwd=trained).code == 0
    [folder] = (trained / "ckpt").glob("linked-*")
    shutil.rmtree(folder / "tokenizer")
    (folder / "tokenizer").symlink_to(outside)
    end = runs.weft("run", str(file), "-s", "train.steps=4", cwd=trained)
    assert end.code != 0 and "tokenizer is no folder but a link" in end.out + end.err, end
    assert not list(outside.iterdir())


def test_another_tokenizer_than_the_datas_is_refused_and_both_are_named(trained):
    shutil.copy(SHAPES / "llama3.json", trained / "other.json")
    end = runs.weft("run", str(job(trained, "other", tokenizer="other.json")), cwd=trained)
    assert end.code != 0
    for name in ("tokenizer.json", "other.json"):
        assert "sha256:" + hashlib.sha256((trained / name).read_bytes()).hexdigest() in end.err


def test_another_tokenizer_than_the_checkpoints_is_refused_and_both_are_named(trained):
    place = trained / "again"
    place.mkdir()
    shutil.copy(trained / "tokenizer.json", place / "tokenizer.json")
    (place / "data").mkdir()
    shard = next((trained / "data").glob("train-*.bin"))
    shutil.copy(shard, place / "data" / shard.name)  # without an index
    assert runs.weft("run", str(job(place, "moved", tokenizer="tokenizer.json")), cwd=place).code == 0
    ours = hashlib.sha256((place / "tokenizer.json").read_bytes()).hexdigest()
    shutil.copy(SHAPES / "gpt2.json", place / "tokenizer.json")
    end = runs.weft("run", str(job(place, "moved", tokenizer="tokenizer.json")), "-s", "train.steps=4", cwd=place)
    assert end.code != 0
    said = end.err + end.out
    assert ours in said and hashlib.sha256((place / "tokenizer.json").read_bytes()).hexdigest() in said, said


@pytest.mark.parametrize("damage, message", [
    (lambda text: text[:-20], "damaged.json: JSON at byte"),
    (lambda text: text.replace('"type":"BPE"', '"type":"Unigram"'), "model: type Unigram is not read: BPE is"),
    (lambda text: text.replace('"type":"NFC"', '"type":"Lowercase"'),
     "normalizer: type Lowercase is not read: NFC, Replace, Prepend, Sequence are"),
], ids=["cut", "Unigram", "Lowercase"])
def test_what_is_wrong_in_the_file_is_said_with_its_place(trained, damage, message):
    place = trained / "damaged.json"
    text = json.dumps(json.loads((trained / "tokenizer.json").read_text()), separators=(",", ":"))
    place.write_text(damage(text))
    end = runs.weft("run", str(job(trained, "damaged", tokenizer="damaged.json")), cwd=trained)
    assert end.code != 0
    assert "data.tokenizer" in end.err and message in end.err, end.err


@pytest.fixture(scope="module")
def served(trained, tmp_path_factory):
    """One coordinator and one worker, and beneath the data root what was prepared; beside it, the same once more."""
    c = cluster.Cluster(tmp_path_factory.mktemp("served"))
    shutil.copy(trained / "tokenizer.json", c.data / "tokenizer.json")
    shutil.copytree(trained / "data", c.data / "data")
    shutil.copy(trained / "tokenizer.json", c.place / "outside.json")
    (c.data / "link.json").symlink_to("../outside.json")
    yield c
    c.kill_all()


def test_a_served_job_decodes_with_a_tokenizer_beneath_the_data_root_and_keeps_it(served, trained):
    made = json.loads(job(trained, "served", tokenizer="tokenizer.json").read_text())
    submitted = served.submit(made)
    served.succeed(submitted)
    store = served.store(submitted)
    written = (served.data / "tokenizer.json").read_bytes()
    assert (store / "tokenizer" / "tokenizer.json").read_bytes() == written
    [manifest] = store.glob("step-*/MANIFEST.json")
    assert json.loads(manifest.read_text())["tokenizer"] == "sha256:" + hashlib.sha256(written).hexdigest()
    rows = runs.rows_of(store)
    [samples] = [row["samples"] for row in rows if "samples" in row]
    end = runs.weft("generate", str(store), "--prompt", "Everyone ", "--tokens", "6", "--json")
    assert end.code == 0, end.err
    assert samples == [json.loads(end.out)["text"]]


@pytest.mark.parametrize("name, why", [
    ("nowhere.json", "nowhere.json cannot be opened (w0: beneath "),
    ("../outside.json", "../outside.json leaves the --data-root"),
    ("link.json", "link.json cannot be opened (w0: path 'link.json' leaves the root "),
])
def test_a_tokenizer_that_is_missing_or_outside_the_root_is_refused(served, trained, name, why):
    path = served.place / "refused.yaml"
    made = json.loads(job(trained, "refused", tokenizer=name).read_text())
    path.write_text(json.dumps({**made, "checkpoint": {"dir": "."}}))
    refused = served.weft("submit", str(path))
    assert refused.code == 2 and "data.tokenizer: " + why in refused.err, refused.err
