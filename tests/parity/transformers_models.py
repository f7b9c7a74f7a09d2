#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference for weft's programs of published models: loss and gradients by transformers, written to goldens.

    transformers_models.py DIR              writes DIR/hf_NAME.safetensors for each model of CASES
    transformers_models.py --compare DIR REF

Each model is made by its own class of transformers at a tiny size, with eager attention, computed in f64 (but for
what the library itself computes in f32) from f32 weights that are larger than trained ones, so that softmaxes, norms
and caps do something. What is stored has weft's paths and layouts: reading a weight and its gradient is one function.
PaLM has no class there: palm() writes its equations out.
"""
import math
import sys

import jax_mlp
import numpy as np
import torch
import transformers

SLACK = 1e-5  # between two processors: the library's own norms and softmaxes are f32
LAYERS, EMBED, HEADS, KV_HEADS, HEAD_DIM, MLP, SEQ, BATCH, VOCAB, PADDED = 3, 16, 4, 2, 6, 12, 10, 4, 21, 24
ROPE = {"rope_type": "default", "rope_theta": 30.0}
SHARED = dict(hidden_size=EMBED, intermediate_size=MLP, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
              num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, vocab_size=VOCAB, max_position_embeddings=SEQ,
              rope_parameters=ROPE, tie_word_embeddings=False, attn_implementation="eager", experts_implementation="eager", pad_token_id=None)
SIZES = dict(layers=LAYERS, embed=EMBED, heads=HEADS, head_dim=HEAD_DIM, mlp=MLP, seq=SEQ, vocab=VOCAB, vocab_multiple=PADDED)
LLAMA_SIZES = dict(SIZES, kv_heads=KV_HEADS, theta=30.0)
GPT = dict(n_embd=EMBED, n_head=HEADS, n_layer=LAYERS, n_inner=MLP, n_positions=SEQ, vocab_size=VOCAB,
           attn_implementation="eager", resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
# Program, its sizes beside the common ones, transformers' class and what it is given.
CASES = {
    "gpt2": ("gpt2", dict(SIZES, head_dim=EMBED // HEADS), "GPT2", GPT),
    "gpt3": ("gpt3", dict(SIZES, head_dim=EMBED // HEADS), "GPT2", GPT),
    "llama2": ("llama2", LLAMA_SIZES, "Llama", dict(SHARED, rms_norm_eps=1e-5)),
    "llama3": ("llama", dict(LLAMA_SIZES, stretch=8.0, length=6), "Llama",
               dict(SHARED, rms_norm_eps=1e-5, rope_parameters={
                   "rope_type": "llama3", "rope_theta": 30.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 6})),
    "llama32": ("llama", dict(LLAMA_SIZES, tied=1, stretch=32.0, length=6), "Llama",
                {**SHARED, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_parameters": {
                    "rope_type": "llama3", "rope_theta": 30.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 6}}),
    "mistral": ("mistral", dict(LLAMA_SIZES, window=4), "Mistral", dict(SHARED, rms_norm_eps=1e-5, sliding_window=4)),
    "qwen2": ("qwen2", dict(LLAMA_SIZES, tied=1, head_dim=EMBED // HEADS), "Qwen2",
              {**SHARED, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "head_dim": EMBED // HEADS}),
    "qwen3": ("qwen3", dict(LLAMA_SIZES, tied=0), "Qwen3", dict(SHARED, rms_norm_eps=1e-6)),
    "gemma2": ("gemma2", dict(LLAMA_SIZES, window=4, query=9, score_cap=2.0, logit_cap=3.0), "Gemma2",
               {**SHARED, "rms_norm_eps": 1e-6, "sliding_window": 4, "query_pre_attn_scalar": 9,
                "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "tie_word_embeddings": True}),
    "nanochat": ("nanochat", dict(LLAMA_SIZES, logit_cap=3.0), "NanoChat",
                 dict(SHARED, rms_norm_eps=1e-6, final_logit_softcapping=3.0)),
    "mixtral": ("mixtral", dict(LLAMA_SIZES, experts=5, choices=2, capacity=0, balance=0), "Mixtral",
                dict(SHARED, rms_norm_eps=1e-5, num_local_experts=5, num_experts_per_tok=2)),
    "deepseek-v2-lite": (
        "deepseek-v2-lite",
        dict(SIZES, rotary=4, value=5, latent=7, narrow=6, experts=5, choices=2, capacity=0, balance=0, theta=30.0,
             stretch=4.0, length=6, gain=0.0707 * math.log(4) + 1),
        "DeepseekV2",
        {**SHARED, "head_dim": 4, "num_key_value_heads": HEADS, "rms_norm_eps": 1e-6, "q_lora_rank": None, "kv_lora_rank": 7,
         "qk_nope_head_dim": HEAD_DIM, "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 5, "num_experts_per_tok": 2,
         "n_shared_experts": 2, "moe_intermediate_size": 6, "first_k_dense_replace": 1, "routed_scaling_factor": 1.0,
         "topk_method": "greedy", "norm_topk_prob": False, "n_group": None, "topk_group": None,
         "mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1),
         "rope_parameters": {"rope_type": "yarn", "rope_theta": 30.0, "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 0.707,
                             "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 6}}),
    "palm": ("palm", dict(SIZES, theta=30.0), None, None),
}


# ---- reading a model's tensors as weft has them: `get` is a weight's or its gradient's reader ----


def cut(w, heads):
    """[heads · head, embed] → [embed, heads, head]."""
    return w.T.reshape(w.shape[1], heads, -1)


def padded(w):
    return np.pad(w, ((0, PADDED - VOCAB), (0, 0)))


def read_gpt2(get, _):
    out = {"embed/tokens": padded(get("transformer.wte.weight")), "embed/positions": get("transformer.wpe.weight")}
    for n in range(LAYERS):
        at, h = f"layers/{n}", f"transformer.h.{n}"
        out[f"{at}/attn/qkv/weight"] = get(f"{h}.attn.c_attn.weight").reshape(EMBED, 3, HEADS, -1).swapaxes(0, 1)
        out[f"{at}/attn/qkv/bias"] = get(f"{h}.attn.c_attn.bias").reshape(3, HEADS, -1)
        out[f"{at}/attn/out/weight"] = get(f"{h}.attn.c_proj.weight").reshape(HEADS, -1, EMBED)
        out[f"{at}/attn/out/bias"] = get(f"{h}.attn.c_proj.bias")
        for ours, theirs in ("in", "c_fc"), ("out", "c_proj"):
            for part in "weight", "bias":
                out[f"{at}/mlp/{ours}/{part}"] = get(f"{h}.mlp.{theirs}.{part}")
        for k in 1, 2:
            for part in "weight", "bias":
                out[f"{at}/norm{k}/{part}"] = get(f"{h}.ln_{k}.{part}")
    return out | {f"norm/{part}": get(f"transformer.ln_f.{part}") for part in ("weight", "bias")}


def read_experts(get, at, h):
    """Theirs has gate and up in one tensor [experts, 2 · hidden, embed]."""
    both = get(f"{h}.mlp.experts.gate_up_proj").swapaxes(1, 2)
    half = both.shape[-1] // 2
    return {f"{at}/moe/router/weight": get(f"{h}.mlp.gate.weight").T, f"{at}/moe/gate/weight": both[..., :half],
            f"{at}/moe/up/weight": both[..., half:],
            f"{at}/moe/out/weight": get(f"{h}.mlp.experts.down_proj").swapaxes(1, 2)}


def read_hidden(get, at, h, names):
    return {f"{at}/{ours}/weight": get(f"{h}.{theirs}.weight").T for ours, theirs in names}


GATED = [("gate", "gate_proj"), ("up", "up_proj"), ("out", "down_proj")]


def read_deepseek(get, _):
    out = {"embed/tokens": padded(get("model.embed_tokens.weight")), "head/weight": padded(get("lm_head.weight")).T,
           "norm/weight": get("model.norm.weight")}
    for n in range(LAYERS):
        at, h = f"layers/{n}", f"model.layers.{n}"
        q = cut(get(f"{h}.self_attn.q_proj.weight"), HEADS)
        down = get(f"{h}.self_attn.kv_a_proj_with_mqa.weight").T
        kv = cut(get(f"{h}.self_attn.kv_b_proj.weight"), HEADS)
        out |= {f"{at}/attn/q/weight": q[..., :HEAD_DIM], f"{at}/attn/q/rotary/weight": q[..., HEAD_DIM:],
                f"{at}/attn/down/weight": down[:, :-4], f"{at}/attn/k/rotary/weight": down[:, -4:],
                f"{at}/attn/norm/weight": get(f"{h}.self_attn.kv_a_layernorm.weight"),
                f"{at}/attn/k/weight": kv[..., :HEAD_DIM], f"{at}/attn/v/weight": kv[..., HEAD_DIM:],
                f"{at}/attn/out/weight": get(f"{h}.self_attn.o_proj.weight").T.reshape(HEADS, -1, EMBED),
                f"{at}/norm1/weight": get(f"{h}.input_layernorm.weight"),
                f"{at}/norm2/weight": get(f"{h}.post_attention_layernorm.weight")}
        if n == 0:
            out |= read_hidden(get, f"{at}/mlp", f"{h}.mlp", GATED)
        else:
            out |= read_experts(get, at, h) | read_hidden(get, f"{at}/moe/shared", f"{h}.mlp.shared_experts", GATED)
    return out


NORMS = {"Gemma2": ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"],
         "NanoChat": []}


def read_llama(get, kind):
    """Those whose layers are shaped like Llama's. Gemma's norms have their weight less one."""
    def norm(name):
        return get(name, born=1) if kind == "Gemma2" else get(name)

    out = {"embed/tokens": padded(get("model.embed_tokens.weight"))}
    if get("lm_head.weight") is not None:
        out["head/weight"] = padded(get("lm_head.weight")).T
    for n in range(LAYERS):
        at, h = f"layers/{n}", f"model.layers.{n}"
        a = {x: cut(get(f"{h}.self_attn.{x}_proj.weight"), HEADS if x == "q" else KV_HEADS) for x in "qkv"}
        if kind == "NanoChat":  # it turns the other way: with a head's halves exchanged that is our way
            a |= {x: np.roll(a[x], a[x].shape[-1] // 2, -1) for x in "qk"}
        out[f"{at}/attn/q/weight"], out[f"{at}/attn/kv/weight"] = a["q"], np.stack([a["k"], a["v"]])
        if kind == "Qwen2":
            b = {x: get(f"{h}.self_attn.{x}_proj.bias").reshape(HEADS if x == "q" else KV_HEADS, -1) for x in "qkv"}
            out[f"{at}/attn/q/bias"], out[f"{at}/attn/kv/bias"] = b["q"], np.stack([b["k"], b["v"]])
        if kind == "Qwen3":
            for x in "qk":
                out[f"{at}/attn/{x}/norm/weight"] = get(f"{h}.self_attn.{x}_norm.weight")
        out[f"{at}/attn/out/weight"] = get(f"{h}.self_attn.o_proj.weight").T.reshape(HEADS, -1, EMBED)
        if kind == "Mixtral":
            out |= read_experts(get, at, h)
        else:
            names = [("in", "fc1"), ("out", "fc2")] if kind == "NanoChat" else GATED
            out |= read_hidden(get, f"{at}/mlp", f"{h}.mlp", names)
        for k, name in enumerate(NORMS.get(kind, NORMS["Gemma2"][:2])):
            out[f"{at}/norm{k + 1}/weight"] = norm(f"{h}.{name}.weight")
    return out if kind == "NanoChat" else out | {"norm/weight": norm("model.norm.weight")}


# ---- models --------------------------------------------------------------------------------------


def draw(shape, generator, middle=0.0):
    return (middle + 0.3 * torch.randn(shape, generator=generator)).double()


def make_model(kind, settings, generator):
    config = getattr(transformers, f"{kind}Config")(**settings)
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    model = getattr(transformers, kind + suffix)(config).double().train()
    for name, p in model.named_parameters():
        is_norm = name.endswith("weight") and any(x in name for x in ("norm", "ln_")) and kind != "Gemma2"
        p.data = draw(p.shape, generator, 1.0 if is_norm else 0.0)
    return model


def by_transformers(kind, settings, tokens, targets, generator):
    """Initial weights, gradients and the loss."""
    model = make_model(kind, settings, generator)
    logits = model(tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
    loss.backward()
    params = dict(model.named_parameters())

    def weight(name, born=0):
        return born + params[name].detach().numpy() if name in params else None

    def grad(name, born=0):
        del born
        return params[name].grad.numpy() if name in params else None

    read = {"GPT2": read_gpt2, "DeepseekV2": read_deepseek}.get(kind, read_llama)
    return read(weight, kind), read(grad, kind), loss.item()


def palm(tokens, targets, generator):
    p = {"embed/tokens": draw((VOCAB, EMBED), generator), "norm/weight": draw((EMBED,), generator, 1.0)}
    shapes = {"attn/q": (EMBED, HEADS, HEAD_DIM), "attn/kv": (2, EMBED, 1, HEAD_DIM), "attn/out": (HEADS, HEAD_DIM, EMBED),
              "mlp/gate": (EMBED, MLP), "mlp/up": (EMBED, MLP), "mlp/out": (MLP, EMBED), "norm": (EMBED,)}
    for n in range(LAYERS):
        p |= {f"layers/{n}/{k}/weight": draw(s, generator, float(k == "norm")) for k, s in shapes.items()}
    for w in p.values():
        w.requires_grad_()

    def norm(x, at):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * p[f"{at}/weight"]

    def turn(x):
        half = HEAD_DIM // 2
        angle = torch.arange(SEQ).double()[:, None] * 30.0 ** (-2.0 * torch.arange(half).double() / HEAD_DIM)
        cos, sin, a, b = angle.cos()[:, None], angle.sin()[:, None], x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    x = p["embed/tokens"][tokens]
    for n in range(LAYERS):
        w = {k: p[f"layers/{n}/{k}/weight"] for k in shapes}
        h = norm(x, f"layers/{n}/norm")
        q = turn(torch.einsum("bse,ehd->bshd", h, w["attn/q"]))
        k, v = torch.einsum("bse,zehd->zbshd", h, w["attn/kv"])
        scores = torch.einsum("bshd,btd->bhst", q, turn(k)[:, :, 0]) / HEAD_DIM**0.5
        scores = scores.masked_fill(~torch.ones(SEQ, SEQ).tril().bool(), -torch.inf)
        y = torch.einsum("bhst,btd->bshd", scores.softmax(-1), v[:, :, 0])
        hidden = torch.nn.functional.silu(h @ w["mlp/gate"]) * (h @ w["mlp/up"])
        x = x + torch.einsum("bshd,hde->bse", y, w["attn/out"]) + hidden @ w["mlp/out"]
    logits = norm(x, "norm") @ p["embed/tokens"].T
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))
    loss.backward()
    weights, grads = ({k: f(w) for k, w in p.items()} for f in (lambda w: w.detach().numpy(), lambda w: w.grad.numpy()))
    for t in weights, grads:
        t["embed/tokens"] = padded(t["embed/tokens"])
    return weights, grads, loss.item()


# ---- goldens -------------------------------------------------------------------------------------


def job_text(program, sizes):
    model = ", ".join([f"program: {program}", *(f"{k}: {v}" for k, v in sizes.items())])
    return (f"name: parity\nmodel: {{{model}}}\n"
            f"data: {{format: tokens, train: {{tokens: none}}, batch: {BATCH}}}\n"
            "optimizer: {kind: sgd}\nschedule: {value: 0.05}\ntrain: {steps: 1}\n")


def make_case(program, sizes, kind, settings):
    rng = np.random.Generator(np.random.PCG64(5))
    ids = rng.integers(0, VOCAB, (1, BATCH, SEQ + 1), dtype=np.int32)
    tokens, targets = (torch.from_numpy(x[0]).long() for x in (ids[..., :-1].copy(), ids[..., 1:].copy()))
    generator = torch.Generator().manual_seed(7)
    if kind:
        weights, grads, loss = by_transformers(kind, settings, tokens, targets, generator)
    else:
        weights, grads, loss = palm(tokens, targets, generator)
    out = {"tokens": ids[..., :-1], "targets": ids[..., 1:]}
    out |= {f"init/{k}": v for k, v in weights.items()}
    out |= {f"grad/{k}": v for k, v in grads.items()}
    norm = np.sqrt(sum(float((v**2).sum()) for v in grads.values()))
    out |= {"sgd/losses": np.array([loss]), "sgd/norms": np.array([norm])}
    out["job/sgd"] = np.frombuffer(job_text(program, sizes).encode(), np.uint8)
    return out


def generate(folder):
    for name, case in CASES.items():
        jax_mlp.write(folder / f"hf_{name}.safetensors", make_case(*case))


if __name__ == "__main__":
    names = [f"hf_{name}" for name in CASES]
    sys.exit(jax_mlp.command(sys.argv[1:], __doc__, names, generate, x64=False, slack=SLACK))
