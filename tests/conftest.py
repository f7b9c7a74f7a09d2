# SPDX-License-Identifier: Apache-2.0
"""What all Python suites share: the harness on the path, a place to train in, and after each test
the proof that nothing is left: no process, no shared memory, no socket where runs ended in order."""
import os
import pathlib
import signal
import sys
import threading
import time
import warnings

import pytest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))

import netns  # noqa: E402
import runs  # noqa: E402


# The files of the longest tests, which begin first.
LONGEST = ("test_service_storm", "test_run_storm", "test_cuda", "test_gpu_checks", "test_decoder", "test_gpu_bench", "test_device",
           "test_service_faults", "test_crash", "test_kill", "test_storage")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [*LONGEST, item.path.stem].index(item.path.stem))


# No test takes so long on any machine; one that hangs ends so, and the others run.
LIMIT_S = 3000 if runs.LONG else 900


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    def give_up(*_):
        pytest.fail(f"not done after {LIMIT_S} s")

    if threading.current_thread() is threading.main_thread():  # xdist starts another now and then; no signal reaches that
        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)


def shared_memory():
    return {f"/dev/shm/{n}" for n in os.listdir("/dev/shm")} if os.path.isdir("/dev/shm") else set()


def is_mapped(path):
    """Whether a living process has it: then it belongs to some other program."""
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            if path in maps.read_text():
                return True
        except OSError:
            continue
    return False


def shared_memory_left(before):
    """What is there since then and nobody's. Tests run side by side: another one's is mapped a moment
    after it is made, and gone a moment after it is unmapped."""
    for _ in range(20):
        left = {f for f in shared_memory() - before if not is_mapped(f)}
        if not left:
            break
        time.sleep(0.1)
    return left


@pytest.fixture
def cable():
    """Two network namespaces with nothing but a cable between them."""
    try:
        pair = netns.Pair()
    except netns.Unavailable as e:
        if os.environ.get("CI") == "true" and os.geteuid() == 0:
            pytest.fail(f"no network namespaces: {e}")
        warnings.warn(f"SKIPPED for want of privileges: {e}")
        pytest.skip(str(e))
    yield pair
    pair.close()


@pytest.fixture
def place(tmp_path):
    """A folder for one test's jobs; at its end no process may still name it."""
    before = shared_memory()
    yield tmp_path
    left = runs.processes_naming(tmp_path)
    for pid in left:  # a failing test must not disturb the next
        runs.kill_pid(pid)
    shm = shared_memory_left(before)
    assert not left, f"processes left behind: {left}"
    assert not shm, f"shared memory left behind: {shm}"


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A data set that can be learned: clouds of 8×8 images around one centre a class."""
    return runs.toy_set(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def noise(tmp_path_factory):
    """A data set of random bytes and labels, wide enough that a step takes milliseconds."""
    return runs.noise_set(tmp_path_factory.mktemp("noise"))
