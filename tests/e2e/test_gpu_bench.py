# SPDX-License-Identifier: Apache-2.0
"""The stages for a lent GPU, at a size for laptops on the CUDA backend's emulated twin, with an interpreter in the
peers' place that says what the test wants: the result's rows have to follow from it by hand."""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import types

import pytest
import runs

sys.path.append(str(runs.REPO / "tests/bench/gpu"))
import bench  # noqa: E402
import contestants  # noqa: E402
import runner  # noqa: E402
import sizes  # noqa: E402
import stages  # noqa: E402

LEASE = runs.REPO / "tests/bench/gpu/lease.sh"
EMULATED = runs.BUILD / "tests/cuda"
pytestmark = pytest.mark.skipif(not (EMULATED / "libweft_cuda.so").exists(), reason="SKIPPED: no libweft_cuda.so: built without CUDA's headers")

# GPT-2 with 2 layers of width 32 and 16 positions, 250 tokens padded to 256; 2 samples a step.
TOKENS = 2 * 16
N = 256 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32  # = 34176
TOKEN_FLOPS = 6 * N + 6 * 2 * 32 * 16  # = 211200
RATES = {"bf16": 2e9, "tf32": 1e9, "f32": 0.5e9, "bytes": 4e9}  # FLOP/s, bytes/s
FEW = {"WEFT_CUDA_CANDIDATES": "8", "WEFT_CUDA_FINALISTS": "1"}  # algorithms to time, for quick tests
PEER = """#!/bin/sh
case "$*" in
-c*) exit 0 ;;
*"bench.py "*) exec {python} "$@" ;;
*peer_torch*) echo "ModuleNotFoundError: No module named 'torch'" >&2; exit 1 ;;
*"--mode plain"*) echo "W: a warning" >&2; echo "RESOURCE_EXHAUSTED: Out of memory while trying" >&2; echo "last" >&2; exit 1 ;;
*) echo '{{"library": "jax 1.2", "ms": [40, 10, 20, 30, 15], "loss": 5.5, "gib": 1.5, "parameters": {n}, "ready_s": 7}}' ;;
esac
"""


