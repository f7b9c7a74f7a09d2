#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference for weft's jaxformer: the same training in JAX and optax, written to a golden.

    jax_jaxformer.py DIR                  writes DIR/{jaxformer,jaxformer_hidden}.safetensors
    jax_jaxformer.py --compare DIR REF

Written from the model's equations with einsum; experts are dealt by argsort and cumsum over whole
one-hot tensors, as JAXformer does. JAX computes in f64, as in jax_mlp.py, whose optimisers, random
numbers and files these are.

Routing is not continuous: a reference in f64 and a run in f32 agree until a score that rounding
moves passes another one. So the data's seed is one with which all steps keep their distance from
that, and each drops choices: make_case() refuses others.
"""
import sys

import jax_mlp
import numpy as np

STEPS = jax_mlp.STEPS
LAYERS_PER_BLOCK, LAYERS, EMBED, HEADS, LATENT, ROTARY, MLP, SEQ, BATCH = 2, 4, 12, 3, 5, 4, 16, 10, 4
EXPERTS, CHOICES, SHARED, CAPACITY, BALANCE, THETA = 4, 2, 2, 1.3, 0.05, 10000.0
HEAD_DIM, PLACES = EMBED // HEADS, int(SEQ * CAPACITY / EXPERTS)
VOCAB, PADDED = 21, 24
# What rounding may move: a score, and a priority in units of its last bit (a 4096th).
MARGIN, PRIORITY_MARGIN = 5e-5, 0.05
CASES = {
    "jaxformer": dict(sharing="map", group=None, clip=1.0, data=23),
    "jaxformer_hidden": dict(sharing="hidden", group=None, clip=1.0, data=39),
}
jax_mlp.RUNS = {"adamw": jax_mlp.RUNS["adamw"]}


def linear_shapes(at, weight, bias):
    return {f"{at}/weight": weight, f"{at}/bias": bias}


def shapes(c):
    """{parameter: shape}, as the checkpoint has them."""
    out = {"embed/tokens": (PADDED, EMBED), "norm/weight": (EMBED,), "norm/bias": (EMBED,)}
    for n in range(LAYERS):
        attn, moe, last = f"layers/{n}/attn", f"layers/{n}/moe", n % LAYERS_PER_BLOCK == LAYERS_PER_BLOCK - 1
        for norm in ("norm1", "norm2"):
            out |= linear_shapes(f"layers/{n}/{norm}", (EMBED,), (EMBED,))
        out |= linear_shapes(f"{attn}/down", (2, EMBED, LATENT), (2, LATENT))
        out |= linear_shapes(f"{attn}/kv", (2, LATENT, HEADS, HEAD_DIM), (2, HEADS, HEAD_DIM))
        out |= linear_shapes(f"{attn}/q", (LATENT, HEADS, HEAD_DIM), (HEADS, HEAD_DIM))
        out |= linear_shapes(f"{attn}/out", (HEADS, HEAD_DIM, EMBED), (EMBED,))
        if not last:
            for name, heads in ("key", ()), ("query", (HEADS,)):
                one = (*heads, ROTARY)
                out |= linear_shapes(f"{attn}/{name}_rotary/keys", (LATENT, *one), one)
                out[f"{attn}/{name}_rotary/queries/weight"] = (LATENT, *one)
            out |= linear_shapes(f"layers/{n}/mlp/in", (EMBED, MLP), (MLP,))
            out |= linear_shapes(f"layers/{n}/mlp/out", (MLP, EMBED), (EMBED,))
            continue
        out |= linear_shapes(f"{moe}/router", (EMBED, EXPERTS), (EXPERTS,))
        out |= linear_shapes(f"{moe}/in", (EXPERTS, EMBED, MLP), (EXPERTS, MLP))
        out |= linear_shapes(f"{moe}/out", (EXPERTS, MLP, EMBED), (EXPERTS, EMBED))
        if c["sharing"] == "map":
            out |= linear_shapes(f"{moe}/shared/maps", (EMBED, SHARED, EMBED), (SHARED, EMBED))
        else:
            out |= linear_shapes(f"{moe}/shared/in", (EMBED, SHARED * MLP), (SHARED * MLP,))
            out |= linear_shapes(f"{moe}/shared/out", (SHARED * MLP, EMBED), (EMBED,))
    return out


def initial(c):
    out = {}
    for path, shape in shapes(c).items():
        w = np.float32(0.3) * jax_mlp.normal(path, int(np.prod(shape))).reshape(shape)
        out[path] = 1 + w if "norm" in path and path.endswith("weight") else w
    out["embed/tokens"][VOCAB:] = 0
    return out


def turn(x, first, width):
    """Neighbours of [batch, seq, .., r] turned by positions that begin at 1; `first` is the number of each
    pair's series."""
    import jax.numpy as jnp

    angle = (np.arange(SEQ) + 1.0)[:, None, None] * THETA ** (-2.0 * first / width)  # [seq, heads, pairs]
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., 0::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


