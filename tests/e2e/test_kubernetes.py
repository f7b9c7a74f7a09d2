# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes: what its files say of one another and of the programs; and a rendered Job, run in pods of the
tests' own (support/pods.py). That Kubernetes takes them is tests/parity/manifests.py's, which builds the overlays."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import time
import warnings

import netns
import pods
import pytest
import runs
import yaml

HERE = runs.REPO / "deploy/kubernetes"
OVERLAY = HERE / "overlays/indexed-job"


def documents():
    for path in sorted(HERE.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.relative_to(HERE), document


def pod_specs():
    for path, document in documents():
        spec = document.get("spec", {})
        if document["kind"] in ("StatefulSet", "DaemonSet", "Job") and "gpu" not in path.parts:
            yield path, spec["template"]["spec"]


def test_the_overlay_has_what_render_prints_today():
    end = runs.weft("render", "--for", "job", "--per-node", "4", str(runs.REPO / "deploy/examples/gpt-3d.yaml"))
    assert (OVERLAY / "job.yaml").read_text() == end.out
    job = {d["kind"]: d for d in yaml.safe_load_all(end.out)}["Job"]
    others = {d["kind"]: d for f in ("network.yaml", "disruption.yaml") for d in yaml.safe_load_all((OVERLAY / f).read_text())}
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert others["PodDisruptionBudget"]["spec"]["minAvailable"] == job["spec"]["completions"]
    assert others["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert others["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_every_kustomization_names_files_that_are_there_and_this_version():
    (version,) = re.findall(r"^VERSION := (\S+)", (runs.REPO / "Makefile").read_text(), re.M)
    named = set()
    for path in HERE.rglob("kustomization.yaml"):
        text = yaml.safe_load(path.read_text())
        for file in [*text["resources"], *(p["path"] for p in text.get("patches", []))]:
            assert (path.parent / file).exists(), (path, file)
            named.add((path.parent / file).resolve())
        assert all(i["newTag"] == version for i in text.get("images", []))
    files = {f.resolve() for f in HERE.rglob("*.yaml") if f.name != "kustomization.yaml"}
    assert files - named == set()
    assert f"weft:{version} " in (HERE / "Containerfile").read_text()


def test_every_pod_is_one_that_a_restricted_namespace_takes():
    seen = 0
    for path, spec in pod_specs():
        if "monitoring" in path.parts:
            continue  # a patch: the pod's own context is the base's
        assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"], path
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, path
        for c in spec["containers"]:
            assert c["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                            "capabilities": {"drop": ["ALL"]}}, path
            mounted = {m["name"] for m in c["volumeMounts"]}
            assert mounted <= {v["name"] for v in spec["volumes"]} | {"state"}, path
        seen += 1
    assert seen == 3


@pytest.mark.parametrize("program", ["weft-coordinator", "weft-worker"])
def test_the_programs_know_every_flag_that_a_pod_gives_them(program):
    known = subprocess.run([runs.BUILD / program, "--help"], capture_output=True, text=True, check=True).stdout
    (command,) = [c["command"] for _, spec in pod_specs() for c in spec["containers"] if c.get("command", [""])[0] == program]
    flags = [w for w in command if w.startswith("--")]
    assert len(flags) > 4 and all(re.search(rf"^  {f} ", known, re.M) for f in flags), flags


def test_a_worker_saves_before_its_pod_is_killed():
    for _, spec in pod_specs():
        words = [w for c in spec["containers"] for w in c.get("command", [])]
        if "--grace" in words:
            assert int(words[words.index("--grace") + 1].rstrip("s")) + 30 <= spec["terminationGracePeriodSeconds"]


def test_the_image_is_built_from_what_is_there():
    text = (HERE / "Containerfile").read_text()
    for script, what in re.findall(r"sh (?:/tmp/|deploy/)(deps\.sh) (\w+)", text):
        env = {"PACKAGES_ONLY": "1", "PATH": "/usr/bin:/bin"}
        assert subprocess.run(["sh", runs.REPO / "deploy" / script, what], env=env, capture_output=True, check=False).stdout
    for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.M):
        assert (pathlib.Path(runs.REPO) / source).exists()


# ---- a rendered job, run -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def claim(tmp_path_factory):
    """What a claim holds: data, and later checkpoints; and the job file, whose paths begin there."""
    folder = tmp_path_factory.mktemp("claim")
    for parent in [folder, *folder.parents][:4]:  # pods are another user
        parent.chmod(parent.stat().st_mode | 0o055)
    data = runs.noise_set(folder)
    job = runs.busy_job(data, 4, name="pods", train__steps=150)
    text = json.dumps(job).replace(f"{folder}/", "")
    (folder / "job.yaml").write_text(text)
    assert runs.weft("run", str(folder / "job.yaml"), "-s", "checkpoint.dir=calm").code == 0
    return folder


@pytest.fixture
def rendered(place, claim):
    """Its Job over two pods, with a secret, on a claim without checkpoints."""
    shutil.rmtree(claim / "ckpt", ignore_errors=True)
    made = []

    def make(*words):
        end = runs.weft("render", "--for", "job", "--per-node", "2", "--secret", "s", str(claim / "job.yaml"), *words)
        assert end.code == 0, end
        try:
            made.append(pods.Job(place, {d["kind"]: d for d in yaml.safe_load_all(end.out)}, claim, {"secret": "x" * 32}))
            made[0].start()
        except (netns.Unavailable, PermissionError) as e:
            if os.environ.get("CI") == "true" and os.geteuid() == 0:
                pytest.fail(f"no namespaces: {e}")
            warnings.warn(f"SKIPPED for want of privileges: {e}")
            pytest.skip(str(e))
        return made[0]

    yield make
    for job in made:
        job.close()


def committed(claim):
    return [p.parent for p in claim.glob("ckpt/pods-*/step-*/COMMIT")]


def assert_same_bits(claim):
    (calm,) = claim.glob("calm/pods-*")
    (here,) = claim.glob("ckpt/pods-*")
    end = runs.weft("ckpt", "diff", str(calm), str(here), "--json")
    assert json.loads(end.out)["same"], end


def test_the_manifest_s_pods_train_to_the_bits_of_one_host(rendered, claim):
    job = rendered()
    ready = job.spec["template"]["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    assert job.run(until=lambda: len(committed(claim)) > 0), job.logs()
    assert all(pod.run_inside(ready) == 0 for pod in job.pods.values())
    assert job.run() and sorted(job.codes) == [(0, 0), (1, 0)], (job.codes, job.logs())
    assert_same_bits(claim)
    owners = {p.stat().st_uid for p in (claim / "ckpt").rglob("*")}
    assert owners == {int(job.spec["template"]["spec"]["securityContext"]["runAsUser"])}


def test_a_pod_that_has_lost_its_leader_is_not_ready(rendered, claim):
    job = rendered("-s", "train.steps=1000000")
    ready = job.spec["template"]["spec"]["containers"][0]["readinessProbe"]["exec"]["command"]
    assert job.run(until=lambda: len(committed(claim)) > 0), job.logs()
    pod = job.pods[1]
    assert pod.run_inside(ready) == 0
    job.cut(pod)
    end = time.monotonic() + runs.WATCHDOG
    while pod.run_inside(ready) == 0 and time.monotonic() < end:
        assert pod.code() is None, job.logs()
    assert pod.code() is None, job.logs()  # it still looks for its leader
    assert pod.process.wait(runs.WATCHDOG) == 75, job.logs()


@pytest.mark.parametrize("what", ["evict 0", "lose 1", "evict 1", "lose 0", "suspend"] if runs.LONG else ["evict 0", "lose 1"])
def test_what_takes_pods_away_costs_no_failure_and_no_bit(rendered, claim, what):
    job = rendered()
    assert job.run(until=lambda: len(committed(claim)) > 0), job.logs()
    verb, _, index = what.partition(" ")
    if verb == "suspend":
        job.suspend()
        assert {code for _, code in job.codes} == {75}, (job.codes, job.logs())
        job.resume()
    else:
        getattr(job, verb)(int(index))
    assert job.run(), job.logs()
    assert job.failures == 0 and job.started > 2 and {c for _, c in job.codes} <= {0, 75, 137}, (job.codes, job.logs())
    assert_same_bits(claim)


def test_a_job_that_can_only_fail_is_not_started_again(rendered):
    """The other pod ends when it is asked to, also where it has just begun: it is process 1, which no signal ends by itself."""
    job = rendered("-s", "data.train.images=absent")
    assert not job.run() and job.started == 2, (job.codes, job.logs())
    assert (job.codes[0], job.codes[1][1]) in [((0, 66), 75), ((0, 66), 143)], (job.codes, job.logs())
