# SPDX-License-Identifier: Apache-2.0
"""README's two commands on a machine that has git, make and nothing else: a Debian made by debootstrap, entered in
mount and process namespaces of its own, which take with them whatever the commands start."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import runs
from disks import skip_loudly

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
HOUR = 3600.0  # seconds; the commands together take half of it on two cores
pytestmark = pytest.mark.skipif(not runs.LONG, reason="a bare Debian is made in check-long")

ENTER = """set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount --rbind /sys "$1/sys"
mount -t tmpfs tmpfs "$1/dev/shm"
exec chroot "$1" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    sh -ec "$2"
"""


class Bare:
    def __init__(self, root):
        self.root = root

    def make(self):
        made = subprocess.run(["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", self.root],
                              capture_output=True, text=True, timeout=HOUR, check=False)
        if made.returncode:
            skip_loudly("debootstrap: " + made.stdout[-500:] + made.stderr[-500:])
        # It reaches the packages in the way that this machine does.
        for path in ("resolv.conf", "hosts", "apt/sources.list.d/debian.sources"):
            if os.path.exists("/etc/" + path):
                shutil.copyfile("/etc/" + path, self.root / "etc" / path)
        shutil.copytree("/etc/apt/apt.conf.d", self.root / "etc/apt/apt.conf.d", dirs_exist_ok=True)

    def run(self, command):
        return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh", self.root, command],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HOUR, check=False)

    def ok(self, command):
        end = self.run(command)
        assert end.returncode == 0, f"{command}\n{end.stdout[-6000:]}"
        return end.stdout


@pytest.fixture
def bare(home):
    if os.geteuid():
        skip_loudly("debootstrap wants root")
    if not shutil.which("debootstrap"):
        skip_loudly("no debootstrap")
    machine = Bare(home / "root")
    machine.make()
    return machine


def two_commands():
    """As README has them under its first heading."""
    text = (REPOSITORY / "README.md").read_text()
    block = re.search(r"^## Two commands$.*?^```sh$(.*?)^```$", text, re.M | re.S).group(1)
    return [line.split("#")[0].strip() for line in block.strip().splitlines()]


def test_the_two_commands_of_readme_bring_what_they_need(bare):
    bare.ok("apt-get update -qq && apt-get install -y -qq --no-install-recommends git make")
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", REPOSITORY, bare.root / "root/weft"], check=True)
    demo, test = two_commands()
    said = bare.ok(f"cd /root/weft && {demo}")
    accuracy = re.findall(r"(\d+\.\d+) ?%", said)
    assert accuracy and float(accuracy[-1]) > 85, said[-2000:]
    said = bare.ok(f"cd /root/weft && {test}")
    assert re.search(r"^\d+ passed, 0 failed$", said, re.M), said[-6000:]
