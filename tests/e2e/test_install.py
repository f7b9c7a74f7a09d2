# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts where, that systemd has nothing to say against the units, that every flag in them
is one the programs know, and that the installed programs find each other."""
import json
import os
import re
import shutil
import stat
import subprocess
import warnings

import pytest
import runs

PROGRAMS = ["bin/weft", "bin/weft-coordinator", "bin/weft-rank", "bin/weft-sink", "bin/weft-worker"]
LIBRARY = ["lib/weft/libweft_cpu.so"] + ["lib/weft/libweft_cuda.so"] * (runs.BUILD / "libweft_cuda.so").exists()
SINKS = [f"share/weft/sinks/{name}_sink.py" for name in ("kubeflow", "mlflow", "wandb")]
TEXTS = [
    *[f"share/weft/prometheus/{f}" for f in ("prometheus.yaml", "weft-alerts.yaml", "weft-dashboard.json")],
    "lib/systemd/system/weft-coordinator.service",
    "lib/systemd/system/weft-worker.service",
    "lib/sysusers.d/weft.conf",
    "lib/tmpfiles.d/weft.conf",
    "share/bash-completion/completions/weft",
    "share/zsh/site-functions/_weft",
    *[f"share/man/man1/{page}.1" for page in ("weft", *(f"weft-{verb}" for verb in runs.verbs()))],
    "share/doc/weft/LICENSE",
    "share/doc/weft/README.md",
    "share/doc/weft/common/GLOSSARY.md",
    "share/doc/weft/common/job/KEYS.md",
    "share/doc/weft/common/language/LANGUAGE.md",
    "share/doc/weft/common/job/README.md",
    "share/doc/weft/coordinator/cli/README.md",
    "share/doc/weft/deploy/README.md",
]


def make_install(**variables):
    words = [f"{k}={v}" for k, v in {"BUILD": os.path.relpath(runs.BUILD, runs.REPO), **variables}.items()]
    # -o all: what is tested is installed as it is, never built anew on the way.
    end = subprocess.run(["make", "--no-print-directory", "-o", "all", "install", *words], cwd=runs.REPO,
                         capture_output=True, text=True, check=False)
    assert end.returncode == 0, end.stdout + end.stderr
    return end


def files_of(root):
    return {str(f.relative_to(root)): stat.S_IMODE(f.stat().st_mode) for f in root.rglob("*") if f.is_file()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Installed as a package would be: beneath DESTDIR, for /usr."""
    root = tmp_path_factory.mktemp("dest")
    make_install(DESTDIR=root, PREFIX="/usr")
    return root


def make_on_a_bare_machine(path, goal):
    """The PATH has no compiler, and an `sh` that only says what it is asked to run."""
    (path / "sh").write_text('#!/bin/sh\necho "sh $*"\nexit 1\n')
    (path / "sh").chmod(0o755)
    if not (path / "nproc").exists():
        (path / "nproc").symlink_to(shutil.which("nproc"))
    return subprocess.run([shutil.which("make"), "--no-print-directory", goal, "CC=no-compiler"], cwd=runs.REPO,
                          env={"PATH": str(path)}, capture_output=True, text=True, check=False)


def test_on_a_bare_machine_make_test_installs_what_is_missing_and_make_all_says_what_does(tmp_path):
    test, everything = (make_on_a_bare_machine(tmp_path, goal) for goal in ("test", "all"))
    assert "sh deploy/deps.sh" in test.stdout, test.stdout + test.stderr
    assert everything.returncode != 0 and "missing: protoc-c no-compiler. `make deps` installs" in everything.stderr


def units(root):
    return sorted((root / "usr/lib/systemd/system").iterdir())


def test_every_file_is_in_its_place_with_its_mode(tree):
    want = {f"usr/{f}": 0o755 for f in PROGRAMS + LIBRARY + SINKS}
    want |= {f"usr/{f}": 0o644 for f in TEXTS}
    want |= {f"etc/weft/{d}.env": 0o644 for d in ("coordinator", "worker")}
    assert files_of(tree) == want


def test_nothing_is_left_to_fill_in(tree):
    for f in [*units(tree), tree / "usr/lib/tmpfiles.d/weft.conf"]:
        assert not re.search(r"@[A-Z]+@", f.read_text()), f


def test_the_worker_has_a_folder_for_what_its_ranks_measure(tree):
    """Its user's home is root's: without one each start of a rank would time all algorithms of a GPU again."""
    unit = (tree / "usr/lib/systemd/system/weft-worker.service").read_text()
    assert "\nCacheDirectory=weft\n" in unit and "\nEnvironment=XDG_CACHE_HOME=%C\n" in unit, unit


def test_a_tree_of_ones_own_keeps_everything_beneath_it(tmp_path):
    make_install(PREFIX=tmp_path / "own")
    found = files_of(tmp_path / "own")
    assert set(found) == {*PROGRAMS, *LIBRARY, *SINKS, *TEXTS, "etc/weft/coordinator.env", "etc/weft/worker.env"}
    unit = (tmp_path / "own/lib/systemd/system/weft-worker.service").read_text()
    assert f"EnvironmentFile=-{tmp_path}/own/etc/weft/worker.env" in unit
    assert f"ExecStart={tmp_path}/own/bin/weft-worker " in unit


