#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""GPT-2 124M in f32, batch 4, 64 tokens, on two threads: weft beside llm.c and PyTorch, and where weft's step goes.

    gpt2.py BUILD [ROUNDS [STEPS]]

The contestants take turns, ROUNDS (3) times for STEPS (4) steps behind two that do not count; medians of the steps,
of the wall and of the processors: beside other work the latter says more, and so
that waiting does not count in it, the peers' threads wait asleep (OMP_WAIT_POLICY=passive). `best`: tokens/s on two cores that nobody
else uses, if both were busy all the time: 2 · tokens / processor. Each clips to 1.0 and decays by 0.1, but llm.c,
which does neither.

LLMC is a checkout of github.com/karpathy/llm.c, TORCH_PYTHON an interpreter with torch (default BUILD/torch, which
mlp.sh makes); who is not there is left out, and that is said.
"""
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

import numpy

BATCH, SEQ, VOCAB, WARM = 4, 64, 50257, 2
PEERS = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
JOB = """name: gpt2
model: {{program: gpt2, seq: 64}}
mesh: {{dp: {ranks}}}
data: {{format: tokens, train: {{tokens: train.bin}}, batch: 4}}
optimizer: {{kind: adamw, betas: [0.9, 0.95], weight_decay: 0.1, clip_norm: 1.0}}
schedule: {{kind: constant, value: 3e-4}}
train: {{steps: 1000}}
resources: {{devices: {ranks}, threads: {threads}}}
"""


def write_tokens(path, count):
    """Ids as rare as words are, behind llm.c's header."""
    weight = 1 / numpy.arange(1, VOCAB + 1) ** 1.1
    ids = numpy.searchsorted(numpy.cumsum(weight / weight.sum()), numpy.random.default_rng(0).random(count))
    path.write_bytes(struct.pack("<3i", 20240520, 1, count).ljust(1024, b"\0") + ids.astype("<u2").tobytes())


def write_weights(path):
    """A model of llm.c's, drawn like weft's."""
    layers, embed, padded, longest = 12, 768, 50304, 1024
    draw = numpy.random.default_rng(0)
    shapes = [(padded, embed), (longest, embed), (1, layers, embed), (0, layers, embed), (layers, 3 * embed, embed),
              (0, layers, 3 * embed), (layers, embed, embed), (0, layers, embed), (1, layers, embed), (0, layers, embed),
              (layers, 4 * embed, embed), (0, layers, 4 * embed), (layers, embed, 4 * embed), (0, layers, embed),
              (1, embed), (0, embed)]
    with open(path, "wb") as out:
        out.write(struct.pack("<8i", 20240326, 3, longest, VOCAB, layers, 12, embed, padded).ljust(1024, b"\0"))
        for shape in shapes:
            fill = shape[0] if shape[0] < 2 else None
            tensor = (draw.standard_normal(shape, dtype="f4") * numpy.float32(0.02) if fill is None
                      else numpy.full(shape[1:], fill, "f4"))
            out.write(tensor.tobytes())


def processor_ms(pid):
    """Of a process that still runs."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Weft:
    def __init__(self, build, where, ranks, threads):
        self.name, self.program = f"weft, {ranks} x {threads}", build / "tests/bench/bench_step"
        self.job = where / f"job-{ranks}.yaml"
        self.job.write_text(JOB.format(ranks=ranks, threads=threads))
        self.env = {**os.environ, "WEFT_BACKEND_DIR": str(build)}

    def run(self, steps):
        out = subprocess.run([self.program, "--warm", str(WARM), "--steps", str(steps), "--each", self.job], check=True,
                             env=self.env, stdout=subprocess.PIPE, text=True).stdout
        return [tuple(map(float, line.split())) for line in out.splitlines()]

    def table(self, steps):
        return subprocess.run([self.program, "--warm", str(WARM), "--steps", str(steps), "--table", self.job],
                              check=True, env=self.env, stdout=subprocess.PIPE, text=True).stdout


class Torch:
    def __init__(self, python, mode):
        self.name, self.mode, self.python = f"PyTorch, {mode}", mode, python

    def run(self, steps):
        script = pathlib.Path(__file__).parent / "gpt2_torch.py"
        out = subprocess.run([self.python, script, "--mode", self.mode, "--batch", str(BATCH), "--seq", str(SEQ),
                              "--warm", str(WARM), "--steps", str(steps)],
                             check=True, env=PEERS, stdout=subprocess.PIPE, text=True).stdout
        return [tuple(map(float, line.split())) for line in out.splitlines()]


class LlmC:
    """Its program trains 40 steps with texts in between: it is ended after those that count."""

    def __init__(self, source, where):
        self.name, self.where = "llm.c", where
        data = where / "dev/data/tinyshakespeare"
        data.mkdir(parents=True)
        for part in ("train", "val"):
            (data / f"tiny_shakespeare_{part}.bin").symlink_to(where / "train.bin")
        write_weights(where / "gpt2_124M.bin")
        subprocess.run(["gcc", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-Wno-unused-result", "-o",
                        where / "train_gpt2", f"{source}/train_gpt2.c", "-lm"], check=True)

    def run(self, steps):
        rows, before = [], None
        with subprocess.Popen(["stdbuf", "-oL", self.where / "train_gpt2"], cwd=self.where, env=PEERS,
                              stdout=subprocess.PIPE, text=True) as child:
            for line in child.stdout:
                if " (took " not in line:
                    continue
                wall, now = float(line.split(" (took ")[1].split()[0]), processor_ms(child.pid)
                rows.append((wall, None if before is None else now - before))
                before = now
                if len(rows) == steps + 1:
                    break
            child.kill()
        return rows[1:]  # between the first and the others no evaluation lies


def contestants(build, where):
    found = [Weft(build, where, 1, 2), Weft(build, where, 2, 1)]
    source = os.environ.get("LLMC")
    if source:
        found.append(LlmC(source, where))
    else:
        print("LEFT OUT  llm.c: LLMC does not say where it is")
    python = os.environ.get("TORCH_PYTHON", build / "torch/bin/python")
    if pathlib.Path(python).exists():
        found += [Torch(python, mode) for mode in ("eager", "tuned")]
    else:
        print("LEFT OUT  PyTorch: TORCH_PYTHON does not say where it is")
    return found


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    rounds, steps = (int(sys.argv[k]) if len(sys.argv) > k else default for k, default in ((2, 3), (3, 4)))
    with tempfile.TemporaryDirectory(dir=build) as name:
        where = pathlib.Path(name)
        write_tokens(where / "train.bin", 1000000)
        all_of = contestants(build, where)
        rows = {c.name: [] for c in all_of}
        for _ in range(rounds):
            for c in all_of:
                rows[c.name] += c.run(steps)
        print(f"{'':16} {'wall ms':>9} {'tokens/s':>9} {'processor ms':>13} {'best':>7}")
        for what, measured in rows.items():
            wall, processor = (statistics.median(r[k] for r in measured) for k in (0, 1))
            print(f"{what:16} {wall:9.0f} {1000 * BATCH * SEQ / wall:9.1f} {processor:13.0f} "
                  f"{2000 * BATCH * SEQ / processor:7.1f}")
        print(f"\nweft, 1 x 2, by instruction\n{all_of[0].table(rounds * steps)}", end="")


if __name__ == "__main__":
    main()
