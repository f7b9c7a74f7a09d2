#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference for weft's draws: a vae, and a gpt2 with dropout, in JAX and optax, written to goldens.

    jax_vae.py DIR                  writes DIR/{vae,dropout}.safetensors
    jax_vae.py --compare DIR REF

Noise and masks are drawn by the Philox of jax_mlp.py at the indices that weft documents: step, the
site's path, the row-major index in the whole step's tensor. The rest is as in jax_mlp.py and
jax_decoder.py: JAX computes in f64, the text of each run is in the golden.
"""
import math
import sys

import jax_decoder
import jax_mlp
import numpy as np

STEPS = jax_mlp.STEPS
jax_mlp.RUNS = {"adamw": jax_mlp.RUNS["adamw"], "sgd": dict(rate=0.05)}
VAE = dict(inputs=20, hidden=16, latent=3, batch=8, clip=4.5, group=None)
GPT2 = {**jax_decoder.CASES["gpt2"], "attention": 0.2, "residual": 0.1, "embedding": 0.3}


# ---- weft's draws ------------------------------------------------------------------------------


def uniforms(site, step, count):
    """u of the indices 0..count−1."""
    index = np.arange(count, dtype=np.uint64)
    counter = np.zeros((count, 4), np.uint32)
    counter[:, 0] = (index >> np.uint64(2)) & np.uint64(0xFFFFFFFF)
    counter[:, 1] = index >> np.uint64(34)
    counter[:, 2] = step
    counter[:, 3] = jax_mlp.fnv1a32(site)
    words = jax_mlp.philox(counter, [jax_mlp.SEED & 0xFFFFFFFF, jax_mlp.SEED >> 32])
    return (words[np.arange(count), index & np.uint64(3)] >> np.uint32(8)) * 2.0**-24


def normals(site, step, shape):
    u = uniforms(site, step, 2 * math.prod(shape))
    return (np.sqrt(-2 * np.log(u[0::2] + 2.0**-25)) * np.cos(2 * math.pi * u[1::2])).reshape(shape)


def kept(site, step, rate, shape):
    """What dropout multiplies with."""
    rate = np.float64(np.float32(rate))
    return ((uniforms(site, step, math.prod(shape)) >= rate) / (1 - rate)).reshape(shape)


# ---- the vae -----------------------------------------------------------------------------------


def vae_shapes(c):
    x, h, z = c["inputs"], c["hidden"], c["latent"]
    layers = {"encoder/in": (x, h), "encoder/mean": (h, z), "encoder/logvar": (h, z),
              "decoder/in": (z, h), "decoder/out": (h, x)}
    out = {f"{k}/weight": v for k, v in layers.items()}
    return out | {f"{k}/bias": v[1:] for k, v in layers.items()}


def vae_loss(c):
    import jax
    import jax.numpy as jnp

    def linear(p, name, x):
        return x @ p[f"{name}/weight"] + p[f"{name}/bias"]

    def loss(p, images, noise):
        x = images.astype(jnp.float64) / 255
        h = jax.nn.gelu(linear(p, "encoder/in", x), approximate=True)
        mean, logvar = linear(p, "encoder/mean", h), linear(p, "encoder/logvar", h)
        z = mean + jnp.exp(logvar / 2) * noise
        logits = linear(p, "decoder/out", jax.nn.gelu(linear(p, "decoder/in", z), approximate=True))
        pixels = -(x * jax.nn.log_sigmoid(logits) + (1 - x) * jax.nn.log_sigmoid(-logits)).sum(-1)
        kl = 0.5 * (mean**2 + jnp.exp(logvar) - 1 - logvar).sum(-1)
        return (pixels + kl).mean()

    return jax.jit(jax.value_and_grad(loss))


def vae_text(c, kind):
    model = {**c, "hidden": [c["hidden"]], "classes": 2, "activation": "gelu"}
    lines = jax_mlp.job_text(model, kind).splitlines(keepends=True)
    lines[1] = (f"model: {{program: vae, inputs: {c['inputs']}, hidden: [{c['hidden']}], "
                f"latent: {c['latent']}, activation: gelu}}\n")
    lines[2] = f"data: {{train: {{images: none}}, batch: {c['batch']}}}\n"
    return "".join(lines)


def vae_case(c):
    images, _ = jax_mlp.batches({**c, "classes": 4}, np.random.Generator(np.random.PCG64(5)))
    start = {k: np.float32(0.3) * jax_mlp.normal(k, math.prod(s)).reshape(s)
             for k, s in vae_shapes(c).items()}
    noise = np.stack([normals("encoder/noise", t, (c["batch"], c["latent"])) for t in range(STEPS)])
    jax_mlp.loss_of = vae_loss
    return golden("vae", c, start, {"images": images}, images, noise, vae_text)


# ---- gpt2 with dropout -------------------------------------------------------------------------


def masks(c, step):
    """{site: what it multiplies with}."""
    batch, seq, heads, embed = jax_decoder.BATCH, jax_decoder.SEQ, jax_decoder.HEADS, jax_decoder.EMBED
    wide = (batch, seq, embed)
    out = {"embed/dropout": kept("embed/dropout", step, c["embedding"], wide)}
    for n in range(jax_decoder.LAYERS):
        at = f"layers/{n}/attn/dropout"
        out[at] = kept(at, step, c["attention"], (batch, heads, seq, seq))
        for block in ("attn", "mlp"):
            at = f"layers/{n}/{block}/out/dropout"
            out[at] = kept(at, step, c["residual"], wide)
    return out


def gpt2_loss(c):
    import jax
    import jax.numpy as jnp
    import optax

    def norm(p, x, at):
        x = x - x.mean(-1, keepdims=True)
        x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + c["eps"])
        return x * p[f"{at}/weight"] + p[f"{at}/bias"]

    def attention(p, x, at, drop):
        qkv = jnp.einsum("bse,nehd->nbshd", x, p[f"{at}/qkv/weight"])
        q, k, v = qkv + p[f"{at}/qkv/bias"][:, None, None]
        scores = jnp.einsum("bshd,bthd->bhst", q, k) / np.sqrt(jax_decoder.HEAD_DIM)
        seen = np.tril(np.ones((jax_decoder.SEQ, jax_decoder.SEQ), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)) * drop[f"{at}/dropout"]
        y = jnp.einsum("bhst,bthd->bshd", weights, v)
        y = jnp.einsum("bshd,hde->bse", y, p[f"{at}/out/weight"]) + p[f"{at}/out/bias"]
        return y * drop[f"{at}/out/dropout"]

    def mlp(p, x, at, drop):
        h = jax.nn.gelu(x @ p[f"{at}/in/weight"] + p[f"{at}/in/bias"], approximate=True)
        return (h @ p[f"{at}/out/weight"] + p[f"{at}/out/bias"]) * drop[f"{at}/out/dropout"]

    def loss(p, ids, drop):
        x = (p["embed/tokens"][ids[0]] + p["embed/positions"]) * drop["embed/dropout"]
        for n in range(jax_decoder.LAYERS):
            at = f"layers/{n}"
            x = x + attention(p, norm(p, x, f"{at}/norm1"), f"{at}/attn", drop)
            x = x + mlp(p, norm(p, x, f"{at}/norm2"), f"{at}/mlp", drop)
        logits = (norm(p, x, "norm") @ p["embed/tokens"].T)[..., : c["vocab"]]
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[1]).mean()

    return jax.jit(jax.value_and_grad(loss))


def gpt2_text(c, kind):
    rates = ", ".join(f"dropout_{k}: {c[k]}" for k in ("attention", "residual", "embedding"))
    return jax_decoder.job_text("gpt2", c, kind).replace("program: gpt2", f"program: gpt2, {rates}")


def gpt2_case(c):
    rng = np.random.Generator(np.random.PCG64(4))
    ids = rng.integers(0, c["vocab"], (STEPS, jax_decoder.BATCH, jax_decoder.SEQ + 1), dtype=np.int32)
    ids[..., 1::2] = (ids[..., 0:-1:2] * 5 + 1) % c["vocab"]
    tokens, targets = ids[..., :-1], ids[..., 1:]
    start = jax_decoder.initial("gpt2", c)
    drops = [masks(c, t) for t in range(STEPS)]
    jax_mlp.loss_of = gpt2_loss
    return golden("dropout", c, start, {"tokens": tokens, "targets": targets},
                  np.stack([tokens, targets], 1), drops, gpt2_text)


# ---- both --------------------------------------------------------------------------------------


def golden(name, c, start, data, inputs, draws, text):
    out = dict(data) | {f"init/{k}": v for k, v in start.items()}
    for kind in jax_mlp.RUNS:
        end, grads, losses, norms = jax_mlp.train(c, kind, start, inputs, draws)
        clipped = sum(n > c["clip"] for n in norms)
        assert 0 < clipped < STEPS, f"{name} {kind}: clipping acts on {clipped} steps: {norms}"
        out |= {f"{kind}/{k}": v for k, v in end.items()}
        out |= {f"grad/{k}": v for k, v in grads.items()}
        out |= {f"{kind}/losses": losses, f"{kind}/norms": norms}
        out[f"job/{kind}"] = np.frombuffer(text(c, kind).encode(), np.uint8)
    return out


def generate(folder):
    jax_mlp.write(folder / "vae.safetensors", vae_case(VAE))
    jax_mlp.write(folder / "dropout.safetensors", gpt2_case(GPT2))


if __name__ == "__main__":
    sys.exit(jax_mlp.command(sys.argv[1:], __doc__, ["vae", "dropout"], generate))
