# SPDX-License-Identifier: Apache-2.0
"""What all contestants train: GPT-2 and Llama at their sizes, on the same tokens, and what that costs by formula.

N counts every parameter, the padded rows of the embedding and the positions too. GPT-2's head is the embedding; Llama's
is its own, and the rows that its embedding only looks up (VC) cost nothing.
A token costs 6N + 6LCT FLOPs: two for each parameter forward and four backward, and the causal half of the scores
and of their use (4CT a layer and token forward if all were computed, so 2CT, and twice that backward). Work that is
done again does not count. MFU is that, times tokens/s, over the device's dense rate.
"""
import array
import random
import struct
from dataclasses import dataclass

LR, BETAS, EPS, DECAY, CLIP, STD, NORM_EPS = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.02, 1e-5
THETA = 500000.0  # of Llama's rotary positions
HEADER = 1024  # bytes of llm.c's
TOKENS = 1_500_000


@dataclass(frozen=True)
class Size:
    layers: int
    embed: int
    heads: int
    seq: int
    vocab: int
    padded: int  # to a multiple of 128
    batch: int
    program: str = "gpt2"
    kv_heads: int = 0  # llama's; mlp too
    mlp: int = 0

    @property
    def name(self):
        return {"gpt2": "GPT-2", "llama": "Llama"}[self.program]

    @property
    def keys(self):
        """What a job says of it beside the sizes that all have."""
        return f"kv_heads: {self.kv_heads}, mlp: {self.mlp}, " if self.program == "llama" else ""

    @property
    def parameters(self):
        c = self.embed
        if self.program == "llama":
            attention = 2 * c * c + 2 * c * c // self.heads * self.kv_heads
            return 2 * self.padded * c + self.layers * (attention + 3 * c * self.mlp + 2 * c) + c
        attention, mlp, norms = 4 * c * c + 4 * c, 8 * c * c + 5 * c, 4 * c
        return self.padded * c + self.seq * c + self.layers * (attention + mlp + norms) + 2 * c

    @property
    def token_flops(self):
        looked_up = self.padded * self.embed if self.program == "llama" else 0
        return 6 * (self.parameters - looked_up) + 6 * self.layers * self.embed * self.seq

    @property
    def formula(self):
        return "6(N - VC) + 6LCT" if self.program == "llama" else "6N + 6LCT"


SIZES = {
    "124m": Size(12, 768, 12, 1024, 50257, 50304, 64),
    "1558m": Size(48, 1600, 25, 1024, 50257, 50304, 16),
    "llama-1b": Size(16, 2048, 32, 4096, 128256, 128256, 4, "llama", 8, 8192),
    "small": Size(2, 256, 4, 128, 250, 256, 8),
    "tiny": Size(2, 32, 2, 16, 250, 256, 2),
    "tiny-llama": Size(2, 32, 4, 16, 250, 256, 2, "llama", 2, 64),
}
TINY = {"124m": "tiny", "1558m": "tiny", "small": "tiny", "llama-1b": "tiny-llama"}  # what --tiny runs in its place


def write_tokens(path, size, count=TOKENS, seed=0):
    """Ids as rare as words are, drawn from `seed`, behind llm.c's header: the loss falls, and no rows are all alike."""
    known = min(size.vocab, 1 << 16)  # an id has two bytes in the file
    weights = [1 / rank**1.1 for rank in range(1, known + 1)]
    ids = array.array("H", random.Random(seed).choices(range(known), weights, k=count))
    with open(path, "wb") as out:
        out.write(struct.pack("<3i", 20240520, 1, count).ljust(HEADER, b"\0"))
        out.write(ids.tobytes())
