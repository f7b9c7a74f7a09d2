# SPDX-License-Identifier: Apache-2.0
"""The client's offline verbs: --json is a contract, and so are the exit codes."""
import json
import math
import re
import shutil

import numpy
import pytest
import runs

INT, STR, LIST, OBJ, NUM, BOOL = int, str, list, dict, (int, float), bool
PLAN = {
    "mesh": OBJ, "devices": INT, "threads": INT, "threads_why": STR, "params": LIST, "param_count": INT, "param_count_active": INT, "memory": OBJ, "memory_by_stage": LIST,
    "collectives": LIST, "flops_per_step": NUM, "flops_active": NUM, "utilisation": NUM, "sent": OBJ,
    "estimate": (dict, type(None)), "pipeline": OBJ, "findings": LIST, "nccl": OBJ,
    "fits": BOOL, "source": (str, type(None)), "absent": STR, "device_model": STR, "hash": STR, "network": STR,
}  # fmt: skip
PARAM = {"name": STR, "shape": LIST, "dtype": STR, "spec": LIST, "shard": LIST, "bytes": INT, "stages": LIST}
MEMORY = ["params", "grads", "optimizer", "copies", "cache", "stash", "transient", "workspace", "arena", "staging",
          "libraries", "nccl"]  # fmt: skip
COLLECTIVE = {
    "op": STR, "axes": LIST, "group": INT, "stages": LIST, "phase": STR, "tensor": STR, "dtype": STR,
    "bucket": (int, type(None)), "count": INT, "tensor_bytes": INT, "bytes": INT,
}  # fmt: skip


def reads(*args, code=0):
    end = runs.weft(*args)
    assert end.code == code, end
    return json.loads(end.out)


def assert_shape(what, keys):
    assert set(what) == set(keys), set(what) ^ set(keys)
    for key, kind in keys.items():
        assert isinstance(what[key], kind) and (kind is BOOL or not isinstance(what[key], bool)), (key, what[key])


@pytest.fixture
def small(tmp_path):
    """4 → 8 → 3 over two devices, batch 12; no data file exists, and a plan needs none."""
    nowhere = {"images": "nowhere/x", "labels": "nowhere/y"}
    job = {
        "name": "small",
        "model": {"program": "mlp", "inputs": 4, "hidden": [8], "classes": 3},
        "mesh": {"dp": 2},
        "data": {"train": nowhere, "batch": 12},
        "optimizer": {"kind": "adamw"},
        "train": {"steps": 10},
    }
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(job))
    return str(path)


def test_plan_says_by_its_keys_and_types_what_the_design_promises(small):
    plan = reads("plan", small, "--json")
    assert_shape(plan, PLAN)
    for p in plan["params"]:
        assert_shape(p, PARAM)
    for m in [plan["memory"], *plan["memory_by_stage"]]:
        assert_shape(m, dict.fromkeys(MEMORY, INT))
    for c in plan["collectives"]:
        assert_shape(c, COLLECTIVE)
    assert set(plan["pipeline"]) == {"schedule", "stages", "chunks", "layers", "microbatches", "bubble", "peak_stash"}
    assert re.fullmatch(r"[0-9a-f]{32}", plan["hash"])


def test_plan_says_the_numbers_one_works_out_by_hand(small):
    plan = reads("plan", small, "--json")
    assert plan["mesh"] == {"dp": 2} and plan["devices"] == 2
    shapes = {
        "layers/0/weight": [4, 8], "layers/0/bias": [8], "layers/1/weight": [8, 3], "layers/1/bias": [3],
    }  # fmt: skip
    assert {p["name"]: p["shape"] for p in plan["params"]} == shapes
    for p in plan["params"]:  # data parallel: every device has all of it
        assert p["dtype"] == "f32" and p["spec"] == [None] * len(p["shape"]) and p["shard"] == p["shape"]
        assert p["bytes"] == 4 * int(numpy.prod(p["shape"])) and p["stages"] == [0]
    assert plan["param_count"] == 32 + 8 + 24 + 3
    memory = plan["memory"]
    assert memory["params"] == memory["grads"] == 67 * 4
    assert memory["optimizer"] == 2 * 67 * 4  # adamw: two moments
    # Made forward and read backward, for 6 samples of a device, at least: the hidden layer after its
    # activation, which the second weight's gradient needs.
    assert memory["stash"] >= 6 * 8 * 4
    assert memory["arena"] == sum(memory[k] for k in MEMORY[:8])
    assert plan["memory_by_stage"] == [memory]
    # 2mnk a product, twice that backward: 3 · 2 · 12 · (4·8 + 8·3)
    assert plan["flops_per_step"] == 3 * 2 * 12 * (4 * 8 + 8 * 3)
    assert plan["utilisation"] == 1
    assert plan["pipeline"] == {
        "schedule": None, "stages": 1, "chunks": 1, "layers": [2], "microbatches": 1, "bubble": 0, "peak_stash": 1,
    }  # fmt: skip
    assert plan["findings"] == [] and plan["fits"] is True and plan["device_model"] == "cpu"


