# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of four nodes (tests/support/slurm.py): the batch script of `weft render` trains over all of them, and comes
to the digests of an undisturbed run through a time limit, preemption, the loss of a node and of the leader's."""
import time

import pytest
import runs
import slurm

pytestmark = pytest.mark.skipif(not runs.LONG, reason="Slurm is started in check-long")
STEPS = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    slurm.need()
    s = slurm.Slurm(tmp_path_factory.mktemp("slurm"))
    yield s
    s.stop()


@pytest.fixture(scope="module")
def calm(tmp_path_factory, noise):
    run = runs.Run(tmp_path_factory.mktemp("calm"), runs.busy_job(noise, 4, train__steps=STEPS), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    return run.final()


class Submitted:
    """A job in Slurm's queue: as `weft render` says it."""

    def __init__(self, cluster, run, *options, words=()):
        self.cluster, self.run = cluster, run
        script = run.place / "batch.sh"
        script.write_text(runs.weft("render", "--for", "slurm", str(run.file), "--per-node", "1", *words).out)
        self.id = cluster.call("sbatch", "--parsable", *options, str(script), cwd=run.place).out.strip()

    def log(self):
        return "\n".join(p.read_text(errors="replace") for p in self.run.place.glob(f"*-{self.id}.log"))

    def await_step(self, step):
        """Until a checkpoint of this step or a later one is committed; what Slurm says of the job then."""

        def reached():
            now = self.cluster.job(self.id)
            assert now.get("JobState") not in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), (now, self.log())
            return self.saved() >= step

        self.run.wait_until(reached)
        return self.cluster.job(self.id)

    def saved(self):
        found = self.run.checkpoints() if self.run.stores() else []
        return found[-1].step if found else -1

    def end(self):
        now = self.cluster.await_end(self.id)
        return now["JobState"], now["ExitCode"], int(now["Restarts"])


@pytest.fixture
def submit(cluster, place, noise):
    jobs = []

    def submit(*options, words=(), **changes):
        run = runs.Run(place, runs.busy_job(noise, 4, **{"train__steps": STEPS, **changes}), "mine")
        jobs.append(Submitted(cluster, run, *options, words=words))
        return jobs[-1]

    yield submit
    for j in jobs:
        cluster.call("scancel", "-s", "KILL", j.id, check=False)
        cluster.await_end(j.id)
    cluster.await_idle()


def test_it_trains_over_four_nodes_to_the_bits_of_one(submit, calm):
    job = submit()
    assert job.end() == ("COMPLETED", "0:0", 0), job.log()
    assert job.run.final() == calm
    assert "leads 4 hosts (SLURM_JOB_ID=" in job.log() and "4 ranks placed: 1 on " in job.log(), job.log()
