# SPDX-License-Identifier: Apache-2.0
"""Starts programs, keeps what they say and what they chose, ends those that take too long, and watches the device."""
import contextlib
import datetime
import os
import pathlib
import re
import signal
import subprocess
import tarfile
import time

# What kernels/cuda logs of a choice of its own making: key, place among what the library named, of how many, algorithm,
# us, us of the first of them; of attention the engine alone; of a product and what follows us in one kernel and in two,
# or that there is no such kernel.
CHOSE = re.compile(r" cuda (?:\S+=\S+ )*(.*): chosen (\d+) of (\d+) \((.*)\): ([0-9.]+) us, "
                   r"the library's first ([0-9.]+) us$", re.M)
ENGINE = re.compile(r" cuda (?:\S+=\S+ )*(.*): chosen (cudnn-\S+)$", re.M)
BEHIND = re.compile(r" cuda (?:\S+=\S+ )*(.*): with what follows it in one kernel ([0-9.]+) us, in two ([0-9.]+)$", re.M)
WITHOUT = re.compile(r" cuda (?:\S+=\S+ )*(.*): (?:the library declined what follows the product|the library has no kernel with these sums)$", re.M)
# What kernels/cuda logs of it; who asked for it by a switch fell back on nothing.
FELL_BACK = re.compile(r"(our own kernels serve it|the library declined)(?!.*WEFT_CUDA_)")
KEPT, LOG = 400_000, 15 << 20  # bytes of what one program said, and of the log: 16 MiB a file come back
SAMPLED = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.free"


class Failed(Exception):
    """Why, and what was said before."""


def output_of(*command):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
                              timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def reason(text):
    """The line of an output that says why; memory first, since what follows it are consequences."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    memory = [x for x in lines if "out of memory" in x.lower() or "RESOURCE_EXHAUSTED" in x or "device memory" in x]
    errors = [x for x in lines if "Error" in x or " error " in x or "error:" in x]
    said = (memory or errors[-1:] or lines[-1:] or ["it said nothing"])[0]
    return ("out of memory: " if memory else "") + said[:600]  # of a rank: behind where, when and in which call


def fallen(text):
    """The lines that say that the libraries did not serve a call."""
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if FELL_BACK.search(line)))


def chosen(text):
    """The choices in a log, each a row: key, place, of, us, us of the library's first, algorithm."""
    return [*((key, place, of, us, first, algorithm) for key, place, of, algorithm, us, first in CHOSE.findall(text)),
            *((key, "-", "-", "-", "-", engine) for key, engine in ENGINE.findall(text))]


def behind(text):
    """What a log says of products and what follows them, each a row: key, verdict, us in one kernel, us in two."""
    return [*((key, "fused" if float(one) < float(two) else "slower", one, two) for key, one, two in BEHIND.findall(text)),
            *((key, "none", "-", "-") for key in WITHOUT.findall(text))]


class Sampler:
    """The device's clocks, power, temperature and free memory, twice a second, while it is entered."""

    def __init__(self, scratch):
        self.path, self.process = scratch / "samples", None

    def __enter__(self):
        with open(self.path, "w") as out:
            try:
                self.process = subprocess.Popen(["nvidia-smi", "-i", "0", f"--query-gpu={SAMPLED}", "--format=csv,noheader,nounits", "-lms", "500"],
                                                stdout=out, stderr=subprocess.DEVNULL)
            except OSError:
                pass
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()

    def between(self, began, ended):
        """Those of a time of time.monotonic()'s."""
        rows, to_monotonic = [], time.monotonic() - time.time()
        for line in self.path.read_text().splitlines():
            when, *words = line.split(", ")
            with contextlib.suppress(ValueError):
                at = datetime.datetime.strptime(when, "%Y/%m/%d %H:%M:%S.%f").timestamp() + to_monotonic
                if began <= at <= ended and len(words) == 5:
                    rows.append([float(w) if w[:1].isdigit() else 0.0 for w in words])
        return rows


