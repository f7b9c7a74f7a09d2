#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small folders as transformers saves them, and the logits of its models: what `weft import` is held to.

    transformers_folders.py DIR             writes DIR/NAME/{config.json, model.safetensors, …} and DIR/NAME.safetensors
    transformers_folders.py --check DIR WEFT
                                            DIR's folders by WEFT, both ways and in all forms, opened by transformers
    transformers_folders.py --open DIR WEFT
                                            what WEFT makes of DIR's folders, opened by the transformers at hand: 4.57 too

NAME.safetensors has `tokens` and the `logits` of every position. Models are those of transformers_models.py, in f32, and
some more: tied heads, untied ones, no window, no longer context."""
import json
import pathlib
import subprocess
import sys
import tempfile

import jax_mlp
import numpy as np
import torch
import transformers
import transformers_models as models
from safetensors.torch import load_file, save_file

BATCH = 2
LIMIT = 1e-5
NORM = 6e-8  # of a norm's weight that is stored less 1: the 1 is rounded


def more_cases():
    """Each program as it is, and what of it has another form."""
    cases = {k: (kind, settings) for k, (_, _, kind, settings) in models.CASES.items() if kind}
    for name in "qwen2", "qwen3":
        kind, settings = cases[name]
        cases[name + "_other"] = kind, {**settings, "tie_word_embeddings": not settings["tie_word_embeddings"]}
    kind, settings = cases["mistral"]
    cases["mistral_whole"] = kind, {**settings, "sliding_window": None}
    kind, settings = cases["deepseek-v2-lite"]
    settings = {**settings, "kv_lora_rank": 6}  # in f32 its keys are read as pairs where they lie
    cases["deepseek-v2-lite"] = kind, settings
    cases["deepseek-v2-lite_short"] = kind, {**settings, "rope_parameters": models.ROPE}
    kind, settings = cases["llama2"]
    cases["llama2_eps"] = kind, {**settings, "rms_norm_eps": 1e-3, "num_key_value_heads": models.HEADS}
    return cases


def tokens():
    rng = np.random.Generator(np.random.PCG64(11))
    return torch.from_numpy(rng.integers(0, models.VOCAB, (BATCH, models.SEQ)))


def logits(model):
    with torch.no_grad():
        return model.eval()(tokens(), use_cache=False).logits.float()


def generate(folder):
    for n, (name, (kind, settings)) in enumerate(more_cases().items()):
        model = models.make_model(kind, settings, torch.Generator().manual_seed(20 + n)).float()
        model.save_pretrained(folder / name)
        out = {"tokens": tokens().int().numpy(), "logits": logits(model).numpy()}
        jax_mlp.write(folder / f"{name}.safetensors", out)


def run(*command, fails=False):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stderr


def load(folder):
    experts = {} if transformers.__version__ < "5" else {"experts_implementation": "eager"}
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32, **experts)
    left = {k: v for k, v in info.items() if v and k != "error_msgs"}
    assert not left and not info.get("error_msgs"), f"{folder}: {info}"
    return model


def old_form(config):
    """config.json as transformers 4 wrote it."""
    rope = dict(config.pop("rope_parameters", {}))
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    return config


def same(a, b, allowed):
    a, b = load_file(a), load_file(b)
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    for k, x in a.items():
        off = (x.float() - b[k].float()).abs().max().item()
        assert x.dtype == b[k].dtype and off <= (allowed if "norm" in k else 0), f"{k}: off by {off}"


def check(folder, weft, scratch):
    for name, (kind, _) in more_cases().items():
        allowed = NORM if kind == "Gemma2" else 0
        ckpt, out, again = (scratch / f"{name}-{x}" for x in ("ckpt", "out", "again"))
        source = folder / name
        run(weft, "import", source, "--out", ckpt)
        run(weft, "ckpt", "verify", ckpt)
        run(weft, "export", ckpt, out)
        same(source / "model.safetensors", out / "model.safetensors", allowed)
        want = torch.from_numpy(load_file(folder / f"{name}.safetensors")["logits"].numpy())
        off = (logits(load(out)) - want).abs().max().item()
        assert off <= LIMIT, f"{name}: logits of what weft wrote are off by {off}"
        # In several files, read back; the older form of config.json.
        run(weft, "export", ckpt, again, "--shard-size", "8KB")
        assert len(list(again.glob("model-*.safetensors"))) > 1
        assert (logits(load(again)) - want).abs().max().item() <= LIMIT
        (again / "config.json").write_text(json.dumps(old_form(json.loads((source / "config.json").read_text()))))
        run(weft, "import", again, "--out", scratch / f"{name}-ckpt2")
        run(weft, "export", scratch / f"{name}-ckpt2", scratch / f"{name}-out2")
        same(out / "model.safetensors", scratch / f"{name}-out2" / "model.safetensors", allowed)
        # bf16 is exact; f16 is read.
        half = scratch / f"{name}-bf16"
        run(weft, "export", ckpt, half, "--dtype", "bf16")
        run(weft, "import", half, "--out", scratch / f"{name}-ckpt3")
        run(weft, "export", scratch / f"{name}-ckpt3", scratch / f"{name}-out3", "--dtype", "bf16")
        same(half / "model.safetensors", scratch / f"{name}-out3" / "model.safetensors", 0)
        f16 = {k: v.half() for k, v in load_file(source / "model.safetensors").items()}
        save_file(f16, half / "model.safetensors", {"format": "pt"})
        run(weft, "import", half, "--out", scratch / f"{name}-ckpt4")
        run(weft, "export", scratch / f"{name}-ckpt4", scratch / f"{name}-out4")
        for k, v in load_file(scratch / f"{name}-out4" / "model.safetensors").items():
            assert (v - f16[k].float()).abs().max().item() <= (2e-7 if allowed and "norm" in k else 0), k
        print(f"{name}: logits off by {off:.1e}")


def open_all(folder, weft, scratch):
    for name in more_cases():
        run(weft, "import", folder / name, "--out", scratch / f"{name}-ckpt")
        run(weft, "export", scratch / f"{name}-ckpt", scratch / name)
        kind = json.loads((scratch / name / "config.json").read_text())["model_type"]
        if kind not in transformers.CONFIG_MAPPING:
            print(f"{name}: transformers {transformers.__version__} has no {kind}")
            continue
        off = np.abs(logits(load(scratch / name)).numpy() - load_file(folder / f"{name}.safetensors")["logits"].numpy()).max()
        if name == "deepseek-v2-lite" and transformers.__version__ < "5":
            # Its scores lack the square of yarn's factor, which DeepSeek's own code and version 5 have.
            print(f"{name}: transformers {transformers.__version__} computes something else: off by {off:.1e}")
            continue
        assert off <= LIMIT, f"{name}: logits are off by {off}"
        print(f"{name}: logits off by {off:.1e}")


if __name__ == "__main__":
    acts = {"--check": check, "--open": open_all}
    if sys.argv[1] in acts:
        with tempfile.TemporaryDirectory() as tmp:
            acts[sys.argv[1]](pathlib.Path(sys.argv[2]), sys.argv[3], pathlib.Path(tmp))
    else:
        to = pathlib.Path(sys.argv[1])
        to.mkdir(parents=True, exist_ok=True)
        generate(to)
