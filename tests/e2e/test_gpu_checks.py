# SPDX-License-Identifier: Apache-2.0
"""What a lent GPU's tests say of programs that pass, fail and hang, and that they end in their time; the trainings that a
bundle brings, on the CUDA backend's emulated twin, against losses that are right and wrong; and its library, linked again."""
import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
import types

import pytest
import runs

CUDA = runs.REPO / "tests/cuda"
EMULATED = runs.BUILD / "tests/cuda"
sys.path += [str(runs.REPO / "tests/bench/gpu"), str(CUDA)]
import checks  # noqa: E402
import collectives  # noqa: E402
import contestants  # noqa: E402
import runner  # noqa: E402

twin = pytest.mark.skipif(not (EMULATED / "libweft_cuda.so").exists(), reason="SKIPPED: no libweft_cuda.so: built without CUDA's headers")
GOOD = "echo '[       OK ] one'; echo '[       OK ] two'"
# A failure with far more to say than anybody reads.
BAD = "for i in $(seq 3000); do echo \"[  ERROR   ] --- element $i of 3000 is wrong\"; done; exit 3"


@pytest.fixture
def bundle(place):
    """A bundle's folder: the ranks of this build, and no tests yet."""
    (place / "tests").mkdir()
    (place / "weft-rank").symlink_to(runs.RANK)
    (place / "lead-ranks").symlink_to(runs.BUILD / "tests/lead-ranks")
    return place


def program(bundle, name, text):
    path = bundle / "tests" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    with open(bundle / "tests/list", "a") as known:
        known.write(f"{name}\n")


def checked(bundle, what, seconds=300, only="", first="", tiny=False, stage="tests"):
    """The lines of the result, and where its log is."""
    o = types.SimpleNamespace(bundle=bundle, out=bundle / "out", stage=[stage], choices=None, only=only, first=first, tiny=tiny, device="cuda", scratch=0)
    scratch = bundle / f"scratch{len(list(bundle.iterdir()))}"
    scratch.mkdir()
    o.out.mkdir(exist_ok=True)
    result = types.SimpleNamespace(tests=[], notes=[], write=lambda: None)
    ran = runner.Runner(o, scratch)
    checks.Checks(o, ran, result).run(what, time.monotonic() + seconds)
    return result.tests + result.notes, ran.log


def test_of_what_failed_few_lines_are_kept_and_the_whole_is_in_the_log(bundle):
    program(bundle, "test_good", GOOD)
    program(bundle, "test_bad", BAD)
    (good, bad), log = checked(bundle, "ops")
    assert re.fullmatch(r"ok       test_good: 2 cases, \d+ s", good), good
    assert bad.startswith("FAILED   test_bad: ") and "element 1 of 3000" in bad and len(bad.splitlines()) < 110, bad
    assert log.read_text().count("element 2999 of 3000") == 1


def test_the_log_stays_within_what_comes_back(bundle, monkeypatch):
    monkeypatch.setattr(runner, "KEPT", 1000)
    monkeypatch.setattr(runner, "LOG", 3000)
    for k in range(9):
        program(bundle, f"test_bad{k}", BAD)
    said, log = checked(bundle, "ops")
    assert len(said) == 9 and len(log.read_bytes()) < 3500 and "bytes are left out" in log.read_text()


def test_it_ends_in_its_time_and_says_what_was_left_out(bundle):
    program(bundle, "test_slow", "exec sleep 100")
    program(bundle, "test_good", GOOD)
    (slow, good), _ = checked(bundle, "ops", seconds=6)
    assert re.match(r"FAILED   test_slow: not done after \d+ s", slow) and good.startswith("LEFT OUT test_good"), (slow, good)


def test_goldens_are_found_wherever_it_runs(bundle):
    program(bundle, "test_jax", 'ls "$WEFT_GOLDEN"/jax*.safetensors && echo "[       OK ] one"')
    assert re.match(r"ok       test_jax: 1 cases", checked(bundle, "ops")[0][0])


HANGS = """echo '[ RUN      ] one'; echo '[  ERROR   ] --- a number is wrong'; echo '[  FAILED  ] one' >&2
[ "$WEFT_TEST_AFTER" = two ] || { echo '[ RUN      ] two'; exec sleep 100; }
echo '[ RUN      ] three'; echo '[       OK ] three'"""


