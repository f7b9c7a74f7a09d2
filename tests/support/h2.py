# SPDX-License-Identifier: Apache-2.0
"""Just enough of HTTP/2 and gRPC to misbehave: a connection that sends what no client of ours would, and
reads only when it is told to."""
import pathlib
import socket
import ssl
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
INITIAL_WINDOW = 4  # of SETTINGS
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def text(field, value):
    """One string field of a protobuf message."""
    return varint(field << 3 | 2) + varint(len(value)) + value.encode()


def number(field, value):
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Connection:
    def __init__(self, address, receive_buffer=0):
        self.s = socket.socket(socket.AF_UNIX if address.startswith("unix:") else socket.AF_INET)
        self.s.settimeout(30)
        if receive_buffer:
            self.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if address.startswith("unix:"):
            self.s.connect(address[5:])
        else:
            host, port = address.rsplit(":", 1)
            self.s.connect((host, int(port)))
        self.stream = -1
        self.unread, self.refused = b"", False
        self.window = {"connection": 65535, "stream": 65535}

    def send(self, raw):
        self.s.sendall(raw)

    def greet(self):
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def call(self, method, message=None, claimed=None):
        """Opens a call; with a message sends it and half-closes. claimed: the length its head tells."""
        self.stream += 2
        fields = {
            ":method": "POST", ":scheme": "http", ":path": method, ":authority": "weft",
            "te": "trailers", "content-type": "application/grpc",
        }
        block = b"".join(b"\0" + varint(len(k)) + k.encode() + varint(len(v)) + v.encode() for k, v in fields.items())
        self.send(frame(HEADERS, END_HEADERS, self.stream, block))
        if message is not None:
            self.window = {k: v - 5 - len(message) for k, v in self.window.items()}
            head = b"\0" + struct.pack(">I", len(message) if claimed is None else claimed)
            self.send(frame(DATA, END_STREAM if claimed is None else 0, self.stream, head + message))

    def listen(self, seconds):
        """Reads what comes within that time: windows grow, and `refused` tells of an answer or an end. How
        much came."""
        got = b""
        self.s.settimeout(max(seconds, 0.001))
        try:
            got = self.s.recv(65536)
            self.refused |= not got
            self.unread += got
        except TimeoutError:
            pass
        except OSError:
            self.refused = True
        while len(self.unread) >= 9:
            size = int.from_bytes(self.unread[:3], "big")
            if len(self.unread) < 9 + size:
                break
            flags = self.unread[4]
            kind, stream, body = self.unread[3], int.from_bytes(self.unread[5:9], "big"), self.unread[9 : 9 + size]
            self.unread = self.unread[9 + size :]
            if kind == WINDOW_UPDATE:
                self.window["stream" if stream else "connection"] += int.from_bytes(body, "big")
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self.acknowledge(kind, body)
                for i in range(0, size - 5 if kind == SETTINGS else 0, 6):
                    if int.from_bytes(body[i : i + 2], "big") == INITIAL_WINDOW:
                        self.window["stream"] += int.from_bytes(body[i + 2 : i + 6], "big") - 65535
            elif kind in (HEADERS, RST_STREAM, GOAWAY):
                self.refused = True
        return len(got)

    def acknowledge(self, kind, body):
        """Of a peer that has closed meanwhile nothing more will come: what it said is read all the same."""
        self.s.settimeout(30)
        try:
            self.send(frame(kind, ACK, 0, body if kind == PING else b""))
        except OSError:
            self.refused = True

    def pour(self, size):
        """Sends so many bytes of a message as far as the other end lets it; how many went."""
        sent = 0
        while sent < size and not self.refused:
            n = min(16384, size - sent, *self.window.values())
            if n <= 0:
                if not self.listen(0.5):
                    break
                continue
            try:
                self.s.settimeout(0.2)
                self.send(frame(DATA, 0, self.stream, b"x" * n))
            except OSError:
                break
            self.window = {k: v - n for k, v in self.window.items()}
            sent += n
        return sent

    def ended(self):
        """Whether the other end has closed; reads what there is."""
        try:
            while self.s.recv(65536):
                pass
        except ConnectionError:
            return True
        except OSError:
            return False
        return True

    def close(self):
        self.s.close()


class Client(Connection):
    """Over TLS, with the certificate in a folder (none: without one): many calls at once, of which it knows
    what came and which have ended."""

    def __init__(self, address, folder):
        super().__init__(address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if folder:
            (key,) = pathlib.Path(folder).glob("*.key")
            context.load_cert_chain(key.with_suffix(".pem"), key)
        self.s = context.wrap_socket(self.s)
        self.came, self.over, self.lost = {}, set(), False
        self.greet()

    def say(self, message):
        """One message more of the newest call, as far as the windows go; false: they are shut, or all is over."""
        raw = b"\0" + struct.pack(">I", len(message)) + message
        end = time.monotonic() + 30
        for i in range(0, len(raw), 16384):
            part = raw[i:i + 16384]
            while min(self.window.values()) < len(part):
                if self.stream in self.over or self.lost or time.monotonic() > end:
                    return False
                self.listen(0.1)
            self.window = {k: v - len(part) for k, v in self.window.items()}
            self.send(frame(DATA, 0, self.stream, part))
        return True

    def listen(self, seconds):
        """Reads once, if anything comes within that time."""
        self.s.settimeout(max(seconds, 0.001))
        try:
            got = self.s.recv(65536)
            self.lost |= not got
            self.unread += got
        except TimeoutError:
            return
        except OSError:
            self.lost = True
        self.s.settimeout(30)
        while len(self.unread) >= 9:
            size = int.from_bytes(self.unread[:3], "big")
            if len(self.unread) < 9 + size:
                break
            kind, flags, stream = self.unread[3], self.unread[4], int.from_bytes(self.unread[5:9], "big")
            body, self.unread = self.unread[9:9 + size], self.unread[9 + size:]
            self.take(kind, flags, stream, body)

    def take(self, kind, flags, stream, body):
        if kind == WINDOW_UPDATE and stream in (0, self.stream):
            self.window["stream" if stream else "connection"] += int.from_bytes(body, "big")
        elif kind in (SETTINGS, PING) and not flags & ACK:
            self.send(frame(kind, ACK, 0, body if kind == PING else b""))
            for i in range(0, len(body) - 5 if kind == SETTINGS else 0, 6):
                if int.from_bytes(body[i:i + 2], "big") == INITIAL_WINDOW:
                    self.initial = int.from_bytes(body[i + 2:i + 6], "big")
                    self.window["stream"] += self.initial - 65535
        elif kind == DATA:
            self.came[stream] = self.came.get(stream, b"") + body
            more = struct.pack(">I", len(body))
            if body:
                self.send(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, stream, more))
        if kind == GOAWAY:
            self.lost = True
        if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.over.add(stream)

    def messages(self, stream):
        """Those that are whole, taken."""
        raw, found = self.came.get(stream, b""), []
        while len(raw) >= 5 and len(raw) >= 5 + int.from_bytes(raw[1:5], "big"):
            size = 5 + int.from_bytes(raw[1:5], "big")
            found.append(raw[5:size])
            raw = raw[size:]
        self.came[stream] = raw
        return found
