# SPDX-License-Identifier: Apache-2.0
"""generate.py BUILD: tokens a second of `weft generate` beside transformers' generate, on the same random checkpoints: of
prompts' tokens, and of tokens that are added, at batch 1 and 16, in f32 and bf16. And beside the memory: what a step has to read,
its weights, over the time that it takes, as a share of what a sum over a GiB reaches on as many threads just before.

TORCH_PYTHON is an interpreter that has transformers. MODELS (gpt2 llama), ROUNDS (3), PROMPT (128), TOKENS (128), BATCHES (1 16),
KINDS (f32 bf16). All in turns; medians."""
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

MODELS = os.environ.get("MODELS", "gpt2 llama").split()
ROUNDS = int(os.environ.get("ROUNDS", 3))
PROMPT = int(os.environ.get("PROMPT", 128))
TOKENS = int(os.environ.get("TOKENS", 128))
BATCHES = [int(b) for b in os.environ.get("BATCHES", "1 16").split()]
KINDS = os.environ.get("KINDS", "f32 bf16").split()
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
THREADS = len(os.sched_getaffinity(0))
MAKE = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
if sys.argv[1] == "gpt2":
    m = GPT2LMHeadModel(GPT2Config())
else:
    rope = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    m = LlamaForCausalLM(LlamaConfig(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                                     num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
                                     rms_norm_eps=1e-5, rope_parameters=rope, rope_theta=500000.0, tie_word_embeddings=True))
m.save_pretrained(sys.argv[2])
print(sum(p.numel() for p in m.parameters()))
"""
PEER = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
path, kind, threads, tokens, prompts = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5])
torch.set_num_threads(threads)
dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
m = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
ids, times = torch.tensor(prompts), []
class Watch(StoppingCriteria):
    def __call__(self, ids, scores, **_):
        times.append(time.monotonic())
        return torch.zeros(ids.shape[0], dtype=torch.bool)
def run(tokens):
    times.clear()
    begun = time.monotonic()
    m.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens,
               use_cache=True, pad_token_id=0, stopping_criteria=StoppingCriteriaList([Watch()]))
    return times[0] - begun, (times[-1] - times[0]) / max(tokens - 1, 1)
with torch.inference_mode():
    run(2)
    print(json.dumps(run(tokens)))
"""
READ = """
import sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
x, best = torch.ones(1 << 28), 0
for _ in range(4):
    begun = time.monotonic()
    x.sum()
    best = max(best, x.nbytes / (time.monotonic() - begun))
print(best)
"""


def python(code, *args):
    out = subprocess.run([PYTHON, "-c", code, *map(str, args)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(out.stdout.splitlines()[-1])


def ours(weft, checkpoint, kind, prompts, place):
    """Seconds that a fill and a step take. The prompts come twice: between the last token of the first ones and the first of the
    others lies a fill. Rows end together, so what is shown in order is on time."""
    file = place / "prompts"
    file.write_text("".join(" ".join(map(str, p)) + "\n" for p in [*prompts, *prompts]))
    p = subprocess.Popen([weft, "generate", checkpoint, "--tokenizer", "ids", "--prompts", str(file), "--batch", str(len(prompts)),
                          "--tokens", str(TOKENS), "-s", f"precision.compute={kind}"], stdout=subprocess.PIPE)  # fmt: skip
    lines, line = [], []  # of each line when its words ended
    while len(lines) < len(prompts) or not line:
        piece, now = os.read(p.stdout.fileno(), 1 << 16), time.monotonic()
        assert piece, "weft generate ended early"
        for byte in piece:
            line += [now] if byte in b" \n" else []
            if byte == ord("\n"):
                lines += [line] if len(line) > 1 else []
                line = []
    p.terminate()
    p.wait()
    added = lines[0][PROMPT:]
    assert len(added) == TOKENS, len(added)
    return line[0] - lines[len(prompts) - 1][-1], (added[-2] - added[0]) / (TOKENS - 2)


def main():
    weft = str(pathlib.Path(sys.argv[1]) / "weft")
    place = pathlib.Path(tempfile.mkdtemp(prefix="weft-generate-"))
    rng = random.Random(1)
    try:
        print(f"prompts of {PROMPT} tokens, {TOKENS} added; {THREADS} threads; medians of {ROUNDS} turns; GB/s: weights a step over its time")
        print(f"{'':16} {'batch':>5} {'weft fill':>10} {'step':>8} {'peer fill':>10} {'step':>8} {'x fill':>7} {'x step':>7}"
              f" {'GB/s':>6} {'memory':>7} {'share':>6}")  # fmt: skip
        for model in MODELS:
            count = python(MAKE, model, place / "hf")
            subprocess.run([weft, "import", str(place / "hf"), "--out", str(place / "ours")], check=True, stdout=subprocess.DEVNULL)
            for batch in BATCHES:
                prompts = [[rng.randrange(50000) for _ in range(PROMPT)] for _ in range(batch)]
                turns = {kind: [] for kind in KINDS}
                for _ in range(ROUNDS):
                    for kind in KINDS:
                        memory = python(READ, THREADS)
                        turns[kind].append([memory, *ours(weft, str(place / "ours"), kind, prompts, place),
                                            *python(PEER, place / "hf", kind, THREADS, TOKENS, json.dumps(prompts))])  # fmt: skip
                for kind, rows in turns.items():
                    memory, fill, step, peer_fill, peer_step = (statistics.median(r[i] for r in rows) for i in range(5))
                    read = [count * {"f32": 4, "bf16": 2}[kind] / r[2] for r in rows]
                    share = statistics.median(x / r[0] for x, r in zip(read, rows))
                    n = batch * PROMPT
                    print(f"{model + ', ' + kind:16} {batch:5} {n / fill:10.1f} {batch / step:8.2f} {n / peer_fill:10.1f} "
                          f"{batch / peer_step:8.2f} {peer_fill / fill:7.2f} {peer_step / step:7.2f} "
                          f"{statistics.median(read) / 1e9:6.1f} {memory / 1e9:7.1f} {share:6.2f}", flush=True)  # fmt: skip
            shutil.rmtree(place / "hf")
            shutil.rmtree(place / "ours")
    finally:
        shutil.rmtree(place)


main()