class Ended:
    def __init__(self, place, stage, *args, n=N, peer=PEER, limit=600, env=None, bundle=runs.BUILD):
        fake = place / "python"
        fake.write_text(peer.format(n=n, python=sys.executable))
        fake.chmod(0o755)
        rates = ",".join(f"{x / 1e12:.6f}" for x in RATES.values())
        p = subprocess.run(["sh", LEASE, stage, bundle, place / "out", "--tiny", "--rates", rates, "--warm", "1", "--steps", "2", *args],
                           check=False, text=True, timeout=limit,
                           env={**os.environ, "WEFT_BACKEND_DIR": str(EMULATED), "PYTHON": str(fake), **FEW, **(env or {})},
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.code, self.said = p.returncode, p.stdout
        results = [*pathlib.Path(place / "out").glob("*-gpu-*.txt")]
        self.text = next((r.read_text() for r in results if "log" not in r.name), "")

    def op(self, name):
        """Numbers behind the name and the dtype: calls, us, .., TFLOP/s, GB/s, of limit, of step."""
        line = next(line for line in self.text.splitlines() if line.startswith(name + " "))
        words = line[len(name) :].split()
        return words[0], [None if w == "-" else float(w.rstrip("%")) for w in words[1:9]]


def bundle_of(place, *tests):
    """This build's programs in a bundle's places, with these tests of ops."""
    bundle = place / "bundle"
    (bundle / "tests").mkdir(parents=True)
    for there, here in {"weft-rank": "weft-rank", "lead-ranks": "tests/lead-ranks", "tests/bench": "tests/bench", "tests/ops": "tests/ops/ops"}.items():
        (bundle / there).symlink_to(runs.BUILD / here)
    (bundle / "tests/list").write_text("".join(f"ops:{name}\n" for name in tests))
    return bundle


def llm_c(place):
    """A bundle, and in it what llmc.sh makes of sources in llm.c's place, which only build without cuDNN:
    their Makefile notes in `asked` what it is asked."""
    sources, bundle = place / "llm.c", bundle_of(place, "test_numerics")
    (sources / "cudnn-frontend/include").mkdir(parents=True)
    (sources / "train_gpt2.cu").write_text("its source")
    (place / "says").write_text(f"| num_parameters        | {N}   |\ndevice memory usage: 2048 MiB / 81000 MiB\n" + "".join(
        f"step    {k}/3 | loss 5.{k}00000 (+0.10z)| norm 2.5000 (-1.20z)| lr 3.00e-04 | {ms:.2f} ms | 1.0% bf16 MFU | 99 tok/s\n"
        for k, ms in ((1, 900), (2, 20), (3, 40))))
    (sources / "Makefile").write_text(f"PFLAGS = its own\ntrain_gpt2cu: train_gpt2.cu\n\techo '$(PFLAGS), $(NVCC_LDFLAGS), $(USE_CUDNN), $(GPU_COMPUTE_CAPABILITY)' >>{place}/asked\n"
                                      f"\t[ $(USE_CUDNN) = 0 ]\n\tprintf '#!/bin/sh\\ncat {place}/says\\n' >$@\n\tchmod +x $@\n")
    (place / "build").mkdir()
    for _ in range(2):  # the second time it is there
        subprocess.run(["sh", LEASE.parent / "llmc.sh", sources, place / "build", bundle / "llmc"], check=True,
                       env={**os.environ, "CUDA_HOME": "/cuda", "LLMC_ARCH": "90"})
    assert list(sources.glob("*cu")) == [sources / "train_gpt2.cu"]  # built in a copy
    return bundle


def test_every_contestant_is_a_row_by_the_stated_formulas(place):
    end = Ended(place, "3", bundle=llm_c(place))
    assert end.code == 0, end.said
    text = end.text
    assert f"N {N}; a token is 6N + 6LCT = {TOKEN_FLOPS} FLOPs" in text
    assert re.search(r"^# commit +\S+$", text, re.M) and re.search(r"^# hardware .*emulated", text, re.M)
    assert re.search(r"^PyTorch +FAILED: ModuleNotFoundError: No module named 'torch'$", text, re.M)
    assert re.search(r"^PyTorch, autotuned +FAILED: ModuleNotFoundError", text, re.M)
    assert re.search(r"^JAX +FAILED: out of memory: RESOURCE_EXHAUSTED", text, re.M)
    # Sorted, twice: 10 15 20 30 40 ms. 32 tokens in 20 ms are 1600 a second; the tenth part is the first, nine tenths the last.
    peer = next(line for line in text.splitlines() if line.startswith("JAX, forwards again"))
    turns, p50, p10, p90, tokens, mfu, gib, ready, loss = peer.split()[3:12]
    assert (turns, float(p50), float(p10), float(p90), int(tokens)) == ("2", 20, 10, 40, 1600)
    assert mfu == f"{100 * 1600 * TOKEN_FLOPS / RATES['bf16']:.2f}%"
    assert (gib, ready, loss) == ("1.5", "7.0", "5.5000")
    weft = next(line for line in text.splitlines() if line.startswith("weft, any order")).split()[2:]
    assert weft[1] == "5" and float(weft[3]) <= float(weft[2]) <= float(weft[4]), weft
    assert 5.2 < float(weft[9]) < 5.8  # ln 256 = 5.55: it has hardly begun to learn
    assert "DIFFERS" not in text
    # llm.c's first step of a turn only warms; of 20 20 40 40 ms the middle is 30.
    turns, p50, _, _, tokens, _, gib, _, loss = next(line for line in text.splitlines() if line.startswith("llm.c ")).split()[1:10]
    assert (turns, float(p50), int(tokens), gib, loss) == ("2", 30, 1067, "2.0", "5.3000")
    # Where it does not build with cuDNN it is built without, and the result says which it was.
    flags = f"-DENABLE_BF16 -include {LEASE.parent}/llmc_cuda13.h, -L/cuda/lib64"
    assert (place / "asked").read_text() == f"{flags} -lcublas -lcublasLt -lcudnn -lnvrtc, 1, 90\n{flags} -lcublas -lcublasLt, 0, 90\n"
    assert "llm.c with its own attention" in text


def test_who_is_not_in_the_bundle_is_a_row_that_says_so(place):
    with pytest.raises(runner.Failed, match="it is not in the bundle"):
        contestants.LlmC(None, types.SimpleNamespace(bundle=place), "llm.c").turn("tiny", 2, 9)


def at_work(place, monkeypatch, who, env):
    """A contestant, and who starts its programs."""
    for key, value in {**FEW, "WEFT_BACKEND_DIR": str(EMULATED), **env}.items():
        monkeypatch.setenv(key, value)
    o = types.SimpleNamespace(bundle=runs.BUILD, out=place, stage=["3"], choices=None, device="cuda", scratch=0, warm=1, steps=2)
    (place / "scratch").mkdir()
    ran = runner.Runner(o, place / "scratch")
    sizes.write_tokens(place / "scratch/250.bin", sizes.SIZES["tiny"], 1000)
    return contestants.contestant(ran, o, who), ran


def turn(place, monkeypatch, who, env):
    """One of a contestant's, and its log."""
    contestant, ran = at_work(place, monkeypatch, who, env)
    with contextlib.suppress(runner.Failed):
        contestant.turn("tiny", 2, 60)
        return ran, ran.log.read_text()
    return None, ran.log.read_text()


@pytest.mark.parametrize("rate, end", [(0.01, contextlib.nullcontext()), (1, pytest.raises(runner.Failed, match="it does not learn"))])
def test_a_training_that_does_not_learn_fails(place, monkeypatch, rate, end):
    monkeypatch.setitem(sizes.SIZES, "124m", sizes.SIZES["tiny"])
    monkeypatch.setattr(contestants, "LR", rate)
    contestant, _ = at_work(place, monkeypatch, "weft", {})
    with end:
        contestant.turn("124m", 2, 60)


def test_a_training_whose_loss_is_not_finite_fails_and_says_at_which_step(place, monkeypatch):
    contestant, _ = at_work(place, monkeypatch, "weft", {})
    real = contestants.Ranks.rows
    monkeypatch.setattr(contestants.Ranks, "rows", lambda ranks: [{**r, "loss": None if r["step"] == 2 else r["loss"]} for r in real(ranks)])
    with pytest.raises(runner.Failed, match="step 2: the loss is None, the gradient's norm [0-9.]+; None: it is not finite"):
        contestant.turn("tiny", 2, 60)


@pytest.mark.parametrize("who, trains", [("weft, early", False), ("weft, any order", True)])
def test_a_device_that_refuses_early_launches_fails_the_one_row(place, monkeypatch, who, trains):
    ran, log = turn(place, monkeypatch, who, {"WEFT_FAKE_CUDA": "in_turn"})
    assert bool(ran) == trains and ("operation not supported (cudaErrorNotSupported)" in log) != trains, log


def test_own_attention_is_no_fall_back_where_a_switch_asks_for_it(place, monkeypatch):
    ran, log = turn(place, monkeypatch, "weft, own attention", {})
    assert ran and not ran.fell_back and "our own kernels serve it: WEFT_CUDA_LIBRARY_ATTENTION=0" in log, log


@pytest.mark.skipif(not shutil.which("g++"), reason="SKIPPED: no g++")
def test_what_llm_c_calls_compiles_behind_our_header(place):
    """As it calls it: a device's number or cudaCpuDeviceId is the place."""
    source = place / "advice.cpp"
    source.write_text("#include <cuda_runtime.h>\nint advise(void *p, size_t n)\n{\n    return cudaMemAdvise(p, n, "
                      "cudaMemAdviseSetPreferredLocation, cudaCpuDeviceId) | cudaMemAdvise(p, n, cudaMemAdviseSetReadMostly, 0);\n}\n")
    cuda = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    command = ["g++", "-fsyntax-only", "-Wall", "-Wextra", "-isystem", cuda]
    assert subprocess.run([*command, "-include", LEASE.parent / "llmc_cuda13.h", source], check=False).returncode == 0
    if int(re.search(r"CUDART_VERSION +(\d+)", (cuda / "cuda_runtime_api.h").read_text())[1]) >= 13000:
        assert subprocess.run([*command, source], check=False, stderr=subprocess.DEVNULL).returncode != 0


@pytest.fixture(scope="module")
def stage_a(tmp_path_factory):
    """One run of it for all that is looked at in its result."""
    place = tmp_path_factory.mktemp("a")
    (place / "nvidia-smi").write_text("#!/bin/sh\ncase $* in *-lms*) while date '+%Y/%m/%d %H:%M:%S.%3N, 1755, 2619, 512.50, 61, 30000'; do sleep 0.1; done ;; esac\n")
    (place / "nvidia-smi").chmod(0o755)
    bundle = bundle_of(place, "test_contract", "test_huge")
    (bundle / "models").mkdir()
    (bundle / "models/expect.json").write_text("{}")
    end = Ended(place, "a", "--whole", env={"PATH": f"{place}:{os.environ['PATH']}"}, bundle=bundle)
    assert end.code == 0, end.said
    return end, place


def test_stage_a_trains_in_both_orders_and_tests_the_ops(stage_a):
    end, place = stage_a
    assert re.search(r"^weft, any order +1 +[0-9.]+", end.text, re.M), end.text
    assert re.search(r"^weft +1 +[0-9.].*  [0-9.]+; beside weft, any order: 0\.\d\d of the tolerance$", end.text, re.M), end.text
    assert re.findall(r"^ok       (test_\w+): \d+ cases, \d+ s$", end.text, re.M) == ["test_huge", "test_contract"], end.text
    assert re.search(r"^# loads     libcudnn.so.9: in no folder of LD_LIBRARY_PATH$|^# loads     /\S+: \d+ MB, read in [0-9.]+ s$", end.text, re.M), end.text
    assert "# switch    WEFT_CUDA_CANDIDATES=8" in end.text
    # Clocks, power, temperature and free memory of each turn.
    assert re.search(r"^tiny weft, any order +[0-9.]+ +1755 +2619 +512 +61  30000 30000 30000$", end.text, re.M), end.text
    # Whoever sees but the end of what was said has the trainings, and ahead of them the tests.
    *_, trained, _, _ = end.said.splitlines()
    assert trained.startswith("weft  ") and trained in end.text.splitlines(), end.said[-2000:]
    assert end.said.rindex("Choices of algorithms made by") < end.said.rindex("Ops of GPT-2 tiny's step") < end.said.rindex("ok       nccl-dp4"), end.said
    # What comes back: the result, the log and the choices, in one folder.
    assert sorted(re.sub(r"^\d.*-gpu", "DATE-gpu", f.name) for f in (place / "out").iterdir()) == ["DATE-gpu-a.txt", "choices.tar", "gpu-a-log.txt"]


def test_stage_a_holds_nccl_between_ranks_of_one_device_against_the_hosts(stage_a):
    end, _ = stage_a
    number = r"-?[0-9.]+(?:e-\d+)?"
    said = re.findall(rf"^ok       nccl-(\w+): NCCL 2.28.9, 3 steps, (.*); {number} ms a step, through the hosts {number}, \d+ s$", end.text, re.M)
    assert said[:4] == [(mesh, "the numbers that they have through the hosts") for mesh in ("dp2", "pp2", "tp2", "fsdp2")], end.text
    assert len(said) == 5 and re.fullmatch(r"at most [0-9.]+e[-+]\d+ off those through the hosts", said[4][1]), said
    assert re.search(r"^ok       nccl-killed: rank 1 was killed at step 1, rank 0 ended with 69, all within [0-9.]+ s, \d+ s$", end.text, re.M), end.text


def test_what_was_chosen_is_not_timed_again(stage_a, place):
    end, before = stage_a
    assert "Choices of algorithms made by tiny weft, any order:" in end.text
    again = Ended(place, "a", "--parts", "tiny", "--choices", before / "out/choices.tar")
    assert again.code == 0 and not re.search(r" id \d+, tile", again.text), again.text
    assert re.search(r"^ +- +- +- +- +-  attention_grad 2x16x2/2x16 packed 3 in \d+ bytes: cudnn-", again.text, re.M), again.text


def test_what_the_library_makes_of_what_follows_a_product_is_a_table(stage_a):
    end, _ = stage_a
    said = end.text[end.text.index("What follows products of tiny weft, any order:") :]
    rows = re.findall(r"^ +(fused|slower|none) +([0-9.]+|-) +([0-9.]+|-)  (\S+ \w\w .*)$", said, re.M)
    assert {"gelu_aux_bias", "dgelu", "bias"} <= {end for _, _, _, key in rows for end in re.findall(r" (gelu_aux_bias|dgelu|bias),?", key)}, rows
    assert all(one == two == "-" if verdict == "none" else float(one) <= float(two) or verdict == "slower" for verdict, one, two, _ in rows), rows


def test_ops_have_the_flops_and_bytes_of_their_shapes(stage_a):
    end, _ = stage_a
    # All in order, behind it; each product's choice, and what the library's own first takes.
    assert re.search(r"^Ops of GPT-2 tiny's step, bf16, in order, batch 2", end.text, re.M)
    for op in ("attention_packed_grad 2x16x3x2x16", "linear 32x128x32 NN add gelu"):
        assert len(re.findall(rf"^{op} +bf16 +2 ", end.text, re.M)) == 2, end.text
    made = end.text[end.text.index("Choices of algorithms made by tiny weft, any order:") :]
    place_, of, us_, first, gain = re.search(r"^ +(\d) +(\d) +([0-9.]+) +([0-9.]+) +([0-9.]+)%  32x128x32\*1 nn .*: id \d+,", made, re.M).groups()
    assert 1 <= int(place_) <= int(of) and float(first) >= float(us_)
    assert float(gain) == pytest.approx(100 * (float(first) / float(us_) - 1), abs=1 / float(us_) * 10 + 0.1)
    assert re.search(r"^ +- +- +- +- +-  attention_grad 2x16x2/2x16 packed 3 in \d+ bytes: cudnn-", made, re.M), made
    # The way up, 32 rows of 32 to 128, with bias and gelu: bf16 in and out, and what gelu was given is kept.
    dtype, (calls, us, _, _, tflops, gbytes, limit, _) = end.op("linear 32x128x32 NN add gelu")
    flops, moved = 2 * 32 * 128 * 32, 2 * (32 * 32 + 32 * 128 + 128 + 2 * 32 * 128)
    assert (dtype, calls) == ("bf16", 2)
    us_up = us
    assert tflops * us * 1e6 == pytest.approx(flops, rel=0.01) and gbytes * us * 1e3 == pytest.approx(moved, rel=0.01)
    assert limit == pytest.approx(100 * max(flops / RATES["bf16"], moved / RATES["bytes"]) / (us / 1e6), rel=0.01, abs=0.06)
    # Attention over 16 positions of 2 samples, 32 wide: two products of every pair, the causal half.
    _, (calls, us, _, _, tflops, _, _, _) = end.op("attention_packed 2x16x3x2x16")
    assert calls == 2 and tflops * us * 1e6 == pytest.approx(2 * 2 * 16 * 16 * 32, rel=0.01)
    # The update of all 28 parameters at once: p, g, m, v are read, p, m, v are written, f32, and p's copy in bf16,
    # but for the weights of q, k and v, which the product has in another order: their copies are a pass of their own.
    dtype, (calls, us, _, _, tflops, gbytes, _, _) = end.op("adam of 28")
    assert (dtype, calls, tflops) == ("f32", 1, None)
    assert gbytes * us * 1e3 == pytest.approx((28 + 2) * N - 2 * 2 * 3 * 32 * 32 + 28 * 4 * 5, rel=0.01)  # with each its two clips and three hypers
    # What the device gives at best comes first, with no part of the step.
    assert end.op("square 32")[1][0] == end.op("copy")[1][0] == 0
    shares = [float(share) for share in re.findall(r"% +([0-9.]+)% +-?[0-9.]+ +[0-9.]+ +-?[0-9.]+(?:  queued)?$", end.text, re.M)]
    assert sum(shares) == pytest.approx(200, abs=2)
    # The gap to the limit, of both its calls.
    line = next(line for line in end.text.splitlines() if line.startswith("linear 32x128x32 NN add gelu "))
    assert float(line.split()[14]) == pytest.approx(2 * (us_up - 1e6 * max(flops / RATES["bf16"], moved / RATES["bytes"])) / 1000, abs=0.01)


@pytest.mark.parametrize("calls, found", [(0, False), (12, True)])
def test_ops_that_are_asked_for_by_a_name_that_no_op_has_fail(calls, found):
    """A row of no calls is of the device, and not of the step."""
    text = "\t".join(["op", "x", "bf16", str(calls), "2", "1", "3", "8", "4", "graph"]) + "\n"
    result, rows = types.SimpleNamespace(notes=[], libraries={}), []
    b = bench.Bench(types.SimpleNamespace(tiny=False, budget=9, began=0, device="cuda"), types.SimpleNamespace(weft_env={}), result)
    b.weft = types.SimpleNamespace(ops=lambda *args, **kwargs: text)
    b.time_ops("ops-124m", "bf16", 9, "job", ["--only", "no_such_op"], rows.extend)
    assert len(rows) == 1
    assert result.notes == ([] if found else ["FAILED  ops-124m bf16: no op of the step is called no_such_op"])


def test_what_does_not_fit_into_the_time_is_left_out_and_said_so(place):
    end = Ended(place, "a", "--budget", "1")
    assert end.code == 0, end.said
    said = re.findall(r"^LEFT OUT  (\S+ .*): expected to take (\d+) s", end.text, re.M)
    assert said == [(part.replace("124m", "tiny") + " " + what, f"{stages.expected_s(stages.cost_of(part, what), None):.0f}") for part, what in stages.STAGES["a"]]
    assert "p50 ms" not in end.text


def test_a_peer_that_trains_another_model_is_told_of(place):
    end = Ended(place, "4c", "--parts", "tiny", "--device", "cpu", n=N + 1, env={"WEFT_BACKEND_DIR": str(runs.BUILD)})
    assert end.code == 0, end.said
    assert re.search(rf"^JAX, forwards again.*N DIFFERS: \[{N + 1}, {N + 1}\]", end.text, re.M)


def test_why_a_device_failed_is_told_to_the_errors_name(place):
    end = Ended(place, "a", "--parts", "tiny", env={"WEFT_FAKE_CUDA": "sticky:40"})
    assert end.code == 1 and re.search(r"^weft +FAILED: .*: choosing an algorithm of .*\(cudaErrorIllegalAddress\)", end.text, re.M), end.text


def test_a_rank_that_cannot_train_fails_the_run_and_says_why(place):
    end = Ended(place, "a", "--parts", "tiny", env={"WEFT_FAKE_CUDA": "oom:1"})
    assert end.code == 1, end.said
    assert re.search(r"^weft +FAILED: out of memory: .*", end.text, re.M), end.text


def test_without_a_gpu_it_says_so_and_only_fails_if_one_is_required(place):
    scene = {"WEFT_FAKE_CUDA": "nodevice"}
    end = Ended(place, "a", env=scene)
    assert end.code == 0 and "SKIPPED: no GPU was opened: " in end.said and "no NVIDIA device" in end.said and "stage a: skipped, " in end.said, end.said
    assert not end.text
    end = Ended(place, "a", env={**scene, "WEFT_REQUIRE_GPU": "1"})
    assert end.code == 1 and "SKIPPED" not in end.said, end.said
    assert re.search(r"^FAILED  no GPU was opened: .*no NVIDIA device", end.text, re.M), end.text
    assert re.findall(r"^LEFT OUT  \S+ (.*)$", end.text, re.M) == [what for _, what in stages.STAGES["a"]]
    assert re.search(r"^# loads     .*libcudnn", end.text, re.M) and re.search(r"^# hardware  .*(nvcc|no nvcc).*glibc", end.text, re.M), end.text


def test_a_part_that_nobody_foresaw_to_fail_does_not_end_the_others(place, monkeypatch):
    contestant, ran = at_work(place, monkeypatch, "weft", {})
    o, notes = types.SimpleNamespace(tiny=False, budget=99, began=time.monotonic(), device="cuda"), []
    b = bench.Bench(o, ran, types.SimpleNamespace(notes=notes, turns=[], loads=[]))
    monkeypatch.setattr(ran, "libraries", lambda: 1 / 0)
    assert b.one("device", "libraries", stages.Cost(0, 0, 1)) is None
    assert notes == ["FAILED  device libraries: ZeroDivisionError('division by zero')"] and "in <lambda>" in ran.log.read_text()


def test_an_op_that_is_refused_does_not_end_the_others(place):
    """A device that launches no kernel of ours early: the library's products are timed all the same."""
    end = Ended(place, "a", "--parts", "ops-tiny", env={"WEFT_FAKE_CUDA": "in_turn", "WEFT_CUDA_EARLY_LAUNCH": "1"})
    refused = re.findall(r"^FAILED  ops-tiny bf16: (\w+) .*: .*cudaErrorNotSupported", end.text, re.M)
    assert end.code == 1 and {"norm", "embed"} <= {*refused}, end.text
    assert re.search(r"^matmul 256x32x32 TN .* bf16 +1 +[0-9.]+", end.text, re.M), end.text


def test_choices_that_came_back_in_part_are_made_anew(place):
    (place / "choices.tar").write_bytes(b"half of it")
    end = Ended(place, "a", "--parts", "device", "--choices", place / "choices.tar")
    assert end.code == 0 and "choices.tar cannot be read, all is chosen anew" in end.said, end.said


def test_llama_trains_as_the_formula_counts_it(place):
    end = Ended(place, "4b", "--parts", "tiny-llama")
    assert end.code == 0, end.said
    # Two layers: q, out, and half as many heads of keys and values; three products of 64; two norms. One norm, two tables.
    parts = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64 + 2 * 32) + 32 + 2 * 256 * 32
    assert "Llama tiny-llama: batch 2, 16 tokens" in end.text
    assert f"N {parts}; a token is 6(N - VC) + 6LCT = {6 * (parts - 256 * 32) + 6 * 2 * 32 * 16} FLOPs" in end.text
    assert re.search(r"^weft, any order +2 +[0-9.]+", end.text, re.M) and "DIFFERS" not in end.text, end.text


