# SPDX-License-Identifier: Apache-2.0
"""weft run in a storm: it and its ranks are killed or stopped for a while at any moment, its terminal hangs up, its
folder is moved, a second run is tried, verbs that read and that act come in between, and the same command is given
again at once. It ends with the bits of an undisturbed run.

WEFT_SEED=N draws other storms, WEFT_ROUNDS=N how many."""
import contextlib
import os
import random
import signal
import subprocess
import time

import pytest
import runs

STEPS = 800
TRIES = 6
READS = ["why", "status", "watch", "logs", "checkpoints", "jobs", "workers"]
ACTS = ["hold", "preempt", "cancel", "resume"]


@pytest.fixture(scope="module")
def calm(tmp_path_factory, noise):
    run = runs.Run(tmp_path_factory.mktemp("calm"), runs.busy_job(noise, 2, train__steps=STEPS), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    return run.final()


class Storm:
    def __init__(self, place, noise, seed):
        self.rng, self.place, self.moves = random.Random(seed), place, 0
        self.job = runs.busy_job(noise, 2, train__steps=STEPS)
        (place / "at-0").mkdir()
        self.settle()

    def settle(self):
        self.run = runs.Run(self.place / f"at-{self.moves}", self.job, "mine")

    def start(self):
        return runs.watch_over(subprocess.Popen([runs.WEFT, "run", str(self.run.file)], stdout=subprocess.PIPE,
                                                stderr=subprocess.STDOUT, text=True, preexec_fn=os.setpgrp))  # fmt: skip

    def strike(self, process):
        """One blow to a rank or to the run, questions, a second run; then, mostly, the run is ended."""
        time.sleep(self.rng.random() ** 2 * 1.5)
        blow = self.rng.choice(["rank", "rank", "pause", "second", "none"])
        ranks = [p for p in runs.processes_naming(self.place) if os.path.basename(runs.cmdline(p)[0]) == b"weft-rank"]
        if blow == "rank" and ranks:
            runs.kill_pid(self.rng.choice(ranks))
        elif blow == "pause":
            process.send_signal(signal.SIGTSTP)  # it stops only where a shell could continue it
            time.sleep(self.rng.random() * 0.5)
            process.send_signal(signal.SIGCONT)
        elif blow == "second":
            second = runs.weft("run", str(self.run.file))
            assert second.code == 4 or process.poll() is not None, second
        if self.rng.random() < 0.6:
            self.ask(self.rng.choice(READS if self.rng.random() < 0.7 else ACTS))
        if self.rng.random() < 0.8:
            time.sleep(self.rng.random() * 0.3)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGHUP]))

    def ask(self, verb):
        """Any answer will do: the run begins, ends, or is there; but it comes, and nothing is spoilt by it."""
        state = self.run.place / ".weft" / "test"
        words = [] if verb in ("jobs", "workers") else ["test"]
        q = subprocess.Popen([runs.WEFT, verb, *words, "--coordinator", state], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self.rng.random() < 0.3 or verb == "watch":
            time.sleep(self.rng.random() * 0.1)
            q.kill()
        q.wait(timeout=runs.WATCHDOG)

    def move(self):
        self.moves += 1
        self.run.place.rename(self.place / f"at-{self.moves}")
        self.settle()


@pytest.mark.parametrize("seed", runs.seeds(1, 16))
def test_weft_run_survives_any_storm_with_the_same_bits(place, noise, calm, seed):
    storm = Storm(place, noise, seed)
    for attempt in range(TRIES + 1):
        process = storm.start()
        if attempt < TRIES:
            storm.strike(process)
        out, _ = process.communicate(timeout=runs.WATCHDOG)
        if process.returncode == 0:
            break
        # 78: a verb held or cancelled it; 4: a verb that acts has the folder just now.
        assert process.returncode in (-signal.SIGKILL, -signal.SIGINT, -signal.SIGHUP, 78, 4, 130), (attempt, process.returncode, out)
        assert process.returncode != 78 or "HELD" in out or "CANCELLED" in out, out
        assert process.returncode != 4 or "is in use by pid" in out, out
        if storm.rng.random() < 0.4:
            storm.move()
    assert process.returncode == 0, out
    assert storm.run.final() == calm
