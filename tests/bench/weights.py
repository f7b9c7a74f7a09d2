#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Export and import of a large model: GB/s, and that resident memory stays below 256 MiB.

    weights.py WEFT [GB]        GB of f32 weights, default 2; needs four times that under $TMPDIR

The model is a llama with an embedding and a head of half a GB each, which are read in parts, and a mixtral whose experts
are one parameter of a GB. Its weights are written here as transformers lays them out."""
import json
import os
import pathlib
import struct
import sys
import tempfile
import time

import numpy as np

LIMIT = 256 << 20
FAMILIES = {
    "llama": dict(
        model_type="llama", architectures=["LlamaForCausalLM"], num_hidden_layers=4, hidden_size=2048, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, intermediate_size=8192, max_position_embeddings=2048, vocab_size=64000,
        hidden_act="silu", rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False),
    "mixtral": dict(
        model_type="mixtral", architectures=["MixtralForCausalLM"], num_hidden_layers=1, hidden_size=2048,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, intermediate_size=7168, num_local_experts=8,
        num_experts_per_tok=2, max_position_embeddings=2048, vocab_size=32000, hidden_act="silu", rms_norm_eps=1e-5,
        rope_theta=1e6, tie_word_embeddings=False, sliding_window=None, router_aux_loss_coef=0.02),
}


def tensors(c):
    e, m, h, k = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["num_key_value_heads"]
    d, v = c["head_dim"], c["vocab_size"]
    yield "model.embed_tokens.weight", (v, e)
    yield "lm_head.weight", (v, e)
    yield "model.norm.weight", (e,)
    for n in range(c["num_hidden_layers"]):
        at = f"model.layers.{n}"
        yield f"{at}.input_layernorm.weight", (e,)
        yield f"{at}.post_attention_layernorm.weight", (e,)
        for name, rows in ("q", h), ("k", k), ("v", k):
            yield f"{at}.self_attn.{name}_proj.weight", (rows * d, e)
        yield f"{at}.self_attn.o_proj.weight", (e, h * d)
        if c["model_type"] == "llama":
            for name, shape in ("gate", (m, e)), ("up", (m, e)), ("down", (e, m)):
                yield f"{at}.mlp.{name}_proj.weight", shape
        else:
            yield f"{at}.block_sparse_moe.gate.weight", (c["num_local_experts"], e)
            for x in range(c["num_local_experts"]):
                for name, shape in ("w1", (m, e)), ("w2", (e, m)), ("w3", (m, e)):
                    yield f"{at}.block_sparse_moe.experts.{x}.{name}.weight", shape


def write(folder, config, gb):
    """As many layers as make so many GB."""
    def size(c):
        return sum(4 * int(np.prod(s)) for _, s in tensors(c))

    config = dict(config)
    while size(config) < gb * 1e9:
        config["num_hidden_layers"] += 1
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    head, at = {}, 0
    for name, shape in tensors(config):
        n = 4 * int(np.prod(shape))
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    block = np.random.default_rng(1).standard_normal(1 << 22, np.float32).tobytes()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, place in head.items():
            left = place["data_offsets"][1] - place["data_offsets"][0]
            while left:
                f.write(block[: min(left, len(block))])
                left -= min(left, len(block))
    return at


def measure(what, *command):
    begun = time.monotonic()
    sys.stdout.flush()
    pid = os.posix_spawn(command[0], [str(c) for c in command], os.environ,
                         file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                                       (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)])
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - begun
    assert status == 0, command
    memory = usage.ru_maxrss << 10
    print(f"{what}: {seconds:.1f} s, {usage.ru_utime + usage.ru_stime:.1f} s of processor time, "
          f"{memory / (1 << 20):.0f} MiB resident", flush=True)
    assert memory <= LIMIT, f"more than {LIMIT >> 20} MiB"
    return seconds


def digest(file):
    """Of the tensors, by their names: the order in a file is the writer's."""
    import hashlib
    out = {}
    with open(file, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        for name, t in head.items():
            if name != "__metadata__":
                f.seek(8 + n + t["data_offsets"][0])
                h, left = hashlib.blake2b(), t["data_offsets"][1] - t["data_offsets"][0]
                while left:
                    piece = f.read(min(left, 1 << 24))
                    h.update(piece)
                    left -= len(piece)
                out[name] = h.hexdigest()
    return out


def main():
    weft, gb = pathlib.Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else 2
    for name, config in FAMILIES.items():
        with tempfile.TemporaryDirectory(prefix="weft-weights-") as tmp:
            tmp = pathlib.Path(tmp)
            size = write(tmp / "in", config, gb)
            s = measure(f"{name} import of {size / 1e9:.2f} GB", weft, "import", tmp / "in", "--out", tmp / "ckpt")
            print(f"  {size / 1e9 / s:.2f} GB/s")
            s = measure(f"{name} export", weft, "export", tmp / "ckpt", tmp / "out")
            print(f"  {size / 1e9 / s:.2f} GB/s")
            assert digest(tmp / "in" / "model.safetensors") == digest(tmp / "out" / "model.safetensors")
            print("  the same bits")
            s = measure(f"{name} export as bf16", weft, "export", tmp / "ckpt", tmp / "half", "--dtype", "bf16")
            print(f"  {size / 1e9 / s:.2f} GB/s of f32")


if __name__ == "__main__":
    main()
