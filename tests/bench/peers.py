#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Training on two cores beside PyTorch at its best, and llm.c: wall and processor time of a step, in turns.

    peers.py BUILD [MODEL...]

MODEL: names of the table below; default: all. PyTorch comes as it is and compiled, with glibc's huge pages
(GLIBC_TUNABLES) or jemalloc (Debian's libjemalloc2), and with threads that wait awake: the best is to be beaten. All are started and warmed; then they take turns, ROUNDS (5): who waits is stopped (SIGSTOP), and the first step of a
turn does not count. `x wall` and `x processor` are medians over rounds of the ratio to weft; beside other work the
latter says more, where waiting threads sleep. `x least` is the ratio of the fastest tenths of steps. The goal is 1.3
each, beside the best. A step is from the batch to the loss on the host; GPT clips to 1.0, the others do not. After it
the instructions of weft's step that take 1 %.

TORCH_PYTHON is an interpreter with torch (default BUILD/torch/bin/python: python3 -m venv, pip install torch, 5 GB);
LLMC a checkout of github.com/karpathy/llm.c, which neither clips nor decays. Who is not there is left out, and that is
said. KEEP_OFF is a command that keeps other work away while it runs: around the turns.
"""
import concurrent.futures
import glob
import json
import os
import pathlib
import select
import shlex
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

import numpy

VOCAB, GOAL, SAMPLES = 50257, 1.3, 16384
TOKENS = "{format: tokens, train: {tokens: train.bin}, batch: %d}"
LABELLED = "{format: npy, train: {images: images.npy, labels: labels.npy}, batch: %d}"
IMAGES = "{format: npy, train: {images: images.npy}, batch: %d}"
JOB = """name: peers
model: {{{model}}}
mesh: {{dp: {ranks}}}
data: {data}
optimizer: {optimizer}
schedule: {{kind: constant, value: 3e-4}}
train: {{steps: 1000}}
resources: {{devices: {ranks}, threads: {threads}}}
"""
GPT2 = ("program: gpt2, seq: 64", {"model": "gpt", "layers": 12, "embed": 768, "heads": 12, "seq": 64, "vocab": VOCAB})
SMALL = ("program: gpt2, layers: 6, embed: 384, heads: 6, seq: 256, vocab: 65",
         {"model": "gpt", "layers": 6, "embed": 384, "heads": 6, "seq": 256, "vocab": 65})
VAE = ("program: vae, inputs: 784, hidden: [400], latent: 20", {"model": "vae", "hidden": 400, "latent": 20})


def mlp(*hidden):
    return (f"program: mlp, inputs: 784, hidden: {list(hidden)}, classes: 10, activation: relu",
            {"model": "mlp", "hidden": hidden})


# name: weft's model and PyTorch's, batch, ranks, steps of a turn
MODELS = {
    "gpt2": (GPT2, 4, 1, 2),
    "gpt2-dp2": (GPT2, 4, 2, 2),
    "small-gpt": (SMALL, 8, 1, 2),
    "small-gpt-dp2": (SMALL, 8, 2, 2),
    "mlp-512": (mlp(512, 256), 128, 1, 100),
    "mlp-512-b1024": (mlp(512, 256), 1024, 1, 20),
    "mlp-2048": (mlp(2048, 2048), 128, 1, 10),
    "mlp-2048-b1024": (mlp(2048, 2048), 1024, 1, 4),
    "mlp-2048-b1024-dp2": (mlp(2048, 2048), 1024, 2, 4),
    "vae": (VAE, 128, 1, 50),
}  # fmt: skip


def write_tokens(path, count, vocab=VOCAB):
    """Ids as rare as words are, behind llm.c's header."""
    weight = 1 / numpy.arange(1, vocab + 1) ** 1.1
    ids = numpy.searchsorted(numpy.cumsum(weight / weight.sum()), numpy.random.default_rng(0).random(count))
    path.write_bytes(struct.pack("<3i", 20240520, 1, count).ljust(1024, b"\0") + ids.astype("<u2").tobytes())


def gpt2_job(ranks, threads):
    adamw = "{kind: adamw, betas: [0.9, 0.95], weight_decay: 0.1, clip_norm: 1.0}"
    return JOB.format(model=GPT2[0], ranks=ranks, threads=threads, data=TOKENS % 4, optimizer=adamw)


class Contestant:
    """Processes that print a line a step; stopped but in their turns. Wall: the first one's; processor: all's."""

    def __init__(self, commands, environments):
        self.commands, self.environments, self.children = commands, environments, []

    def start(self, warm):
        self.children = [subprocess.Popen(c, env=e, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
                                          start_new_session=True) for c, e in zip(self.commands, self.environments)]
        self.read(warm)
        self.send(signal.SIGSTOP)
        return self

    def send(self, what):
        for child in self.children:
            os.killpg(child.pid, what)

    def read(self, steps):
        rows = [[tuple(map(float, c.stdout.readline().split())) for _ in range(steps)] for c in self.children]
        if any(len(row) != 2 for lines in rows for row in lines):
            raise RuntimeError(f"ended early: {self.commands[0]}")
        return [(of_all[0][0], sum(row[1] for row in of_all)) for of_all in zip(*rows)]

    def drain(self):
        """Lines printed since the last turn's end: whole ones, since each is one write."""
        for child in self.children:
            while select.select([child.stdout], [], [], 0)[0] and child.stdout.readline():
                pass

    def take_turn(self, steps):
        self.drain()
        self.send(signal.SIGCONT)
        rows = self.read(steps + 1)[1:]
        self.send(signal.SIGSTOP)
        return rows

    def end(self):
        if self.children:
            self.send(signal.SIGKILL)
        for child in self.children:
            child.wait()
            child.stdout.close()


def weft(build, job, *options):
    return Contestant([[build / "tests/bench/bench_step", "--warm", "0", "--steps", "1000", "--each", *options, job]],
                      [{**os.environ, "WEFT_BACKEND_DIR": str(build)}])  # fmt: skip


def variants(ranks):
    """Of PyTorch: name, mode, environment. Two ranks would need more memory than is there for all."""
    huge, asleep = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, {"OMP_WAIT_POLICY": "passive"}
    yield "eager, huge pages", "eager", {**huge, **asleep}
    yield "compiled, huge pages", "compiled", {**huge, **asleep}
    jemalloc = glob.glob("/usr/lib/*/libjemalloc.so.2")
    if jemalloc:
        yield "compiled, jemalloc", "compiled", {"LD_PRELOAD": jemalloc[0], **asleep}
    else:
        print("LEFT OUT  jemalloc: apt-get install libjemalloc2")
    if ranks == 1:
        yield "compiled, huge, awake", "compiled", huge


def torch(python, build, model, batch, ranks, mode, settings):
    threads = 2 // ranks
    args = {**model, "batch": batch, "threads": threads, "warm": 0, "steps": 1000000, "mode": mode}
    command = [python, pathlib.Path(__file__).parent / "peers_torch.py", json.dumps(args)]
    store = tempfile.mktemp(dir=build)
    common = {**os.environ, "OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": str(build / "inductor"),
              "WORLD_SIZE": str(ranks), "STORE": store, "GLOO_SOCKET_IFNAME": "lo", **settings}  # fmt: skip
    return Contestant([command] * ranks, [{**common, "RANK": str(r)} for r in range(ranks)])


def fastest(rows):
    walls = sorted(wall for wall, _ in rows)
    return walls[len(walls) // 10]


def keep_off():
    """Whatever KEEP_OFF does has begun when it echoes, and ends when its input does."""
    command = shlex.split(os.environ.get("KEEP_OFF", "")) + ["sh", "-c", "echo; exec cat"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    return holder


def write_job(where, name):
    (model, sizes), batch, ranks, _ = MODELS[name]
    gpt, data = sizes["model"] == "gpt", {"gpt": TOKENS, "mlp": LABELLED, "vae": IMAGES}[sizes["model"]]
    optimizer = "betas: [0.9, 0.95], weight_decay: 0.1, clip_norm: 1.0" if gpt else "weight_decay: 0.01"
    if gpt:
        write_tokens(where / "train.bin", 1000000, sizes["vocab"])
    job = where / f"{name}.yaml"
    job.write_text(JOB.format(model=model, ranks=ranks, threads=2 // ranks, data=data % batch,
                              optimizer=f"{{kind: adamw, {optimizer}}}"))
    return job


def write_images(where):
    draw = numpy.random.default_rng(1)
    numpy.save(where / "images.npy", draw.integers(0, 256, (SAMPLES, 784), dtype=numpy.uint8))
    numpy.save(where / "labels.npy", draw.integers(0, 10, SAMPLES, dtype=numpy.int32))


def compare(name, job, build, python, rounds):
    """The turns of weft and, if there is PyTorch, its variants."""
    (_, model), batch, ranks, steps = MODELS[name]
    contestants = {"weft": weft(build, job)}
    for what, mode, environment in variants(ranks) if python else []:
        contestants[what] = torch(python, build, model, batch, ranks, mode, environment)
    turns = {what: [] for what in contestants}
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(lambda c: c.start(2), contestants.values()))
        holder = keep_off()
        for _ in range(rounds):
            for what, c in contestants.items():
                turns[what].append(c.take_turn(steps))
        holder.communicate()
    finally:
        for c in contestants.values():
            c.end()
    return turns


def report(name, turns):
    """A row each, beside the first one's; and whether the goal is met."""
    medians = {what: [tuple(statistics.median(r[k] for r in rows) for k in (0, 1)) for rows in of_one]
               for what, of_one in turns.items()}  # fmt: skip
    least = {what: fastest([row for rows in of_one for row in rows]) for what, of_one in turns.items()}
    first, ratios = next(iter(turns)), []
    for what, rows in medians.items():
        wall, processor = (statistics.median(r[k] for r in rows) for k in (0, 1))
        line = f"{name:19} {what:22} {wall:9.1f} {processor:9.1f}"
        if what != first:
            ratio = [statistics.median(p[k] / w[k] for w, p in zip(medians[first], rows)) for k in (0, 1)]
            ratio.append(least[what] / least[first])
            ratios.append(ratio)
            line += " {:7.2f} {:11.2f} {:8.2f}".format(*ratio)
        print(line)
    if ratios:
        best = [min(of_all) for of_all in zip(*ratios)]
        print(f"{name:19} {'beside the best':22} {'':19} {{:7.2f}} {{:11.2f}} {{:8.2f}}".format(*best)
              + f"   {GOAL} {'met' if min(best) >= GOAL else 'missed'}")
    sys.stdout.flush()


def print_table(build, job, steps):
    out = subprocess.run([build / "tests/bench/bench_step", "--warm", "2", "--steps", str(3 * steps), "--table", job],
                         check=True, env={**os.environ, "WEFT_BACKEND_DIR": str(build)}, stdout=subprocess.PIPE,
                         text=True).stdout.splitlines()  # fmt: skip
    print(f"\n{job.stem}, weft by instruction\n{out[0]}\n{out[1]}")
    for line in out[2:]:
        if float(line.split("%")[1].split()[-1]) >= 1:
            print(line)


def write_weights(path):
    """A model of llm.c's, drawn like weft's."""
    layers, embed, padded, longest = 12, 768, 50304, 1024
    draw = numpy.random.default_rng(0)
    shapes = [(padded, embed), (longest, embed), (1, layers, embed), (0, layers, embed), (layers, 3 * embed, embed),
              (0, layers, 3 * embed), (layers, embed, embed), (0, layers, embed), (1, layers, embed),
              (0, layers, embed), (layers, 4 * embed, embed), (0, layers, 4 * embed), (layers, embed, 4 * embed),
              (0, layers, embed), (1, embed), (0, embed)]  # fmt: skip
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


def run_llmc(source, where, steps):
    """GPT-2's steps. Its program trains 40 with texts in between: it is ended after those that count."""
    data = where / "dev/data/tinyshakespeare"
    data.mkdir(parents=True)
    for part in ("train", "val"):
        write_tokens(data / f"tiny_shakespeare_{part}.bin", 100000)
    write_weights(where / "gpt2_124M.bin")
    subprocess.run(["gcc", "-Ofast", "-march=native", "-fopenmp", "-DOMP", "-Wno-unused-result", "-o",
                    where / "train_gpt2", f"{source}/train_gpt2.c", "-lm"], check=True)  # fmt: skip
    rows, before, sleepy = [], None, {**os.environ, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    holder = keep_off()
    with subprocess.Popen(["stdbuf", "-oL", where / "train_gpt2"], cwd=where, env=sleepy, stdout=subprocess.PIPE,
                          text=True) as child:  # fmt: skip
        for line in child.stdout:
            if " (took " not in line:
                continue
            wall, now = float(line.split(" (took ")[1].split()[0]), processor_ms(child.pid)
            rows.append((wall, None if before is None else now - before))
            before = now
            if len(rows) == steps + 1:
                break
        child.kill()
    holder.communicate()
    return rows[1:]  # between the first and the others no evaluation lies


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # nobody stays behind
    build = pathlib.Path(sys.argv[1]).resolve()
    names, rounds = sys.argv[2:] or list(MODELS), int(os.environ.get("ROUNDS", 5))
    python = os.environ.get("TORCH_PYTHON", str(build / "torch/bin/python"))
    if not pathlib.Path(python).exists():
        print("LEFT OUT  PyTorch: TORCH_PYTHON does not say where it is")
        python = None
    with tempfile.TemporaryDirectory(dir=build) as folder:
        where = pathlib.Path(folder)
        write_images(where)
        print(f"{'ms a step':42} {'wall':>9} {'processor':>9} {'x wall':>7} {'x processor':>11} {'x least':>8}")
        for name in names:
            report(name, compare(name, write_job(where, name), build, python, rounds))
        if "gpt2" in names and os.environ.get("LLMC"):
            report("gpt2", {"llm.c": [run_llmc(os.environ["LLMC"], where, 3)]})
        elif "gpt2" in names:
            print("LEFT OUT  llm.c: LLMC does not say where it is")
        for name in names:
            print_table(build, write_job(where, name), MODELS[name][3])


if __name__ == "__main__":
    main()
