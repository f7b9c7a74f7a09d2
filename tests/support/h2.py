# SPDX-License-Identifier: Apache-2.0
"""Just enough of HTTP/2 and gRPC to misbehave: a connection that sends what no client of ours would, and
reads only when it is told to."""
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4


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
            head = b"\0" + struct.pack(">I", len(message) if claimed is None else claimed)
            self.send(frame(DATA, END_STREAM if claimed is None else 0, self.stream, head + message))

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