def deal(ids, key):
    """Places [b, s, k] of choices with their experts, −1: none is left; the choices of each expert [b, e]."""
    import jax
    import jax.numpy as jnp

    order = jnp.argsort(-jnp.floor(key + 0.5), axis=1, stable=True)  # of positions, the greatest first
    sorted_ids = jnp.take_along_axis(ids, order[..., None], axis=1)  # [b, s, k]
    queue = sorted_ids.swapaxes(1, 2).reshape(len(ids), -1)  # all first choices, then all second ones
    hot = jax.nn.one_hot(queue, EXPERTS, dtype=jnp.int32)
    place = ((jnp.cumsum(hot, axis=1) - 1) * hot).sum(-1).reshape(len(ids), CHOICES, SEQ).swapaxes(1, 2)
    back = jnp.argsort(order, axis=1)
    place = jnp.take_along_axis(place, back[..., None], axis=1)
    return jnp.where(place < PLACES, place, -1), hot.sum(1)


def mixture(p, x, at, routed):
    import jax
    import jax.numpy as jnp

    s = jax.nn.sigmoid(x @ p[f"{at}/router/weight"] + p[f"{at}/router/bias"])
    ids = jnp.argsort(-s, axis=-1, stable=True)[..., :CHOICES]
    w = jnp.take_along_axis(s, ids, -1)
    w = w / w.sum(-1, keepdims=True)
    place, chosen = deal(ids, 4096 * w[..., 0])
    routed += [(jnp.sort(s, axis=-1), ids, 4096 * w[..., 0], place < 0)]
    # [b, s, k, e, c]: where each choice lies; nothing of those without a place
    lies = jax.nn.one_hot(ids, EXPERTS)[..., None] * jax.nn.one_hot(place, PLACES)[..., None, :]
    e = jnp.einsum("bskec,bsm->ebcm", lies, x)
    h = jax.nn.gelu(jnp.einsum("ebcm,emf->ebcf", e, p[f"{at}/in/weight"]) + p[f"{at}/in/bias"][:, None, None])
    e = jnp.einsum("ebcf,efm->ebcm", h, p[f"{at}/out/weight"]) + p[f"{at}/out/bias"][:, None, None]
    share = s / s.sum(-1, keepdims=True)
    f = jax.lax.stop_gradient(chosen / SEQ)
    balance = BALANCE * EXPERTS / CHOICES * (f * share.mean(1)).sum(-1).mean()
    return jnp.einsum("bskec,bsk,ebcm->bsm", lies, w, e), balance


