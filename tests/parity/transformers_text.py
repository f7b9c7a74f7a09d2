#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weft generate and weft eval beside transformers: how a token is chosen, what models write, how likely a text is.

    transformers_text.py FOLDERS BUILD      folders as transformers_folders.py writes them, and weft's build"""
import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from transformers_folders import load, run, tokens
from transformers.generation import logits_process as rules

SETTINGS, VOCAB = 4000, 200
BORDER = 1e-5  # of the sum of weights: so near to where one id's share ends, f32 and f64 may differ


class Choice(ctypes.Structure):
    _fields_ = [("temperature", ctypes.c_double), ("top_k", ctypes.c_int64), ("top_p", ctypes.c_double),
                ("min_p", ctypes.c_double), ("penalty", ctypes.c_double), ("text", ctypes.c_void_p),
                ("ntext", ctypes.c_int64), ("u", ctypes.c_float)]  # fmt: skip


def open_choice(build, place):
    """choice.c of weft-rank, as a library."""
    made = place / "choice.so"
    objects = [build / "obj/worker/rank/train/choice.o", build / "libcommon.a"]
    subprocess.run(["cc", "-shared", "-o", made, *objects, "-lm"], check=True)
    return ctypes.CDLL(str(made)).choice_token


def check_choices(choice_token):
    rng = np.random.Generator(np.random.PCG64(31))
    near, few = 0, 0
    for n in range(SETTINGS):
        logits = rng.normal(0, 3, VOCAB).astype(np.float32)
        text = rng.integers(0, VOCAB, 30).astype(np.int32)
        c = Choice(temperature=rng.uniform(0.2, 2.5), top_k=int(rng.integers(1, VOCAB)) if n & 1 else 0,
                   top_p=rng.uniform(0.05, 1) if n & 2 else 1, min_p=rng.uniform(0, 0.4) if n & 4 else 0,
                   penalty=rng.uniform(0.5, 2.5) if n & 8 else 1, text=text.ctypes.data, ntext=len(text), u=rng.random(dtype=np.float32))  # fmt: skip
        scores, ids = torch.from_numpy(logits.copy())[None], torch.from_numpy(text.astype(np.int64))[None]
        each = [rules.RepetitionPenaltyLogitsProcessor(c.penalty), rules.TemperatureLogitsWarper(c.temperature)]
        each += [rules.TopKLogitsWarper(c.top_k)] if c.top_k else []
        each += [rules.TopPLogitsWarper(c.top_p)] if c.top_p < 1 else []
        each += [rules.MinPLogitsWarper(c.min_p)] if c.min_p > 0 else []
        for rule in each:
            scores = rule(ids, scores)
        ends = np.cumsum(torch.softmax(scores[0].double(), -1).numpy())
        few += int(torch.isfinite(scores).sum()) < VOCAB // 2
        want = int(np.searchsorted(ends, c.u, side="right"))
        ours = logits.copy()
        scratch = np.zeros(VOCAB, np.int32)
        got = choice_token(ctypes.byref(c), ours.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(VOCAB),
                           scratch.ctypes.data_as(ctypes.c_void_p))  # fmt: skip
        if got == want:
            continue
        assert np.abs(ends - c.u).min() < BORDER, f"setting {n}: {got}, not {want}: T {c.temperature} k {c.top_k} p {c.top_p} {c.min_p} {c.penalty}"
        near += 1
    assert few > SETTINGS // 4 and near < SETTINGS // 500, (few, near)
    print(f"{SETTINGS} settings choose alike; {near} drew on the border of two shares")


def generate(weft, made, prompts, *flags):
    done = subprocess.run([weft, "generate", made, "--prompts", "-", "--tokenizer", "ids", "--json", *flags], text=True,
                          input="".join(" ".join(map(str, p)) + "\n" for p in prompts), capture_output=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_texts(weft, folder, place):
    """Greedy, with and without a penalty, prompts of unequal lengths; then how likely the model's own tokens are."""
    made = place / folder.name
    run(weft, "import", folder, "--out", made)
    model = load(folder).eval()
    prompts = [tokens()[0, :3].tolist(), tokens()[1, :6].tolist()]
    for penalty in (1.0, 1.7):
        texts = generate(weft, made, prompts, "--tokens", "4", "--penalty", str(penalty))
        for prompt, text in zip(prompts, texts, strict=True):
            with torch.no_grad():
                got = model.generate(torch.tensor([prompt]), max_new_tokens=4, do_sample=False, repetition_penalty=penalty, use_cache=False,
                                     eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True)  # fmt: skip
            want = got.sequences[0, len(prompt) :].tolist()
            assert text["ids"] == want, f"{folder.name}, penalty {penalty}: {text['ids']}, not {want}"
            shares = [torch.log_softmax(step[0].double(), -1)[i].item() for step, i in zip(got.logits, want, strict=True)]
            assert np.allclose(text["log_probabilities"], shares, atol=1e-4), f"{folder.name}: {text['log_probabilities']}, not {shares}"
    whole = torch.cat([tokens().flatten(), tokens()[0, :1]])
    whole.numpy().astype("<u2").tofile(place / "tokens")
    scored = json.loads(subprocess.run([weft, "eval", made, "--data", place / "tokens", "-s", "data.ids=u16", "--json"], capture_output=True, text=True,
                                       check=True).stdout)  # fmt: skip
    length = tokens().shape[1]
    with torch.no_grad():
        rows = [whole[i : i + length + 1] for i in range(0, len(whole) - 1, length)]
        losses = [torch.nn.functional.cross_entropy(model(r[None, :-1], use_cache=False).logits[0].double(), r[1:]) for r in rows]
    assert scored["samples"] == len(rows) and abs(scored["loss"] - torch.stack(losses).mean().item()) < 1e-5, (folder.name, scored, losses)


def main():
    folders, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as place:
        check_choices(open_choice(build, pathlib.Path(place)))
        names = sorted(f for f in folders.iterdir() if f.is_dir())
        for folder in names:
            check_texts(build / "weft", folder, pathlib.Path(place))
    print(f"{len(names)} models write what they write in transformers, and score it alike")


main()
