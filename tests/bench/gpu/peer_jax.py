# SPDX-License-Identifier: Apache-2.0
"""GPT-2 training in JAX; see peer.py for the arguments.

One jitted step that takes over its arguments' memory: bf16 activations over f32 parameters, attention by cuDNN (xla
on a CPU), the layers written out one after the other. --mode again computes each layer's forward again in the
backward, for models that do not fit.
"""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

import peer  # noqa: E402
from sizes import BETAS, CLIP, DECAY, EPS, LR, NORM_EPS, SIZES, STD  # noqa: E402

BF16 = jnp.bfloat16


def parameters(size):
    c = size.embed
    shapes = {"norm1": (c,), "norm2": (c,), "qkv": (c, 3 * c), "out": (c, c), "up": (c, 4 * c), "down": (4 * c, c)}
    keys = iter(jax.random.split(jax.random.key(0), 2 + len(shapes) * size.layers))

    def normal(*shape):
        return STD * jax.random.normal(next(keys), shape, jnp.float32)

    def layer():
        weights = {name: normal(*shape) if len(shape) > 1 else jnp.ones(shape) for name, shape in shapes.items()}
        return weights | {name + "_bias": jnp.zeros(shape[-1]) for name, shape in shapes.items()}

    return {"tokens": normal(size.padded, c), "places": normal(size.seq, c), "norm": jnp.ones(c),
            "norm_bias": jnp.zeros(c), "layers": [layer() for _ in range(size.layers)]}


def norm(x, weight, bias):
    x = x.astype(jnp.float32)
    x = x - x.mean(-1, keepdims=True)
    return (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + NORM_EPS) * weight + bias).astype(BF16)


def block(x, p, heads, attention):
    batch, seq, c = x.shape

    def linear(name, y):
        return y @ p[name].astype(BF16) + p[name + "_bias"].astype(BF16)

    parts = jnp.split(linear("qkv", norm(x, p["norm1"], p["norm1_bias"])), 3, axis=-1)
    q, k, v = (y.reshape(batch, seq, heads, c // heads) for y in parts)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=attention)
    x = x + linear("out", y.reshape(batch, seq, c))
    return x + linear("down", jax.nn.gelu(linear("up", norm(x, p["norm2"], p["norm2_bias"])), approximate=True))


def loss_of(p, ids, targets, size, args):
    x = (p["tokens"][ids] + p["places"]).astype(BF16)
    attention = "xla" if args.cpu else args.attention

    def layer(y, q):
        return block(y, q, size.heads, attention)

    layer = jax.checkpoint(layer) if args.mode == "again" else layer
    for q in p["layers"]:
        x = layer(x, q)
    logits = (norm(x, p["norm"], p["norm_bias"]) @ p["tokens"].astype(BF16).T).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def step_of(size, args):
    def step(p, m, v, t, ids, targets):
        loss, g = jax.value_and_grad(loss_of)(p, ids, targets, size, args)
        length = jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(g)))
        scale, t = jnp.minimum(1.0, CLIP / (length + 1e-6)), t + 1
        m = jax.tree.map(lambda a, x: BETAS[0] * a + (1 - BETAS[0]) * x * scale, m, g)
        v = jax.tree.map(lambda a, x: BETAS[1] * a + (1 - BETAS[1]) * (x * scale) ** 2, v, g)
        one, two = 1 - BETAS[0] ** t, 1 - BETAS[1] ** t
        p = jax.tree.map(lambda w, a, b: w - LR * (a / one / (jnp.sqrt(b / two) + EPS) + DECAY * w), p, m, v)
        return p, m, v, t, loss

    return jax.jit(step, donate_argnums=(0, 1, 2, 3))


def main():
    args = peer.arguments(["cudnn", "xla"], ["plain", "again"])
    if args.cpu:
        jax.config.update("jax_platforms", "cpu")
    size, batches = SIZES[args.size], peer.batches(numpy, args)
    p = parameters(size)
    count = sum(x.size for x in jax.tree.leaves(p))
    zeros = jax.jit(lambda tree: jax.tree.map(jnp.zeros_like, tree))
    state, step = [p, zeros(p), zeros(p), jnp.float32(0)], step_of(size, args)

    def queue():
        *state[:], loss = step(*state, *(jax.device_put(x) for x in next(batches)))
        return loss

    last = []

    def wait(loss):
        last[:] = [loss.block_until_ready()]

    ms, ready_s = peer.timed(queue, wait, args)
    memory = jax.devices()[0].memory_stats() or {}
    peer.report(library=f"jax {jax.__version__}", ms=ms, ready_s=ready_s,
                gib=memory.get("peak_bytes_in_use", 0) / 2**30, loss=float(last[0]), parameters=count)


main()
