# SPDX-License-Identifier: Apache-2.0
"""What all contestants train: GPT-2 at its sizes, on the same tokens, and what that costs by formula.

N counts every parameter, the padded rows of the embedding and the positions too; the head is the embedding.
A token costs 6N + 6LCT FLOPs: two for each parameter forward and four backward, and the causal half of the scores
and of their use (4CT a layer and token forward if all were computed, so 2CT, and twice that backward). Work that is
done again does not count. MFU is that, times tokens/s, over the device's dense rate.
"""
import array
import random
import struct
from dataclasses import dataclass

LR, BETAS, EPS, DECAY, CLIP, STD, NORM_EPS = 3e-4, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.02, 1e-5
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

    @property
    def parameters(self):
        c = self.embed
        attention, mlp, norms = 4 * c * c + 4 * c, 8 * c * c + 5 * c, 4 * c
        return self.padded * c + self.seq * c + self.layers * (attention + mlp + norms) + 2 * c

    @property
    def token_flops(self):
        return 6 * self.parameters + 6 * self.layers * self.embed * self.seq


SIZES = {
    "124m": Size(12, 768, 12, 1024, 50257, 50304, 64),
    "1558m": Size(48, 1600, 25, 1024, 50257, 50304, 16),
    "tiny": Size(2, 32, 2, 16, 250, 256, 2),
}


def write_tokens(path, size, count=TOKENS, seed=0):
    """Ids as rare as words are, drawn from `seed`, behind llm.c's header: the loss falls, and no rows are all alike."""
    weights = [1 / rank**1.1 for rank in range(1, size.vocab + 1)]
    ids = array.array("H", random.Random(seed).choices(range(size.vocab), weights, k=count))
    with open(path, "wb") as out:
        out.write(struct.pack("<3i", 20240520, 1, count).ljust(HEADER, b"\0"))
        out.write(ids.tobytes())