def test_behind_a_case_that_hangs_the_others_are_run(bundle, monkeypatch):
    monkeypatch.setattr(checks, "HANG_S", 1)
    program(bundle, "test_hangs", HANGS)
    said, _ = checked(bundle, "ops", seconds=20)
    assert [re.sub(r"\d+", "N", line.splitlines()[0]) for line in said] == ["FAILED   test_hangs: not done after N s", "ok       test_hangs behind two: N cases, N s"], said
    assert "        [  ERROR   ] --- a number is wrong" in said[0].splitlines() and "        [ RUN      ] two" in said[0].splitlines(), said


def of_ops(name, scene, **more):
    """A group of tests of ops on the twin: its exit code, and what it said."""
    p = subprocess.run([runs.BUILD / "tests/ops/ops", "--group", name], check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       env={**os.environ, "WEFT_RIG": "cuda", "WEFT_BACKEND_DIR": str(EMULATED), "WEFT_FAKE_CUDA": scene, **more})
    return p.returncode, p.stdout


CASES = ["rows_go_to_their_places_up_to_the_last", "a_place_has_the_newest_position_that_is_its_own", "what_does_not_fit_is_refused"]


@twin
def test_each_call_that_a_device_refuses_is_said_with_its_shapes():
    code, said = of_ops("test_cache", "in_turn", WEFT_CUDA_EARLY_LAUNCH="1")
    assert code and said.count("cudaErrorNotSupported") == 7 + 8, said
    assert "--- append 4x33x3x5 bf16, 4x7x3x5 bf16, 4x7 i32, 4 i32 -> 4x33x3x5 bf16: cuda device 0: launch behind op 'append'" in said, said
    assert re.findall(r"^\[       OK \] (\w+)$", said, re.M) == CASES[2:], said


@twin
def test_behind_a_case_that_the_device_dies_in_the_others_are_run():
    code, said = of_ops("test_cache", "sticky:1")
    assert code and [*dict.fromkeys(re.findall(r"^\[ RUN      \] (\w+)$", said, re.M))] == CASES, said
    assert said.count("cudaErrorIllegalAddress") == 2 and re.findall(r"^\[       OK \] (\w+)$", said, re.M) == CASES[2:], said
    code, said = of_ops("test_numerics", "sticky:1")  # its cases open the device themselves
    assert code and said.count("cudaErrorIllegalAddress") == 2 and "Segmentation" not in said, said


def test_real_shapes_come_first_and_others_by_name_or_from_a_name(bundle):
    for name in ("test_one", "test_other", "test_huge"):
        program(bundle, name, GOOD)

    def names(**asked):
        return re.findall(r"test_\w+", " ".join(checked(bundle, "ops", **asked)[0]))

    assert names() == ["test_huge", "test_one", "test_other"]
    assert names(only="other") == ["test_other"] and names(first="test_one") == ["test_one", "test_other"]
    assert checked(bundle, "ops", first="test_on")[0] == ["FAILED  no test is called test_on: test_huge test_one test_other"]


def test_memcheck_begins_with_the_fused_ops(bundle, monkeypatch):
    """In the sanitizer's place: it notes how it was called, and finds something in one program."""
    for name in ("test_views", "test_linears", "test_chain"):
        program(bundle, name, GOOD)
    sanitizer = bundle / "compute-sanitizer"
    sanitizer.write_text(f"#!/bin/sh\necho \"$@\" >>{bundle}/asked\ncase $* in *chain) echo '========= Invalid read'; exit 9 ;; esac\n")
    sanitizer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bundle}:{os.environ['PATH']}")
    said, _ = checked(bundle, "memcheck, fused")
    assert [line[:9] for line in said] == ["ok       ", "FAILED   "] and "========= Invalid read" in said[1], said
    asked = (bundle / "asked").read_text().splitlines()
    assert asked[0] == f"--tool memcheck --report-api-errors no --error-exitcode 9 {bundle}/tests/test_linears"
    assert len(checked(bundle, "racecheck")[0]) == 3
    # Without being asked where the device died, and only there.
    (bundle / "tests/list").unlink()
    program(bundle, "test_bad", BAD)
    program(bundle, "test_dead_chain", "echo 'launch: an illegal memory access was encountered (cudaErrorIllegalAddress)'; exit 1")
    said, _ = checked(bundle, "ops")
    assert [line.split(":")[0] for line in said] == ["FAILED   test_bad", "FAILED   test_dead_chain", "FAILED   test_dead_chain under memcheck"], said
    assert "========= Invalid read" in said[2]


