# SPDX-License-Identifier: Apache-2.0
"""gpu_test.sh, where no GPU is: what it prints of programs that pass, fail and hang, and that it ends in its time; and
the trainings that a bundle brings, on the CUDA backend's emulated twin, against losses that are right and wrong."""
import json
import os
import re
import shutil
import subprocess

import pytest
import solo

CUDA = solo.REPO / "tests/cuda"
EMULATED = solo.BUILD / "tests/cuda"
GOOD = "echo '[       OK ] one'; echo '[       OK ] two'"
# A failure with far more to say than anybody reads.
BAD = "for i in $(seq 3000); do echo \"[  ERROR   ] --- element $i of 3000 is wrong\"; done; exit 3"


@pytest.fixture
def bundle(place):
    """A bundle's folder without its programs."""
    for name in ("gpu_test.sh", "libraries.sh", "models.py"):
        shutil.copy(CUDA / name, place / name)
    (place / "libweft_cuda.so").touch()
    program(place, "rank", "echo '{\"kind\":\"cuda\"}'")
    return place


def program(place, name, text):
    path = place / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def gpu_test(bundle, *programs, rank=None, libraries=None, **env):
    return subprocess.run(["sh", bundle / "gpu_test.sh", libraries or bundle, rank or bundle / "rank", *programs], check=False,
                          env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)


def test_what_failed_is_short_and_stands_at_the_end_and_the_whole_is_in_the_log(bundle):
    good = program(bundle, "good", GOOD)
    bad = [program(bundle, f"bad{k}", BAD) for k in range(14)]
    log = bundle / "log"
    end = gpu_test(bundle, good, *bad, GPU_TEST_PART="ops", GPU_TEST_LOG=str(log))
    assert end.returncode == 1 and re.search(r"^ok      good  2 cases", end.stdout, re.M), end.stdout
    assert "FAILED  bad0 (exit 3)" in end.stdout and "element 1 of 3000" in end.stdout
    last = end.stdout[-12000:].splitlines()[-2:]
    assert last[0] == "failed: " + " ".join(f"bad{k}" for k in range(14)) and last[1] == "gpu-test: 1 passed, 14 failed"
    assert log.read_text().count("element 2999 of 3000") == 14


def test_it_ends_in_its_time_and_says_what_was_left_out(bundle):
    slow, good = program(bundle, "slow", "exec sleep 100"), program(bundle, "good", GOOD)
    end = gpu_test(bundle, slow, good, GPU_TEST_PART="ops", GPU_TEST_SECONDS="6")
    assert end.returncode == 1, end.stdout
    assert re.search(r"^FAILED  slow \(exit 124: not done after \d+ s\)$", end.stdout, re.M), end.stdout
    assert re.search(r"^LEFT OUT  good: ", end.stdout, re.M), end.stdout


def test_one_part_and_one_program_can_be_run_alone(bundle):
    one, other = program(bundle, "test_one", GOOD), program(bundle, "test_other", BAD)
    end = gpu_test(bundle, one, other, GPU_TEST_PART="ops", GPU_TEST_ONLY="one")
    assert end.returncode == 0 and end.stdout.endswith("gpu-test: 1 passed, 0 failed\n"), end.stdout


def test_it_stops_where_the_device_failed_and_goes_on_from_a_name(bundle):
    one, last = program(bundle, "test_one", GOOD), program(bundle, "test_last", GOOD)
    huge = program(bundle, "test_huge", "echo 'cuda device 0: launch: an illegal memory access was encountered (cudaErrorIllegalAddress)'; exit 1")
    end = gpu_test(bundle, one, huge, last, GPU_TEST_PART="ops", GPU_TEST_STOP="1")
    assert end.returncode == 1 and "test_last" not in end.stdout, end.stdout
    assert re.search(r"^FAILED  test_huge .*^STOPPED: the device failed in test_huge; GPU_TEST_FROM=test_one goes on", end.stdout, re.M | re.S), end.stdout
    end = gpu_test(bundle, one, huge, last, GPU_TEST_PART="ops", GPU_TEST_FROM="test_last")
    assert end.returncode == 0 and end.stdout.endswith("gpu-test: 1 passed, 0 failed\n"), end.stdout
    assert gpu_test(bundle, one, GPU_TEST_PART="ops", GPU_TEST_FROM="test_on").returncode == 1


@pytest.mark.skipif(not (EMULATED / "libweft_cuda.so").exists(), reason="SKIPPED: no libweft_cuda.so: built without CUDA's headers")
def test_recorded_trainings_are_held_against_the_cpus_losses(bundle):
    command = ["/usr/bin/python3", CUDA / "models.py", "make", bundle / "models"]
    subprocess.run(command, check=True, env={**os.environ, "GPU_TEST_ONLY": "vae-f32"}, timeout=300)
    run = {"rank": solo.RANK, "libraries": EMULATED, "GPU_TEST_PART": "models", "GPU_TEST_ONLY": "vae-f32"}
    end = gpu_test(bundle, **run)
    assert end.returncode == 0 and re.search(r"ok      vae-f32: 50 steps, at most ", end.stdout), end.stdout
    expected = json.loads((bundle / "models/expect.json").read_text())
    assert [*expected] == ["vae-f32"] and len(expected["vae-f32"]["losses"]) == 50
    expected["vae-f32"]["losses"][40] *= 1.01
    (bundle / "models/expect.json").write_text(json.dumps(expected))
    end = gpu_test(bundle, **run)
    assert end.returncode == 1 and re.search(r"FAILED  vae-f32: step 41: the loss is ", end.stdout), end.stdout
