# SPDX-License-Identifier: Apache-2.0
"""GPT-2 and Llama training in PyTorch as it is fastest without code of one's own; see peer.py for the arguments.

torch.compile over model and loss, bf16 autocast over f32 parameters, the fused AdamW, scaled_dot_product_attention by
cuDNN or flash, gradients set to none, the norm clipped on the device, pinned batches.

--mode eager leaves out the compiler; autotune lets it try kernels (max-autotune-no-cudagraphs: minutes).
"""
import contextlib

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import peer
from sizes import BETAS, CLIP, DECAY, EPS, LR, NORM_EPS, SIZES, STD, THETA

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
MODES = {"compile": {}, "autotune": {"mode": "max-autotune-no-cudagraphs"}, "eager": None}


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        c, self.heads = size.embed, size.heads
        self.norm1, self.norm2 = nn.LayerNorm(c, eps=NORM_EPS), nn.LayerNorm(c, eps=NORM_EPS)
        self.qkv, self.out = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.up, self.down = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        batch, seq, c = x.shape
        parts = self.qkv(self.norm1(x)).split(c, dim=2)
        q, k, v = (p.view(batch, seq, self.heads, c // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.tokens, self.places = nn.Embedding(size.padded, size.embed), nn.Embedding(size.seq, size.embed)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.embed, eps=NORM_EPS)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=STD)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class LlamaBlock(nn.Module):
    def __init__(self, size):
        super().__init__()
        c, self.heads, self.kv_heads = size.embed, size.heads, size.kv_heads
        self.norm1, self.norm2 = nn.RMSNorm(c, eps=NORM_EPS), nn.RMSNorm(c, eps=NORM_EPS)
        shared = c // self.heads * self.kv_heads
        self.q, self.kv, self.out = nn.Linear(c, c, bias=False), nn.Linear(c, 2 * shared, bias=False), nn.Linear(c, c, bias=False)
        self.gate_up, self.down = nn.Linear(c, 2 * size.mlp, bias=False), nn.Linear(size.mlp, c, bias=False)

    def forward(self, x, turn):
        batch, seq, c = x.shape
        y = self.norm1(x)
        q = turned(self.q(y).view(batch, seq, self.heads, -1), turn).transpose(1, 2)
        k, v = self.kv(y).view(batch, seq, 2, self.kv_heads, -1).unbind(2)
        k, v = turned(k, turn).transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, seq, c))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def turned(x, turn):
    """Rotary positions: the two halves of a head are the parts of complex numbers."""
    cos, sin = turn
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Llama(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.tokens, self.head = nn.Embedding(size.padded, size.embed), nn.Linear(size.embed, size.padded, bias=False)
        self.blocks = nn.ModuleList(LlamaBlock(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.embed, eps=NORM_EPS)
        half = size.embed // size.heads // 2
        angle = torch.outer(torch.arange(size.seq), THETA ** (-torch.arange(half) / half))[:, None, :]
        self.register_buffer("cos", angle.cos().to(torch.bfloat16))
        self.register_buffer("sin", angle.sin().to(torch.bfloat16))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=STD)

    def forward(self, ids, targets):
        x = self.tokens(ids).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self, args):
        self.device = torch.device("cpu" if args.cpu else "cuda")
        self.batches = peer.batches(numpy, args)
        self.backend = contextlib.nullcontext if args.cpu else lambda: sdpa_kernel(BACKENDS[args.attention])
        size = SIZES[args.size]
        self.model = {"gpt2": Model, "llama": Llama}[size.program](size).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY,
                                           fused=True)
        compiler = MODES[args.mode]
        self.forward = self.model if compiler is None else torch.compile(self.model, **compiler)
        self.loss = None

    def put(self, ids):
        t = torch.from_numpy(ids)
        t = t if self.device.type == "cpu" else t.pin_memory()
        return t.to(self.device, non_blocking=True).long()

    def queue(self):
        ids, targets = (self.put(x) for x in next(self.batches))
        with self.backend(), torch.autocast(self.device.type, torch.bfloat16):
            self.loss = self.forward(ids, targets)
        self.loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cpu":
            return None
        end = torch.cuda.Event()
        end.record()
        return end


def main():
    args = peer.arguments(list(BACKENDS), list(MODES))
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    trainer = Trainer(args)
    ms, ready_s = peer.timed(trainer.queue, lambda end: end and end.synchronize(), args)
    gib = 0 if args.cpu else torch.cuda.max_memory_allocated() / 2**30
    peer.report(library=f"torch {torch.__version__}", ms=ms, ready_s=ready_s, gib=gib, loss=float(trainer.loss.detach()),
                parameters=sum(p.numel() for p in trainer.model.parameters()))


main()