def test_a_stage_that_only_sanitizes_fails_without_the_sanitizer(bundle, monkeypatch):
    program(bundle, "test_linears", GOOD)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("CUDA_HOME", str(bundle))
    said = [checked(bundle, "memcheck", stage=stage)[0] for stage in ("sanitize", "b")]
    assert [line.split()[:2] for [line] in said] == [["FAILED", "memcheck:"], ["SKIPPED", "memcheck:"]], said


@pytest.mark.parametrize("what", ["trainings", "killed"])
def test_trainings_that_nobody_recorded_are_left_out(bundle, what):
    [said], _ = checked(bundle, what)
    assert said.startswith(f"LEFT OUT  {what}: no trainings were recorded"), said


def recorded(bundle, monkeypatch, name):
    """In the place of what was there before; what is not whole never is."""
    import models

    folder = bundle / "models"
    folder.mkdir()
    (folder / "before").touch()
    monkeypatch.setenv("WEFT_BACKEND_DIR", str(runs.BUILD))
    with pytest.raises(ZeroDivisionError):
        models.record(folder, lambda name: 1 / 0)
    assert [f.name for f in folder.iterdir()] == ["before"]
    models.record(folder, lambda other: other == name)
    monkeypatch.setenv("WEFT_BACKEND_DIR", str(EMULATED))
    assert not (folder / "before").exists() and not (bundle / "models.new").exists()


@twin
def test_recorded_trainings_are_held_against_the_cpus_losses(bundle, monkeypatch):
    recorded(bundle, monkeypatch, "vae-f32")
    [said], _ = checked(bundle, "trainings")
    assert said.startswith("ok       vae-f32: 50 steps, at most "), said
    expected = json.loads((bundle / "models/expect.json").read_text())
    assert [*expected] == ["vae-f32"] and len(expected["vae-f32"]["losses"]) == 50
    expected["vae-f32"]["losses"][40] *= 1.01
    (bundle / "models/expect.json").write_text(json.dumps(expected))
    [said], _ = checked(bundle, "trainings")
    assert said.startswith("FAILED   vae-f32: step 41: the loss is "), said


class Forgetful(contestants.Ranks):
    """Who loses its checkpoints with its life."""

    def train(self, limit, wanted=None, **more):
        end = super().train(limit, wanted, **more)
        for step in self.place.glob("ckpt/*/step-*") if wanted else []:
            shutil.rmtree(step)
        return end


@twin
def test_a_killed_training_resumes_to_the_same_bits(bundle, monkeypatch):
    recorded(bundle, monkeypatch, checks.KILL)
    [said], _ = checked(bundle, "killed", tiny=True)
    assert re.match(rf"ok       {checks.KILL}-killed: 60 steps again, and killed at \d\d and resumed from [1-5]0: the same bits", said), said
    monkeypatch.setattr(checks, "Ranks", Forgetful)
    [said], _ = checked(bundle, "killed", tiny=True)
    assert re.match(rf"FAILED   {checks.KILL}-killed: killed at step \d\d it resumed from step 0", said), said
    monkeypatch.setattr(checks, "final", lambda ranks: ranks.place)
    [said], _ = checked(bundle, "killed", tiny=True)
    assert said.startswith(f"FAILED   {checks.KILL}-killed: the same training again came to other numbers or bits"), said


@twin
def test_faults_are_what_they_are_to_be(bundle, monkeypatch):
    monkeypatch.setenv("WEFT_BACKEND_DIR", str(EMULATED))
    said, _ = checked(bundle, "faults", tiny=True)
    assert [line[:19] for line in said] == ["ok       no device:", "ok       no memory:"], said


def by_nccl(bundle, monkeypatch, only, scene="devices:1"):
    monkeypatch.setenv("WEFT_BACKEND_DIR", str(EMULATED))
    monkeypatch.setenv("WEFT_FAKE_CUDA", scene)
    [said], _ = checked(bundle, "nccl", only=only, tiny=True)
    return said


