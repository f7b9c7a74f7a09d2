# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces joined by a virtual cable, each held by a process that waits for the end of its
input: they vanish with the test. As root they are plain; otherwise both lie in a user namespace of ours, where that is allowed."""
import os
import subprocess

A, B = "10.231.7.1", "10.231.7.2"


class Unavailable(Exception):
    pass


def sh(*args):
    p = subprocess.run(args, capture_output=True, text=True, timeout=30, check=False)
    if p.returncode:
        raise Unavailable(f"{' '.join(args)}: {p.stderr.strip()}")


def hold(*prefix):
    """A process in a new namespace that says when it is there, and its pid inside of it all."""
    p = subprocess.Popen(
        [*prefix, "sh", "-c", "echo $$; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = p.stdout.readline().strip()
    if not line:
        raise Unavailable(f"{' '.join(prefix)}: {p.stderr.read().strip()}")
    return p, int(line)


class Pair:
    """`enter[0]` and `enter[1]` are command prefixes that run in the one or the other."""

    def __init__(self):
        self.holders = []
        try:
            self._make()
        except (Unavailable, OSError) as e:
            self.close()
            raise Unavailable(str(e)) from e

    def _make(self):
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        p, a = hold("unshare", "-n" if not user else "-Urn")
        self.holders.append(p)
        enter_a = ["nsenter", "-t", str(a), *user, "-n", "--"]
        p, b = hold(*enter_a, "unshare", "-n")
        self.holders.append(p)
        enter_b = ["nsenter", "-t", str(b), *user, "-n", "--"]
        sh(*enter_a, "ip", "link", "add", "wefta", "type", "veth", "peer", "name", "weftb", "netns", str(b))
        for enter, link, address in ((enter_a, "wefta", A), (enter_b, "weftb", B)):
            sh(*enter, "ip", "addr", "add", f"{address}/24", "dev", link)
            sh(*enter, "ip", "link", "set", link, "up")
            sh(*enter, "ip", "link", "set", "lo", "up")
        self.enter = [enter_a, enter_b]
        self.address = [A, B]

    def close(self):
        for p in self.holders:
            p.kill()
            p.communicate()
        self.holders = []
