# SPDX-License-Identifier: Apache-2.0
"""Training steps of experts.py's mixtral in PyTorch, eager, on the CPU: prints "milliseconds of the wall, of the
processors" a step.

    experts_torch.py --how loop|batched [--threads N] [--warm N] [--steps N]

loop: each expert takes the tokens that chose it, as in transformers' model. batched: tokens are put into two places for
every eight tokens of a sample and expert, what finds none is dropped, and all experts are one product. Both:
scaled_dot_product_attention, clip 1.0, weight decay 0.1, AdamW with foreach, gradients set to none.
"""
import argparse

import torch
from torch import nn
from torch.nn import functional as F

from peers_torch import train

LAYERS, EMBED, HEADS, MLP, EXPERTS, CHOICES, VOCAB, BATCH, SEQ = 4, 256, 8, 512, 8, 2, 1024, 8, 128
PLACES = CHOICES * SEQ // EXPERTS
BALANCE = 0.02


def weight(*shape):
    return nn.Parameter(torch.randn(*shape) * 0.02)


def turned(x):
    half = x.shape[-1] // 2
    angle = torch.arange(SEQ)[:, None] * 1e6 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)


class Layer(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.norm1, self.norm2 = nn.RMSNorm(EMBED, eps=1e-5), nn.RMSNorm(EMBED, eps=1e-5)
        self.q, self.kv, self.out = weight(EMBED, EMBED), weight(EMBED, 2 * EMBED), weight(EMBED, EMBED)
        self.router = weight(EMBED, EXPERTS)
        self.gate, self.up = weight(EXPERTS, EMBED, MLP), weight(EXPERTS, EMBED, MLP)
        self.down = weight(EXPERTS, MLP, EMBED)

    def loop(self, x, w, ids):
        y, out = x.view(-1, EMBED), torch.zeros(BATCH * SEQ, EMBED)
        for e in range(EXPERTS):
            token, choice = torch.where(ids == e)
            h = F.silu(y[token] @ self.gate[e]) * (y[token] @ self.up[e])
            out.index_add_(0, token, h @ self.down[e] * w[token, choice, None])
        return out.view_as(x)

    def batched(self, x, w, ids):
        w, ids = w.view(BATCH, SEQ, CHOICES), ids.view(BATCH, SEQ, CHOICES)
        order = w[..., 0].argsort(dim=1, descending=True, stable=True)
        sorted_ids = ids.gather(1, order[..., None].expand_as(ids)).transpose(1, 2).reshape(BATCH, -1)
        place = F.one_hot(sorted_ids, EXPERTS).cumsum(1).gather(2, sorted_ids[..., None]).squeeze(2) - 1
        place = place.view(BATCH, CHOICES, SEQ).transpose(1, 2)
        place = torch.empty_like(place).scatter_(1, order[..., None].expand_as(place), place)
        sample = torch.arange(BATCH)[:, None, None] * EXPERTS * PLACES
        slot = torch.where(place < PLACES, sample + ids * PLACES + place, BATCH * EXPERTS * PLACES)
        rows = torch.zeros(BATCH * EXPERTS * PLACES + 1, EMBED)
        rows = rows.index_copy(0, slot.flatten(), x[:, :, None].expand(-1, -1, CHOICES, -1).reshape(-1, EMBED))
        e = rows[:-1].view(BATCH, EXPERTS, PLACES, EMBED).transpose(0, 1).reshape(EXPERTS, -1, EMBED)
        e = (F.silu(e @ self.gate) * (e @ self.up)) @ self.down
        e = e.view(EXPERTS, BATCH, PLACES, EMBED).transpose(0, 1).reshape(-1, EMBED)
        e = torch.cat((e, torch.zeros(1, EMBED)))
        return (e[slot] * w[..., None]).sum(2)

    def forward(self, x):
        h = self.norm1(x)
        k, v = (h @ self.kv).chunk(2, dim=-1)
        q, k, v = (p.view(BATCH, SEQ, HEADS, -1).transpose(1, 2) for p in (h @ self.q, k, v))
        a = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + a.transpose(1, 2).reshape(BATCH, SEQ, EMBED) @ self.out
        h = self.norm2(x)
        s = (h @ self.router).softmax(-1).view(-1, EXPERTS)
        w, ids = s.topk(CHOICES)
        w = w / w.sum(-1, keepdim=True)
        chosen = F.one_hot(ids, EXPERTS).sum(1).view(BATCH, SEQ, EXPERTS).sum(1, keepdim=True)
        balance = EXPERTS / CHOICES / SEQ / SEQ / BATCH * (s.view(BATCH, SEQ, EXPERTS) * chosen).sum()
        return x + getattr(self, self.how)(h, w, ids), balance


class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.tokens, self.head = weight(VOCAB, EMBED), weight(EMBED, VOCAB)
        self.layers, self.norm = nn.ModuleList(Layer(how) for _ in range(LAYERS)), nn.RMSNorm(EMBED, eps=1e-5)

    def forward(self, ids, targets):
        x, loss = F.embedding(ids, self.tokens), 0
        for layer in self.layers:
            x, balance = layer(x)
            loss = loss + BALANCE * balance
        return loss + F.cross_entropy((self.norm(x) @ self.head).view(-1, VOCAB), targets.reshape(-1))


def batches():
    while True:
        ids = torch.randint(0, VOCAB, (BATCH, SEQ + 1))
        yield ids[:, :-1], ids[:, 1:]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--how", choices=["loop", "batched"], required=True)
    for name, default in dict(threads=2, warm=2, steps=4).items():
        args.add_argument("--" + name, type=int, default=default)
    args = args.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Model(args.how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=True)
    train(model, model, optimizer, batches(), args.warm, args.steps)


main()
