#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the MLP benchmark (mlp.sh): prints samples/s of the median step.

A step is what weft's is: gather a batch of u8 images, scale, forward, mean cross-entropy, backward,
AdamW, loss to the host. `eager` is the plain loop; `tuned` compiles model and loss and takes the
fused optimiser. --make DIR writes the data set both sides read.
"""
import argparse
import pathlib
import statistics
import sys
import time

import numpy as np

SAMPLES = 16384


def make(folder):
    rng = np.random.Generator(np.random.PCG64(1))
    np.save(folder / "images.npy", rng.integers(0, 256, (SAMPLES, 784), dtype=np.uint8))
    np.save(folder / "labels.npy", rng.integers(0, 10, SAMPLES, dtype=np.int32))


def build(widths):
    import torch

    layers = []
    for n, out in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(n, out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def measure(args):
    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    images = torch.from_numpy(np.load(args.data / "images.npy"))
    labels = torch.from_numpy(np.load(args.data / "labels.npy").astype(np.int64))
    model = build([int(w) for w in args.widths.split(",")])
    tuned = args.mode == "tuned"
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=tuned)

    def loss_of(x, y):
        return torch.nn.functional.cross_entropy(model(x.float() * (1 / 255)), y)

    loss_fn = torch.compile(loss_of) if tuned else loss_of
    times, order, at = [], torch.randperm(SAMPLES), 0
    for _ in range(args.steps):
        begin = time.perf_counter()
        if at + args.batch > SAMPLES:
            order, at = torch.randperm(SAMPLES), 0
        ids = order[at : at + args.batch]
        at += args.batch
        opt.zero_grad(set_to_none=True)
        loss = loss_fn(images[ids], labels[ids])
        loss.backward()
        opt.step()
        loss.item()
        times.append(time.perf_counter() - begin)
    print(f"{args.batch / statistics.median(times[len(times) // 5 :]):.1f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--make", type=pathlib.Path)
    p.add_argument("--data", type=pathlib.Path)
    p.add_argument("--widths", default="784,512,256,10")
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--mode", choices=["eager", "tuned"], default="eager")
    args = p.parse_args()
    if args.make:
        make(args.make)
    else:
        measure(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
