#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference for weft's mlp: the same training in JAX and optax, written to goldens.

    jax_mlp.py DIR                  writes DIR/{relu,gelu,schedules}.safetensors
    jax_mlp.py --run DIR            writes a job with its data set, and what its checkpoint must hold:
                                    DIR/{job.yaml,images.npy,labels.npy,expect.safetensors}
    jax_mlp.py --compare DIR REF    says where DIR's goldens differ from REF's; exit 1 if they do

Initial weights are drawn by an own Philox in numpy, so that they check weft's. JAX computes in f64
from those f32 values: a golden does not depend on the vector width of the machine that made it, and
the tolerances of test_jax.c are left to weft's own rounding. What is stored is rounded to f32.

A golden holds, beside the tensors, the job's text for each run ("job/adamw", bytes): test_jax.c
reads it with weft's own reader. The numbers that optax gets come from the same table, RUNS.
"""
import fnmatch
import json
import math
import pathlib
import struct
import sys

import numpy as np

STEPS = 20
SEED = 2**32 + 7  # both words of the key count

# Models: name → what the job's `model` and `data` say. `clip` is the clip norm, chosen so that it acts
# on some steps and not on others (make_case checks); `group` is a learning rate scale of biases.
CASES = {
    "relu": dict(
        inputs=24, hidden=[16], classes=10, activation="relu", batch=16, clip=0.9, group=None
    ),
    "gelu": dict(
        inputs=12, hidden=[20, 8], classes=7, activation="gelu", batch=12, clip=0.6, group=2.0
    ),
}
COSINE = dict(kind="warmup_cosine", init=1e-4, peak=1e-2, warmup=5, decay=18, end=5e-4)
FALLING = dict(kind="cosine", peak=1e-2, decay=16, end=1e-3)
# Runs: name → the optimiser (kind: the name, unless said), and the globs of frozen parameters. What a
# run leaves out its job leaves out too: weft's defaults are held against these.
DEFAULTS = dict(b1=0.9, b2=0.999, weight_decay=0.01)
RUNS = {
    "adamw": dict(b1=0.9, b2=0.95, weight_decay=0.1, schedule=COSINE),
    "default": dict(kind="adamw", schedule=COSINE),
    "slow": dict(kind="adamw", b1=0.9, b2=0.99999, weight_decay=0.1, schedule=COSINE),
    "sgd": dict(rate=0.2),
    "momentum": dict(rate=0.02, momentum=0.9),
    "frozen": dict(
        kind="adamw", b1=0.9, b2=0.95, weight_decay=0.1, schedule=FALLING, freeze=["layers/0/*"],
        clip=0.7,
    ),
}
SCHEDULES = [
    dict(kind="warmup_cosine", init=0.0, peak=1e-3, warmup=10, decay=20, end=0.0),
    dict(kind="warmup_cosine", init=2e-4, peak=3e-3, warmup=0, decay=25, end=1e-4),
    dict(kind="warmup_cosine", init=1e-5, peak=0.25, warmup=7, decay=19, end=2.5e-2),
    dict(kind="cosine", peak=3e-3, decay=17, end=0.0),
    dict(kind="cosine", peak=0.25, decay=40, end=2.5e-2),
    dict(kind="linear", init=3e-3, end=1e-4, steps=19),
    dict(kind="linear", init=0.0, end=0.5, steps=40),
]


# ---- weft's random numbers, from the papers ---------------------------------------------------


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al., SC'11). counter [n, 4], key [2], u32 → [n, 4]."""
    mask = np.uint64(0xFFFFFFFF)
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k = [int(key[0]), int(key[1])]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            b & mask,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            a & mask,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c, axis=1).astype(np.uint32)