@pytest.mark.parametrize("stage, args, why", [
    ("a", ["--form", "test_linears"], "unrecognized arguments: --form test_linears"),
    ("3", ["--from", "test_linears"], "--from is of a stage with the tests of ops"), ("a", ["--from"], "expected one argument"),
    ("b", ["--parts", "ops-124m"], "no part is called ops-124m"), ("a,5", [], "no stage is called 5"),
    ("tests,sanitize", ["--from", "test_linears"], "--from is of a stage with the tests of ops")])
def test_what_is_no_argument_is_refused_before_anything_runs(place, stage, args, why):
    end = Ended(place, stage, *args)
    assert end.code == 2 and why in end.said and "stage " + stage.split(",")[0] + ":" not in end.said, end.said
    assert not (place / "out").exists()


@pytest.mark.parametrize("only, ends", [("contract", 0), ("contrakt", 1)])
def test_a_name_that_nothing_has_is_left_out(place, only, ends):
    bundle = bundle_of(place, "test_contract")
    (bundle / "models").mkdir()
    (bundle / "models/expect.json").write_text("{}")
    end = Ended(place, "tests", "--parts", "tests", "--whole", "--only", only, bundle=bundle)
    assert end.code == ends and ("LEFT OUT  no name holds 'contrakt'" in end.text) == bool(ends), end.said