def test_plan_counts_one_all_reduce_a_gradient_and_one_of_metrics(small):
    for micro in ("1", "3"):
        plan = reads("plan", small, "--json", "-s", f"train.microbatches={micro}")
        rows = {c["tensor"]: c for c in plan["collectives"]}
        metrics = rows.pop("metrics")
        assert metrics["phase"] == "update"
        assert sorted(c["tensor_bytes"] for c in rows.values()) == [12, 32, 96, 128]
        for c in [metrics, *rows.values()]:
            assert (c["op"], c["axes"], c["group"], c["count"]) == ("all_reduce", ["dp"], 2, 1)
            assert c["dtype"] == "f32" and c["stages"] == [0]
            assert c["bytes"] == c["tensor_bytes"]  # 2(n−1)/n · S
        assert all(c["phase"] == "backward" for c in rows.values())
    for c in reads("plan", small, "--json", "-s", "mesh={dp: 3}")["collectives"]:
        assert c["group"] == 3 and c["bytes"] == -(-4 * c["tensor_bytes"] // 3)


def test_plan_of_one_device_has_no_collective(small):
    plan = reads("plan", small, "--json", "-s", "mesh={dp: 1}")
    assert plan["collectives"] == [] and plan["devices"] == 1


def test_optimizers_hold_what_they_need(small):
    for kind, moments in (("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)):
        plan = reads("plan", small, "--json", "-s", f"optimizer.kind={kind}")
        assert plan["memory"]["optimizer"] == moments * 67 * 4, kind


def test_the_same_job_has_the_same_hash_and_another_another(small):
    plan = reads("plan", small, "--json")
    assert reads("plan", small, "--json")["hash"] == plan["hash"]
    assert reads("plan", small, "--json", "-s", "data.batch=24")["hash"] != plan["hash"]
    assert reads("plan", small, "--json", "-s", "model.hidden=[9]")["hash"] != plan["hash"]


def test_the_plan_for_people_says_the_same(small):
    end = runs.weft("plan", small)
    assert end.code == 0
    assert f"\nparameters: {32 + 8 + 24 + 3}\n" in end.out, end
    assert "layers/0/weight" not in end.out and "all_reduce" not in end.out, end
    full = runs.weft("plan", small, "--full")
    for text in ("small", "optimizer", "communication: a device sends", "utilisation", "it would run"):
        assert text in end.out and text in full.out, end
    assert "layers/0/weight" in full.out and "all_reduce" in full.out, full


def test_the_plan_of_a_large_model_is_a_screenful():
    end = runs.weft("plan", str(runs.REPO / "deploy/examples/gpt3-175b.yaml"), "--device", "h200")
    assert end.code == 2 and len(end.out.splitlines()) <= 24, end
    assert "\nparameters: 175 B (174604836864)\n" in end.out and ": 336.8 of 139.0 GiB\n" in end.out, end


def test_a_plan_estimates_a_step_by_the_devices_rates(small):
    rates = "x:memory=8GB,flops=1e9,bandwidth=1000TB,link=1MB"
    plan = reads("plan", small, "--json", "-s", "precision.compute=bf16", "--device", rates)
    sent, estimate = plan["sent"], plan["estimate"]
    assert sent["bytes"] == sum(c["bytes"] for c in plan["collectives"])
    assert sent["along"] == [{"axes": ["dp"], "bytes": sent["bytes"]}]
    assert estimate["send_ms"] == pytest.approx(sent["bytes"] / 1e6 * 1e3)
    # Of 6 samples the products of two layers forward, both weights' gradients, and the second's input's.
    assert estimate["compute_ms"] == pytest.approx(2 * 6 * (56 + 56 + 24) / 0.63e9 * 1e3, rel=0.01)
    assert estimate["mfu"] is None  # whose formula counts tokens
    slow = reads("plan", small, "--json", "-s", "precision.compute=bf16", "--device", rates.replace("1000TB", "1MB"))
    assert slow["estimate"]["compute_ms"] > 100 * estimate["compute_ms"]  # then bytes are what takes long
    for lacks, why in ((",link=1MB", "its link is not known"), ("flops=1e9,", "its flops and bandwidth are not known")):
        least = rates.replace(lacks, "")
        assert reads("plan", small, "--json", "-s", "precision.compute=bf16", "--device", least)["estimate"] is None
        assert why in runs.weft("plan", small, "-s", "precision.compute=bf16", "--device", least).out


def test_columns_of_a_plan_are_as_wide_as_their_longest_name():
    end = runs.weft("plan", str(runs.REPO / "deploy/examples/gpt-3d.yaml"), "--full")
    rows = end.out.partition("\nparameters: ")[2].partition("\n")[2].partition("memory")[0].splitlines()
    assert len({len(row.split()[0]) for row in rows}) > 2, end
    assert len({row.index(row.split()[1]) for row in rows}) == 1, rows


def test_a_plan_lists_what_one_launch_moves():
    example = str(runs.REPO / "deploy/examples/cookbook-fsdp.yaml")
    plan = reads("plan", example, "--json")
    rows, together = plan["collectives"], {}
    for row in rows:
        if row["bucket"] is not None:
            together.setdefault(row["bucket"], []).append(row)
    alone = sum(row["count"] for row in rows if row["bucket"] is None)
    assert plan["sent"]["launches"] == alone + sum(bucket[0]["count"] for bucket in together.values())
    listed = runs.weft("plan", example, "--full").out.partition("moved together by one launch\n")[2].splitlines()
    layers = [line for line in listed if line.endswith("each of 4")]
    assert len(layers) == 3 and all(" layers/0…3/" in line or " grad/layers/0…3/" in line for line in layers), listed
    assert re.search(r"all_gather +fsdp +forward +layers/0…3/attn/qkv/weight … mlp/out/weight +4 tensors, ×1 sends 14.0 MiB", layers[0])
    assert sum(4 if line in layers else 1 for line in listed if " tensors, " in line) == len(together)


def test_a_plan_says_which_data_it_did_not_find(small, tmp_path):
    end = runs.weft("plan", small)
    assert end.code == 0 and "not looked at: cannot open nowhere/x, nowhere/y " in end.out, end
    both = ["-s", "data.eval.images=nowhere/x", "-s", "data.eval.labels=nowhere/y"]
    assert "cannot open nowhere/x, nowhere/y (" in runs.weft("plan", small, *both).out  # each once
    (tmp_path / "nowhere").mkdir()
    runs.write_idx(tmp_path / "nowhere/x", numpy.zeros((12, 4), numpy.uint8))
    runs.write_idx(tmp_path / "nowhere/y", numpy.zeros(12, numpy.uint8))
    whole = runs.weft("plan", small)
    assert whole.code == 0 and "not looked at" not in whole.out and "it would run" in whole.out, whole


def test_the_rank_runs_the_plan_it_was_shown(tmp_path, toy):
    """weft plan's hash and bytes are those the rank logs; what it allocates is held against them."""
    run = runs.Run(tmp_path, runs.job(toy, 2, eval__every=10), "same")
    plan = reads("plan", str(run.file), "--json")
    run.finish()
    said = re.search(r"arena ([\d.]+) MiB a device.*hash ([0-9a-f]+)", run.log(0))
    assert said, run.log(0)
    assert plan["hash"].startswith(said[2]) and len(said[2]) >= 12
    assert abs(float(said[1]) - plan["memory"]["arena"] / 2**20) <= 0.051


FINDING = {"code": STR, "severity": STR, "tensor": (str, type(None)), "axes": LIST, "waste_bytes": INT,
           "utilisation": (float, int, type(None)), "message": STR, "fix": (str, type(None))}  # fmt: skip


def test_plan_names_specs_by_axis_and_list(small):
    own = "sharding={rules: {batch: [x, y], mlp: ~}, gather: [x, y], params: [{match: '*/0/weight', spec: [[y, x]]}]}"
    plan = reads("plan", small, "--json", "-s", "mesh={x: 2, y: 2}", "-s", own)
    specs = {p["name"]: (p["spec"], p["shard"]) for p in plan["params"]}
    assert specs["layers/0/weight"] == ([["y", "x"], None], [1, 8])
    assert specs["layers/1/weight"] == ([None, None], [8, 3])
    gathers = [c for c in plan["collectives"] if c["op"] == "all_gather"]
    assert [c["tensor"] for c in gathers] == ["layers/0/weight"]
    assert gathers[0]["axes"] == ["x", "y"] and gathers[0]["group"] == 4  # axes in mesh order


def test_a_refused_sharding_is_reported_whole_with_its_fix(small):
    end = runs.weft("plan", small, "--json", "-s", "mesh={dp: 2, spare: 2}")
    assert end.code == 2 and "spare" in end.err
    plan = json.loads(end.out)
    assert_shape(plan, PLAN)
    unused, repeated = plan["findings"]
    assert_shape(unused, FINDING)
    assert_shape(repeated, FINDING)
    assert (unused["code"], unused["severity"], unused["axes"]) == ("UNUSED_AXIS", "error", ["spare"])
    assert (repeated["code"], repeated["severity"]) == ("REDUNDANT", "warning")
    assert repeated["utilisation"] == 0.5 and unused["utilisation"] is None
    fixed = reads("plan", small, "--json", "-s", "mesh={dp: 2, spare: 2}", "-s", unused["fix"])
    assert fixed["findings"] == []
    text = runs.weft("plan", small, "-s", "mesh={dp: 2, spare: 2}")
    assert not text.err and text.out.count(unused["message"]) == 1, text  # told once
    assert text.code == 2 and f"-s '{unused['fix']}'" in text.out and "refused" in text.out


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_all_errors_of_a_sharding_are_reported_at_once_each_with_its_fix(small, verb):
    end = runs.weft(verb, small, "-s", "mesh={dp: 2, spare: 2, more: 2}")
    assert end.code == 2 and not end.out, end
    for axis in ("spare", "more"):
        assert end.err.count(f"axis {axis} of the mesh cuts nothing") == 1, end
        assert sum(axis in line for line in end.err.splitlines() if line.startswith("  fix: -s ")) == 1, end
    assert "repeat" not in end.err  # warnings are for plan


def test_a_batch_that_cannot_be_divided_is_reported_once(small):
    end = runs.weft("plan", small, "-s", "data.batch=13")
    assert end.code == 2 and (end.out + end.err).count("12 or 14") == 1, end


@pytest.mark.parametrize(
    "change, names",
    [
        (["-s", "data.batch=13"], ["data.batch", "12 or 14"]),
        (["-s", "train.steps=-1"], ["train.steps"]),
        (["-s", "model.hiden=[3]"], ["model.hiden", "hidden"]),
        (["-s", "mesh={tp: 3}"], ["dimension mlp of size 8", "3 (tp)", "6 or 9"]),
        (["-s", "mesh={dp: 2, 7x: 2}"], ["mesh.7x"]),
        (["--device", "abacus"], ["abacus", "cpu"]),
    ],
)
def test_a_job_that_cannot_run_is_refused_with_the_reason(small, change, names):
    end = runs.weft("plan", small, "--json", *change)
    assert end.code == 2, end
    for n in names:
        assert n in end.err, end


@pytest.mark.parametrize(
    "args",
    [
        [], ["nonsense"], ["plan"], ["plan", "--nonsense"], ["plan", "a", "b"], ["plan", "/no/such/job.yaml"],
        ["schema", "--xml"], ["ckpt"], ["ckpt", "ls"], ["ckpt", "rm", "/"], ["ckpt", "ls", "/no/such/folder"],
        ["data"], ["data", "inspect"], ["data", "eat", "x"],
    ],
)  # fmt: skip
def test_wrong_use_ends_with_2_and_says_what_is_wanted(args):
    end = runs.weft(*args)
    assert end.code == 2 and end.err and not end.out, end


@pytest.mark.parametrize("verb, word, known", [
    ("data", "inspct", "inspect, prepare or train-tokenizer; did you mean inspect?"), ("ckpt", "rm", "ls, verify or diff"),
    ("model", "shwo", "list, show, check or new; did you mean show?"),
])  # fmt: skip
def test_an_unknown_word_of_a_verb_is_named_with_the_known_ones(verb, word, known):
    end = runs.weft(verb, word)
    assert end.code == 2 and not end.out, end
    said = f"weft {verb}: unknown word '{word}': it takes {known}"
    assert end.err.splitlines()[0] == said, end


def test_help_and_version_are_no_error():
    for args in (["--help"], ["-h"], ["help"], ["--version"], ["run", "-h"], ["run", "--help"]):
        end = runs.weft(*args)
        assert end.code == 0 and end.out and not end.err, end
    for args in (["--help"], ["-h"], ["--fd", "3", "--help"]):
        end = runs.Process(args, runs.RANK).wait()
        assert end.code == 0 and "--probe" in end.out, end
    end = runs.Process(["--version"], runs.RANK).wait()
    assert end.code == 0 and end.out.startswith("weft-rank "), end


def test_a_mistyped_verb_is_reported_in_two_lines():
    end = runs.weft("stauts", "x")
    assert end.code == 2 and not end.out, end
    assert end.err.splitlines() == ["weft: no verb 'stauts'; did you mean status?",
                                    "  to do: `weft help` lists the verbs"], end


def test_the_list_of_verbs_has_one_column_of_what_they_do():
    lines = runs.weft("help").out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  weft run "))
    column = lines[first].index("train here")
    for line in lines[first : lines.index("", first)]:
        assert "  " not in line[column:] and len(line) <= 110, line
        assert line.startswith("  weft ") or line[:column].isspace() and not line[column].isspace(), line


def test_help_of_help_is_the_help():
    assert runs.weft("help", "help").out == runs.weft("help", "--help").out == runs.weft("help").out


def test_a_flag_in_the_place_of_the_verb_belongs_behind_it():
    end = runs.weft("--json", "jobs")
    assert end.code == 2 and not end.out, end
    assert end.err.splitlines()[0] == "weft: '--json' stands where the verb should: its flags follow it", end


def test_help_names_the_short_flags():
    said = runs.weft("help", "logs").out
    assert "  -f, --follow" in said and "  -n, --lines" in said and "      --rank" in said, said


@pytest.mark.parametrize("args, says", [
    (["plan"], "weft plan: an argument is missing: JOB.yaml"),
    (["plan", "a", "b"], "weft plan: 'b' is one argument too many"),
    (["workers", "x"], "weft workers: 'x' is one argument too many"),
])  # fmt: skip
def test_what_is_missing_or_too_much_is_named(args, says):
    end = runs.weft(*args)
    assert end.code == 2 and end.err.splitlines()[0] == says, end


@pytest.mark.parametrize(
    "args", [[], ["--fd", "3"], ["--rank", "-1"], ["--devices", "many"], ["--nonsense"], ["stray"],
             ["--probe"], ["--probe", "--kind", "cpu", "--fd", "3"], ["--fd", "3", "--dir", "x", "--host", ""]]
)
def test_wrong_flags_of_the_rank_end_with_78(args):
    end = runs.Process(args, runs.RANK).wait()
    assert end.code == 78 and end.err.splitlines()[1:] == ["  to do: see weft-rank --help"], end


def test_schema_lists_every_key_with_what_it_means():
    schema = reads("schema", "--json")
    assert schema["schema"] == 2
    keys = {k["key"]: k for k in schema["keys"]}
    assert len(keys) == len(schema["keys"])
    programs = {p["name"]: {k["key"]: k for k in p["keys"]} for p in schema["programs"]}
    sizes = [k for p in programs.values() for k in p.values()]
    assert all(p["doc"] for p in schema["programs"])
    for k in [*keys.values(), *sizes]:
        assert set(k) == {"key", "type", "default", "required", "unit", "when", "continuing", "min", "max", "values", "doc"}, k
        assert k["doc"] and k["type"]
        assert k["required"] == (k["default"] is None) or not k["required"]
    assert keys["train.steps"]["required"] and keys["train.steps"]["unit"] == "steps"
    assert keys["optimizer.kind"]["values"] == ["sgd", "momentum", "adam", "adamw"]
    assert keys["optimizer.kind"]["default"] == "adamw"
    assert keys["checkpoint.keep"]["min"] == 1
    assert programs["gpt2"]["model.layers"]["max"] == 1024
    assert programs["mlp"]["model.activation"]["values"] == ["relu", "gelu", "tanh"]
    assert programs["llama"]["model.head_dim"]["default"] == "embed / heads"
    # from the comments: "tokens of a sample"; "of attention" is of heads themselves; a word has none
    units = {"seq": "tokens", "embed": "features", "heads": "heads", "kv_heads": "heads", "layers": "layers", "size": None, "vocab": "ids"}
    assert {name: programs["llama"][f"model.{name}"]["unit"] for name in units} == units
    assert programs["mixtral"]["model.choices"]["unit"] == "experts" and programs["vae"]["model.activation"]["unit"] is None
    table = runs.weft("schema", "--markdown")
    rows = [line for line in table.out.splitlines() if line.startswith("| `")]
    assert table.code == 0 and len(rows) == len(keys) + len(sizes)
    text = runs.weft("schema")
    assert text.code == 0 and all(k in text.out for k in keys)
    assert all(f"model.program: {p}" in text.out for p in programs)


def test_model_list_and_show_give_the_programs_that_come_with_weft(tmp_path):
    listed = {p["name"]: p for p in reads("model", "list", "--json")["programs"]}
    # GPT-2 has 124,439,808, and 47 rows that pad its vocabulary.
    assert listed["gpt2"]["param_count"] == 124439808 + 47 * 768
    assert all(p["doc"] for p in listed.values())
    text = runs.weft("model", "list").out
    assert all(line.split()[0] in listed for line in text.splitlines()[1:]) and "124M" in text
    for name in listed:
        shown = runs.weft("model", "show", name)
        assert shown.code == 0 and "sizes" in shown.out
        assert reads("model", "show", name, "--json") == {"name": name, "text": shown.out}
        copy = tmp_path / f"{name}.model"
        copy.write_text(shown.out)
        checked = reads("model", "check", str(copy), "--json")
        assert checked["param_count"] == listed[name]["param_count"] and checked["unlike"] == []


def test_model_check_says_what_a_program_is():
    checked = reads("model", "check", "gpt2", "-s", "layers=2", "-s", "embed=48", "-s", "heads=4", "--json")
    params = {p["name"]: p for p in checked["params"]}
    assert params["layers/1/mlp/in/weight"]["dims"] == ["embed", "mlp"]
    assert params["layers/1/mlp/in/weight"]["shape"] == [48, 192]
    count = sum(numpy.prod(p["shape"], dtype=int) for p in checked["params"])
    assert checked["param_count"] == count
    rules = {r["dim"]: r for r in checked["rules"]}
    table = numpy.prod(params["embed/tokens"]["shape"], dtype=int)
    assert math.isclose(rules["vocab"]["share"], table / count) and rules["vocab"]["tensors"] == 1
    assert checked["uncut_most"] == "layers/0/norm1/weight"
    text = runs.weft("model", "check", "gpt2").out
    assert "124M parameters (124475904)" in text


def test_model_check_lists_the_parameters_and_warns_of_slips(tmp_path):
    program = tmp_path / "mine.model"
    program.write_text("""sizes
  inputs = 8
  mlp    = 6
  spare  = 3
model
  x = images
  repeat 2
    h = relu(x @ in[inputs, mlp])
    x = x + h @ out[mlp, inputs]
    x = x + relu(x @ in[inputs, mlp]) @ back[mlp, inputs]
  loss = sum(x) / samples
""")
    shown = runs.weft("model", "check", str(program)).out
    assert "layers/0…1/in/weight    [inputs 8, mlp 6]  48, each of 2\n" in shown
    assert "warning: line 4: nothing reads the size spare\n" in shown
    assert "warning: line 10: one turn of the repeat reads layers/0/in/weight again, after line 8" in shown
    assert shown.count("warning:") == 2


def test_model_check_warns_of_a_size_that_no_rule_cuts_and_a_multiple_of_one_that_is_cut(tmp_path):
    program = tmp_path / "mine.model"
    text = """sizes
  inputs = 8
  mlp    = 6
  shared = 2 * mlp          # a multiple of what a rule cuts
  third  = mlp / 3          # this too
  scale  = 5 * mlp          # no dimension
  apart  = 12               # a number of its own
  tidy   = 3 * mlp like mlp # as it should be
model
  h = relu(images @ a[_, shared]) @ b[shared, third] @ c[third, apart] @ d[apart, tidy]
  loss = sum(h) / scale / samples
"""
    program.write_text(text)
    unlike = [(u["line"], u["size"], u["like"]) for u in reads("model", "check", str(program), "--json")["unlike"]]
    assert unlike == []  # nothing has the dimension mlp itself, so nothing is cut beside them
    program.write_text(text.replace("d[apart, tidy]", "d[apart, tidy] @ e[tidy, mlp]"))
    unlike = [(u["line"], u["size"], u["like"]) for u in reads("model", "check", str(program), "--json")["unlike"]]
    assert unlike == [(4, "shared", "mlp"), (5, "third", "mlp")]
    shown = runs.weft("model", "check", str(program))
    assert "warning: line 4: no rule cuts shared = 2 * mlp: `like mlp` would" in shown.out
    job = tmp_path / "mine.yaml"
    job.write_text("name: mine\nmodel: {program: ./mine.model}\ndata: {train: {images: i}, batch: 4}\ntrain: {steps: 1}\nmesh: {tp: 2}\n")
    told = {f["tensor"]: f for f in reads("plan", str(job), "--json")["findings"] if f["code"] == "SIZE_UNRULED"}
    assert told.keys() == {"model.shared", "model.third"}
    assert "model.shared = 2 * mlp, line 4 of program ./mine.model" in told["model.shared"]["message"]
    fixes = [x for f in told.values() for x in ("-s", f["fix"])]
    assert reads("plan", str(job), "--json", *fixes)["findings"] == []


@pytest.mark.parametrize(
    "args, says",
    [
        (["check", "gpt2", "-s", "layers=0"], "model.layers: 0 is too small"),
        (["check", "gpt2", "-s", "layer=2"], "did you mean model.layers?"),
        (["check", "./none.model"], "none.model: No such file"),
        (["show", "gpt7"], "no program 'gpt7' comes with weft: it has gpt2"),
        (["list", "gpt2"], "list, show NAME"),
        (["show", "gpt2", "-s", "layers=2"], "list, show NAME"),
        (["train"], "list, show, check or new"),
        (["new", "x/"], "new makes a file"),
    ],
    ids=lambda a: " ".join(a) if isinstance(a, list) else "",
)
def test_model_says_what_is_wrong_with_exit_2(args, says):
    end = runs.weft("model", *args)
    assert end.code == 2 and says in end.err and not end.out, end


def test_model_check_of_sizes_that_do_not_fit_says_that_alone():
    end = runs.weft("model", "check", "gpt2", "-s", "heads=5")
    (line,) = end.err.splitlines()
    assert end.code == 2 and "head_dim = embed / heads is 768 / 5, no whole number" in line, end


@pytest.mark.parametrize("name, says", [
    ("./none.model", "./none.model: cannot read ./none.model: No such file or directory"),
    ("gtp2", "gtp2: 'gtp2' does not come with weft: did you mean gpt2?"),
])  # fmt: skip
def test_model_check_reports_of_a_wrong_name_that_alone(name, says):
    end = runs.weft("model", "check", name)
    assert end.code == 2 and end.err == says + "\n", end


def test_model_check_of_what_reads_no_data_says_what_the_program_lacks(tmp_path):
    own = tmp_path / "own.model"
    own.write_text("sizes\n  layers = 4\nmodel\n  x = 1\n")
    end = runs.weft("model", "check", str(own))
    assert end.code == 2 and end.err.startswith(f"{own}:1:1: the program has no loss: "), end


def test_model_check_prints_errors_as_a_compiler_does(tmp_path):
    own = tmp_path / "own.model"
    own.write_text("sizes\n  inputs = 8\n\nmodel\n  h = linear(images, in[_, widht])\n  loss = sum(h) / samples\n")
    end = runs.weft("model", "check", str(own))
    assert end.code == 2 and f"{own}:5:" in end.err and "widht" in end.err, end


@pytest.mark.parametrize("name", ["x #y.model", "x: y.model", "it's.model", "{a}.model"])
def test_model_check_takes_a_files_name_as_it_is(tmp_path, name):
    made = tmp_path / name
    assert runs.weft("model", "new", str(made)).code == 0
    assert reads("model", "check", str(made), "--json")["param_count"] > 0
    made.write_text("sizes\n  layers = 4\nmodel\n  x = 1\n")
    end = runs.weft("model", "check", str(made))
    assert end.code == 2 and end.err.startswith(f"{made}:1:1: "), end


def test_model_new_writes_a_program_that_can_be_checked(tmp_path):
    made = tmp_path / "mine.model"
    assert runs.weft("model", "new", str(tmp_path / "mine")).code == 0
    assert made.read_text().startswith("# ")
    assert reads("model", "check", str(made), "--json")["param_count"] > 0
    again = runs.weft("model", "new", str(made))
    assert again.code == 2 and "File exists" in again.err, again


@pytest.fixture(scope="module")
def trained(tmp_path_factory, toy):
    job = runs.job(toy, 2, checkpoint={"every": 10, "keep": 9})
    run = runs.Run(tmp_path_factory.mktemp("trained"), job, "trained")
    run.finish()
    return run


def test_ckpt_ls_lists_what_is_there(trained):
    store = trained.stores()[0]
    ours = trained.checkpoints()
    for folder in (store, store.parent, f"{store}/"):
        listed = reads("ckpt", "ls", str(folder), "--json")["checkpoints"]
        assert [(c["attempt"], c["step"]) for c in listed] == [(c.attempt, c.step) for c in reversed(ours)]
        for c in listed:
            assert set(c) == {"step", "attempt", "dir", "bytes", "shards", "committed", "unused", "aside", "eval_loss", "best", "ok",
                              "errors"}
            assert c["committed"] and c["ok"] and c["errors"] == [] and c["shards"] == 2
            assert c["bytes"] == sum(f.stat().st_size for f in store.glob(f"step-{c['step']:08d}.a*/shard-*"))
    verified = reads("ckpt", "verify", str(ours[-1].path), "--json")["checkpoints"]
    assert [c["step"] for c in verified] == [30]
    assert "verified" in runs.weft("ckpt", "verify", str(store)).out


def test_a_checkpoint_without_its_commit_is_damaged_and_not_committed(trained, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(trained.stores()[0], copy)
    (broken,) = copy.glob("step-00000030.a*")
    (broken / "COMMIT").unlink()
    listed = reads("ckpt", "ls", str(copy), "--json", code=1)["checkpoints"]
    assert (listed[0]["step"], listed[0]["committed"], listed[0]["ok"]) == (30, False, False)
    assert len(listed) > 1 and all(c["committed"] and c["ok"] for c in listed[1:]), listed
    assert "COMMIT" in listed[0]["errors"][0]
    said = runs.weft("ckpt", "ls", str(copy))
    assert said.code == 1 and f"damaged   {broken}\n" in said.out, said


def test_a_checkpoint_that_is_not_used_is_reported_with_why(trained, tmp_path):
    """Of an attempt that weft never gives: nobody ever loads it, and so it must not look like one that is there."""
    copy = tmp_path / "store"
    shutil.copytree(trained.stores()[0], copy)
    foreign = "step-00000030.a100000000000000000"
    shutil.copytree(sorted(copy.glob("step-00000030.a*"))[0], copy / foreign)
    for args in (["ls", str(copy)], ["verify", str(copy)], ["verify", str(copy / foreign)]):
        listed = reads("ckpt", *args, "--json", code=1)["checkpoints"]
        (one,) = [c for c in listed if c["unused"]]
        assert one["dir"] == str(copy / foreign) and one["step"] is None and not one["committed"] and not one["ok"]
        assert one["errors"] == ["it is not used: its name is none that weft gives to a checkpoint"]
        assert len(listed) == (1 if args[1].endswith(foreign) else 1 + len(trained.checkpoints()))
        said = runs.weft("ckpt", *args)
        assert said.code == 1 and re.search(rf"unused +(- +)?{re.escape(str(copy / foreign))}\n", said.out) and one["errors"][0] in said.out, said


def test_a_job_that_is_called_like_a_step_is_a_job(trained, tmp_path):
    """Its folder has an OWNER, and no folder of a checkpoint has."""
    job, other = tmp_path / "step-lr-1a2b3c4d", tmp_path / "book-5e6f7a8b"
    for folder in (job, other):
        shutil.copytree(trained.stores()[0], folder)
    listed = reads("ckpt", "ls", str(tmp_path), "--json")["checkpoints"]
    assert len(listed) == 2 * len(trained.checkpoints()) and not any(c["unused"] for c in listed)
    assert "verified" in runs.weft("ckpt", "verify", str(job)).out


def test_ckpt_verify_finds_a_flipped_byte_and_names_the_file(trained, tmp_path):
    copy = tmp_path / "store"
    shutil.copytree(trained.stores()[0], copy)
    shard = sorted(copy.glob("step-00000030.a*/shard-*"))[1]
    raw = bytearray(shard.read_bytes())
    raw[-5] ^= 1
    shard.write_bytes(raw)
    found = reads("ckpt", "verify", str(copy), "--json", code=1)["checkpoints"]
    bad = [c for c in found if not c["ok"]]
    assert [c["step"] for c in bad] == [30] and any(shard.name in e for e in bad[0]["errors"])
    assert runs.weft("ckpt", "verify", str(copy)).code == 1
    # ls looks at heads and sizes only.
    assert runs.weft("ckpt", "ls", str(copy)).code == 0


def test_names_of_files_and_folders_steer_no_terminal(trained, tmp_path):
    hostile = "\033[2J\u202e\u009b1m\nforged: verified"
    folder, data = tmp_path / f"a{hostile}", tmp_path / f"b{hostile}.npy"
    shutil.copytree(trained.stores()[0], folder)
    numpy.save(data, numpy.zeros(3, numpy.float32))
    spelt = "\\x1b[2J\\u202e\\u009b1m\\nforged: verified"
    for args in (["ckpt", "ls", str(folder)], ["ckpt", "verify", str(folder)], ["data", "inspect", str(data)],
                 ["ckpt", "ls", f"nowhere{hostile}"], ["data", "inspect", f"nowhere{hostile}"]):
        end = runs.weft(*args)
        assert spelt in end.out + end.err, ascii(end.out + end.err)
        assert not re.search("[\033\u202e\u009b]", end.out + end.err), ascii(end.out + end.err)
        assert not re.search("^forged", end.out + end.err, re.M), end


def test_data_inspect_says_format_shape_and_values(tmp_path, toy):
    images, labels = reads("data", "inspect", toy.train["images"], toy.train["labels"], "--json")["files"]
    assert images["format"] == "idx" and images["dtype"] == "u8" and images["shape"] == [480, 8, 8]
    assert images["bytes"] == 16 + 480 * 64 and images["offset"] == 16 and images["count"] == 480 * 64
    assert labels["shape"] == [480] and (labels["min"], labels["max"]) == (0, 4)
    assert sum(labels["classes"]) == 480 and len(labels["classes"]) == 5
    values = numpy.array([0.5, numpy.nan, -2, numpy.inf], numpy.float32)
    numpy.save(tmp_path / "x.npy", values)
    (x,) = reads("data", "inspect", str(tmp_path / "x.npy"), "--json")["files"]
    assert (x["format"], x["dtype"], x["min"], x["max"], x["mean"]) == ("npy", "f32", -2, 0.5, -0.75)
    assert x["nonfinite_values"] == 2 and x["classes"] is None
    (tmp_path / "junk").write_bytes(b"no such thing")
    end = runs.weft("data", "inspect", str(tmp_path / "junk"), "--json")
    assert end.code == 1 and "junk" in end.err and json.loads(end.out) == {"files": []}, end
