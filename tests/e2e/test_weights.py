# SPDX-License-Identifier: Apache-2.0
"""weft export and weft import: what is refused, by file and place, and leaves nothing; what is carried along.

The folders are those that transformers saved (tests/parity/folders); tests/unit/test_weights_folders.c computes their logits."""
import fcntl
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("WEFT_BUILD", ROOT / "build")).resolve()
FOLDERS = ROOT / "tests" / "parity" / "folders"


def weft(*args, code=0, **more):
    done = subprocess.run([BUILD / "weft", *map(str, args)], capture_output=True, text=True, check=False, timeout=120, **more)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def read(file):
    raw = file.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8 : 8 + n])
    head.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], raw[8 + n :][slice(*t["data_offsets"])]) for k, t in head.items()}


def write(file, tensors):
    head, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Folder:
    """A copy of one of the folders, which a test changes."""

    def __init__(self, tmp, name):
        self.dir = tmp / name
        shutil.copytree(FOLDERS / name, self.dir)
        self.out = tmp / "ckpt"

    def config(self, **fields):
        file = self.dir / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    def tensors(self, change):
        file = self.dir / "model.safetensors"
        tensors = read(file)
        change(tensors)
        write(file, tensors)

    def refused(self, *words, args=()):
        err = weft("import", self.dir, "--out", self.out, *args, code=1)
        assert all(w in err for w in words), err
        assert sorted(p.name for p in self.out.parent.iterdir()) == sorted({self.dir.name}), "something was left"


@pytest.fixture
def llama(tmp_path):
    return Folder(tmp_path, "llama3")


@pytest.mark.parametrize("fields, words", [
    ({"hidden_act": "gelu"}, ["config.json", "hidden_act", '"gelu"', '"silu"']),
    ({"rms_norm_eps": 1e-6}, ["rms_norm_eps"]),
    ({"attention_bias": True}, ["attention_bias", "true"]),
    ({"mlp_bias": True}, ["mlp_bias"]),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 30.0, "factor": 8.0}}, ["rope_type", "linear"]),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, ["factor"]),
    ({"rope_theta": 31.0}, ["rope_theta", "31"]),
    ({"residual_multiplier": 2}, ["residual_multiplier", "no line for it"]),
    ({"num_hidden_layers": None}, ["num_hidden_layers", "missing"]),
    ({"num_hidden_layers": "3"}, ["num_hidden_layers", "a number"]),
    ({"num_hidden_layers": 5000}, ["num_hidden_layers"]),
    ({"tie_word_embeddings": 1}, ["tie_word_embeddings", "true or false"]),
    ({"architectures": ["OtherForCausalLM"]}, ["architectures", "OtherForCausalLM"]),
])
def test_a_config_that_means_something_else_is_refused_by_its_field(llama, fields, words):
    llama.config(**fields)
    llama.refused(*words, args=() if "architectures" in fields else ("--program", "llama"))


@pytest.mark.parametrize("name, fields", [
    ("qwen2", {"sliding_window": 32768, "max_window_layers": 21, "use_sliding_window": False, "use_mrope": False}),
    ("llama3", {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}),
    ("deepseek-v2-lite", {"max_position_embeddings": 163840}),
])
def test_fields_as_published_configs_have_them_are_taken(tmp_path, name, fields):
    f = Folder(tmp_path, name)
    f.config(**fields)
    weft("import", f.dir, "--out", f.out)
    weft("export", f.out, tmp_path / "hf")
    assert read(tmp_path / "hf" / "model.safetensors") == read(f.dir / "model.safetensors")


@pytest.mark.parametrize("name, fields, words", [
    ("qwen2", {"sliding_window": 8, "use_sliding_window": True}, ["use_sliding_window", "true"]),
    ("qwen2", {"use_mrope": True}, ["use_mrope"]),
    ("mixtral", {"sliding_window": 8}, ["sliding_window"]),
    ("llama3", {"rope_interleaved": True}, ["rope_interleaved"]),
])
def test_the_same_fields_are_refused_where_they_count(tmp_path, name, fields, words):
    f = Folder(tmp_path, name)
    f.config(**fields)
    f.refused("config.json", *words)


