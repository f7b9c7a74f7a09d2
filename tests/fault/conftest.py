# SPDX-License-Identifier: Apache-2.0
"""What the storage faults share: the data, the numbers of a run never disturbed, and mounts."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny  # noqa: E402
from disks import Disk, mount, skip_loudly  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "mounts: mounts file systems; runs in a user namespace when not root")


def pytest_pyfunc_call(pyfuncitem):
    """A test that mounts, run by somebody who may not, runs again as root of a namespace of its own."""
    if not pyfuncitem.get_closest_marker("mounts") or os.geteuid() == 0:
        return None
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        skip_loudly("cannot mount: not root, and user namespaces are off")
    with tempfile.TemporaryDirectory(prefix="weft-fault-") as base:  # pytest's own belongs to the true root
        inner = subprocess.run(["unshare", "-Urm", sys.executable, "-m", "pytest", "-q", "--basetemp", base + "/p",
                                pyfuncitem.nodeid], cwd=pyfuncitem.config.rootpath, capture_output=True, text=True)
    if inner.returncode:
        pytest.fail(inner.stdout + inner.stderr, pytrace=False)
    if "skipped" in inner.stdout:
        pytest.skip("in the namespace: " + inner.stdout)
    return True


@pytest.fixture
def home():
    """A folder on the disk that /tmp is on. pytest's own keeps the last three runs: too much here."""
    path = tempfile.mkdtemp(prefix="weft-fault-")
    yield pathlib.Path(path)
    tiny.kill_all()  # what a failed test has left, perhaps stopped
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def data(shared):
    return tiny.make_data(shared / "data")


@pytest.fixture(scope="session")
def reference(shared, data):
    """What the job comes to when nothing happens, for a number of steps."""
    known = {}

    def of(steps=8):
        if steps not in known:
            job = tiny.Tiny(shared / f"undisturbed-{steps}", data, steps=steps)
            run = job.run()
            assert run.codes() == [0] * job.ranks, run.text()
            known[steps] = job.final()
        return known[steps]
    return of


@pytest.fixture
def tmpfs(request):
    """Mounts a tmpfs: tmpfs(path, "size=1m"). Taken down at the end."""
    mounted = []

    def make(path, options):
        path.mkdir(parents=True, exist_ok=True)
        why = mount(["none", str(path)], ["-t", "tmpfs", "-o", options])
        if why:
            skip_loudly("no tmpfs: " + why)
        mounted.append(path)
        return path
    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], capture_output=True)


@pytest.fixture
def disk(home):
    if os.geteuid() != 0:
        skip_loudly("loop mounts need root")
    disk = Disk(home)
    yield disk
    subprocess.run(["umount", "-l", str(disk.path)], capture_output=True)
