# SPDX-License-Identifier: Apache-2.0
"""A training begins with parameters of another's checkpoint (checkpoint.from): on any mesh, with a new head, a longer
vocabulary, other names; and begins with the same ones however often it is killed before its first save."""
import ctypes
import hashlib
import json
import re
import shutil
import signal

import numpy
import pytest
import runs

GPT = {"program": "gpt2", "layers": 2, "embed": 16, "heads": 2, "seq": 8, "vocab": 40, "vocab_multiple": 8}
OWN = """# A decoder with a head of its own and the vocabulary's rows apart.
sizes
  embed = 16
  heads = 2
  head_dim = embed / heads
  mlp = 64
  layers = 2
  seq = 8
  vocab = 40 padded 8
model
  x = embed(tokens, embed.tokens[vocab, embed]) + embed(positions, embed.positions[position = seq, embed])
  blocks:
    repeat layers
      q, k, v = linear(layernorm(x, norm1), attn.qkv[3, embed, heads, head_dim])
      x = x + linear(attention(q, k, v), attn.out[heads, head_dim, embed])
      x = x + linear(gelu(linear(layernorm(x, norm2), mlp.in[embed, mlp])), mlp.out[mlp, embed])
  x = layernorm(x, norm)
  logits = x @ top[embed, vocab]
  loss = cross_entropy(logits, targets)
"""


@pytest.fixture
def corpus(place):
    ids = numpy.random.default_rng(5).integers(0, 30, 4000).astype("<u2")
    (place / "tokens").write_bytes(ids.tobytes())
    return place / "tokens"


def job(name, mesh, model=None, checkpoint=None, **changes):
    return runs.pinned({
        "name": name, "mesh": mesh, "model": model or GPT, "checkpoint": {"dir": "ckpt", **(checkpoint or {})},
        "data": {"format": "tokens", "ids": "u16", "train": {"tokens": "tokens"}, "batch": 8},
        "schedule": {"kind": "constant", "value": 1e-2}, "train": {"steps": 6, "seed": 1}, **changes,
    })  # fmt: skip


def run(place, j):
    r = runs.Run(place, j, j["name"])
    return r, runs.weft("run", str(r.file))


@pytest.fixture
def base(place, corpus):
    r, end = run(place, job("base", {"dp": 1}))
    assert end.code == 0, end
    return r.checkpoints()[-1]


def first(r):
    return r.checkpoints()[0]


def begin(place, mesh=None, model=None, frm="base", name="tuned", load=None, **changes):
    """Trains from the base and returns the run, its end and the state that it began with."""
    ck = {"from": frm, "first": True, "keep": 9, **({"load": load} if load else {})}
    r, end = run(place, job(name, mesh or {"dp": 1}, model, ck, **{"train": {"steps": 3, "seed": 9}, **changes}))
    assert end.code == 0, end
    return r, end, first(r).numbers()


def params_of(numbers):
    return {k: v for k, v in numbers.items() if not k.startswith(("m/", "v/"))}


@pytest.mark.parametrize("mesh", [{"dp": 1}, {"dp": 2}, {"tp": 2}, {"fsdp": 2}, {"pp": 2}], ids=str)
def test_a_training_begins_with_anothers_parameters_on_any_mesh(place, base, mesh):
    r, end, began = begin(place, mesh)
    want = base.numbers()
    for name, value in began.items():
        assert numpy.array_equal(value, want[name] if name in params_of(want) else numpy.zeros_like(value)), name
    c = r.checkpoints()[-1]
    n = len(params_of(want))
    said = f"checkpoint.from {base.path}: {n} of {n} parameters are taken\n"
    assert said in end.err, end
    assert c.manifest["source"]["folder"] == str(base.path.parent) and c.manifest["source"]["step"] == 6
    assert c.manifest["source"]["sha256"] == (base.path / "COMMIT").read_text().strip()
    assert c.step == 3 and c.manifest["updates"] == 3 and c.manifest["parent"] is None
    why = runs.weft("why", "--coordinator", str(place / ".weft" / "tuned"), "tuned")
    assert f"at step 0, with parameters of {base.path}" in why.out and f"{n} of {n} parameters are taken" in why.out, why


