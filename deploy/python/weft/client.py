# SPDX-License-Identifier: Apache-2.0
"""Jobs, over `weft … --json`."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]


class WeftError(Exception):
    """What `weft` said when it failed. `code` is its exit code: 1 the job failed, 2 a bad job file or usage,
    3 the coordinator is not reached, 4 it refused."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"weft ended with {code}")
        self.code = code


@dataclasses.dataclass(frozen=True)
class Job:
    """A job as it was when it was asked for. `fields` has all that `weft status --json` says."""

    id: str
    name: str
    state: str | None = None
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    coordinator: str | None = dataclasses.field(default=None, repr=False)
    tls: str | None = dataclasses.field(default=None, repr=False)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


@dataclasses.dataclass(frozen=True)
class Update:
    """News of a job that is watched; what has no news is None. `report` is a row of metrics."""

    job: Job | None
    report: Row | None
    event: Row | None


JobLike = Union[Job, str]


def _program() -> str:
    named = os.environ.get("WEFT")
    found = named or shutil.which("weft")
    if not found:
        raise WeftError(2, "the program weft is not on PATH: install it (make install), or set WEFT to its path")
    return found


def _service(coordinator: str | None, tls: str | None) -> list[str]:
    where = ["--coordinator", coordinator] if coordinator else []
    return where + (["--tls", tls] if tls else [])


def _settings(settings: Mapping[str, Any] | None) -> list[str]:
    """-s KEY=VALUE, where a value is YAML: JSON is such, and no text of it is taken for something else."""
    args = []
    for key, value in (settings or {}).items():
        args += ["-s", f"{key}={json.dumps(value, ensure_ascii=False)}"]
    return args


def _ask(verb: str, args: list[str]) -> Any:
    done = subprocess.run([_program(), verb, "--json", *args], capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        raise WeftError(done.returncode, done.stderr.strip())
    return json.loads(done.stdout)


def _lines(verb: str, args: list[str]) -> Iterator[Row]:
    """The lines of a verb as they come. Whoever stops reading ends it, as Ctrl-C does."""
    with tempfile.TemporaryFile() as said, subprocess.Popen(
        [_program(), verb, "--json", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=said,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                yield json.loads(line)
        except BaseException:
            process.terminate()  # weft run saves, then ends
            process.stdout.close()
            raise
        process.wait()
        said.seek(0)
        if process.returncode:
            raise WeftError(process.returncode, said.read().decode(errors="replace").strip())


def _of(job: JobLike, coordinator: str | None, tls: str | None) -> list[str]:
    if isinstance(job, Job):
        coordinator, tls, job = coordinator or job.coordinator, tls or job.tls, job.id
    return [*_service(coordinator, tls), "--", job]


def _job(fields: Row, coordinator: str | None, tls: str | None) -> Job:
    return Job(fields["job"], fields["name"], fields.get("state"), fields, coordinator, tls)


def submit(
    file: str | os.PathLike[str],
    settings: Mapping[str, Any] | None = None,
    *,
    coordinator: str | None = None,
    tls: str | None = None,
) -> Job:
    """Gives a job file to the coordinator; `settings` overrides keys: {"train.steps": 500}."""
    args = [*_service(coordinator, tls), *_settings(settings), "--", os.fspath(file)]
    return _job(_ask("submit", args), coordinator, tls)


def run(
    file: str | os.PathLike[str], settings: Mapping[str, Any] | None = None, *, new: bool = False
) -> Iterator[Update]:
    """Trains here, as `weft run`: yields its news until it ends, and raises WeftError if the job fails.
    Stopped or called again, it continues. For a run without its news: `list(weft.run(…))[-1].job`."""
    args = [*_settings(settings), *(["--new"] if new else []), "--", os.fspath(file)]
    folder = os.path.join(os.path.dirname(os.path.abspath(file)), ".weft")
    for line in _lines("run", args):
        name = line["status"]["name"] if line["status"] else None
        yield _update(line, os.path.join(folder, name) if name else None, None)


def watch(job: JobLike, *, coordinator: str | None = None, tls: str | None = None) -> Iterator[Update]:
    """A job's news until it ends; raises WeftError if it fails or is cancelled."""
    for line in _lines("watch", _of(job, coordinator, tls)):
        yield _update(line, coordinator, tls)


def _update(line: Row, coordinator: str | None, tls: str | None) -> Update:
    state = _job(line["status"], coordinator, tls) if line["status"] else None
    return Update(state, line["report"], line["event"])


def status(job: JobLike, *, coordinator: str | None = None, tls: str | None = None) -> Job:
    """A job as it is now."""
    where = (job.coordinator, job.tls) if isinstance(job, Job) else (None, None)
    fields = _ask("status", _of(job, coordinator, tls))
    return _job(fields, coordinator or where[0], tls or where[1])


def jobs(*, all: bool = False, coordinator: str | None = None, tls: str | None = None) -> list[Job]:
    """The jobs that wait or run; with `all` the ended ones too."""
    reply = _ask("jobs", [*_service(coordinator, tls), *(["--all"] if all else [])])
    return [_job(fields, coordinator, tls) for fields in reply["jobs"]]


class Metrics:
    """Rows of a job's metrics, one for each step that was reported, in the order of steps, over all attempts."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def keys(self) -> list[str]:
        """What any row has, in the order in which it first comes."""
        return list(dict.fromkeys(key for row in self.rows for key in row))

    def __getitem__(self, key: str) -> list[Any]:
        """A column; None where a row has no such number. Evaluations: those of the steps that had one."""
        if not any(key in row for row in self.rows):
            raise KeyError(key)
        return [row.get(key) for row in self.rows]

    def to_pandas(self) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame({key: self[key] for key in self.keys()})


def metrics(job: JobLike, *, coordinator: str | None = None, tls: str | None = None) -> Metrics:
    """The metrics of a job that waits, runs or has ended."""
    return Metrics(_lines("metrics", _of(job, coordinator, tls)))
