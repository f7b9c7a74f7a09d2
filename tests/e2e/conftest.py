# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end suites share beside tests/conftest.py."""
import allocation
import cluster
import meshes
import pytest
import runs


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with what meshes.classifier and meshes.decoder train on."""
    place = tmp_path_factory.mktemp("data")
    meshes.put_classifier(place)
    meshes.put_text(place)
    return place


@pytest.fixture(scope="session")
def calm(tmp_path_factory, noise):
    """What a job of two ranks comes to on one host, undisturbed."""
    run = runs.Run(tmp_path_factory.mktemp("calm"), runs.busy_job(noise, 2, train__steps=allocation.STEPS), "mine")
    assert runs.weft("run", str(run.file)).code == 0
    return run.final()


@pytest.fixture
def one(place):
    """One coordinator and one worker of two devices."""
    c = cluster.Cluster(place)
    yield c
    c.kill_all()