def test_the_usage_is_the_whole_of_what_the_script_says_of_itself():
    said = subprocess.run(["sh", LEASE, "a"], check=False, text=True, stdout=subprocess.PIPE)
    comment = [line[1:].removeprefix(" ") for line in LEASE.read_text().split("\nset -eu")[0].splitlines()[2:]]
    assert said.returncode == 2 and said.stdout.splitlines() == comment


def test_trainings_that_have_to_be_alike_are_held_against_the_first(place):
    end = Ended(place, "tests", "--parts", "tiny")
    assert end.code == 0, end.said
    ways = dict(re.findall(r"^(weft, .*?) +1 .*; beside weft: (.*)$", end.text, re.M))
    assert {*ways} == {what for part, what in stages.STAGES["tests"] if part == "124m"} - {"weft"}, end.text
    assert [who for who, like in ways.items() if like == "the same bits"] == ["weft, again", "weft, early, in order"]
    assert any(not like.startswith(("the same", "0.00")) for like in ways.values()), ways


@pytest.mark.parametrize("loss, bits, why", [(2.5, True, None), (2.5001, True, "step 3: loss is 2.5001, not 2.5"), (2.5001, False, None), (2.6, False, "step 3: loss")])
def test_a_training_that_is_not_alike_fails(loss, bits, why):
    rows = [{"step": 3, "loss": 2.5, "grad_norm": 1.0}]
    with contextlib.nullcontext() if why is None else pytest.raises(runner.Failed, match=why):
        contestants.likeness([{**rows[0], "loss": loss}], rows, bits)


