# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of four nodes (tests/support/slurm.py): `weft sbatch` trains over all of them, and comes to the digests of
an undisturbed run through a time limit, preemption, the loss of a node and of the leader's."""
import json

import pytest
import runs
import slurm

pytestmark = pytest.mark.skipif(not runs.LONG, reason="Slurm is started in check-long")
STEPS = 800


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    slurm.need()
    s = slurm.Slurm(tmp_path_factory.mktemp("slurm"))
    yield s
    s.stop()


@pytest.fixture(scope="module")
def calm_of(tmp_path_factory):
    """What a job comes to on one host, undisturbed."""

    def train(run):
        alone = runs.Run(tmp_path_factory.mktemp("calm"), json.loads(json.dumps(run.job)), "mine")
        end = runs.weft("run", str(alone.file))
        assert end.code == 0, end
        return alone.final()

    return train


@pytest.fixture(scope="module")
def calm(calm_of, tmp_path_factory, noise):
    return calm_of(runs.Run(tmp_path_factory.mktemp("job"), runs.busy_job(noise, 4, train__steps=STEPS), "mine"))


class Submitted:
    """A job in Slurm's queue."""

    def __init__(self, cluster, run, *options, words=()):
        self.cluster, self.run = cluster, run
        end = cluster.call(runs.WEFT, "sbatch", str(run.file), "--per-node", "1", "--json", *words, "--", *options, cwd=run.place)
        self.said = json.loads(end.out)
        self.id = self.said["job"]

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


def test_at_its_time_limit_it_saves_is_queued_again_and_continues(submit, calm_of):
    """However many steps it did until then: its end is put behind them while it waits in the queue."""
    job = submit("--time=1", "--signal=TERM@10", schedule={"kind": "constant", "value": 1e-3}, train__steps=1000000)
    job.await_step(7)
    job.cluster.await_job(job.id, lambda j: j["Restarts"] == "1" and j["JobState"] == "PENDING")
    steps = job.saved() + 20
    job.run.save_job({**job.run.job, "train": {**job.run.job["train"], "steps": steps}})
    assert job.end() == ("COMPLETED", "0:0", 1), job.log()
    assert f"continues from step-{steps - 20:08d}" in job.log(), job.log()
    assert job.run.final() == calm_of(job.run)


def test_preempted_it_saves_is_queued_again_and_ends_with_the_same_bits(submit, calm):
    job = submit()
    job.await_step(7)
    other = job.cluster.call("sbatch", "--parsable", "-p", "high", "-N4", "-o", "/dev/null", "--wrap=sleep 1").out.strip()
    job.cluster.await_job(job.id, lambda j: j["Restarts"] == "1")
    at = job.saved()
    assert at > 0 and job.cluster.await_end(other)["JobState"] == "COMPLETED"
    assert job.end() == ("COMPLETED", "0:0", 1), job.log()
    assert f"continues from step-{at:08d}" in job.log() and job.run.final() == calm, job.log()


@pytest.mark.parametrize("node, notices", [("n2", "slurm"), ("n2", "weft"), ("n0", "slurm"), ("n0", "weft")])
def test_a_node_is_lost_and_the_job_is_started_again_with_the_same_bits(submit, calm, node, notices):
    """n0 has the batch script and the leader. `weft` sees the loss before Slurm does, which looks every ten seconds."""
    job = submit()
    job.await_step(7)
    job.cluster.kill_node(node)
    if notices == "slurm":
        job.cluster.mark_down(node)
    job.cluster.await_job(job.id, lambda j: j["Restarts"] == "1")
    job.cluster.resume_node(node)
    assert job.end() == ("COMPLETED", "0:0", 1), job.log()
    assert job.run.final() == calm, job.log()


def test_cancelled_it_saves_and_is_not_queued_again(submit):
    job = submit(train__steps=1000000)
    job.await_step(7)
    job.cluster.call("scancel", job.id)
    state, _, restarts = job.end()
    assert (state, restarts) == ("CANCELLED", 0), job.log()
    assert not runs.processes_naming(job.run.place)
    assert "DRAINING committed" in job.log(), job.log()


def test_tasks_of_an_array_are_jobs_of_their_own(submit):
    job = submit("--array=3,5", "--nodes=1", train__steps=20, mesh={"dp": 1})
    for task in (3, 5):
        assert job.cluster.await_end(f"{job.id}_{task}")["ExitCode"] == "0:0", job.cluster.ask("squeue", "-t", "all")
    assert {s.name.rsplit("-", 1)[0] for s in job.run.stores()} == {"test-3", "test-5"}


def test_variables_of_two_schedulers_fail_the_job_at_once(submit):
    job = submit("--export=ALL,JOB_COMPLETION_INDEX=0")
    assert job.end() == ("FAILED", "78:0", 0), job.log()
    assert "SLURM_STEP_ID and JOB_COMPLETION_INDEX are both set" in job.log(), job.log()


def test_why_says_what_slurm_makes_it_wait_for_and_then_what_it_did(submit):
    job = submit("--begin=now+3")
    why = job.cluster.call(runs.WEFT, "why", "test", cwd=job.run.place)
    assert f"Slurm's job {job.id}: PENDING (BeginTime): it was queued again" in why.out, why
    assert job.end() == ("COMPLETED", "0:0", 0), job.log()
    said = json.loads(job.cluster.call(runs.WEFT, "why", "test", "--json", cwd=job.run.place).out)
    assert said["slurm"][0]["state"] == "COMPLETED" and said["status"]["state"] == "SUCCEEDED", said
