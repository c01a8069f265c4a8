#!/usr/bin/env python3
"""Finds cycles between the modules of each crate, from the paths after `crate::`, `super::` and `self::`.

Uses between the modules of a folder must not form a cycle. A use counts at the folder where the paths of user and used module diverge, so a
use between grandchildren counts as one between their folders. A re-exported name counts as its module. Tests are ignored.
"""

import re
import sys
from pathlib import Path

PUB = r"(?:pub(?:\([^)]*\))? )"
TEST = r"^#\[cfg\((?:all\()?test\b[^\n]*\n(?:#\[[^\n]*\n)*"
PATH = re.compile(r"\b(crate|self|super)((?:::\w+)*)(::\{)?")


def group(text, at, head):
    """Yields the paths in a group `{b, c::{d, e}}` that begins at `at`."""
    depth, start, end = 1, at, at
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0 or (text[end] == "," and depth == 1):
            inner = re.match(r"\s*((?:\w+::)*)(\{)?(\w*)", text[start:end])
            names = head + inner[1].split("::")[:-1]
            yield from group(text, start + inner.end(2), names) if inner[2] else [[*names, inner[3]]]
            start = end + 1
        end += 1


def uses(text):
    for found in PATH.finditer(text):
        head = [found[1], *found[2].split("::")[1:]]
        yield from group(text, found.end(), head) if found[3] else [head]


def edges(source, others):
    """Yields triples (folder, user, used) of sibling modules, without those in the folders of `others`."""
    texts, exports, tests = {}, {}, set()
    for file in source.rglob("*.rs"):
        if any(other in file.parents and source in other.parents for other in others):
            continue
        name = file.relative_to(source).with_suffix("").parts
        name = name[:-1] if name[-1] in ("mod", "lib", "main") else name
        text = re.sub(r"//[^\n]*", "", file.read_text())
        tests |= {(*name, test) for test in re.findall(TEST + PUB + r"?mod (\w+);", text, re.M)}
        texts[name] = re.split(TEST + PUB + r"?mod \w+ \{", text, flags=re.M)[0]
        for child, names in re.findall(PUB + r"use (?:self::)?(\w+)::([^;]*);", text):
            exports.setdefault(name, {}).update(dict.fromkeys(re.findall(r"\w+", names), child))
    for user, text in texts.items():
        if any(user[: len(test)] == test for test in tests):
            continue
        for head, *path in uses(text):
            used = () if head == "crate" else user if head == "self" else user[:-1]
            while path and path[0] == "super":
                used, path = used[:-1], path[1:]
            while path and ((*used, path[0]) in texts or path[0] in exports.get(used, {})):
                known = (*used, path[0]) in texts
                used, path = (*used, path[0] if known else exports[used][path[0]]), path[known:]
            at = next((n for n, (a, b) in enumerate(zip(user, used)) if a != b), None)
            if at is not None:
                yield user[:at], user[at], used[at]


def cycle(after):
    """Modules in a cycle: those that remain after repeatedly removing modules without uses or users."""
    while free := [module for module in after if not after[module] & after.keys()]:
        after = {module: used for module, used in after.items() if module not in free}
    while free := [module for module in after if not any(module in used for used in after.values())]:
        after = {module: used for module, used in after.items() if module not in free}
    return {module: sorted(used & after.keys()) for module, used in sorted(after.items())}


def roots():
    """Yields the folder of each library or program. `crate::` in a program means the folder of its `main.rs`."""
    for source in sorted(path for path in Path(".").glob("*/src") if len(sys.argv) < 2 or path.parts[0] in sys.argv[1:]):
        yield source
        yield from (file.parent for file in sorted(source.glob("*/main.rs")))


wrong = False
programs = set(roots())
for source in sorted(programs):
    folders = {}
    for folder, user, used in edges(source, programs - {source}):
        folders.setdefault(folder, {}).setdefault(user, set()).add(used)
    for folder, after in sorted(folders.items()):
        for module, used in cycle(after).items():
            print(f"cycle in {source.joinpath(*folder)}: {module} uses {', '.join(used)}")
            wrong = True
sys.exit(wrong)
