# SPDX-License-Identifier: Apache-2.0
"""Calls go down: no two object files of one folder need each other, directly or in a circle.

An object file needs another if it uses a symbol that the other defines, as `nm` says. What is
reached through a table of functions that somebody else passes in is no need."""
import collections
import pathlib
import subprocess

from source import Finding

# folder -> {members of a circle: why it stays}
KEPT = {
    "worker/collective": {
        ("announce", "communicator", "operation", "tcp", "world"):
            "a world that waits steps its operations, and these wait, send and break; a table of functions with one "
            "filling would only hide it",
    },
}


def read_symbols(objects):
    """{object: (defined, used)} of object files; a weak or common symbol counts as defined."""
    if not objects:
        return {}
    command = ["nm", "--print-file-name", "--format=posix", *map(str, objects)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols = collections.defaultdict(lambda: (set(), set()))
    for line in listed.splitlines():
        path, rest = line.split(": ", 1)
        name, kind = rest.split()[:2]
        if kind == "U":
            symbols[path][1].add(name)
        elif kind.isupper():
            symbols[path][0].add(name)
    return symbols


def find_needs(symbols):
    """{object: {other: a symbol that it uses of it}}."""
    home = {name: path for path, (defined, _) in symbols.items() for name in defined}
    return {path: {home[name]: name for name in sorted(used, reverse=True) if home.get(name, path) != path}
            for path, (_, used) in symbols.items()}


def find_circles(needs):
    """Groups of objects each of which reaches all others: Tarjan's strongly connected components."""
    index, low, stack, on_stack, circles = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in needs.get(node, {}):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            members = []
            while not members or members[-1] != node:
                members.append(stack.pop())
                on_stack.discard(members[-1])
            if len(members) > 1:
                circles.append(sorted(members))

    for node in sorted(needs):
        if node not in index:
            visit(node)
    return circles


def shortest_circle(needs, members):
    """A shortest walk inside a circle that comes back to its start, with the symbols used."""
    best = None
    for start in members:
        before, queue = {start: None}, collections.deque([start])
        while queue:
            node = queue.popleft()
            if start in needs[node]:
                walk = [node]
                while before[walk[-1]]:
                    walk.append(before[walk[-1]])
                walk.reverse()
                if best is None or len(walk) < len(best):
                    best = walk
                break
            for other in needs[node]:
                if other in members and other not in before:
                    before[other] = node
                    queue.append(other)
    steps = zip(best, best[1:] + best[:1])
    return " → ".join(f"{pathlib.Path(a).stem} ({needs[a][b]})" for a, b in steps) + f" → {pathlib.Path(best[0]).stem}"


def folders_with_objects(tree):
    """{folder: its object files}, of the product's sources that were built."""
    folders = collections.defaultdict(list)
    for path in tree.product():
        stem = tree.objects / path
        built = [o for o in (stem.with_suffix(".o"), tree.objects / "cuda" / (path[:-2] + ".o"),
                             tree.objects / "cuda" / (path + ".o")) if o.exists()]
        if built:
            folders[path.rsplit("/", 1)[0]].append(built[0])
    return folders


def check(tree):
    if tree.objects is None:
        return
    for folder, objects in sorted(folders_with_objects(tree).items()):
        needs = find_needs(read_symbols(objects))
        for members in find_circles(needs):
            names = tuple(pathlib.Path(m).stem.removesuffix(".cu") for m in members)
            if not any(set(names) <= set(kept) for kept in KEPT.get(folder, {})):
                yield Finding(folder, 1, f"{len(names)} files need each other: {' '.join(names)}; "
                                         f"for one {shortest_circle(needs, members)}")