@twin
def test_without_nccl_its_checks_fail_and_say_what_is_missing(bundle, monkeypatch):
    said = by_nccl(bundle, monkeypatch, "nccl-dp2", "nccl_absent")
    assert re.match(r"FAILED   nccl-dp2: exit 78: .*there is no libnccl.so.2: install NCCL 2.27 or later", said), said


@pytest.mark.parametrize("loss, norm, bits, why", [
    (5.5, 1.0, True, None), (5.5 + 1e-7, 1.0, True, r"the numbers are \[\(1, 5.5000001, 1.0\)\], through the hosts \[\(1, 5.5, 1.0\)\]"),
    (5.5 + 5e-6, 1.0 - 9e-6, False, None), (5.5 + 6e-6, 1.0, False, "step 1: loss is 5.500006, through the hosts 5.5, more than 1e-06 off"),
    (5.5, 1.0 - 11e-6, False, "step 1: grad_norm is"), (float("nan"), 1.0, False, "step 1: loss is nan")])
def test_numbers_that_are_not_those_through_the_hosts_fail(loss, norm, bits, why):
    hosts = [{"step": 1, "loss": 5.5, "grad_norm": 1.0}]
    with contextlib.nullcontext() if why is None else pytest.raises(runner.Failed, match=why):
        collectives.likeness([{**hosts[0], "loss": loss, "grad_norm": norm}], hosts, bits)


@twin
def test_who_does_not_end_with_69_fails(bundle, monkeypatch):
    """It is rank 0 that is killed here."""
    real = collectives.pid_of
    monkeypatch.setattr(collectives, "pid_of", lambda ranks, rank: real(ranks, 0))
    said = by_nccl(bundle, monkeypatch, "nccl-killed")
    assert said.startswith("FAILED   nccl-killed: the other rank did not end with 69"), said


# ---- the bundle's library, linked again ----------------------------------------------------------

TOY = {
    "kernels/cuda/scale.cu": '#include "kernels/cuda/lanes.h"\nint scale(int x) { return LANES * x; }\n',
    "kernels/cuda/other.c": '#include "common/common.h"\n#include "kernels/cuda/lanes.h"\nint other(void) { return LANES + common(); }\n',
    "kernels/cuda/alone.c": "int alone(void) { return 1; }\n",
    "kernels/cuda/lanes.h": "#define LANES 2\n",
    "kernels/cuda/export.map": "{ global: scale; other; alone; local: *; };\n",
    "common/common.c": "int common(void) { return 10; }\n",
    "common/common.h": "int common(void);\n",
}


