# SPDX-License-Identifier: Apache-2.0
"""weft sbatch, before Slurm has the job: what it gives to sbatch, and what it refuses. A program of the test's own stands for
sbatch here; tests/e2e/test_slurm.py has the real one."""
import json
import os
import subprocess

import allocation
import pytest
import runs

SBATCH = """#!/bin/sh
for word; do printf '%s\\n' "$word" >>got-words; done
cat >got-script
{answer}
"""


@pytest.fixture
def job(tmp_path, toy):
    return runs.Run(tmp_path, runs.job(toy, 4), "mine")


def sbatch(job, *words, answer="echo 4711", **env):
    tools = job.place / "tools"
    tools.mkdir(exist_ok=True)
    if answer:
        (tools / "sbatch").write_text(SBATCH.format(answer=answer))
        (tools / "sbatch").chmod(0o755)
    end = subprocess.run([runs.WEFT, "sbatch", str(job.file), *words], capture_output=True, text=True, cwd=job.place,
                         env={**allocation.clean(), "PATH": f"{tools}:/usr/bin:/bin" if answer else str(tools), **env})  # fmt: skip
    return runs.Ended(end.returncode, end.stdout, end.stderr)


def test_it_submits_what_render_prints_and_says_what_to_do_next(job):
    end = sbatch(job, "--per-node", "2", "-s", "train.steps=7", "--json", "--", "-p", "gpu", "--time=4:00:00")
    assert end.code == 0 and not end.err, end
    said = json.loads(end.out)
    assert (said["job"], said["name"], said["nodes"], said["devices_per_node"]) == ("4711", "test", 2, 2), said
    assert (job.place / "got-words").read_text().split() == ["--parsable", "-p", "gpu", "--time=4:00:00"]
    rendered = runs.weft("render", "--for", "slurm", str(job.file), "--per-node", "2", "-s", "train.steps=7").out
    # The nodes run this very program, which need not be in PATH there.
    assert (job.place / "got-script").read_text() == rendered.replace(" weft run ", f" '{os.path.realpath(runs.WEFT)}' run ")
    record = job.place / ".weft/test.slurm"
    assert record.read_text() == f"job 4711\nroot {job.place}/mine-ckpt\n" and record.stat().st_mode & 0o777 == 0o600
    end = sbatch(job, answer="echo '4712;north'")
    assert end.code == 0 and end.out.startswith("4712  test: 1 node, 4 devices on each") and "weft why test" in end.out, end


@pytest.mark.parametrize("words, env, answer, code, says", [
    ((), {}, None, 4, "sbatch is not in PATH"),
    ((), {}, "echo no such account >&2; exit 1", 4, "sbatch ended with 1"),
    ((), {}, "echo fine", 4, "no number"),
    ((), {"RANK": "0"}, "echo 1", 2, "RANK is set"),
    ((), {"JOB_COMPLETION_INDEX": "0"}, "echo 1", 2, "JOB_COMPLETION_INDEX is set"),
    (("-s", "data.train.images=nowhere"), {}, "echo 1", 2, "nowhere"),
    (("-s", "train.stepz=1"), {}, "echo 1", 2, "stepz"),
    (("--device", "cpu:memory=1MB"), {}, "echo 1", 2, "a device needs"),
    (("other.yaml",), {}, "echo 1", 2, "after a --"),
])  # fmt: skip
def test_what_could_only_fail_is_refused_before_it_waits(job, words, env, answer, code, says):
    end = sbatch(job, *words, answer=answer, **env)
    assert end.code == code and says in end.err and not end.out, end
    assert not (job.place / ".weft").exists()
    assert (job.place / "got-script").exists() == (code == 4 and answer is not None)