def test_each_tensor_is_accounted_for(llama, tmp_path):
    name = "model.layers.1.mlp.up_proj.weight"
    original = (llama.dir / "model.safetensors").read_bytes()
    for change, words in [
        (lambda t: t.pop(name), [name, "missing"]),
        (lambda t: t.update({"model.layers.3.mlp.up_proj.weight": t[name]}), ["model.layers.3.mlp.up_proj.weight", "left over"]),
        (lambda t: t.update({name: (t[name][0], t[name][1][::-1], t[name][2])}), [name, "[16, 12]", "[12, 16]"]),
        (lambda t: t.update({name: ("I32", *t[name][1:])}), [name, "I32"]),
        (lambda t: t.update({name: ("F17", *t[name][1:])}), [name, "F17"]),
    ]:
        (llama.dir / "model.safetensors").write_bytes(original)
        llama.tensors(change)
        llama.refused(*words, "model.safetensors" if "missing" not in words else "missing")


def test_a_head_that_is_stored_twice_must_be_equal(tmp_path):
    f = Folder(tmp_path, "llama32")
    f.tensors(lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    weft("import", f.dir, "--out", f.out)
    shutil.rmtree(f.out)
    f.tensors(lambda t: t.update({"lm_head.weight": (*t["lm_head.weight"][:2], b"\0" * len(t["lm_head.weight"][2]))}))
    f.refused("lm_head.weight", "not equal", "model.embed_tokens.weight")


def head_of(folder):
    raw = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


@pytest.mark.parametrize("harm, words", [
    (lambda head, name: head[name].update(data_offsets=[0, 8]), "dtype and shape do not make"),
    (lambda head, name: head[name].update(data_offsets=[1 << 40, (1 << 40) + 768]), "outside"),
    (lambda head, name: head[name].update(data_offsets=[0, 768]), ""),
    (lambda head, name: head[name].update(shape=[1 << 62, 1 << 62]), ""),
    (lambda head, name: head[name].update(shape=[-12, -16]), "whole number"),
    (lambda head, name: head.pop(name), "hole"),
])
def test_a_harmed_head_is_refused(llama, harm, words):
    head, data = head_of(llama.dir)
    harm(head, "model.layers.1.mlp.up_proj.weight")
    text = json.dumps(head).encode()
    (llama.dir / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    llama.refused("model.safetensors", words)


def test_cut_and_nonsensical_files_are_refused(llama):
    file = llama.dir / "model.safetensors"
    raw = file.read_bytes()
    for bad in raw[:-1], raw[:100], raw[:4], b"", struct.pack("<Q", 1 << 60) + raw[8:], raw + b"x", raw[:8] + b"[" + raw[9:]:
        file.write_bytes(bad)
        llama.refused("model.safetensors")
    file.write_bytes(raw)
    config = (llama.dir / "config.json").read_text()
    for bad in config[:-3], "[]", "", config.replace('"head_dim"', '"hidden_act"'), "[" * 100:
        (llama.dir / "config.json").write_text(bad)
        llama.refused("config.json")


def split(folder, names=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
    """The folder's tensors in two files with an index, which is returned."""
    tensors = list(read(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {}}
    for k, name in enumerate(names):
        part = dict(tensors[k::2])
        write(folder / name, part)
        index["weight_map"].update({t: name for t in part})
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_files_by_an_index_are_read_and_written(llama, tmp_path):
    whole = read(llama.dir / "model.safetensors")
    split(llama.dir)
    weft("import", llama.dir, "--out", llama.out)
    said = json.loads(weft("export", llama.out, tmp_path / "hf", "--shard-size", "9KB", "--json"))
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    files = sorted(p.name for p in (tmp_path / "hf").glob("*.safetensors"))
    assert len(files) == said["files"] > 1 and files == sorted(set(index["weight_map"].values()))
    back = {}
    for name in files:
        back.update(read(tmp_path / "hf" / name))
    assert back == whole


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", ".x.safetensors", "x.bin", "", 3,
                                  "absent.safetensors"])
def test_an_index_names_files_of_its_folder_alone(llama, name):
    index = split(llama.dir)
    index["weight_map"]["lm_head.weight"] = name
    (llama.dir / "model.safetensors.index.json").write_text(json.dumps(index))
    llama.refused("model.safetensors.index.json")


def test_an_index_and_its_files_must_agree(llama):
    index = split(llama.dir)
    file = llama.dir / "model.safetensors.index.json"
    for change in [lambda m: m.pop("lm_head.weight"), lambda m: m.update({"more": "model-00001-of-00002.safetensors"}),
                   lambda m: m.update({"lm_head.weight": ({*m.values()} - {m["lm_head.weight"]}).pop()})]:
        changed = {"weight_map": dict(index["weight_map"])}
        change(changed["weight_map"])
        file.write_text(json.dumps(changed))
        llama.refused("model.safetensors.index.json")


def test_nothing_takes_the_place_of_what_is_there(llama, tmp_path):
    llama.out.mkdir()
    weft("import", llama.dir, "--out", llama.out)  # an empty one is taken
    assert "is there already" in weft("import", llama.dir, "--out", llama.out, code=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    assert "is there already" in weft("export", llama.out, tmp_path / "full", code=2)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine"]


def test_a_damaged_checkpoint_is_not_exported(llama, tmp_path):
    weft("import", llama.dir, "--out", llama.out)
    shard = next(llama.out.glob("step-*/shard-*"))
    raw = bytearray(shard.read_bytes())
    raw[-5] ^= 1
    shard.write_bytes(raw)
    assert "digest differs" in weft("export", llama.out, tmp_path / "hf", code=1)
    assert "digest differs" in weft("export", llama.out, tmp_path / "npz", "--to", "npz", code=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt", "llama3"]


def test_a_tokenizers_files_and_token_ids_travel(llama, tmp_path):
    (llama.dir / "tokenizer.json").write_text('{"version": "1.0"}')
    (llama.dir / "generation_config.json").write_text('{"bos_token_id": 3, "eos_token_id": [4, 5], "top_k": 9}')
    weft("import", llama.dir, "--out", llama.out)
    weft("export", llama.out, tmp_path / "hf")
    assert (tmp_path / "hf" / "tokenizer.json").read_text() == '{"version": "1.0"}'
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (3, [4, 5]) and "pad_token_id" not in config
    step = next(llama.out.glob("step-*"))
    weft("export", step, tmp_path / "hf2", "-s", "eos_token_id=6", "-s", "eos_token_id=7", "-s", "pad_token_id=0")
    generation = json.loads((tmp_path / "hf2" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 3, "eos_token_id": 7, "pad_token_id": 0, "top_k": 9}
    config = json.loads((tmp_path / "hf2" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (3, 7, 0)
    weft("export", step, tmp_path / "hf3", "-s", "hidden_size=7", code=2)


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors"])
def test_a_link_to_a_file_that_was_not_copied_along_is_named(llama, file):
    """As in a folder of Hugging Face's cache that was copied without its blobs."""
    (llama.dir / file).unlink(missing_ok=True)
    (llama.dir / file).symlink_to(f"../../blobs/{file}")
    llama.refused(file, "No such file")


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("ids", [["x", 1.5, 7], "7", 1.5, True, {}, [[7]], 1 << 31, -2])
def test_what_is_no_token_id_is_refused_both_ways(llama, tmp_path, file, ids):
    original = (llama.dir / "config.json").read_text()
    path = llama.dir / file
    path.write_text(json.dumps({**json.loads(original if file == "config.json" else "{}"), "eos_token_id": ids}))
    llama.refused(file, "eos_token_id")
    (llama.dir / "generation_config.json").unlink(missing_ok=True)
    (llama.dir / "config.json").write_text(original)
    weft("import", llama.dir, "--out", llama.out)
    (llama.out / "tokenizer").mkdir(exist_ok=True)
    (llama.out / "tokenizer" / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    err = weft("export", llama.out, tmp_path / "hf", code=1)
    assert "generation_config.json" in err and "eos_token_id" in err and not list(tmp_path.glob("hf*"))


def test_ids_that_nothing_says_are_the_tokenizers_or_null(tmp_path):
    f = Folder(tmp_path, "gpt2")
    (f.dir / "generation_config.json").unlink(missing_ok=True)
    f.config(bos_token_id=None, eos_token_id=None)
    weft("import", f.dir, "--out", f.out)
    weft("export", f.out, tmp_path / "bare")
    config = json.loads((tmp_path / "bare" / "config.json").read_text())
    assert config["bos_token_id"] is None and config["eos_token_id"] is None
    shutil.rmtree(f.out)
    (tmp_path / "text").write_text("the cat sat on the mat, the dog sat on the log\n" * 20)
    weft("data", "train-tokenizer", tmp_path / "text", "--vocab", 260, "--out", f.dir / "tokenizer.json")
    added = json.loads((f.dir / "tokenizer.json").read_text())["added_tokens"]
    end = next(t["id"] for t in added if t["content"] == "<|endoftext|>")
    weft("import", f.dir, "--out", f.out)
    weft("export", f.out, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["bos_token_id"] == config["eos_token_id"] == end
    # Another tokenizer beside the checkpoint than it was trained with.
    other = f.out / "tokenizer" / "tokenizer.json"
    other.write_text(other.read_text() + "\n")
    err = weft("export", f.out, tmp_path / "no", code=1)
    assert err.count("sha256:") == 2 and "was trained with" in err and not list(tmp_path.glob("no*"))


def test_names_that_yaml_reads_as_something_else_and_links(llama, tmp_path):
    weft("import", llama.dir, "--out", tmp_path / "null")
    assert "parameters: 9392" in weft("plan", tmp_path / "null" / "job.yaml")
    (tmp_path / "empty").mkdir()
    for to in "empty", "absent":
        (tmp_path / "link").symlink_to(to)
        assert "is a link" in weft("import", llama.dir, "--out", tmp_path / "link", code=2)
        (tmp_path / "link").unlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "llama3", "null"]


def test_arrays_of_numpy_have_wefts_names(llama, tmp_path):
    whole = read(llama.dir / "model.safetensors")
    weft("import", llama.dir, "--out", llama.out)
    weft("export", llama.out, tmp_path / "npz", "--to", "npz")
    with np.load(tmp_path / "npz" / "model.npz") as arrays:
        assert len(arrays.files) == 27
        v = np.frombuffer(whole["model.layers.1.self_attn.v_proj.weight"][2], np.float32).reshape(2, 6, 16)
        assert np.array_equal(arrays["layers/1/attn/kv/weight"][1], v.transpose(2, 0, 1))
        assert arrays["embed/tokens"].shape == (21, 16)  # without padding


def test_a_program_of_ones_own_may_say_how_it_is_called(tmp_path):
    text = weft("model", "show", "llama2")
    head, section = text.split("\nexport hf\n")
    own = tmp_path / "own.model"
    own.write_text(head + "\nexport hf\n" + section.replace("embed_tokens", "table").replace('"llama"', '"own"'))
    f = Folder(tmp_path, "llama2")
    bare = tmp_path / "bare.model"
    bare.write_text(head)
    assert "no section `export hf`" in weft("import", f.dir, "--out", f.out, "--program", bare, code=1)
    weft("import", f.dir, "--out", f.out, "--program", "llama2")
    weft("export", f.out, tmp_path / "hf", "--program", own)
    assert "model.table.weight" in read(tmp_path / "hf" / "model.safetensors")
    weft("import", tmp_path / "hf", "--out", tmp_path / "again", "--program", own)
    other = tmp_path / "other.model"
    other.write_text(own.read_text().replace("silu(h", "gelu(h"))
    assert "another model" in weft("export", f.out, tmp_path / "no", "--program", other, code=1)
    own.write_text(own.read_text().replace("norm.weight[embed]", "norm.weight[mlp]"))
    assert "own.model:" in weft("export", f.out, tmp_path / "no", "--program", own, code=1)
    for dims in "[mlp, embed]", "[(mlp + mlp), (embed + embed)]":
        two = section.replace("{gate|up}/weight", "gate/weight, layers/{n}/mlp/up/weight").replace("mlp.{}_proj.weight[mlp, embed]", "mlp.both.weight" + dims)
        assert two != section
        own.write_text(head + "\nexport hf\n" + two)
        err = weft("export", f.out, tmp_path / "no", "--program", own, code=1)
        assert "own.model:" in err and "exactly one dimension is their sum" in err, err
    assert not list(tmp_path.glob("no*"))


def test_the_section_is_no_part_of_a_jobs_identity(tmp_path):
    text = weft("model", "show", "starter")
    hashes = []
    for name, more in ("a", ""), ("b", '\nexport hf\n  config\n    model_type = "x"\n'):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.model").write_text(text.rstrip("\n") + "\n" + more)
        (tmp_path / name / "job.yaml").write_text(
            "name: x\nmodel: {program: ./m.model}\ndata: {format: tokens, train: {tokens: t}, batch: 8}\ntrain: {steps: 1}\n")
        hashes.append(json.loads(weft("plan", "job.yaml", "--json", cwd=tmp_path / name))["hash"])
    assert hashes[0] == hashes[1]


def test_the_imported_job_is_whole(llama):
    weft("import", llama.dir, "--out", llama.out)
    assert json.loads(weft("ckpt", "verify", llama.out, "--json"))["checkpoints"][0]["ok"]
    assert '"optimizer": "none"' in next(llama.out.glob("step-*/MANIFEST.json")).read_text()
    assert "parameters: 9392" in weft("plan", llama.out / "job.yaml")


def test_what_is_no_checkpoint_yet_or_no_more_is_told_what_to_do(llama):
    err = weft("generate", llama.dir, "--prompt", "1", code=2)
    assert "`weft import` makes a checkpoint of what transformers wrote: " in err, err
    weft("import", llama.dir, "--out", llama.out)
    (llama.out / "step-00000000.a1").rename(llama.out / "mine")
    err = weft("generate", llama.out / "mine", "--prompt", "1", code=2)
    assert "a checkpoint keeps its name, such as step-00000200.a1: " in err, err


def test_a_training_begins_with_it_and_what_it_makes_is_exported(llama, tmp_path):
    weft("import", llama.dir, "--out", tmp_path / "base")
    (np.arange(5000) * 7 % 21).astype(np.uint16).tofile(tmp_path / "train.tokens")
    shutil.copy(tmp_path / "base" / "job.yaml", tmp_path)
    said = weft("run", "job.yaml", "-s", "name=tuned", "-s", "data.ids=u16", "-s", "data.tokenizer=ids", "-s", "train.steps=2", "-s",
                "mesh={tp: 2}", "-s", "schedule.value=0.01", "-s", "checkpoint.first=true", cwd=tmp_path)
    assert "27 of 27 parameters are taken" in said
    weft("export", "tuned@0", "first", cwd=tmp_path)
    weft("export", "tuned", "last", "--shard-size", "9KB", cwd=tmp_path)
    start = read(llama.dir / "model.safetensors")
    assert read(tmp_path / "first" / "model.safetensors") == start
    last = {}
    for file in (tmp_path / "last").glob("*.safetensors"):
        last.update(read(file))
    assert last.keys() == start.keys() and all(last[k] != start[k] for k in start)
    weft("import", tmp_path / "last", "--out", tmp_path / "again")
    weft("export", tmp_path / "again", tmp_path / "same")
    assert read(tmp_path / "same" / "model.safetensors") == last


def test_checkpoints_are_compared_tensor_by_tensor(llama, tmp_path):
    def change(t):
        dtype, shape, raw = t["model.layers.1.self_attn.v_proj.weight"]
        values = np.frombuffer(raw, np.float32).copy()
        values[7] += 0.5
        t["model.layers.1.self_attn.v_proj.weight"] = dtype, shape, values.tobytes()

    tied = tmp_path / "tied"
    weft("import", FOLDERS / "llama32", "--out", tied)
    weft("import", llama.dir, "--out", tmp_path / "a")
    llama.tensors(change)
    weft("import", llama.dir, "--out", tmp_path / "b")
    assert weft("ckpt", "diff", tmp_path / "a", next((tmp_path / "a").glob("step-*"))).startswith("27 tensors are equal, 0")
    done = subprocess.run([BUILD / "weft", "ckpt", "diff", tmp_path / "a", tmp_path / "b", "--json"], capture_output=True, check=False)
    said = json.loads(done.stdout)
    other = [t for t in said["tensors"] if t["state"] != "equal"]
    assert done.returncode == 1 and not said["same"] and [t["name"] for t in other] == ["layers/1/attn/kv/weight"]
    assert abs(other[0]["max_abs"] - 0.5) < 1e-6 and other[0]["elements"] == 2 * 16 * 2 * 6
    done = subprocess.run([BUILD / "weft", "ckpt", "diff", tmp_path / "a", tied], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "head/weight: only in A\n" in done.stdout and "1 are only in A, 0 only in B" in done.stdout


def test_what_a_killed_import_left_is_removed_by_the_next_unless_somebody_still_makes_it(llama, tmp_path):
    left = tmp_path / "ckpt.weft-tmp"
    (left / "step-00000000.a1").mkdir(parents=True)
    (left / "step-00000000.a1" / "shard-00000").write_bytes(b"half of it")
    fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)  # as its maker does while it lives
    assert "another process makes" in weft("import", llama.dir, "--out", llama.out, code=2)
    assert (left / "step-00000000.a1" / "shard-00000").exists() and not llama.out.exists()
    os.close(fd)
    weft("import", llama.dir, "--out", llama.out)
    assert not left.exists() and not list(llama.out.rglob("shard-00000"))


def test_an_interrupt_leaves_nothing(llama, tmp_path):
    (tmp_path / "fifo").mkdir()
    weft("import", llama.dir, "--out", llama.out)
    # A big one, so that there is time: the vocabulary grows.
    def grow(t):
        for k in "model.embed_tokens.weight", "lm_head.weight":
            t[k] = ("F32", [500000, 16], bytes(500000 * 64))
    llama.tensors(grow)
    llama.config(vocab_size=500000)
    job = subprocess.Popen([BUILD / "weft", "import", llama.dir, "--out", tmp_path / "big"], stderr=subprocess.PIPE, text=True)
    while job.poll() is None and not list(tmp_path.glob("big.weft-tmp")):
        pass
    job.send_signal(signal.SIGINT)
    err = job.communicate(timeout=60)[1]
    assert job.returncode in (0, 130), err
    assert not list(tmp_path.glob("big.weft-tmp")) and (tmp_path / "big").exists() == (job.returncode == 0)