def test_what_is_said_to_be_taken_is_what_differs(place, base):
    """Some parameters only, another name, a path and a step: the rest is born as in a job of its own."""
    (place / "own.model").write_text(OWN)
    own = {"program": "./own.model"}
    load = {"params": ["embed/*", "blocks/*", "norm/*"], "rename": {"layers/*": "blocks/layers/*"}}
    r, end, began = begin(place, {"tp": 2}, own, f"./{base.path.parent.relative_to(place)}@6", load=load)
    alone, done = run(place, job("alone", {"dp": 1}, own, {"first": True, "keep": 9}, train={"steps": 1, "seed": 9}))
    assert done.code == 0, done
    want, born = base.numbers(), first(alone).numbers()
    assert numpy.array_equal(began["top/weight"], born["top/weight"])
    for name, value in params_of(began).items():
        if name != "top/weight":
            assert numpy.array_equal(value, want[name.replace("blocks/", "")]), name
    assert "not found, so drawn: top/weight" in end.err and "not used" not in end.err, end


def test_a_longer_vocabulary_has_new_rows(place, base):
    longer = {**GPT, "vocab": 45}
    r, end, began = begin(place, {"tp": 2}, longer)
    alone, done = run(place, job("alone", {"dp": 1}, longer, {"first": True, "keep": 9}, train={"steps": 1, "seed": 9}))
    assert done.code == 0, done
    table, born, want = began["embed/tokens"], first(alone).numbers()["embed/tokens"], base.numbers()["embed/tokens"]
    assert table.shape == (48, 16) and numpy.array_equal(table[:40], want)
    assert numpy.array_equal(table[40:45], born[40:45]) and born[40:45].any() and not table[45:].any()
    assert "1 of them longer here: their new rows are drawn" in end.err, end
    # 41 to 45 lie in the padding of both: rows that the other never had are drawn all the same
    within, end, began = begin(place, {"dp": 1}, {**GPT, "vocab": 44, "vocab_multiple": 16}, name="within", frm="tuned@0",
                               load={"params": "embed/p*"})  # fmt: skip
    assert not numpy.array_equal(began["embed/tokens"][:40], want)


def test_the_optimisers_state_and_the_steps_are_taken_where_it_is_asked(place, base):
    """Together with both a training continues as if it had never stopped."""
    load = {"optimizer": True, "step": True}
    r, end, began = begin(place, {"dp": 1}, load=load, train={"steps": 10, "seed": 1})
    assert [c.step for c in r.checkpoints()] == [6, 10] and r.checkpoints()[0].manifest["updates"] == 6
    assert all(numpy.array_equal(v, base.numbers()[k]) for k, v in began.items())
    whole, done = run(place, job("whole", {"dp": 1}, train={"steps": 10, "seed": 1}))
    assert done.code == 0, done
    assert r.final() == whole.final()
    state, end, _ = begin(place, name="state", load={"optimizer": True})
    assert [c.step for c in state.checkpoints()] == [0, 3]
    assert [c.manifest["updates"] for c in state.checkpoints()] == [6, 9]


