# SPDX-License-Identifier: Apache-2.0
"""Somebody on the network between two hosts. In the namespace of the cable's first end every connection that
comes from the other end is diverted to a process that calls the one that was meant and passes the bytes on,
keeps a copy of them, and does one deed to one direction.

    wire.py PORT FOLDER WAY DEED AT LENGTH

WAY is `up` (what the caller sends) or `down`; AT and LENGTH count bytes behind the greeting. Deeds: `none`;
`flip` (a bit of each of them), `drop`, `again` (LENGTH bytes once more), `swap` (LENGTH bytes with as many that
follow), `cut` (both directions end AT). It says "listening", and "done" when the deed is."""
import contextlib
import pathlib
import socket
import struct
import subprocess
import sys
import threading

PORT = 7499  # in a namespace of our own: nobody else's
GREETING = {"up": 64 + 32, "down": 64 + 1}  # worker/collective/greet.c: hello and proof; challenge and welcome
HEAD = 24 + 16  # of a sealed frame, with its tag (worker/collective/tcp.c)


class Meddler:
    """One direction; feed() gives what goes on of what came."""

    def __init__(self, deed, at, length):
        self.deed, self.at, self.length = deed, at, length
        self.passed = 0  # bytes that came
        self.kept = b""

    def wants(self):
        """How many bytes, from `at` on, the deed is about."""
        return {"flip": self.length, "drop": self.length, "again": self.length, "swap": 2 * self.length}.get(self.deed, 0)

    def feed(self, data):
        if self.deed is None or self.deed == "none" or self.passed + len(data) <= self.at:
            self.passed += len(data)
            return data
        before = data[: max(0, self.at - self.passed)]
        self.passed += len(data)
        self.kept += data[len(before) :]
        if len(self.kept) < self.wants():
            return before
        of, rest, n = self.kept[: self.wants()], self.kept[self.wants() :], self.length
        deed, self.deed = self.deed, None
        print("done", flush=True)
        if deed == "cut":
            raise ConnectionAbortedError
        made = {"flip": lambda: bytes(b ^ 4 for b in of), "drop": lambda: b"", "again": lambda: of + of,
                "swap": lambda: of[n:] + of[:n]}  # fmt: skip
        return before + made[deed]() + rest


def pump(source, to, meddler, copy):
    with contextlib.suppress(OSError), open(copy, "ab", buffering=0) as record:
        while data := source.recv(1 << 16):
            record.write(data)
            to.sendall(meddler.feed(data))
    for s in (source, to):
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)


def meant(conn):
    """Whom the caller called: what netfilter remembers of a diverted connection (SO_ORIGINAL_DST)."""
    port, ip = struct.unpack(">2xH4s", conn.getsockopt(socket.SOL_IP, 80, 16)[:8])
    return socket.inet_ntoa(ip), port


def main(port, folder, way, deed, at, length):
    listener = socket.create_server(("0.0.0.0", int(port)))
    print("listening", flush=True)
    while True:
        conn, _ = listener.accept()
        on = socket.create_connection(meant(conn))
        for name, source, to in (("up", conn, on), ("down", on, conn)):
            meddler = Meddler(deed if name == way else "none", int(at) + GREETING[name], int(length))
            threading.Thread(target=pump, args=(source, to, meddler, pathlib.Path(folder) / name), daemon=True).start()


class Wire:
    """The process and the firewall's rule, for a `with`."""

    def __init__(self, cable, folder, way="up", deed="none", at=0, length=HEAD):
        self.folder, self.enter, self.said = pathlib.Path(folder), cable.enter[0], ""
        self.folder.mkdir()
        rule = self.folder / "divert.nft"
        rule.write_text(
            "table ip wire {\nchain divert { type nat hook prerouting priority -100; policy accept;\n"
            f"iifname wefta tcp dport != {PORT} redirect to :{PORT}\n}}\n}}\n"
        )
        self.nft("-f", rule)
        args = [PORT, self.folder, way, deed, at, length]
        self.process = subprocess.Popen([*self.enter, sys.executable, __file__, *map(str, args)], stdout=subprocess.PIPE, text=True)
        if (first := self.process.stdout.readline()) != "listening\n":
            self.close()
            raise AssertionError(f"it does not listen: {first}{self.said}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.process.kill()
        self.said = self.process.communicate()[0]
        self.nft("delete", "table", "ip", "wire")

    def nft(self, *words):
        subprocess.run([*self.enter, "nft", *map(str, words)], check=True, timeout=60)

    def copied(self):
        return b"".join((self.folder / way).read_bytes() for way in ("up", "down"))


if __name__ == "__main__":
    main(*sys.argv[1:])
