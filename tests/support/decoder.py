# SPDX-License-Identifier: Apache-2.0
"""GPT-2 in numpy, from its definition: what a checkpoint's weights say of the token that comes next."""
import math

import numpy


def layer_norm(x, p, name):
    x = x - x.mean(-1, keepdims=True)
    return x / numpy.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}/weight"] + p[f"{name}/bias"]


def attention(x, p, at):
    q, k, v = numpy.einsum("se,nehd->nshd", x, p[f"{at}/attn/qkv/weight"]) + p[f"{at}/attn/qkv/bias"][:, None]
    scores = numpy.einsum("shd,thd->hst", q, k) / math.sqrt(q.shape[-1])
    scores = numpy.where(numpy.tri(len(x), dtype=bool), scores, -numpy.inf)
    scores = numpy.exp(scores - scores.max(-1, keepdims=True))
    y = numpy.einsum("hst,thd->shd", scores / scores.sum(-1, keepdims=True), v)
    return numpy.einsum("shd,hde->se", y, p[f"{at}/attn/out/weight"]) + p[f"{at}/attn/out/bias"]


def mlp(x, p, at):
    h = x @ p[f"{at}/mlp/in/weight"] + p[f"{at}/mlp/in/bias"]
    h = h / 2 * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    return h @ p[f"{at}/mlp/out/weight"] + p[f"{at}/mlp/out/bias"]


def all_logits(p, ids, vocab):
    x = p["embed/tokens"][ids] + p["embed/positions"][: len(ids)]
    for n in range(len({name.split("/")[1] for name in p if name.startswith("layers/")})):
        at = f"layers/{n}"
        x = x + attention(layer_norm(x, p, f"{at}/norm1"), p, at)
        x = x + mlp(layer_norm(x, p, f"{at}/norm2"), p, at)
    return (layer_norm(x, p, "norm") @ p["embed/tokens"].T)[:, :vocab]


def next_logits(p, ids, vocab):
    return all_logits(p, ids, vocab)[-1]


def greedy(p, prompt, tokens, seq, vocab):
    """The bytes, and the smallest lead of a chosen token over the next. A full window begins again with its newest
    three quarters."""
    ids, lead, begin = list(prompt), math.inf, 0
    for _ in range(tokens):
        if len(ids) - begin > seq:
            begin = len(ids) - seq * 3 // 4
        logits = next_logits(p, ids[begin:], vocab)
        ids.append(int(logits.argmax()))
        second, first = numpy.sort(logits)[-2:]
        lead = min(lead, first - second)
    return bytes(ids[len(prompt) :]), lead
