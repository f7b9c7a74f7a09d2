#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference for weft's decoders: the same training in JAX and optax, written to goldens.

    jax_decoder.py DIR              writes DIR/{gpt2,llama,cookbook}.safetensors
    jax_decoder.py --compare DIR REF

Written from the models' definitions with einsum and no thought of speed; JAX computes in f64, as in
jax_mlp.py, whose optimisers, random numbers and files these are. Weights start larger than weft draws
them, so that softmaxes and norms do something. gpt2's vocabulary is padded: the rows that weft adds
are 0 here and take no part.
"""
import sys

import jax_mlp
import numpy as np

STEPS = jax_mlp.STEPS
LAYERS, EMBED, HEADS, HEAD_DIM, MLP, SEQ, BATCH = 2, 12, 4, 4, 16, 10, 4
CASES = {
    "gpt2": dict(vocab=21, padded=24, eps=1e-5, clip=1.2, group=None),
    "llama": dict(vocab=24, padded=24, eps=1e-5, clip=1.7, group=None, kv_heads=2, theta=30.0),
    "cookbook": dict(vocab=24, padded=24, eps=1e-6, clip=1.2, group=None),
}
jax_mlp.RUNS = {
    "adamw": jax_mlp.RUNS["adamw"],
    "sgd": dict(rate=0.05),
    "frozen": {**jax_mlp.RUNS["frozen"], "freeze": ["layers/0/*", "*/mlp/*"], "clip": 1.0},
}


def shapes(name, c):
    """{parameter: shape}, as the checkpoint has them."""
    out = {"embed/tokens": (c["padded"], EMBED)}
    if name != "llama":
        out["embed/positions"] = (SEQ, EMBED)
    for n in range(LAYERS):
        at = f"layers/{n}"
        if name == "llama":
            out[f"{at}/attn/q/weight"] = (EMBED, HEADS, HEAD_DIM)
            out[f"{at}/attn/kv/weight"] = (2, EMBED, c["kv_heads"], HEAD_DIM)
            out[f"{at}/mlp/gate/weight"] = out[f"{at}/mlp/up/weight"] = (EMBED, MLP)
        else:
            out[f"{at}/attn/qkv/weight"] = (3, EMBED, HEADS, HEAD_DIM)
            out[f"{at}/mlp/in/weight"] = (EMBED, MLP)
        out[f"{at}/attn/out/weight"] = (HEADS, HEAD_DIM, EMBED)
        out[f"{at}/mlp/out/weight"] = (MLP, EMBED)
    for norm in ["norm"] + [f"layers/{n}/norm{k}" for n in range(LAYERS) for k in (1, 2)]:
        if name != "cookbook":
            out[f"{norm}/weight"] = (EMBED,)
        if name == "gpt2":
            out[f"{norm}/bias"] = (EMBED,)
    if name == "gpt2":
        for n in range(LAYERS):
            out[f"layers/{n}/attn/qkv/bias"] = (3, HEADS, HEAD_DIM)
            out[f"layers/{n}/mlp/in/bias"] = (MLP,)
            out[f"layers/{n}/attn/out/bias"] = out[f"layers/{n}/mlp/out/bias"] = (EMBED,)
    else:
        out["head/weight"] = (EMBED, c["padded"])
    return out


def initial(name, c):
    out = {}
    for path, shape in shapes(name, c).items():
        w = np.float32(0.3) * jax_mlp.normal(path, int(np.prod(shape))).reshape(shape)
        out[path] = 1 + w if "norm" in path and path.endswith("weight") else w
    out["embed/tokens"][c["vocab"]:] = 0
    return out


def rotate(x, theta):
    import jax.numpy as jnp

    half = HEAD_DIM // 2
    angle = np.arange(SEQ)[:, None] * theta ** (-2.0 * np.arange(half) / HEAD_DIM)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]  # over heads
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def loss_of(name, c):
    import jax
    import jax.numpy as jnp
    import optax

    def norm(p, x, at):
        if name == "gpt2":
            x = x - x.mean(-1, keepdims=True)
        x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + c["eps"])
        x = x * p[f"{at}/weight"] if name != "cookbook" else x
        return x + p[f"{at}/bias"] if name == "gpt2" else x

    def attention(p, x, at):
        if name == "llama":
            q = jnp.einsum("bse,ehd->bshd", x, p[f"{at}/q/weight"])
            k, v = jnp.einsum("bse,nehd->nbshd", x, p[f"{at}/kv/weight"])
            q, k = rotate(q, c["theta"]), rotate(k, c["theta"])
            k, v = (jnp.repeat(t, HEADS // c["kv_heads"], axis=2) for t in (k, v))
        else:
            qkv = jnp.einsum("bse,nehd->nbshd", x, p[f"{at}/qkv/weight"])
            if name == "gpt2":
                qkv = qkv + p[f"{at}/qkv/bias"][:, None, None]
            q, k, v = qkv
        scores = jnp.einsum("bshd,bthd->bhst", q, k) / np.sqrt(HEAD_DIM)
        scores = jnp.where(np.tril(np.ones((SEQ, SEQ), bool)), scores, -jnp.inf)
        y = jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores), v)
        y = jnp.einsum("bshd,hde->bse", y, p[f"{at}/out/weight"])
        return y + p[f"{at}/out/bias"] if name == "gpt2" else y

    def mlp(p, x, at):
        if name == "llama":
            h = jax.nn.silu(x @ p[f"{at}/gate/weight"]) * (x @ p[f"{at}/up/weight"])
        else:
            h = x @ p[f"{at}/in/weight"]
            h = h + p[f"{at}/in/bias"] if name == "gpt2" else h
            h = jax.nn.gelu(h, approximate=True)
        y = h @ p[f"{at}/out/weight"]
        return y + p[f"{at}/out/bias"] if name == "gpt2" else y

    def loss(p, tokens, targets):
        x = p["embed/tokens"][tokens]
        x = x + p["embed/positions"] if name != "llama" else x
        for n in range(LAYERS):
            at = f"layers/{n}"
            if name == "cookbook":
                x = norm(p, x + attention(p, x, f"{at}/attn"), None)
                x = norm(p, x + mlp(p, x, f"{at}/mlp"), None)
            else:
                x = x + attention(p, norm(p, x, f"{at}/norm1"), f"{at}/attn")
                x = x + mlp(p, norm(p, x, f"{at}/norm2"), f"{at}/mlp")
        x = x if name == "cookbook" else norm(p, x, "norm")
        head = p["embed/tokens"].T if name == "gpt2" else p["head/weight"]
        logits = (x @ head)[..., : c["vocab"]]
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    return jax.jit(jax.value_and_grad(loss))


def job_text(name, c, kind):
    text = jax_mlp.job_text({**c, "inputs": 1, "hidden": [1], "classes": 2, "activation": "relu", "batch": BATCH}, kind)
    lines = text.splitlines(keepends=True)
    llama = f", kv_heads: {c['kv_heads']}, theta: {c['theta']}" if name == "llama" else ""
    lines[1] = (
        f"model: {{program: {name}, layers: {LAYERS}, embed: {EMBED}, heads: {HEADS}, "
        f"head_dim: {HEAD_DIM}, mlp: {MLP}, seq: {SEQ}, vocab: {c['vocab']}, vocab_multiple: 24{llama}}}\n"
    )
    lines[2] = f"data: {{format: tokens, train: {{tokens: none}}, batch: {BATCH}}}\n"
    return "".join(lines)


def make_case(name, c):
    rng = np.random.Generator(np.random.PCG64(3))
    ids = rng.integers(0, c["vocab"], (STEPS, BATCH, SEQ + 1), dtype=np.int32)
    ids[..., 1::2] = (ids[..., 0:-1:2] * 5 + 1) % c["vocab"]  # every second one can be learned
    tokens, targets = ids[..., :-1], ids[..., 1:]
    start = initial(name, c)
    out = {"tokens": tokens, "targets": targets}
    out |= {f"init/{k}": v for k, v in start.items()}
    jax_mlp.loss_of = lambda case: loss_of(name, case)
    for kind in jax_mlp.RUNS:
        end, grads, losses, norms = jax_mlp.train(c, kind, start, tokens, targets)
        clipped = sum(n > jax_mlp.clip(c, kind) for n in norms)
        assert 0 < clipped < STEPS, f"{name} {kind}: clipping acts on {clipped} steps: {norms}"
        out |= {f"{kind}/{k}": v for k, v in end.items()}
        out |= {f"grad/{k}": v for k, v in grads.items()}
        out |= {f"{kind}/losses": losses, f"{kind}/norms": norms}
        out[f"job/{kind}"] = np.frombuffer(job_text(name, c, kind).encode(), np.uint8)
    return out


def generate(folder):
    for name, c in CASES.items():
        jax_mlp.write(folder / f"{name}.safetensors", make_case(name, c))


if __name__ == "__main__":
    sys.exit(jax_mlp.command(sys.argv[1:], __doc__, CASES, generate))