def xxh3(data):
    class Digest(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    hash128 = ctypes.CDLL("libxxhash.so.0").XXH3_128bits
    hash128.restype, hash128.argtypes = Digest, [ctypes.c_char_p, ctypes.c_size_t]
    d = hash128(data, len(data))
    return f"{d.high:016x}{d.low:016x}"


def make_narrow(path):
    """Rewrites a checkpoint of one shard with bfloat16, cut short, in the place of float32."""
    manifest = json.loads((path / "MANIFEST.json").read_text())
    (shard,) = path.glob("shard-*")
    data = shard.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head, body, values = json.loads(data[8 : 8 + length]), data[8 + length :], b""
    for name, t in head.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            t["dtype"], t["data_offsets"] = "BF16", [len(values), len(values) + (end - begin) // 2]
            values += numpy.frombuffer(body[begin:end], "<u2")[1::2].tobytes()
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    text = len(text).to_bytes(8, "little") + text
    shard.write_bytes(text + values)
    manifest["files"][0] |= {"bytes": len(text) + len(values), "head_bytes": len(text), "head_xxh3": xxh3(text)}
    for t in manifest["tensors"]:
        (s,), (begin, end) = t["slices"], head[t["name"]]["data_offsets"]
        t["dtype"] = "BF16"
        s |= {"offset": len(text) + begin, "bytes": end - begin, "xxh3": xxh3(values[begin:end])}
    text = json.dumps(manifest)
    (path / "MANIFEST.json").write_text(text)
    (path / "COMMIT").write_text(hashlib.sha256(text.encode()).hexdigest() + "\n")


@pytest.mark.parametrize("mesh", [{"dp": 1}, {"tp": 2}], ids=str)
def test_a_checkpoint_of_bfloat16_is_widened(place, base, mesh):
    want = base.numbers()
    make_narrow(base.path)
    _, _, began = begin(place, mesh, load={"optimizer": True})
    for name, value in began.items():
        cut = (want[name].astype("<f4").view("<u4") & 0xFFFF0000).view("<f4")
        assert numpy.array_equal(value, cut), name
    assert any(not numpy.array_equal(v, want[k]) for k, v in began.items())


REFUSED = {
    "other sizes": ({"model": {**GPT, "embed": 32}}, "embed/tokens is F32 [40, 16] in the checkpoint (embed/tokens) and F32 [40, 32] here"),
    "shorter": ({"model": {**GPT, "vocab": 30}}, "embed/tokens is F32 [40, 16] in the checkpoint (embed/tokens) and F32 [30, 16] here"),
    "longer positions": ({"model": {**GPT, "seq": 16}}, "embed/positions is F32 [8, 16]"),
    "nothing": ({"checkpoint": {"from": "base", "load": {"params": "head*"}}}, "no parameter is found in the checkpoint"),
    "no such job": ({"checkpoint": {"from": "bose"}}, "no job 'bose' was run here"),
    "no such path": ({"checkpoint": {"from": "./ckpt-gone"}}, "ckpt-gone"),
    "no such step": ({"checkpoint": {"from": "base@5"}}, "no checkpoint of step 5"),
    "two of one name": ({"checkpoint": {"from": "base", "load": {"rename": {"layers/*/norm1/*": "layers/0/norm2/*"}}}},
                        "would both be called layers/0/norm2/"),
    "other state": ({"checkpoint": {"from": "base", "load": {"optimizer": True}}, "optimizer": {"kind": "sgd"}},
                    "the checkpoint has the state of adamw, and optimizer.kind is sgd"),
    "no steps left": ({"checkpoint": {"from": "base", "load": {"step": True}}}, "train.steps is 6, and its step is 6"),
}  # fmt: skip


@pytest.mark.parametrize("changes, words", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_taken_is_refused_before_anything_begins(place, base, changes, words):
    j = job("tuned", {"dp": 1}, **{"checkpoint": {"from": "base"}, **changes})
    r, end = run(place, j)
    assert end.code == 2 and "checkpoint.from: " in end.err and words in end.err, end
    assert not (place / ".weft" / "tuned").exists()
    plan = runs.weft("plan", str(r.file))
    if "gone" in words or "bose" in words or "step 5" in words:
        assert words in plan.out, plan
    else:
        assert plan.code == 2 and "SOURCE_UNFIT" in plan.out and words.split(" ")[-1] in plan.out, plan


# ---- tokenizers ----------------------------------------------------------------------------------


def tokenizer(file, vocab, added=()):
    """A tokenizer.json of these letters, in their order, and of added tokens behind them."""
    tokens = {c: i for i, c in enumerate(vocab)}
    flags = {k: False for k in ("single_word", "lstrip", "rstrip", "normalized")}
    file.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": {"type": "Fuse"},
        "added_tokens": [{"id": len(vocab) + i, "content": a, "special": True, **flags} for i, a in enumerate(added)],
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": tokens, "merges": []},
    }))  # fmt: skip
    return "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()


def tokens_of(name):
    return {"format": "tokens", "ids": "u16", "train": {"tokens": "tokens"}, "batch": 8, "tokenizer": f"./{name}"}


