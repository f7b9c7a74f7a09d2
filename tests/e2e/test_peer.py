# SPDX-License-Identifier: Apache-2.0
"""An independent gRPC implementation (Go's, from Debian) speaks to the coordinator."""
import os
import pathlib
import shutil
import subprocess

import cluster
import pytest
import runs

HERE = pathlib.Path(__file__).parent
PARTS = ("rank", "weft")


def built(folder):
    """The peer's program, from our .proto files by Go's own generator."""
    if not shutil.which("go") or not shutil.which("protoc-gen-go"):
        pytest.skip("SKIP: go, protoc-gen-go (golang-go, golang-goprotobuf-dev) are not installed")
    names = ",".join(f"Mproto/{p}.proto=weft/{p}" for p in PARTS)
    for p in PARTS:
        out, to = folder / f"gen-{p}", folder / "src" / "weft" / p
        out.mkdir()
        to.mkdir(parents=True)
        subprocess.run(["protoc", "-I.", f"--go_out=plugins=grpc,{names}:{out}", f"proto/{p}.proto"], cwd=runs.REPO, check=True)
        for f in out.rglob("*.go"):
            shutil.copy(f, to)
    shutil.copytree(HERE / "go_client", folder / "src" / "weft" / "peer")
    env = {**os.environ, "GO111MODULE": "off", "GOPATH": f"{folder}:/usr/share/gocode", "GOCACHE": str(folder / "cache")}
    subprocess.run(["go", "build", "-o", str(folder / "peer"), "weft/peer"], env=env, check=True)
    return folder / "peer"


def test_a_client_of_another_language_speaks_to_the_coordinator(place, tmp_path_factory, toy):
    peer = built(tmp_path_factory.mktemp("go"))
    c = cluster.Cluster(place)
    try:
        run = runs.Run(place, runs.job(c.put_data(toy), 2))
        run.job["checkpoint"]["dir"] = "."
        end = subprocess.run([peer, c.address, str(run.file)], capture_output=True, text=True, timeout=runs.WATCHDOG, check=False)
        assert end.returncode == 0, end.stdout + end.stderr + c.logs_text()
        assert "state SUCCEEDED" in end.stdout, end.stdout
        assert c.coordinator.starts == 1
    finally:
        c.kill_all()