class Runner:
    """Starts programs, keeps what they say in OUT's log, and ends those that take too long."""

    def __init__(self, o, scratch):
        self.o, self.scratch = o, scratch
        self.log = o.out / f"gpu-{'-'.join(o.stage)}-log.txt"
        self.cache = scratch / "cache"
        self.env = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "TORCHINDUCTOR_CACHE_DIR": str(self.cache / "inductor"),
                    "TRITON_CACHE_DIR": str(self.cache / "triton"), "JAX_COMPILATION_CACHE_DIR": str(self.cache / "jax"),
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONUNBUFFERED": "1"}
        # CUDA's libraries for us alone: the peers know their own (tests/cuda/libraries.sh).
        ours = os.environ.get("WEFT_LIBRARIES")
        self.weft_env = {"WEFT_BACKEND_DIR": str(o.bundle), **self.env, **({"LD_LIBRARY_PATH": ours} if ours else {})}
        self.fell_back, self.chosen, self.behind = [], [], []  # by the program that ran last
        self.firsts = {}  # of a size and batch: which of weft's trainings was the first, and its rows
        (self.cache / "weft").mkdir(parents=True)
        if o.choices:
            try:
                with tarfile.open(o.choices) as packed:
                    packed.extractall(self.cache / "weft")
            except (OSError, tarfile.TarError) as e:
                print(f"{o.choices} cannot be read, all is chosen anew: {e}", flush=True)

    def keep_choices(self):
        """In OUT, for the next call: each is timed once."""
        if any((self.cache / "weft").iterdir()):
            with tarfile.open(self.o.out / "choices.new", "w") as packed:
                packed.add(self.cache / "weft", arcname=".")
            (self.o.out / "choices.new").replace(self.o.out / "choices.tar")

    def keep(self, command, text):
        if len(text) > KEPT:
            text = f"{text[: KEPT // 4]}\n[{len(text) - KEPT} bytes are left out]\n{text[-KEPT * 3 // 4 :]}"
        with open(self.log, "a") as log:
            if log.tell() < LOG - KEPT:
                log.write(f"== {' '.join(map(str, command))}\n{text}\n")

    def heed(self, text):
        self.fell_back, self.chosen, self.behind = fallen(text), chosen(text), behind(text)

    def run(self, command, limit, env, watch=None):
        """What it printed; its errors and a bad end are one. watch() is shown each second what came so far."""
        said = [self.scratch / "stdout", self.scratch / "stderr"]
        ends, late = time.monotonic() + limit, False
        with open(said[0], "wb") as out, open(said[1], "wb") as err:
            try:
                p = subprocess.Popen(command, env=env, cwd=self.scratch, stdout=out, stderr=err, process_group=0)
            except OSError as e:
                raise Failed(f"cannot start {command[0]}: {e.strerror}", "") from None
            while p.poll() is None and not late:
                late = time.monotonic() >= ends
                try:
                    p.wait(timeout=min(1, max(0.01, ends - time.monotonic())))
                except subprocess.TimeoutExpired:
                    if watch:
                        watch(said[0].read_text(errors="replace"))
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
        out, err = (f.read_text(errors="replace") for f in said)
        self.keep(command, out + err)
        self.heed(err)
        if late and p.returncode:
            raise Failed(f"not done after {limit:.0f} s", out + err)
        if p.returncode:
            raise Failed(reason(err or out), out + err)
        return out

    def program(self, *places):
        for place in places:
            if (self.o.bundle / place).is_file():
                return self.o.bundle / place
        raise Failed(f"{self.o.bundle} has no {places[0]}", "")

    def libraries(self):
        """Lines about what our programs load, and where it is found. Each is read once from the disk here, so that no turn is
        charged for it."""
        path, lines = self.weft_env.get("LD_LIBRARY_PATH", ""), []
        for pattern in ("libcublasLt.so.1*", "libcudnn.so.9", "libcudnn_graph.so.9", "libcudnn_heuristic.so.9", "libcudnn_engines_*.so.9", "libnccl.so.2"):
            # The linker takes those of the first folder; who comes later is named too.
            places = [found for f in path.split(":") if f and (found := sorted({lib.resolve() for lib in pathlib.Path(f).glob(pattern)}))]
            for lib in places[0] if places else []:
                began, size = time.monotonic(), 0
                with open(lib, "rb", buffering=0) as f:
                    while piece := f.read(1 << 24):
                        size += len(piece)
                lines.append(f"{lib}: {size / 1e6:.0f} MB, read in {time.monotonic() - began:.1f} s")
            others = dict.fromkeys(lib for found in places[1:] for lib in found if lib not in places[0])
            lines += [f"{lib}: behind it" for lib in others] or ([] if places else [f"{pattern}: in no folder of LD_LIBRARY_PATH"])
        ldd = output_of("env", f"LD_LIBRARY_PATH={path}", "ldd", self.o.bundle / "libweft_cuda.so")
        return lines + [f"ldd: {line.strip()}" for line in ldd.splitlines() if "not found" in line or "cublas" in line]