@pytest.mark.parametrize("scene, why, step", [
    ("lt_bare", "the library declined what follows the product", 3),  # of the two layers' alike products one each
    ("dnn_stuck", "our own kernels serve it: ", 2)])
def test_who_falls_back_is_counted_and_fails_the_run(place, scene, why, step):
    """The library has no kernel for what follows a product; or none of its engines for attention starts."""
    end = Ended(place, "a", "--parts", "tiny,ops-tiny", env={"WEFT_FAKE_CUDA": scene})
    assert end.code == 1, end.said
    for part in ("ops-tiny bf16", "tiny weft, any order", "tiny weft"):
        count = re.search(rf"^FELL BACK  {part}: (\d+):$", end.text, re.M)
        assert count and int(count[1]) >= step, (part, end.text)
        fell = end.text[count.end() :].splitlines()[1 : 1 + int(count[1])]
        assert all(line.startswith("    ") and why in line for line in fell), fell
    assert re.search(r"^weft +1 +[0-9.]+", end.text, re.M)  # its rows are there all the same


def test_a_sweep_offers_less_of_the_scratch_that_is_planned(place):
    end = Ended(place, "sweep", "--budget", "500")
    assert end.code == 0, end.said
    for who in ("weft, any order", "weft, heads apart, any order"):
        assert re.search(rf"^{who} +1 +[0-9.]+", end.text, re.M), end.text
    said = end.text[end.text.index("WEFT_CUDA_ATTENTION_SCRATCH of attention_grad of GPT-2 tiny, sums in order:") :]
    # A 64th of what a GPU is offered, and an eighth.
    assert re.search(r"^op +calls +4 +8 +16 +32$", said, re.M) and re.search(r"^op +calls +1 +4 +8 +16$", said, re.M), said
    assert re.search(r"^linear 32x128x32 NN add gelu +2(?: +[0-9.]+){4}$", said, re.M), said
    row = re.search(r"^attention_packed_grad 2x16x3x2x16 +2((?: +[0-9.]+){4})$", said, re.M)
    step = re.search(r"^all of a step((?: +[0-9.]+){4})$", said, re.M)
    assert [float(x) for x in step[1].split()] == pytest.approx([2 * float(x) for x in row[1].split()], abs=0.03)
    log = (place / "out/gpu-sweep-log.txt").read_text()
    apart = log[log.index("train.pack_heads=false") :]
    assert re.search(r"attention_grad 2x16x2/2x16 in \d+ bytes: chosen cudnn", apart[: apart.index("== ")]), apart
    for mib in (4, 8, 16, 32):
        assert f"attention_grad 2x16x2/2x16 packed 3 in {mib << 20} bytes: chosen cudnn" in log