def test_ids_mean_what_they_meant_or_the_vocabulary_is_not_taken(place, corpus):
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL"
    first, more, other = (place / f"{n}.json" for n in ("first", "more", "other"))
    was = tokenizer(first, letters, ["<end>"])
    now = tokenizer(more, letters, ["<end>", "<user>"])
    none = tokenizer(other, letters[::-1], ["<end>"])
    r, end = run(place, job("base", {"dp": 1}, data=tokens_of("first.json")))
    assert end.code == 0, end
    for name, size in [("more", GPT["vocab"]), ("longer", 45)]:
        r, end, _ = begin(place, {"dp": 2}, {**GPT, "vocab": size}, name=name, data=tokens_of("more.json"))
        assert f"the data's tokenizer, {now}, extends the checkpoint's, {was}" in end.err, end
    j = job("other", {"dp": 1}, None, {"from": "base"}, data=tokens_of("other.json"))
    r, end = run(place, j)
    assert end.code == 2 and "checkpoint.from: embed/tokens was trained with tokenizer " + was in end.err, end
    assert f"the data's is {none} (token 0 is not the same)" in end.err, end
    r, end, began = begin(place, name="apart", load={"params": ["embed/positions", "layers/*", "norm/*"]},
                          data=tokens_of("other.json"))  # fmt: skip
    assert f"the data's tokenizer, {none}, is not the checkpoint's, {was}" in end.err, end


def test_a_served_job_compares_tokenizers_where_it_runs(one, place, corpus):
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL"
    tokenizer(one.data / "first.json", letters)
    tokenizer(one.data / "other.json", letters[::-1])
    assert one.succeed(submitted(one, place, "base", data=tokens_of("first.json")))["step"] == 6
    tuned = submitted(one, place, "tuned", "base", data=tokens_of("other.json"))
    assert one.wait(tuned)["state"] == "FAILED"
    assert any("embed/tokens was trained with tokenizer sha256:" in e["text"] for e in one.events(tuned))


