# SPDX-License-Identifier: Apache-2.0
"""What `weft render` writes and what lies in deploy/kubernetes, held against others' schemas: kubernetes-validate has
those of Kubernetes (strict: no field that it does not know), kubeflow-trainer-api the models of JobSet and TrainJob.

    manifests.py WEFT [KUBECTL]

KUBECTL builds the overlays (`kubectl kustomize`); without one they are left out, and that is said."""
import pathlib
import subprocess
import sys
import warnings

import yaml
from kubeflow_trainer_api import models

warnings.filterwarnings("ignore", category=SyntaxWarning)
import kubernetes_validate  # noqa: E402

VERSIONS = ["1.31", "1.37"]  # the oldest that has podFailurePolicy without a gate, and the newest there is
MODELS = {"JobSet": models.JobsetV1alpha2JobSet, "TrainJob": models.TrainerV1alpha1TrainJob,
          "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime}
FOREIGN = {"ServiceMonitor"}  # Prometheus' operator: no schema of it is on PyPI
WAYS = [[], ["--per-node", "2", "--queue", "on", "--secret", "123", "--claim", "true:/a b'\"x\\", "--user", "7"],
        ["-s", "resources.kind=cuda"]]


def find_lost(given, kept, at=""):
    """Paths of what a model did not keep: it knows no such field."""
    if isinstance(given, dict):
        for key in given:
            yield from find_lost(given[key], kept[key], f"{at}/{key}") if key in kept else [f"{at}/{key}"]
    elif isinstance(given, list):
        for i, (a, b) in enumerate(zip(given, kept, strict=True)):
            yield from find_lost(a, b, f"{at}/{i}")
    elif given != kept:
        yield at


def check_native(document):
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


def check(document):
    kind = document["kind"]
    if kind in FOREIGN:
        return
    if kind not in MODELS:
        check_native(document)
        return
    lost = list(find_lost(document, MODELS[kind].from_dict(document).to_dict()))
    assert not lost, f"{kind}: unknown or changed: {lost}"
    spec = document["spec"]
    sets = {"JobSet": spec, "TrainingRuntime": spec.get("template", {}).get("spec", {})}.get(kind, {})
    for job in sets.get("replicatedJobs", []):
        check_native({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job["template"]["spec"]})


def check_all(text):
    documents = [d for d in yaml.safe_load_all(text) if d]
    for document in documents:
        check(document)
    return len(documents)


def main():
    weft, kubectl = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    n = 0
    for job in sorted(pathlib.Path("deploy/examples").glob("*.yaml")):
        for kind in ("job", "jobset", "trainjob"):
            for way in WAYS:
                end = subprocess.run([weft, "render", "--for", kind, str(job), *way], capture_output=True, text=True, check=False)
                if end.returncode == 0:  # of others --per-node, the device or a path does not do
                    n += check_all(end.stdout)
    assert n > 100, n
    print(f"{n} documents of weft render")
    if not kubectl:
        print("no kubectl: deploy/kubernetes is left out")
        return
    for overlay in sorted(f.parent for f in pathlib.Path("deploy/kubernetes").rglob("kustomization.yaml")):
        end = subprocess.run([kubectl, "kustomize", str(overlay)], capture_output=True, text=True, check=False)
        assert end.returncode == 0 and not end.stderr, (str(overlay), end.stderr)
        print(f"{overlay}: {check_all(end.stdout)} documents")


if __name__ == "__main__":
    main()
