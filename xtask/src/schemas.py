"""Updates the table of SGLang's message layouts by parsing released wheels: nothing is installed, imported or run.

usage: schemas.py TABLE [--all] [--check]

Releases already in the table are kept, unless --all reads them again. Consecutive releases with the same layout share one line. --check
writes nothing and fails if the table would change.

Field order is wire order: dataclasses and msgspec.Structs collect their fields from the base classes first, in reverse method resolution
order.
"""

import ast
import io
import json
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

from pip._internal.models.index import PyPI

MODULE = "sglang/srt/managers/io_struct.py"
# Classes whose fields are read: output, aborts and their wrappers.
READ = re.compile(r"Batch(TokenID|Str|Embedding|Multimodal)[A-Z]\w*|AbortReq|MultiTokenizerW\w*")
HEADER = """\
# Every message class of SGLang's io_struct, and every layout of those that are read. Written by `cargo xtask schemas`; do not edit.
# CLASS FORM RELEASES FIELD...   fields in the order of the wire, equal layouts of neighbouring releases in one line
"""
# Oldest release to read.
FIRST = "0.4.0"


def name_of(node):
    """Last part of a dotted name: `msgspec.Struct` -> `Struct`, `dataclass(kw_only=True)` -> `dataclass`."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_classvar(annotation):
    return name_of(annotation) == "ClassVar"


class Module:
    def __init__(self, tree):
        # Classes may be inside `if` and `try`; the last definition of a name wins, as at run time.
        self.classes = {c.name: c for c in ast.walk(tree) if isinstance(c, ast.ClassDef)}

    def bases(self, name):
        return [b for b in map(name_of, self.classes[name].bases) if b in self.classes]

    def mro(self, name):
        """C3 linearisation over the classes of this module."""
        lists = [self.mro(b) for b in self.bases(name)] + [self.bases(name)]
        order = [name]
        while lists := [l for l in lists if l]:
            head = next(l[0] for l in lists if not any(l[0] in other[1:] for other in lists))
            order.append(head)
            lists = [[c for c in l if c != head] for l in lists]
        return order

    def form(self, name):
        """`struct`, `dataclass`, or None for classes that are never sent (enums, typed dicts, plain classes)."""
        roots = [name_of(b) for c in self.mro(name) for b in self.classes[c].bases]
        if "Struct" in roots:
            return "struct"
        decorated = any(name_of(d) == "dataclass" for d in self.classes[name].decorator_list)
        return "dataclass" if decorated else None

    def fields(self, name):
        """Field names in wire order. A dict keeps the first position of a name that a subclass redeclares."""
        form, fields = self.form(name), {}
        for c in reversed(self.mro(name)):
            # Bases that are not dataclasses contribute no fields.
            if form == "dataclass" and self.form(c) != "dataclass":
                continue
            for item in self.classes[c].body:
                if isinstance(item, ast.AnnAssign) and not is_classvar(item.annotation):
                    fields[item.target.id] = None
        return list(fields)


class Ranges(io.RawIOBase):
    """A file on a web server, read by byte ranges."""

    def __init__(self, url, size):
        self.url, self.size, self.at = url, size, 0

    def seekable(self):
        return True

    def readable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def tell(self):
        return self.at

    def readinto(self, buffer):
        end = min(self.at + len(buffer), self.size)
        if end == self.at:
            return 0
        wanted = urllib.request.Request(self.url, headers={"Range": f"bytes={self.at}-{end - 1}"})
        with urllib.request.urlopen(wanted, timeout=60) as answer:
            data = answer.read()
        if len(data) != end - self.at:
            raise OSError(f"{self.url}: requested {end - self.at} bytes, received {len(data)}")
        buffer[: len(data)] = data
        self.at = end
        return len(data)


def wheels(package):
    """The index entry of one wheel for each release. All wheels of a release have the same Python files."""
    page = urllib.request.Request(f"{PyPI.simple_url}/{package}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(page, timeout=60) as answer:
        files = json.load(answer)["files"]
    return {file["filename"].split("-")[1]: file for file in files if file["filename"].endswith(".whl")}


def read(wheel, module):
    """A parsed module of the wheel of an index entry. Downloads only the wheel's directory and the module."""
    with zipfile.ZipFile(io.BufferedReader(Ranges(wheel["url"], wheel["size"]), 1 << 17)) as files:
        return ast.parse(files.read(module))


