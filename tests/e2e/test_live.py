# SPDX-License-Identifier: Apache-2.0
"""weft run and watch on a terminal: what is seen there at several sizes, while it is resized, interrupted, stopped and
continued. What they print in a pipe is in test_cli_run.py and test_cli_service.py."""
import fcntl
import os
import re
import signal
import struct
import subprocess
import termios

import pytest
import runs
from screen import Screen

EVENT = re.compile(r"\d\d:\d\d:\d\d\.\d{3}  [A-Z]+ ")
LEGEND = re.compile(r"^ {11}(━━|a:) loss")
STATUS = re.compile(r"^test [A-Z]+  step \d+/\d+  ")


def braille(lines):
    return [line for line in lines if any("⠀" < c <= "⣿" for c in line)]


class Terminal:
    """A command on a terminal, and the screen after it. `steps` are (what is seen, what is done then), in turn."""

    def __init__(self, argv, columns=80, rows=24, steps=(), **how):
        self.screen, self.steps, self.fed = Screen(columns, rows), list(steps), 0
        self.end = runs.on_terminal(argv, columns, rows, act=self.act, **how)
        assert not self.steps, "\n".join(self.screen.text())
        self.lines = self.screen.text()

    def act(self, process, said, fd):
        self.screen.feed(said[self.fed :])
        self.fed, self.process, self.fd = len(said), process, fd
        while self.steps and self.steps[0][0](self):
            self.steps.pop(0)[1](self)

    def type(self, keys):
        how = termios.tcgetattr(self.fd)
        how[3] |= termios.NOFLSH  # else Ctrl-C and Ctrl-Z throw away what was written and not yet read
        termios.tcsetattr(self.fd, termios.TCSANOW, how)
        os.write(self.fd, keys)

    def resize(self, columns, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(columns, rows)

    def count(self, pattern):
        return sum(bool(re.search(pattern, line)) for line in self.screen.text())

    def assert_events_are_whole(self):
        events = [line for line in self.lines if EVENT.match(line)]
        assert len(events) == len(set(events)) > 4, self.lines
        assert [e for e in events if "submitted" in e] and [e for e in events if "started" in e], self.lines


def seen(pattern, times=1):
    return lambda t: t.count(pattern) >= times


def saved(step):
    """At this step or at a later one: a step is left out while another's save is under way."""
    return lambda t: any(int(n) >= step for n in re.findall(r"committed.* \(step (\d+)\)", "\n".join(t.screen.text())))


def typed(keys):
    return lambda t: t.type(keys)


@pytest.fixture
def short(place, toy):
    return runs.Run(place, runs.job(toy, 1, eval={"every": 10}), "mine")


@pytest.fixture
def busy(place, noise):
    """Trains on until it is stopped."""
    run = runs.Run(place, runs.busy_job(noise, 1, train__steps=1000000, checkpoint={"dir": "ckpt", "every": 200}), "mine")
    yield run
    assert not runs.processes_naming(place)


def weft_run(run):
    return [runs.WEFT, "run", str(run.file)]


def start(run):
    """In the background, until there is a checkpoint."""
    process = runs.watch_over(subprocess.Popen(weft_run(run), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    assert run.wait_until(lambda: process.poll() is not None or (run.stores() and run.checkpoints()))
    return process


def watch(run):
    return [runs.WEFT, "watch", "test", "--coordinator", str(run.place / ".weft/test")]


@pytest.mark.parametrize("columns,rows", [(40, 12), (80, 24), (200, 50)])
def test_the_curves_of_a_run_stay_on_the_screen(short, columns, rows):
    t = Terminal(weft_run(short), columns, rows)
    assert t.end.code == 0, t.lines
    t.assert_events_are_whole()
    picture = braille(t.lines)
    assert 3 <= len(picture) <= 6 and max(len(line) for line in picture) <= columns, t.lines
    assert t.count(LEGEND) == 1 and t.count("eval_loss") == 1 and t.count(STATUS) == 1, t.lines
    assert t.count("^test SUCCEEDED  step 30/30 ") == 1 and t.count(r"^memory .* of .* planned .*accuracy") == 1, t.lines
    assert t.count("a step: compute ") == 1, t.lines
    again = Terminal(weft_run(short), columns, rows)  # it is finished: nothing runs
    assert braille(again.lines) == picture and again.count(LEGEND) == 1, again.lines
    assert braille(Terminal(watch(short), columns, rows).lines) == picture


@pytest.mark.parametrize("columns,rows", [(20, 24), (80, 11)])
def test_where_there_is_little_room_it_is_one_line(short, columns, rows):
    t = Terminal(weft_run(short), columns, rows)
    assert t.end.code == 0 and not braille(t.lines) and "A" not in t.screen.sequences, t.lines
    t.assert_events_are_whole()
    assert t.count("^test SUCCEEDED  step 30/30 .* loss ") == 1 and t.count(STATUS) == 1, t.lines


def test_colours_and_pictures_are_left_out_where_that_is_asked(short):
    t = Terminal(weft_run(short), env={"NO_COLOR": "1"})
    assert "m" not in t.screen.sequences and t.count(LEGEND) == 1 and "a: loss  b: eval_loss" in "\n".join(t.lines), t.lines
    t = Terminal([*weft_run(short), "--new"], env={"TERM": "dumb"})
    assert t.end.code == 0 and not t.screen.sequences and not braille(t.lines), t.lines
    assert t.count("^test SUCCEEDED  step 30/30 ") == 1, t.lines


def test_a_terminal_is_resized_while_it_is_drawn_on(busy):
    t = Terminal(weft_run(busy), 100, 30, [
        (seen(LEGEND), lambda t: t.resize(60, 24)),
        (saved(200), lambda t: t.resize(130, 40)),
        (saved(600), lambda t: t.resize(30, 20)),
        (saved(1000), lambda t: t.resize(90, 30)),
        (saved(1400), typed(b"\x03")),
    ])  # fmt: skip
    assert t.end.code == 130, t.lines
    t.assert_events_are_whole()
    last = max(i for i, line in enumerate(t.lines) if LEGEND.match(line))
    assert braille(t.lines[last - 10 : last]) and STATUS.match(t.lines[last + 1]), t.lines
    assert t.count(LEGEND) <= 4, t.lines  # a size may change between a look at it and what is drawn then


def test_an_interrupted_watch_leaves_the_picture_and_a_line_of_its_own(busy):
    process = start(busy)
    t = Terminal(watch(busy), steps=[(lambda t: t.count(LEGEND) and t.count("^trains  "), typed(b"\x03"))])
    assert t.end.code == 130 and t.screen.x == 0 and t.lines[-1] == "" and t.count(LEGEND) == 1, t.lines
    assert t.lines[-2].endswith("^C") and t.count(STATUS) == 1, t.lines
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=runs.WATCHDOG) == 130
    stopped = Terminal(watch(busy))  # of a run that is not under way
    assert stopped.end.code == 0 and stopped.count("^test QUEUED ") == 1 and braille(stopped.lines), stopped.lines


def test_an_interrupted_run_leaves_the_picture_above_its_last_words(busy):
    t = Terminal(weft_run(busy), steps=[(lambda t: t.count(LEGEND) and t.count("^trains "), typed(b"\x03"))])
    assert t.end.code == 130 and t.count("^to continue: ") == 1 and t.count("^saving and stopping") == 1, t.lines
    assert t.count(LEGEND) == 1 and t.count(STATUS) == 1, t.lines
    t.assert_events_are_whole()


@pytest.mark.parametrize("verb", ["run", "watch"])
def test_what_a_shell_says_while_it_stands_still_is_not_written_over(busy, verb):
    process = start(busy) if verb == "watch" else None
    command = " ".join(weft_run(busy) if verb == "run" else watch(busy))
    t = Terminal(["/bin/dash", "-i"], 120, 40, [
        (seen(r"^\$"), typed(command.encode() + b"\n")),
        (lambda t: t.count(LEGEND) and t.count("^trains "), typed(b"\x1a")),
        (lambda t: t.count("Stopped") and t.screen.text()[-1] == "$", typed(b"echo be''tween\n")),
        (lambda t: t.count("^between$") and t.screen.text()[-1] == "$", typed(b"fg\n")),
        (lambda t: t.count(LEGEND) == t.count("^trains ") == 2, typed(b"\x03")),
        (lambda t: t.screen.text()[-1] == "$", typed(b"exit 7\n")),
    ], env={"PS1": "$ ", "ENV": ""})  # fmt: skip
    assert t.end.code == 7, t.lines
    assert t.count("^between$") == 1 and t.count("Stopped") == 1 and t.count(r"^\$ fg$") == 1, t.lines
    assert t.count(LEGEND) == 2, t.lines
    if process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=runs.WATCHDOG) == 130


def first_tick(lines):
    (axis,) = [line for line in lines if re.match(r"^ {5}step  [ 0-9]+$", line)]
    return int(axis.split()[1])


def test_who_joins_late_sees_the_curve_from_its_beginning(one, noise):
    data = one.put_data(noise)
    job, pids = one.submit_and_stop(lambda: one.submit(runs.busy_job(data, 2, train__steps=60)), 2, 40)
    runs.kill_pid(pids[1])
    t = Terminal([runs.WEFT, "watch", job, "--coordinator", one.address])
    assert t.end.code == 0 and t.count("^test SUCCEEDED  step 60/60 ") == 1 and first_tick(t.lines) <= 10, t.lines
    ended = Terminal([runs.WEFT, "watch", job, "--coordinator", one.address])
    assert braille(ended.lines) == braille(t.lines) and first_tick(ended.lines) <= 10, ended.lines
    file = one.store(job) / "metrics.jsonl"  # a row may be longer than a piece in which they come
    rows = file.read_text().splitlines(keepends=True)
    rows[9] = rows[9].replace("{", '{"samples":["' + "x" * 700_000 + '"],', 1)
    file.write_text("".join(rows))
    long = Terminal([runs.WEFT, "watch", job, "--coordinator", one.address])
    assert braille(long.lines) == braille(t.lines), long.lines