def test_a_folder_that_was_removed_gets_its_tokenizer_and_its_source_again(place, corpus):
    tokenizer(place / "first.json", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKL")
    r, end = run(place, job("base", {"dp": 1}, data=tokens_of("first.json")))
    assert end.code == 0, end
    j = job("tuned", {"dp": 2}, checkpoint={"from": "base", "every": 300}, data=tokens_of("first.json"),
            train={"steps": 1000000, "seed": 9})  # fmt: skip
    r = runs.Run(place, j, "tuned")
    p = runs.Process(["run", str(r.file)], program=runs.WEFT)
    assert r.wait_until(r.checkpoints, p)
    (store,) = r.stores()
    beside = {f: (store / f).read_bytes() for f in ("SOURCE", "tokenizer/tokenizer.json")}
    was = store.stat().st_ino
    while store.exists() and store.stat().st_ino == was:
        shutil.rmtree(store, ignore_errors=True)
    assert r.wait_until(r.checkpoints, p)
    assert {f: (store / f).read_bytes() for f in beside} == beside
    p.signal(signal.SIGKILL)
    p.wait()


# ---- killed before its first save ----------------------------------------------------------------


@pytest.fixture
def killed(place, base):
    """A run that has begun and saved nothing when it is killed."""
    r = runs.Run(place, job("tuned", {"dp": 1}, checkpoint={"from": "base"}, train={"steps": 100000, "seed": 9}), "tuned")
    p = runs.Process(["run", str(r.file)], program=runs.WEFT)
    assert r.wait_until(lambda: any((s / "metrics.jsonl").exists() for s in r.stores()), p)
    p.signal(signal.SIGKILL)
    p.wait()
    assert not r.checkpoints() and (r.stores()[0] / "SOURCE").exists()
    r.carry_on_as(job("tuned", {"dp": 1}, checkpoint={"from": "base"}, train={"steps": 3, "seed": 9}))
    return r


def test_a_newer_checkpoint_of_the_other_changes_nothing_for_a_job_that_has_begun(place, base, killed):
    longer, end = run(place, job("base", {"dp": 1}, train={"steps": 8, "seed": 1}))
    assert end.code == 0 and longer.checkpoints()[-1].step == 8, end
    end = runs.weft("run", str(killed.file))
    assert end.code == 0 and f"again, at step 0, with parameters of {base.path}" in end.out, end
    began = killed.checkpoints()[-1]
    assert began.manifest["source"]["step"] == 6
    fresh, _, _ = begin(place, name="fresh", frm="base@6")
    assert {k: v for k, v in began.tensors().items()} == fresh.final()


GONE = {
    "gone": (lambda c: shutil.rmtree(c), "this training began with {}: put it back, or start over"),
    "another": (lambda c: rewrite(c), "this training began with {}: put it back, or start over"),
}


def rewrite(path):
    """Another checkpoint, whole, under the same name."""
    manifest = path / "MANIFEST.json"
    text = manifest.read_text().replace('"seed": "1"', '"seed": "2"')
    assert text != manifest.read_text()
    manifest.write_text(text)
    (path / "COMMIT").write_text(hashlib.sha256(text.encode()).hexdigest() + "\n")


@pytest.mark.parametrize("change, words", GONE.values(), ids=GONE)
def test_a_job_that_has_begun_begins_with_the_same_one_or_is_refused(place, base, killed, change, words):
    change(base.path)
    end = runs.weft("run", str(killed.file))
    assert end.code == 78 and words.format(base.path) in end.out + end.err, end
    assert not killed.checkpoints()


def test_a_damaged_tensor_is_found_by_the_rank_that_reads_it(place, base):
    runs.damage(base.path)  # in the optimiser's state
    r, end = run(place, job("tuned", {"dp": 1}, checkpoint={"from": "base", "load": {"optimizer": True}}))
    assert end.code == 78 and not r.checkpoints(), end
    assert re.search(r"tensor '.*': digest differs: .*: start over from another one \(checkpoint.from: …@N\)", end.err + end.out), end
    r, end = run(place, job("apart", {"dp": 1}, checkpoint={"from": "base"}))  # which does not read it
    assert end.code == 0, end


def test_after_its_own_first_checkpoint_the_other_is_not_read(place, base):
    r, end = run(place, job("tuned", {"dp": 1}, checkpoint={"from": "base"}, train={"steps": 3, "seed": 9}))
    assert end.code == 0, end
    shutil.rmtree(base.path.parent)
    r.carry_on_as(job("tuned", {"dp": 2}, checkpoint={"from": "base"}, train={"steps": 6, "seed": 9}))
    end = runs.weft("run", str(r.file))
    assert end.code == 0 and r.checkpoints()[-1].step == 6, end
    assert r.checkpoints()[-1].manifest["source"]["step"] == 6
    r.carry_on_as(job("tuned", {"dp": 2}, checkpoint={"from": "base@6"}, train={"steps": 9, "seed": 9}))
    end = runs.weft("run", str(r.file))
    assert end.code == 2 and "differs in checkpoint.from" in end.err, end


# ---- served jobs ---------------------------------------------------------------------------------


def submitted(one, place, name, frm=None, **changes):
    shutil.copy(place / "tokens", one.data / "tokens")
    return one.submit(job(name, {"dp": 1}, checkpoint={"first": True, "keep": 9, **({"from": frm} if frm else {})}, **changes))


def test_a_served_job_begins_with_a_jobs_checkpoint_or_one_beneath_the_root(one, place, corpus):
    base = submitted(one, place, "base")
    assert one.succeed(base)["step"] == 6
    folder = one.store(base)
    want = runs.checkpoints_of(folder)[-1]
    for frm in ["base", f"{base}@6", f"./{folder.name}", f"./{folder.name}/{want.path.name}"]:
        tuned = submitted(one, place, "tuned", frm, train={"steps": 2, "seed": 9})
        assert one.succeed(tuned)["step"] == 2
        c = runs.checkpoints_of(one.store(tuned))[0]
        assert c.step == 0 and all(numpy.array_equal(v, c.numbers()[k]) for k, v in params_of(want.numbers()).items())
        texts = [e["text"] for e in one.events(tuned)]
        assert any("at step 0, with parameters of " in t and t.endswith(want.path.name) for t in texts), texts
        assert any("28 of 28 parameters are taken" in t for t in texts), texts


def test_a_served_job_may_not_begin_outside_of_the_root(one, place, corpus):
    shutil.copy(place / "tokens", one.data / "tokens")
    (place / "away.yaml").write_text(json.dumps(job("away", {"dp": 1}, checkpoint={"from": "./../away"})))
    end = one.weft("submit", str(place / "away.yaml"))
    assert end.code == 2 and "checkpoint.from: ./../away leaves the --checkpoint-root" in end.err, end
    (place / "away.yaml").write_text(json.dumps(job("away", {"dp": 1}, checkpoint={"from": "nobody"})))
    end = one.weft("submit", str(place / "away.yaml"))
    assert end.code == 2 and "checkpoint.from: there is no job 'nobody'" in end.err, end
    gone = submitted(one, place, "gone", "./gone")
    status = one.wait(gone)
    assert status["state"] in ("FAILED", "HELD") and "checkpoint.from" in status["text"], status