REHEARSED = """#!/bin/sh
case "$*" in
-c*) exit 0 ;;
*"bench.py "*) exec {python} "$@" ;;
*) echo '{{"library": "stand-in 1", "ms": [40, 10, 20, 30, 15], "loss": 5.5, "gib": 1.5, "parameters": {n}, "ready_s": 7}}' ;;
esac
"""


@pytest.mark.skipif(not runs.LONG, reason="SKIPPED: WEFT_LONG: all stages take minutes")
def test_all_stages_are_done_whole(place):
    """Those of make gpu-rehearsal, with its switches, from a build. Each has more time than this machine can take: what
    they cost is for a GPU to say."""
    bundle = llm_c(place)
    subprocess.run(["/usr/bin/python3", runs.REPO / "tests/cuda/models.py", bundle / "models"], check=True)
    asked = [n for n in stages.STAGES if n not in ("sanitize", "expected")]
    end = Ended(place, ",".join(asked), "--whole", "--budget", "3000", peer=REHEARSED, env={"WEFT_REQUIRE_GPU": "1"}, limit=3000, bundle=bundle)
    assert end.code == 0, end.said
    assert re.findall(r"^stage (\S+): passed, \d+ s$", end.said, re.M) == asked
    for stage in asked:
        [path] = (place / "out").glob(f"*-gpu-{stage}.txt")
        assert not re.search("LEFT OUT|FAILED|FELL BACK", path.read_text()), path.read_text()


def test_what_is_expected_of_a_step_is_said_without_a_device(place):
    end = Ended(place, "expected", env={"WEFT_FAKE_CUDA": "nodevice"})
    assert end.code == 0, end.said
    # 2·32·128·32 FLOPs, sums of 32, at 0.475 of 2 GFLOP/s, and 2 us.
    line = next(line for line in end.text.splitlines() if line.startswith("linear 32x128x32 NN add gelu "))
    assert float(line.split()[-2]) == pytest.approx(2 * 32 * 128 * 32 / (0.475 * RATES["bf16"]) * 1e6 + 2, abs=0.01)
    assert re.search(r"^all calls of a step, .*: 0.000 ms; expected [0-9.]+; at the limit [0-9.]+$", end.text, re.M), end.text
