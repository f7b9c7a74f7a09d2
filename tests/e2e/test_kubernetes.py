# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes: what its files say of one another and of the programs. That Kubernetes takes them is
tests/parity/manifests.py's, which builds the overlays."""
import pathlib
import re
import subprocess

import pytest
import runs
import yaml

HERE = runs.REPO / "deploy/kubernetes"
OVERLAY = HERE / "overlays/indexed-job"


def documents():
    for path in sorted(HERE.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield path.relative_to(HERE), document


def pods():
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
    for path, spec in pods():
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
    (command,) = [c["command"] for _, spec in pods() for c in spec["containers"] if c.get("command", [""])[0] == program]
    flags = [w for w in command if w.startswith("--")]
    assert len(flags) > 4 and all(re.search(rf"^  {f} ", known, re.M) for f in flags), flags


def test_a_worker_saves_before_its_pod_is_killed():
    for _, spec in pods():
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