def loss_of(c):
    import jax
    import jax.numpy as jnp
    import optax

    def linear(p, x, at, rule):
        return jnp.einsum(rule, x, p[f"{at}/weight"]) + p[f"{at}/bias"]

    def norm(p, x, at):
        x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        return x * p[f"{at}/weight"] + p[f"{at}/bias"]

    def attention(p, x, at, last):
        low = jnp.einsum("bsc,ncl->nbsl", x, p[f"{at}/down/weight"]) + p[f"{at}/down/bias"][:, None, None]
        kv = jnp.einsum("bsl,nlhd->nbshd", low[0], p[f"{at}/kv/weight"]) + p[f"{at}/kv/bias"][:, None, None]
        q = linear(p, low[1], f"{at}/q", "bsl,lhd->bshd")
        scores, width = jnp.einsum("bshd,bthd->bhst", q, kv[0]), HEAD_DIM
        if not last:
            # One weight [2, latent, ..] over both latents, which lies in two.
            both = {n: jnp.stack([p[f"{at}/{n}_rotary/{of}/weight"] for of in ("keys", "queries")])
                    for n in ("key", "query")}
            kr = jnp.einsum("nbsl,nlr->bsr", low, both["key"]) + p[f"{at}/key_rotary/keys/bias"]
            qr = jnp.einsum("nbsl,nlhr->bshr", low, both["query"]) + p[f"{at}/query_rotary/keys/bias"]
            pairs = np.arange(ROTARY // 2)
            kr = turn(kr[:, :, None], pairs[None], ROTARY)[:, :, 0]
            qr = turn(qr, np.arange(HEADS)[:, None] * (ROTARY // 2) + pairs, HEADS * ROTARY)
            scores, width = scores + jnp.einsum("bshr,btr->bhst", qr, kr), HEAD_DIM + ROTARY
        scores = jnp.where(np.tril(np.ones((SEQ, SEQ), bool)), scores / np.sqrt(width), -jnp.inf)
        y = jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores), kv[1])
        return linear(p, y, f"{at}/out", "bshd,hdc->bsc")

    def hidden(p, x, at):
        return linear(p, jax.nn.gelu(linear(p, x, f"{at}/in", "bsc,cm->bsm")), f"{at}/out", "bsm,mc->bsc")

    def shared(p, x, at):
        if c["sharing"] == "hidden":
            return hidden(p, x, at)
        return linear(p, x, f"{at}/maps", "bsc,cnd->bsnd").sum(2)

    def loss(p, tokens, targets):
        x, routed, balance = p["embed/tokens"][tokens], [], 0
        for n in range(LAYERS):
            at, last = f"layers/{n}", n % LAYERS_PER_BLOCK == LAYERS_PER_BLOCK - 1
            x = x + attention(p, norm(p, x, f"{at}/norm1"), f"{at}/attn", last)
            h = norm(p, x, f"{at}/norm2")
            if last:
                made, part = mixture(p, h, f"{at}/moe", routed)
                x, balance = x + made + shared(p, h, f"{at}/moe/shared"), balance + part
            else:
                x = x + hidden(p, h, f"{at}/mlp")
        logits = (norm(p, x, "norm") @ p["embed/tokens"].T)[..., :VOCAB]
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()
        return entropy + balance, routed

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def check_routing(routed, what):
    """Asserts that no decision is near another one: of scores the first and the last choice, of priorities who is
    dropped, also where each is moved a little."""
    rng = np.random.Generator(np.random.PCG64(5))
    for s, ids, key, dropped in routed:
        gap = np.diff(np.asarray(s), axis=-1)
        near = min(gap[..., -1].min(), gap[..., -CHOICES].min())
        assert near > MARGIN, f"{what}: two scores differ by {near:.1e}"
        assert dropped.mean() > 0.1, f"{what}: of the choices {dropped.mean():.0%} are dropped"
        for _ in range(8):
            moved = key + PRIORITY_MARGIN * rng.uniform(-1, 1, key.shape)
            assert ((deal(ids, moved)[0] < 0) == dropped).all(), f"{what}: a priority is at its edge"


def job_text(c):
    text = jax_mlp.job_text({**c, "inputs": 1, "hidden": [1], "classes": 2, "activation": "relu", "batch": BATCH}, "adamw")
    lines = text.splitlines(keepends=True)
    lines[1] = (
        f"model: {{program: jaxformer, blocks: {LAYERS // LAYERS_PER_BLOCK}, layers_per_block: {LAYERS_PER_BLOCK}, "
        f"embed: {EMBED}, heads: {HEADS}, latent: {LATENT}, rotary: {ROTARY}, mlp: {MLP}, experts: {EXPERTS}, "
        f"choices: {CHOICES}, shared: {SHARED}, sharing: {c['sharing']}, capacity: {CAPACITY}, balance: {BALANCE}, "
        f"seq: {SEQ}, vocab: {VOCAB}, vocab_multiple: {PADDED}, dropout: 0}}\n"
    )
    lines[2] = f"data: {{format: tokens, train: {{tokens: none}}, batch: {BATCH}}}\n"
    return "".join(lines)


def make_case(name, c):
    import optax

    rng = np.random.Generator(np.random.PCG64(c["data"]))
    ids = rng.integers(0, VOCAB, (STEPS, BATCH, SEQ + 1), dtype=np.int32)
    ids[..., 1::2] = (ids[..., 0:-1:2] * 5 + 1) % VOCAB  # every second one can be learned
    tokens, targets = ids[..., :-1], ids[..., 1:]
    start = initial(c)
    params = {k: v.astype(np.float64) for k, v in start.items()}
    opt, step_of = jax_mlp.optimizer(c, "adamw", params), loss_of(c)
    state, rows, first = opt.init(params), [], None
    for t in range(STEPS):
        (loss, routed), grads = step_of(params, tokens[t], targets[t])
        first = first or grads
        rows += [(float(loss), float(optax.global_norm(grads)))]
        check_routing(routed, f"{name}, step {t}")
        updates, state = opt.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    losses, norms = np.array(rows).T
    clipped = (norms > c["clip"]).sum()
    assert 0 < clipped < STEPS, f"{name}: clipping acts on {clipped} steps: {norms}"
    out = {"tokens": tokens, "targets": targets, "adamw/losses": losses, "adamw/norms": norms,
           "job/adamw": np.frombuffer(job_text(c).encode(), np.uint8)}
    for part, values in ("init", start), ("grad", first), ("adamw", params):
        out |= {f"{part}/{k}": v for k, v in values.items()}
    return out


def generate(folder):
    for name, c in CASES.items():
        jax_mlp.write(folder / f"{name}.safetensors", make_case(name, c))


if __name__ == "__main__":
    sys.exit(jax_mlp.command(sys.argv[1:], __doc__, CASES, generate))
