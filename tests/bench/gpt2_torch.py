# SPDX-License-Identifier: Apache-2.0
"""GPT-2 training steps in PyTorch on the CPU, as a peer for gpt2.py: prints "milliseconds of the wall, of the
processors" a step.

    gpt2_torch.py --mode eager|tuned [--batch B] [--seq T] [--threads N] [--warm N] [--steps N]

eager: as it comes. tuned: torch.compile and the fused AdamW. Both: scaled_dot_product_attention, tied head, clip 1.0,
weight decay 0.1, gradients set to none.
"""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, EMBED, HEADS, VOCAB = 12, 768, 12, 50257


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(EMBED), nn.LayerNorm(EMBED)
        self.qkv, self.out = nn.Linear(EMBED, 3 * EMBED), nn.Linear(EMBED, EMBED)
        self.up, self.down = nn.Linear(EMBED, 4 * EMBED), nn.Linear(4 * EMBED, EMBED)

    def forward(self, x):
        batch, seq, _ = x.shape
        q, k, v = (p.view(batch, seq, HEADS, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, EMBED))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, seq):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, EMBED), nn.Embedding(seq, EMBED)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(EMBED)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--mode", choices=["eager", "tuned"], required=True)
    for name, default in dict(batch=4, seq=64, threads=2, warm=2, steps=4).items():
        args.add_argument("--" + name, type=int, default=default)
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Model(args.seq)
    tuned = args.mode == "tuned"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True if tuned else None)
    forward = torch.compile(model) if tuned else model
    for step in range(args.warm + args.steps):
        batch = torch.randint(0, VOCAB, (args.batch, args.seq + 1))
        wall, processor = time.perf_counter(), time.process_time()
        loss = forward(batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if step >= args.warm:
            print(1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - processor), flush=True)


main()
