# SPDX-License-Identifier: Apache-2.0
"""A program of the user's own as a job: its text travels with the job, and from there on no file is needed."""
import json

import cluster
import meshes
import pytest
import runs

OWN = """\
# A classifier with a gate: no program that comes with weft is like it.
sizes
  inputs  = 64 like embed    # features of an image
  width   = 48 like mlp      # of the gated layer
  classes = 5                # of images

model
  h = linear(images, in[inputs, width]) * silu(linear(images, gate[inputs, width]))
  logits = linear(layernorm(h, norm), out[width, classes])
  loss = cross_entropy(logits, labels)
  if evaluating
    report accuracy = accuracy(logits, labels)
"""


def job(data, **changes):
    made = runs.job(data, 2, **{"checkpoint": {"dir": "ckpt", "every": 10}, **changes})
    made["model"] = {"program": "./own.model", "width": 32}
    return made


@pytest.fixture(scope="module")
def calm(tmp_path_factory, toy):
    place = tmp_path_factory.mktemp("calm")
    (place / "own.model").write_text(OWN)
    return runs.train(place, job(toy))


def test_it_learns(calm):
    rows = calm.metrics()
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert rows[-1]["eval_accuracy"] > 0.6


@pytest.mark.parametrize("mesh", [{"dp": 2}, {"tp": 2}, {"fsdp": 2}, {"dp": 2, "tp": 2}], ids=str)
def test_any_mesh_trains_it_alike(place, toy, calm, mesh):
    (place / "own.model").write_text(OWN)
    many = runs.train(place, job(toy, mesh=mesh))
    for x, y in zip(calm.losses(), many.losses(), strict=True):
        assert x == pytest.approx(y, rel=2e-4)


def test_submitted_it_needs_no_file_and_ends_on_the_same_bits(place, toy, calm):
    c = cluster.Cluster(place, workers=0)
    try:
        (place / "own.model").write_text(OWN)
        at = c.submit(job(c.put_data(toy)))
        (place / "own.model").unlink()
        c.coordinator.down()  # what it knows of the job is in its database
        c.coordinator.up()
        c.start_worker(0)
        c.succeed(at)
        assert c.final(at) == calm.final()
        owner = json.loads((c.store(at) / "OWNER").read_text())
        assert "    # A classifier with a gate: no program that comes with weft is like it.\n" in owner["resolved"]
    finally:
        c.stop()
        c.kill_all()


def test_with_a_changed_program_a_run_is_another_training(place, toy):
    program = place / "own.model"
    program.write_text(OWN)
    run = runs.Run(place, job(toy))
    assert runs.weft("run", str(run.file)).code == 0
    program.write_text(OWN.replace("silu", "tanh"))
    run.carry_on_as(job(toy, train__steps=60))
    end = runs.weft("run", str(run.file))
    assert end.code == 2 and "differs in model.text" in end.err and "--new" in end.err, end


ACCURACY = "    report accuracy = accuracy(logits, labels)"


def test_an_accuracy_of_each_step_changes_no_bit_and_is_that_of_an_evaluation(place, toy):
    """A classifier with and without its report, on the same mesh. A step's accuracy is that of the parameters before it on its
    samples, so on one batch of all samples it is what the evaluation behind the step before found."""
    text = (runs.REPO / "common/model/programs/mlp.model").read_text()
    without = "".join(line for line in text.splitlines(True) if not line.startswith(ACCURACY))
    assert without != text
    ends = []
    for k, program in enumerate((text, without)):
        at = place / str(k)
        at.mkdir()
        (at / "own.model").write_text(program)
        one = runs.job(toy, 2, data__eval=toy.train, data__batch=480, eval={"every": 1}, train__microbatches=2)
        ends.append(runs.train(at, {**one, "model": {**one["model"], "program": "./own.model"}}))
    shown, silent = ends
    assert shown.final() == silent.final()
    for a, b in zip(shown.metrics(), silent.metrics(), strict=True):
        assert all(a[k] == b[k] for k in ("step", "loss", "grad_norm", "eval_loss")) and "accuracy" not in b, (a, b)
    rows = shown.metrics()
    for before, row in zip(rows, rows[1:]):
        assert row["accuracy"] == pytest.approx(before["eval_accuracy"], abs=1e-6), (before, row)
    assert rows[0]["accuracy"] < rows[-1]["accuracy"] > 0.6


PALM = """\
sizes
  layers = 2
  embed  = 32
  heads  = 4 divides embed
  head   = embed / heads
  mlp    = 4 * embed
  seq    = 16
  vocab  = 64

model
  x = embed(tokens, table[vocab, embed])
  repeat layers
    h = rmsnorm(x, norm)
    q = rotary(h @ q[embed, heads, head], 10000)
    k, v = h @ kv[2, embed, KEYS, head]
    a = attention(q, rotary(k, 10000), v) @ out[heads, head, embed]
    x = x + a + gelu(h @ up[embed, mlp]) @ down[mlp, embed]
  logits = rmsnorm(x, norm) @ table[vocab, embed]
  loss = cross_entropy(logits, targets)
"""


@pytest.mark.parametrize("keys, fix", [("kv_heads = 1", None), ("kv_heads", "model.kv_heads=2")])
def test_a_finding_names_a_size_only_where_the_program_has_it(place, keys, fix):
    text = PALM.replace("KEYS", keys)
    if fix:
        text = text.replace("  head   =", "  kv_heads = 1 like heads\n  head   =")
    (place / "palm.model").write_text(text)
    (place / "palm.yaml").write_text(
        "name: palm\nmodel: {program: palm.model}\nmesh: {tp: 2}\ntrain: {steps: 1}\n"
        "data: {format: tokens, train: {tokens: t}, batch: 4}\n"
    )
    plan = runs.weft("plan", str(place / "palm.yaml"), "--json")
    assert plan.code == 0, plan
    (found,) = (f for f in json.loads(plan.out)["findings"] if "key heads" in f["message"])
    assert found["fix"] == fix


def test_check_and_plan_describe_a_model_of_ones_own(place):
    hyper = str(meshes.PROGRAMS / "hyper.model")
    check = runs.weft("model", "check", hyper)
    assert check.code == 0 and "[batch, seq, embed, stream]" in check.out, check
    (place / "hyper.yaml").write_text(
        f"name: hyper\nmodel: {{program: {hyper}}}\nmesh: {{dp: 2, tp: 2}}\ntrain: {{steps: 1}}\n"
        "data: {format: tokens, train: {tokens: t}, batch: 4}\n"
    )
    plan = runs.weft("plan", str(place / "hyper.yaml"), "--full")
    assert plan.code == 0 and "layers/0…3/mlp/write" in plan.out, plan