def layouts_of(tree):
    """Layouts of a release: `CLASS FORM FIELD...`, where FORM is dataclass or struct. Classes that are not read have no fields."""
    module = Module(tree)

    def layout(name, form):
        return " ".join((name, form, *(module.fields(name) if READ.fullmatch(name) else ())))

    return [layout(name, form) for name in module.classes if (form := module.form(name))]


def pip(*arguments):
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def published(package):
    """All published releases, oldest first, including release candidates."""
    return pip("index", "versions", "--pre", package).split("Available versions: ")[1].splitlines()[0].split(", ")[::-1]


def parse(text):
    """Releases of a table, and the releases of each layout."""
    releases, layouts = [], {}
    for line in text.splitlines():
        match line.split(" "):
            case ["#", *_]:
                pass
            case ["releases", *names]:
                releases = names
            case [name, form, spans, *fields]:
                ends = ((releases.index(span.split("..")[0]), releases.index(span.split("..")[-1])) for span in spans.split(","))
                having = {release for first, last in ends for release in releases[first : last + 1]}
                layouts[" ".join((name, form, *fields))] = having
            case _:
                sys.exit(f"invalid line in the table: {line}")
    return releases, layouts


def render(header, releases, layouts):
    """The table as text; the inverse of `parse`.

    >>> text = (Path(__file__).parents[2] / "engines/src/sglang/wire/schemas.txt").read_text()
    >>> releases, layouts = parse(text)
    >>> len(releases) >= 78, len(layouts) >= 318, render(HEADER, releases, layouts) == text
    (True, True, True)
    """
    rows = []
    for layout, having in layouts.items():
        name, form, *fields = layout.split(" ")
        rows.append((name, min(map(releases.index, having)), " ".join((name, form, spans(releases, having), *fields))))
    return f"{header}releases {' '.join(releases)}\n" + "".join(f"{line}\n" for *_, line in sorted(rows))


def spans(releases, having):
    """Ranges of consecutive releases.

    >>> spans(["0.5.4", "0.5.5", "0.5.6", "0.5.7"], {"0.5.7", "0.5.4", "0.5.5"})
    '0.5.4..0.5.5,0.5.7'
    """
    joined = []
    for place in sorted(map(releases.index, having)):
        if joined and joined[-1][1] + 1 == place:
            joined[-1][1] = place
        else:
            joined.append([place, place])
    return ",".join(releases[a] if a == b else f"{releases[a]}..{releases[b]}" for a, b in joined)


def keep(table, header, package, first, layouts_of, module, options):
    """Updates a table with the published releases of a package, from `first` on."""
    text = Path(table).read_text()
    known, layouts = parse(text)
    if render(header, known, layouts) != text:
        sys.exit(f"{table} is not in canonical form: it was edited by hand")
    if "--all" in options:
        known, layouts = [], {}
    having, releases = wheels(package), published(package)
    releases = [release for release in releases[releases.index(first) :] if release in having]
    if withdrawn := set(known) - set(releases):
        sys.exit(f"releases of the table are no longer published: {withdrawn}")
    for release in releases:
        if release not in known:
            print(f"reading {package} {release}", file=sys.stderr)
            for layout in layouts_of(read(having[release], module)):
                layouts.setdefault(layout, set()).add(release)
    new = render(header, releases, layouts)
    if new != text and "--check" in options:
        sys.exit(f"{table} is out of date: run `cargo xtask schemas`")
    Path(table).write_text(new)
    print(f"{len(releases)} releases, {len(layouts)} layouts: {'up to date' if new == text else 'written'}")


def main(table, *options):
    keep(table, HEADER, "sglang", FIRST, layouts_of, MODULE, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
