# SPDX-License-Identifier: Apache-2.0
"""weft run in a storm: it, its daemons and its ranks are killed at any moment, its folder is moved, questions come in
between, and the same command is given again at once. It ends with the bits of an undisturbed run.

WEFT_SEED=N draws other storms, WEFT_ROUNDS=N how many."""
import contextlib
import os
import random
import signal
import subprocess
import time

import pytest
import solo

STEPS = 800
TRIES = 6
VICTIMS = ["weft", "weft", "weft-coordinator", "weft-worker", "weft-rank"]


@pytest.fixture(scope="module")
def calm(tmp_path_factory, noise):
    run = solo.Run(tmp_path_factory.mktemp("calm"), solo.busy_job(noise, 2, train__steps=STEPS), "mine")
    assert solo.weft("run", str(run.file)).code == 0
    return run.final()


class Storm:
    def __init__(self, place, noise, seed):
        self.rng, self.place, self.moves = random.Random(seed), place, 0
        self.job = solo.busy_job(noise, 2, train__steps=STEPS)
        (place / "at-0").mkdir()
        self.settle()

    def settle(self):
        self.run = solo.Run(self.place / f"at-{self.moves}", self.job, "mine")

    def start(self):
        return solo.watch_over(subprocess.Popen([solo.WEFT, "run", str(self.run.file)], stdout=subprocess.PIPE,
                                                stderr=subprocess.STDOUT, text=True))  # fmt: skip

    def strike(self, process):
        """Kills one process; then, mostly, the run too, or it is asked to stop."""
        time.sleep(self.rng.random() ** 2 * 1.5)
        name = os.fsencode(self.rng.choice(VICTIMS))
        found = [p for p in solo.processes_naming(self.place) if solo.cmdline(p)[:1] and os.path.basename(solo.cmdline(p)[0]) == name]
        if found:
            solo.kill_pid(self.rng.choice(found))
        if self.rng.random() < 0.4:
            self.ask()
        if self.rng.random() < 0.8:
            time.sleep(self.rng.random() * 0.3)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(self.rng.choice([signal.SIGKILL, signal.SIGINT]))

    def ask(self):
        """Any answer will do: the run begins, ends, or is there; but it comes, and nothing is spoilt by it."""
        state = self.run.place / ".weft" / "test"
        q = subprocess.Popen([solo.WEFT, "why", "test", "--coordinator", state], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self.rng.random() < 0.3:
            time.sleep(self.rng.random() * 0.1)
            q.kill()
        q.wait(timeout=solo.WATCHDOG)

    def move(self):
        self.moves += 1
        self.run.place.rename(self.place / f"at-{self.moves}")
        self.settle()


@pytest.mark.parametrize("seed", solo.seeds(1, 16))
def test_weft_run_survives_any_storm_with_the_same_bits(place, noise, calm, seed):
    storm = Storm(place, noise, seed)
    for attempt in range(TRIES + 1):
        process = storm.start()
        if attempt < TRIES:
            storm.strike(process)
        out, _ = process.communicate(timeout=solo.WATCHDOG)
        if process.returncode == 0:
            break
        assert process.returncode in (-signal.SIGKILL, -signal.SIGINT, 130), (attempt, process.returncode, out)
        if storm.rng.random() < 0.4:
            storm.move()
    assert process.returncode == 0, out
    assert storm.run.final() == calm