def check_philox():
    """Known answers published with Random123."""
    for word, want in (
        (0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (0xFFFFFFFF, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ):
        got = philox(np.full((1, 4), word, np.uint32), [word, word])[0]
        assert " ".join(f"{w:08x}" for w in got) == want, "philox differs from Random123"


def fnv1a32(text):
    h = 0x811C9DC5
    for byte in text.encode():
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h


def normal(name, count):
    """Draws 0..count−1 of the parameter's stream: sqrt(−2 ln(u + 2^-25))·cos(2π v)."""
    index = np.arange(2 * count, dtype=np.uint64)
    block = index >> np.uint64(2)
    counter = np.zeros((2 * count, 4), np.uint32)
    counter[:, 0] = block & np.uint64(0xFFFFFFFF)
    counter[:, 1] = block >> np.uint64(32)
    counter[:, 3] = fnv1a32(name)
    words = philox(counter, [SEED & 0xFFFFFFFF, SEED >> 32])
    word = words[np.arange(2 * count), index & np.uint64(3)]
    unit = (word >> np.uint32(8)) * 2.0**-24
    u, v = unit[0::2], unit[1::2]
    return (np.sqrt(-2 * np.log(u + 2.0**-25)) * np.cos(2 * math.pi * v)).astype(np.float32)


def initial(case):
    params = {}
    widths = [case["inputs"], *case["hidden"], case["classes"]]
    for i, (n, out) in enumerate(zip(widths, widths[1:])):
        last = i == len(widths) - 2
        std = np.sqrt(np.float32(1 if last else 2) / np.float32(n))
        name = f"layers/{i}/weight"
        params[name] = (std * normal(name, n * out)).reshape(n, out)
        params[f"layers/{i}/bias"] = np.zeros(out, np.float32)
    return params


# ---- the job's text ----------------------------------------------------------------------------


def schedule_text(s):
    fields = ", ".join(f"{k}: {v}" for k, v in s.items())
    return f"schedule: {{{fields}}}\n"


def clip(case, name):
    return RUNS[name].get("clip", case["clip"])


def job_text(case, name):
    run = RUNS[name]
    kind = run.get("kind", name)
    opt = [f"kind: {kind}", f"clip_norm: {clip(case, name)}"]
    if "b1" in run:
        opt += [f"betas: [{run['b1']}, {run['b2']}]", f"weight_decay: {run['weight_decay']}"]
    if kind == "momentum":
        opt += [f"momentum: {run['momentum']}", "nesterov: true"]
    groups = [f'{{match: "{glob}", freeze: true}}' for glob in run.get("freeze", [])]
    if case["group"]:
        decay = ", weight_decay: 0" if kind == "adamw" else ""
        groups += [f'{{match: "*/bias", lr_scale: {case["group"]}{decay}}}']
    if groups:
        opt += [f"groups: [{', '.join(groups)}]"]
    rate = run.get("rate")
    return (
        "name: parity\n"
        f"model: {{program: mlp, inputs: {case['inputs']}, hidden: {case['hidden']}, "
        f"classes: {case['classes']}, activation: {case['activation']}}}\n"
        f"data: {{train: {{images: none, labels: none}}, batch: {case['batch']}}}\n"
        f"optimizer: {{{', '.join(opt)}}}\n"
        + (f"schedule: {{value: {rate}}}\n" if rate else schedule_text(run["schedule"]))
        + f"train: {{steps: {STEPS}, seed: {SEED}}}\n"
    )


# ---- the reference -----------------------------------------------------------------------------


def batches(case, rng):
    """Images around one prototype a class, so that there is something to learn."""
    shape = (STEPS, case["batch"])
    labels = rng.integers(0, case["classes"], shape, dtype=np.int32)
    centres = rng.integers(0, 256, (case["classes"], case["inputs"]))
    noise = rng.integers(-60, 61, shape + (case["inputs"],))
    return np.clip(centres[labels] + noise, 0, 255).astype(np.uint8), labels


def moving(name, params):
    frozen = RUNS[name].get("freeze", [])
    return {p: not any(fnmatch.fnmatchcase(p, glob) for glob in frozen) for p in params}


def optimizer(case, name, params):
    import optax

    run = DEFAULTS | RUNS[name]
    bias = {name: name.endswith("/bias") for name in params}
    kind = run.get("kind", name)
    chain = [optax.clip_by_global_norm(clip(case, name))]
    if kind == "adamw":
        mask = {name: not b for name, b in bias.items()} if case["group"] else None
        chain += [
            optax.adamw(
                schedule(run["schedule"]), b1=run["b1"], b2=run["b2"],
                weight_decay=run["weight_decay"], mask=mask,
            )
        ]
    else:
        chain += [optax.sgd(run["rate"], momentum=run.get("momentum"), nesterov=kind == "momentum")]
    if case["group"]:
        chain += [optax.masked(optax.scale(case["group"]), bias)]
    moves = moving(name, params)
    stays = {p: not m for p, m in moves.items()}
    return optax.chain(
        optax.masked(optax.chain(*chain), moves), optax.masked(optax.set_to_zero(), stays)
    )


def schedule(s):
    import optax

    if s["kind"] == "linear":
        return optax.linear_schedule(s["init"], s["end"], s["steps"])
    if s["kind"] == "cosine":
        return optax.cosine_decay_schedule(s["peak"], s["decay"], alpha=s["end"] / s["peak"])
    return optax.warmup_cosine_decay_schedule(
        init_value=s["init"], peak_value=s["peak"], warmup_steps=s["warmup"],
        decay_steps=s["decay"], end_value=s["end"],
    )


def loss_of(case):
    import jax
    import jax.numpy as jnp
    import optax

    act = {"relu": jax.nn.relu, "gelu": lambda x: jax.nn.gelu(x, approximate=True)}
    last = len(case["hidden"])

    def loss(params, images, labels):
        x = images.astype(jnp.float64) / 255
        for i in range(last + 1):
            x = x @ params[f"layers/{i}/weight"] + params[f"layers/{i}/bias"]
            x = act[case["activation"]](x) if i < last else x
        return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()

    return jax.jit(jax.value_and_grad(loss))


def train(case, kind, start, images, labels):
    import optax

    step = loss_of(case)
    params = {k: v.astype(np.float64) for k, v in start.items()}
    opt, moves = optimizer(case, kind, params), moving(kind, params)
    state, first, losses, norms = opt.init(params), None, [], []
    for t in range(STEPS):
        loss, grads = step(params, images[t], labels[t])
        first = first or grads
        losses.append(float(loss))
        norms.append(float(optax.global_norm([grads[p] for p, m in moves.items() if m])))
        updates, state = opt.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return params, first, losses, norms


def make_case(case):
    images, labels = batches(case, np.random.Generator(np.random.PCG64(1)))
    start = initial(case)
    out = {"images": images, "labels": labels}
    out |= {f"init/{k}": v for k, v in start.items()}
    for kind in RUNS:
        end, grads, losses, norms = train(case, kind, start, images, labels)
        clipped = sum(n > clip(case, kind) for n in norms)
        assert 0 < clipped < STEPS, f"{kind}: clipping acts on {clipped} of {STEPS} steps: {norms}"
        out |= {f"{kind}/{k}": v for k, v in end.items()}
        out |= {f"grad/{k}": v for k, v in grads.items()}
        out |= {f"{kind}/losses": losses, f"{kind}/norms": norms}
        out[f"job/{kind}"] = np.frombuffer(job_text(case, kind).encode(), np.uint8)
    return out


def make_schedules():
    out = {}
    for i, s in enumerate(SCHEDULES):
        # A job needs more than a schedule; the rest does not matter.
        text = job_text(CASES["relu"], "sgd").split("schedule:")[0]
        text += schedule_text(s) + "train: {steps: 26}\n"
        out[f"values/{i}"] = [float(schedule(s)(t)) for t in range(26)]
        out[f"job/{i}"] = np.frombuffer(text.encode(), np.uint8)
    return out


# ---- files -------------------------------------------------------------------------------------


def write(path, tensors):
    """safetensors with the head padded to 64 bytes, as weft writes and reads them."""
    head, data = {}, b""
    for name, v in sorted(tensors.items()):
        v = np.asarray(v)
        v = v if v.dtype in (np.uint8, np.int32) else v.astype(np.float32)
        raw = np.ascontiguousarray(v).tobytes()
        dtype = {"uint8": "U8", "int32": "I32", "float32": "F32"}[v.dtype.name]
        head[name] = {
            "dtype": dtype, "shape": list(v.shape), "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-(8 + len(text)) % 64)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def generate(folder):
    for name, case in CASES.items():
        write(folder / f"{name}.safetensors", make_case(case))
    write(folder / "schedules.safetensors", make_schedules())


def generate_run(folder):
    """Every batch is the whole set, so that the order of the samples does not matter."""
    case, kind = CASES["gelu"], "adamw"
    images, labels = batches(case, np.random.Generator(np.random.PCG64(2)))
    np.save(folder / "images.npy", images[0])
    np.save(folder / "labels.npy", labels[0])
    text = job_text(case, kind).replace(
        "{images: none, labels: none}", "{images: images.npy, labels: labels.npy}"
    ).replace("data: {", "data: {format: npy, ")
    text += "mesh: {dp: 2}\nresources: {devices: 2, threads: 1}\ncheckpoint: {dir: ckpt}\n"
    (folder / "job.yaml").write_text(text)
    same = [np.repeat(v[:1], STEPS, axis=0) for v in (images, labels)]
    end, *_ = train(case, kind, initial(case), *same)
    write(folder / "expect.safetensors", end)


def differences(got, ref, slack):
    """Names whose values differ: bytes exactly, numbers by so much of the tensor's norm."""
    for name in sorted(set(got) | set(ref)):
        if name not in got or name not in ref:
            yield f"{name}: only in one"
            continue
        a, b = got[name], ref[name]
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"{name}: {a.dtype}{a.shape} against {b.dtype}{b.shape}"
        elif a.dtype != np.float32:
            if not np.array_equal(a, b):
                yield f"{name}: differs"
        else:
            a, b = a.astype(np.float64), b.astype(np.float64)
            if not np.linalg.norm(a - b) <= slack * np.linalg.norm(b):
                yield f"{name}: by {np.linalg.norm(a - b) / np.linalg.norm(b):.1e}"


def compare(folder, ref, names, slack):
    from safetensors.numpy import load_file

    bad = 0
    for name in names:
        file = f"{name}.safetensors"
        got, want = load_file(folder / file), load_file(ref / file)
        for line in differences(got, want, slack):
            bad += 1
            print(f"{file}: {line}")
        print(f"{file}: {len(want)} tensors compared")
    return 1 if bad else 0


def command(args, doc, names, generate, x64=True, slack=1e-6):
    """What the scripts beside this one are run with: DIR makes goldens there, --compare DIR REF
    compares those of these names, within `slack`. Returns the exit code."""
    if len(args) == 3 and args[0] == "--compare":
        return compare(pathlib.Path(args[1]), pathlib.Path(args[2]), names, slack)
    if len(args) != 1:
        print(doc, file=sys.stderr)
        return 2
    if x64:
        import jax

        jax.config.update("jax_enable_x64", True)
    folder = pathlib.Path(args[0])
    folder.mkdir(parents=True, exist_ok=True)
    generate(folder)
    return 0


def main(args):
    run = args[:1] == ["--run"]
    check_philox()
    return command(args[run:], __doc__, [*CASES, "schedules"], generate_run if run else generate)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
