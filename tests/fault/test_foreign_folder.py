# SPDX-License-Identifier: Apache-2.0
"""A folder that several people use: what somebody else put where weft keeps its state is neither believed nor
written to. Else his job would run in our name, or our words would overwrite a file that he chose."""
import os
import subprocess

import cluster
import pytest
import runs

NOBODY = 65534


@pytest.fixture
def planted(place, toy):
    """The state of a run that lies beside our job file, as somebody else would prepare it."""
    run = runs.Run(place, runs.job(toy, 2), "shared")
    assert runs.weft("run", str(run.file), "-s", "train.steps=2").code == 0
    return run


def names_of(folder):
    return sorted((str(p.relative_to(folder)), p.is_symlink() or p.is_dir() or p.read_bytes()) for p in folder.rglob("*"))


def refuse(run, *says):
    """weft run and a verb that acts refuse, and nothing there changes."""
    state = run.place / ".weft" / "test"
    before = names_of(run.place / ".weft")
    for end in (runs.weft("run", str(run.file)), runs.weft("hold", "test", "--coordinator", str(state))):
        assert end.code in (1, 2, 3), end
        assert all(s in end.err for s in says), end
    assert names_of(run.place / ".weft") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("folder", [".weft/test", ".weft"])
def test_the_state_of_another_user_is_not_continued(planted, folder):
    os.chown(planted.place / folder, NOBODY, NOBODY)
    end = runs.weft("run", str(planted.file))
    assert end.code == 1 and f"{folder} belongs to user {NOBODY} and this is user 0" in end.err, end
    assert "run a copy of the job file in a folder of your own" in end.err, end
    if folder == ".weft/test":
        refuse(planted, f"belongs to user {NOBODY}")


def test_a_state_that_others_may_write_to_is_not_continued(planted):
    os.chmod(planted.place / ".weft" / "test", 0o777)
    refuse(planted, "others may write to", "chmod go-w")
    os.chmod(planted.place / ".weft" / "test", 0o755)
    os.chmod(planted.place / ".weft", 0o775)
    end = runs.weft("run", str(planted.file))
    assert end.code == 1 and "others may write to" in end.err, end


@pytest.mark.parametrize("folder", [".weft", ".weft/test"])
def test_a_link_is_no_state_folder(planted, folder):
    elsewhere = planted.place / "elsewhere"
    (planted.place / folder).rename(elsewhere)
    (planted.place / folder).symlink_to(elsewhere)
    before = names_of(elsewhere)
    end = runs.weft("run", str(planted.file))
    assert end.code == 1 and f"{folder} is no folder but a link" in end.err, end
    assert names_of(elsewhere) == before


@pytest.mark.parametrize("file", ["log", "lock", "weft.db"])
def test_no_file_of_the_state_is_written_through_a_link(place, toy, file):
    run = runs.Run(place, runs.job(toy, 2), "shared")
    state = run.place / ".weft" / "test"
    state.mkdir(parents=True)
    victim = place / "victim"
    victim.write_text("mine\n")
    (state / file).symlink_to(victim)
    end = runs.weft("run", str(run.file))
    assert end.code == 1 and f"/{file}" in end.err, end
    assert victim.read_text() == "mine\n"


def test_a_link_at_a_files_temporary_name_is_replaced(place, toy):
    run = runs.Run(place, runs.job(toy, 2), "shared")
    state = run.place / ".weft" / "test"
    state.mkdir(parents=True)
    victim = place / "victim"
    victim.write_text("mine\n")
    (state / ".job.new").symlink_to(victim)
    assert runs.weft("run", str(run.file)).code == 0
    assert victim.read_text() == "mine\n" and not (state / "job").is_symlink()


@pytest.mark.parametrize("program", [cluster.COORDINATOR, cluster.WORKER])
def test_a_daemon_keeps_no_state_where_others_may_write(place, program):
    state = place / "state"
    state.mkdir()
    state.chmod(0o777)
    end = subprocess.run([program, "--state", state], capture_output=True, text=True, timeout=runs.WATCHDOG)
    assert end.returncode == 78 and "others may write to" in end.stderr, end
    assert not list(state.iterdir())
