# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end suites share beside tests/conftest.py."""
import meshes
import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with what meshes.classifier and meshes.decoder train on."""
    place = tmp_path_factory.mktemp("data")
    meshes.put_classifier(place)
    meshes.put_text(place)
    return place
