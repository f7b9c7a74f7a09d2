# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end suites share beside tests/conftest.py."""
import cluster
import meshes
import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with what meshes.classifier and meshes.decoder train on."""
    place = tmp_path_factory.mktemp("data")
    meshes.put_classifier(place)
    meshes.put_text(place)
    return place


@pytest.fixture
def one(place):
    """One coordinator and one worker of two devices."""
    c = cluster.Cluster(place)
    yield c
    c.kill_all()
