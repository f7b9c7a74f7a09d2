# SPDX-License-Identifier: Apache-2.0
"""Starts programs, keeps what they say, and ends those that take too long."""
import os
import re
import signal
import subprocess
import time

# What kernels/cuda logs of a choice of its own making: key, place among what the library named, of how many, algorithm,
# us, us of the first of them; of attention the engine alone; of a product and what follows us of two kernels and of one.
CHOSE = re.compile(r" cuda (?:\S+=\S+ )*(.*): chosen (\d+) of (\d+) \((.*)\): ([0-9.]+) us, "
                   r"the library's first ([0-9.]+) us$", re.M)
ENGINE = re.compile(r" cuda (?:\S+=\S+ )*(.*): chosen (cudnn-\S+)$", re.M)
APART = re.compile(r" cuda (?:\S+=\S+ )*(.*): a kernel of its own behind the product is faster: ([0-9.]+), not ([0-9.]+) us$", re.M)
# What kernels/cuda logs of it; who asked for it by a switch fell back on nothing.
FELL_BACK = re.compile(r"(our own kernels serve it|the library declined)(?!.*WEFT_CUDA_)")


class Failed(Exception):
    """Why, and what was said to stdout before."""


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
    return ("out of memory: " if memory else "") + said[:200]


def fallen(text):
    """The lines that say that the libraries did not serve a call."""
    return list(dict.fromkeys(line.strip() for line in text.splitlines() if FELL_BACK.search(line)))


def chosen(text):
    """The choices in a log, each a row: key, place, of, us, us of the library's first, algorithm."""
    return [*((key, place, of, us, first, algorithm) for key, place, of, algorithm, us, first in CHOSE.findall(text)),
            *((key, "-", "-", two, one, "two kernels; the last time is of one") for key, two, one in APART.findall(text)),
            *((key, "-", "-", "-", "-", engine) for key, engine in ENGINE.findall(text))]


class Runner:
    """Starts programs, keeps what they say in OUT's log, and ends those that take too long."""

    def __init__(self, o, scratch):
        self.o, self.scratch = o, scratch
        self.log = o.out / "gpu-bench-log.txt"
        cache = scratch / "cache"
        self.env = {**os.environ, "XDG_CACHE_HOME": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
                    "TRITON_CACHE_DIR": str(cache / "triton"), "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
                    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONUNBUFFERED": "1"}
        # CUDA's libraries for us alone: the peers know their own (tests/cuda/libraries.sh).
        ours = os.environ.get("WEFT_LIBRARIES")
        self.weft_env = {"WEFT_BACKEND_DIR": str(o.bundle), **self.env, **({"LD_LIBRARY_PATH": ours} if ours else {})}
        self.arch = None  # of the device, "90"
        self.fell_back, self.chosen = [], []  # by the program that ran last
        cache.mkdir()

    def keep(self, command, text):
        with open(self.log, "a") as log:
            log.write(f"== {' '.join(map(str, command))}\n{text}\n")

    def run(self, command, limit, env, watch=None):
        """What it printed; its errors and a bad end are one. watch() is shown each second what came so far."""
        said = [self.scratch / "stdout", self.scratch / "stderr"]
        ends, late = time.monotonic() + limit, False
        with open(said[0], "wb") as out, open(said[1], "wb") as err:
            try:
                p = subprocess.Popen(command, env=env, cwd=self.scratch, stdout=out, stderr=err, start_new_session=True)
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
        self.fell_back, self.chosen = fallen(err), chosen(err)
        if late and p.returncode:
            raise Failed(f"not done after {limit:.0f} s", out)
        if p.returncode:
            raise Failed(reason(err or out), out)
        return out

    def program(self, *places):
        for place in places:
            if (self.o.bundle / place).exists():
                return self.o.bundle / place
        raise Failed(f"{self.o.bundle} has no {places[0]}", "")
