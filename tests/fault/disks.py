# SPDX-License-Identifier: Apache-2.0
"""File systems that a test mounts for itself, and what to do where it may not."""
import os
import subprocess

import pytest


def skip_loudly(why):
    """Root on CI has every means, so a run there may leave nothing out."""
    if os.environ.get("CI") == "true" and os.geteuid() == 0:
        pytest.fail("not run: " + why)
    pytest.skip(why)


def mount(what, options=None):
    done = subprocess.run(["mount", *(options or []), *what], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or "mount failed"


def remount(path, options):
    """The options that it has are left out: in a user namespace its owner's number means nothing."""
    return mount([str(path)], ["--options-mode", "ignore", "-o", "remount," + options])


class Disk:
    """An xfs in a file, mounted by a loop device: one that can lose its power."""

    def __init__(self, folder):
        self.image, self.path = folder / "disk", folder / "mnt"
        self.path.mkdir()
        with open(self.image, "wb") as f:
            f.truncate(320 << 20)  # mkfs.xfs wants 300 MB; the file is sparse
        try:
            made = subprocess.run(["mkfs.xfs", "-q", str(self.image)], capture_output=True, text=True)
        except FileNotFoundError:
            skip_loudly("mkfs.xfs is not installed")
        if made.returncode:
            skip_loudly("mkfs.xfs: " + made.stderr.strip())
        self.up()

    def up(self):
        why = mount([str(self.image), str(self.path)], ["-o", "loop"])
        if why:
            skip_loudly("no loop mount: " + why)

    def down(self):
        return subprocess.run(["umount", str(self.path)], capture_output=True, text=True).returncode == 0
