# SPDX-License-Identifier: Apache-2.0
"""A `weft run` over several hosts as a scheduler starts it: so many processes on this machine, each with a node-local
folder of its own, and the variables of Slurm's step or of an Indexed Job's pods, set by hand."""
import os
import subprocess

import runs

STEPS = 300  # of the job that conftest's `calm` trains undisturbed
OURS = ("SLURM_", "PET_", "JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "WEFT_WAIT", "WEFT_SECRET_FILE")


def clean():
    return {k: v for k, v in os.environ.items() if not k.startswith(OURS)}


def slurm(index, size, start=0, job=71):
    return {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(index), "SLURM_NTASKS": str(size),
            "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": f"n[0-{size - 1}]", "SLURM_RESTART_COUNT": str(start)}  # fmt: skip


def pod(index, size):
    return {"JOB_COMPLETION_INDEX": str(index), "WORLD_SIZE": str(size)}


class Allocation:
    def __init__(self, run, size, scheduler=slurm):
        self.run, self.size, self.scheduler, self.starts = run, size, scheduler, 0
        self.processes = []

    def start_one(self, index, *words, **env):
        node = self.run.place / f"node-{index}"
        node.mkdir(exist_ok=True)
        set_by = self.scheduler(index, self.size, self.starts) if self.scheduler is slurm else self.scheduler(index, self.size)
        return runs.watch_over(subprocess.Popen(
            [runs.WEFT, "run", str(self.run.file), *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**clean(), **set_by, "TMPDIR": str(node), **env}))  # fmt: skip

    def start(self, *words, **env):
        self.processes = [self.start_one(i, *words, **env) for i in range(self.size)]
        return self.processes

    def ends(self):
        ends = [ended(p) for p in self.processes]
        self.starts += 1
        return ends

    def codes(self):
        ends = self.ends()
        return [e.code for e in ends], ends

    def file(self):
        return self.run.place / f"{self.run.dir.name}-ckpt" / ".weft" / f"{self.run.job['name']}.leader"


def ended(process):
    out, err = process.communicate(timeout=runs.WATCHDOG)
    return runs.Ended(process.returncode, out, err)
