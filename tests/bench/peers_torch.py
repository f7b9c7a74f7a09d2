# SPDX-License-Identifier: Apache-2.0
"""Training steps in PyTorch on the CPU, as a peer for peers.py and experts.py: prints "milliseconds of the wall, of the
processors" a step.

    peers_torch.py '{"model": "gpt", its sizes, "mode": "eager", "batch": 4, "threads": 2, "warm": 2, "steps": 4}'

mode: eager or compiled (torch.compile). Both have the fused AdamW, scaled_dot_product_attention, gradients set to none;
GPT a tied head and clip 1.0. With RANK and WORLD_SIZE in the environment it is a rank of DistributedDataParallel over
gloo, and batch is all ranks' together; STORE is the file where they meet.
"""
import json
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

SAMPLES, INPUTS = 16384, 784


class Block(nn.Module):
    def __init__(self, embed, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(embed), nn.LayerNorm(embed)
        self.qkv, self.out = nn.Linear(embed, 3 * embed), nn.Linear(embed, embed)
        self.up, self.down = nn.Linear(embed, 4 * embed), nn.Linear(4 * embed, embed)

    def forward(self, x):
        batch, seq, embed = x.shape
        q, k, v = (p.view(batch, seq, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, embed))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, embed, heads, seq, vocab):
        super().__init__()
        self.seq, self.vocab = seq, vocab
        self.tokens, self.positions = nn.Embedding(vocab, embed), nn.Embedding(seq, embed)
        self.blocks = nn.ModuleList(Block(embed, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(embed)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, self.vocab), targets.reshape(-1))

    def batches(self, batch):
        while True:
            ids = torch.randint(0, self.vocab, (batch, self.seq + 1))
            yield ids[:, :-1], ids[:, 1:]


def chain(widths):
    layers = [layer for n, out in zip(widths, widths[1:]) for layer in (nn.Linear(n, out), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def image_batches(batch):
    """Gathered from a set of bytes, in a new order each time around."""
    images, labels = torch.randint(0, 256, (SAMPLES, INPUTS), dtype=torch.uint8), torch.randint(0, 10, (SAMPLES,))
    while True:
        for ids in torch.randperm(SAMPLES).split(batch)[: SAMPLES // batch]:
            yield images[ids], labels[ids]


class Mlp(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers, self.batches = chain([INPUTS, *hidden, 10]), image_batches

    def forward(self, images, labels):
        return F.cross_entropy(self.layers(images.float() * (1 / 255)), labels)


class Vae(nn.Module):
    def __init__(self, hidden, latent):
        super().__init__()
        self.encoder, self.batches = nn.Sequential(nn.Linear(INPUTS, hidden), nn.ReLU()), image_batches
        self.mean, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decoder = chain([latent, hidden, INPUTS])

    def forward(self, images, _):
        x = images.float() * (1 / 255)
        h = self.encoder(x)
        mean, logvar = self.mean(h), self.logvar(h)
        kl = 0.5 * (mean * mean + logvar.exp() - 1 - logvar).sum()
        y = self.decoder(mean + torch.exp(logvar / 2) * torch.randn_like(mean))
        return (F.binary_cross_entropy_with_logits(y, x, reduction="sum") + kl) / len(x)


def train(model, forward, optimizer, batches, warm, steps, clip=1.0):
    for step in range(warm + steps):
        wall, processor = time.perf_counter(), time.process_time()
        loss = forward(*next(batches))
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if step >= warm:
            print(1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - processor), flush=True)


def main():
    sizes = json.loads(sys.argv[1])
    mode, batch, threads, warm, steps = (sizes.pop(key) for key in ("mode", "batch", "threads", "warm", "steps"))
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    kind = {"gpt": Gpt, "mlp": Mlp, "vae": Vae}[sizes.pop("model")]
    model = forward = kind(**sizes)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", world_size=ranks,
                                             rank=int(os.environ["RANK"]))  # fmt: skip
        forward = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if mode == "compiled":
        forward = torch.compile(forward, dynamic=False)
    gpt = kind is Gpt
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95 if gpt else 0.999), fused=True,
                                  weight_decay=0.1 if gpt else 0.01)  # fmt: skip
    train(model, forward, optimizer, model.batches(batch // ranks), warm, steps, 1.0 if gpt else None)


if __name__ == "__main__":
    main()
