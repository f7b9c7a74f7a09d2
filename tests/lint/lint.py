#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the house, each in a module of its own: what no compiler and no clang-tidy sees.

    lint.py [--build DIR] [--open] [RULE…]

Names every violation and exits with 1 if there is one. exceptions.txt lists what is known to be left,
a line `rule path`; a line that excepts nothing is itself a violation, so that the list only shrinks.
--open shows what the list hides, room by room. A rule is a function check(tree) that yields findings;
test_lint.py shows each on a planted case."""
import argparse
import collections
import pathlib
import sys

import basenames
import chained_rc
import cycles
import documents
import includes
import launches
import lengths
import limits
import printing
import private_headers
from source import Finding, Tree

RULES = {rule.__name__: rule for rule in
         (includes, private_headers, basenames, lengths, documents, limits, chained_rc, printing, launches, cycles)}
EXCEPTIONS = "tests/lint/exceptions.txt"


def read_exceptions(tree):
    """{(rule, path): line} of exceptions.txt; what stands behind '#' is for people."""
    excepted = {}
    if EXCEPTIONS in tree.files:
        for number, line in enumerate(tree.lines(EXCEPTIONS), 1):
            words = line.partition("#")[0].split()
            if len(words) == 2:
                excepted[tuple(words)] = number
    return excepted


def find_violations(tree, rules):
    """(open, excepted): two lists of (rule, finding)."""
    excepted = read_exceptions(tree)
    left, hidden, used = [], [], set()
    for rule in rules:
        for finding in RULES[rule].check(tree):
            known = (rule, finding.path) in excepted
            (hidden if known else left).append((rule, finding))
            used.add((rule, finding.path))
    for (rule, path), line in excepted.items():
        unbuilt = rule == "cycles" and not tree.objects
        if rule in rules and (rule, path) not in used and not unbuilt:
            left.append((rule, Finding(EXCEPTIONS, line, f"'{rule} {path}' excepts nothing any more")))
    return left, hidden


def print_rooms(violations):
    """For people who empty the list: what is left, by folder."""
    rooms = collections.defaultdict(list)
    for rule, finding in violations:
        is_folder = rule == "cycles"
        rooms[finding.path if is_folder else finding.path.rpartition("/")[0] or "."].append((rule, finding))
    for room, found in sorted(rooms.items()):
        print(f"\n== {room}: {len(found)}")
        for rule, finding in sorted(found):
            print(f"{finding.path}:{finding.line}: {finding.what} [{rule}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, help="the build's folder, whose objects show the cycles")
    parser.add_argument("--open", action="store_true", help="show what exceptions.txt hides, too")
    parser.add_argument("rules", nargs="*", metavar="RULE", help=", ".join(RULES))
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parents[2]
    tree = Tree(root, objects=args.build / "obj" if args.build else None)
    left, hidden = find_violations(tree, args.rules or list(RULES))
    if args.open:
        print_rooms(left + hidden)
        return 0
    for rule, finding in left:
        print(f"{finding.path}:{finding.line}: {finding.what} [{rule}]")
    print(f"lint: {len(left)} violations, {len(hidden)} excepted")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