def test_an_environment_file_in_use_is_kept(tmp_path):
    make_install(DESTDIR=tmp_path, PREFIX="/usr")
    mine = tmp_path / "etc/weft/worker.env"
    mine.write_text("WEFT_WORKER_FLAGS=--rack 7\n")
    (tmp_path / "etc/weft/coordinator.env").unlink()
    make_install(DESTDIR=tmp_path, PREFIX="/usr")
    assert mine.read_text() == "WEFT_WORKER_FLAGS=--rack 7\n"
    assert (tmp_path / "etc/weft/coordinator.env").is_file()


def test_systemd_has_nothing_to_say_about_the_units(tree, tmp_path):
    if not shutil.which("systemd-analyze"):
        warnings.warn("SKIPPED: no systemd-analyze")
        pytest.skip("no systemd-analyze")
    for u in units(tree):  # it looks whether the program and the manual are there
        text = re.sub(r"(ExecStart=|file:)/usr/", rf"\g<1>{tree}/usr/", u.read_text())
        (tmp_path / u.name).write_text(text)
    end = subprocess.run(["systemd-analyze", "verify", *sorted(map(str, tmp_path.glob("*.service")))],
                         capture_output=True, text=True, check=False)
    assert (end.returncode, end.stdout, end.stderr) == (0, "", "")


def test_systemd_knows_the_user_and_the_folders(tree, tmp_path):
    """Both made in an empty root by systemd's own programs."""
    if not shutil.which("systemd-sysusers") or os.geteuid() != 0:
        warnings.warn("SKIPPED: systemd-sysusers and root are needed")
        pytest.skip("systemd-sysusers and root are needed")
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for tool, conf in (("systemd-sysusers", "sysusers.d"), ("systemd-tmpfiles", "tmpfiles.d")):
        args = [tool, f"--root={root}", *(["--create"] if "tmpfiles" in tool else []), str(tree / f"usr/lib/{conf}/weft.conf")]
        end = subprocess.run(args, capture_output=True, text=True, check=False)
        assert end.returncode == 0, end
    user = next(line for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("weft:"))
    uid = int(user.split(":")[2])
    for folder in ("var/lib/weft/coordinator", "var/lib/weft/worker", "etc/weft/tls"):
        s = (root / folder).stat()
        assert (s.st_uid, stat.S_IMODE(s.st_mode)) == (uid, 0o700), folder


def test_every_flag_that_is_written_down_is_one_the_programs_know(tree):
    for daemon in ("coordinator", "worker"):
        usage = subprocess.run([tree / f"usr/bin/weft-{daemon}", "--help"], capture_output=True, text=True, check=True)
        known = set(re.findall(r"--[a-z-]+", usage.stdout))
        unit = next(u for u in units(tree) if u.name == f"weft-{daemon}.service").read_text()
        said = re.findall(r"--[a-z-]+", re.search(r"^ExecStart=.*$", unit, re.M)[0])
        env = (tree / f"etc/weft/{daemon}.env").read_text()
        said += [f for line in env.splitlines() if "_FLAGS=" in line or line.startswith("#   --")
                 for f in re.findall(r"--[a-z-]+", line)]
        assert len(said) > 3 and set(said) <= known, sorted(set(said) - known)


def test_the_drain_ends_before_systemd_loses_patience(tree):
    unit = next(u for u in units(tree) if "worker" in u.name).read_text()
    grace = int(re.search(r"--grace (\d+)s", unit)[1])
    assert grace + 15 <= int(re.search(r"TimeoutStopSec=(\d+)s", unit)[1])


def test_the_shell_completes_the_installed_client(tree):
    script = f'. "{tree}/usr/share/bash-completion/completions/weft"; complete -p weft'
    end = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert end.returncode == 0 and "_weft" in end.stdout, end


def test_every_verb_has_a_page_that_man_takes_without_a_word(tree):
    pages = sorted((tree / "usr/share/man/man1").glob("*.1"))
    assert len(pages) == 1 + len(runs.verbs())
    text = (tree / "usr/share/man/man1/weft-jobs.1").read_text()
    assert ".TH WEFT-JOBS 1" in text and "\\-\\-since WHEN" in text, text
    if shutil.which("man"):
        for page in pages:
            end = subprocess.run(["man", "--warnings", "-l", str(page)], capture_output=True, text=True, check=False,
                                 env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "80"})  # fmt: skip
            assert end.returncode == 0 and not end.stderr and "NAME" in end.stdout, (page, end)


def test_the_installed_programs_find_each_other(tree, place, toy):
    """Moved to where nobody expects them, without a hint in the environment."""
    usr = shutil.move(tree / "usr", place / "moved")
    try:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(place)}
        run = runs.Run(place, runs.job(toy, 2, name="installed", train__steps=20))
        weft = [str(place / "moved/bin/weft")]
        end = subprocess.run([*weft, "run", str(run.file)], cwd="/", env=env, capture_output=True, text=True,
                             timeout=runs.WATCHDOG, check=False)
        assert end.returncode == 0, end.stdout + end.stderr
        end = subprocess.run([*weft, "doctor", "--json"], cwd="/", env=env, capture_output=True, text=True,
                             timeout=runs.WATCHDOG, check=False)
        checks = {c["name"]: c for c in json.loads(end.stdout)["checks"]}
        assert checks["programs"]["state"] == "ok" and str(place / "moved/bin") in checks["programs"]["text"]
        assert checks["devices"]["state"] == "ok", checks["devices"]
    finally:
        shutil.move(usr, tree / "usr")