class Toy:
    """A bundle of three sources: gcc stands for nvcc, and an empty library for each of CUDA's."""

    def __init__(self, place):
        self.place, self.tree, self.bundle, self.calls = place, place / "tree", place / "bundle", 0
        for name, text in TOY.items():
            self.write(name, text)
        (self.tree / "tests/cuda").mkdir(parents=True)
        shutil.copy(CUDA / "relink.sh", self.tree / "tests/cuda")
        self.bundle.mkdir()
        shutil.copy(CUDA / "libraries.sh", self.bundle)
        (place / "cuda/lib64").mkdir(parents=True)
        (place / "empty.c").touch()
        self.cc("-shared", "-o", place / "cuda/lib64/libcublasLt.so.13", place / "empty.c")
        nvcc = place / "nvcc"
        nvcc.write_text('#!/bin/sh\nexec gcc -x c -fPIC "$@"\n')
        nvcc.chmod(0o755)
        self.env = {"PATH": os.environ["PATH"], "NVCC": str(nvcc), "CUDA_HOME": str(place / "cuda"), "FLAGS_CUDA": "-I. -O1",
                    "FLAGS_C": "-I. -fPIC -Werror -DTEXT='\"a b\"' -MMD -MP"}
        objects = [self.object(name) for name in TOY if name.startswith("kernels") and not name.endswith((".h", ".map"))]
        self.cc("-c", "-fPIC", "-o", place / "common.o", "common/common.c")
        for archive, member in (("build/libcommon.a", [place / "common.o"]), ("../cuda/lib64/libcudart_static.a", [])):
            subprocess.run(["ar", "rc", archive, *member], cwd=self.tree, check=True)
        subprocess.run(["sh", CUDA / "objects.sh", "build", self.bundle, *objects], cwd=self.tree, env=self.env, check=True)
        (self.bundle / "libweft_cuda.so").write_text("the first")

    def write(self, name, text):
        (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (self.tree / name).write_text(text)

    def cc(self, *args):
        subprocess.run(["gcc", *args], cwd=self.tree, check=True)

    def object(self, name):
        path = f"build/obj/cuda/{name.removesuffix('.c')}.o"
        (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
        self.cc("-x", "c", "-I.", "-fPIC", "-MMD", "-MP", "-c", "-o", path, name)
        if name.endswith(".cu"):  # nvcc's way
            depends = (self.tree / path).with_suffix(".d")
            depends.write_text(depends.read_text().replace(" kernels/cuda/lanes.h", " ./kernels/cuda/lanes.h"))
        return path

    def relink(self, *tree):
        end = subprocess.run(["sh", self.bundle / "relink.sh", *tree], check=False, env=self.env, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        return end.returncode, [line.split()[1] for line in end.stdout.splitlines() if line.startswith("compiles ")], end.stdout

    def library(self):
        self.calls += 1  # a library that was loaded stays so under its name
        copy = self.place / f"copy{self.calls}.so"
        shutil.copy(self.bundle / "libweft_cuda.so", copy)
        lib = ctypes.CDLL(str(copy))
        return lib.scale(5), lib.other(), lib.alone()


def test_a_changed_kernel_is_in_the_bundles_library_after_relink(place):
    toy = Toy(place)
    assert toy.relink(toy.tree)[:2] == (0, []) and toy.library() == (10, 12, 1)
    assert (toy.bundle / "libweft_cuda.so.before").read_text() == "the first"
    toy.write("kernels/cuda/scale.cu", "int scale(int x) { return 7 * x; }\n")
    assert toy.relink(toy.tree)[:2] == (0, ["kernels/cuda/scale.cu"]) and toy.library() == (35, 12, 1)
    assert toy.relink(toy.tree)[:2] == (0, [])
    # A header is compiled wherever it was included; what does not compile leaves the library, and is tried again.
    toy.write("kernels/cuda/lanes.h", "#define LANES 3\n")
    toy.write("kernels/cuda/alone.c", "int alone(void) { return wrong; }\n")
    assert toy.relink(toy.tree)[0] != 0 and toy.library() == (35, 12, 1)
    toy.write("kernels/cuda/alone.c", "int alone(void) { return 4; }\n")
    code, compiled, said = toy.relink(toy.tree)
    assert code == 0 and {"kernels/cuda/scale.cu", "kernels/cuda/other.c", "kernels/cuda/alone.c"} <= {*compiled}, said
    assert toy.library() == (35, 13, 4)
    for name in ("common/common.c", "common/common.h"):
        toy.write(name, f"{TOY[name]}// changed")
        code, _, said = toy.relink(toy.tree)
        assert code == 1 and "it takes make gpu-bundle" in said and toy.library() == (35, 13, 4)
        toy.write(name, TOY[name])


@twin
def test_relink_compiles_what_is_in_c_as_the_build_does(place):
    said = subprocess.run(["make", "-n", f"BUILD={place}", "NVCC=nvcc", "gpu-bundle"], cwd=runs.REPO, check=True, text=True, stdout=subprocess.PIPE).stdout
    build = next(line for line in said.splitlines() if line.endswith("obj/cuda/kernels/cuda/cuda_backend.o") and " -c " in line)
    relink = re.search(r"FLAGS_C='(.*)' FLAGS_CUDA=", said)[1].replace("'\\''", "'")
    assert [w for w in build.split(" -c ")[0].split() if w.startswith(("-D", "-O", "-f", "-std"))] == [w for w in relink.split() if w.startswith(("-D", "-O", "-f", "-std"))], said


def test_a_bundle_can_be_relinked_from_its_own_sources(place):
    toy = Toy(place)
    assert toy.relink()[:2] == (0, []) and toy.library() == (10, 12, 1)
    (toy.bundle / "relink/source/kernels/cuda/alone.c").write_text("int alone(void) { return 9; }\n")
    shutil.rmtree(toy.tree)
    assert toy.relink()[:2] == (0, ["kernels/cuda/alone.c"]) and toy.library() == (10, 12, 9)
