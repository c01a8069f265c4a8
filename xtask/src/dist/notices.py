"""Third-party notices of the program: licence texts for people, a CycloneDX bill of materials for machines.

usage: notices.py TARGET VERSION FOLDER     needs the package ziglang
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

# Packages in the archive: the command, and the kernel side of the probe embedded in it.
SHIPPED = ("tokengap", "probe-ebpf")
LICENCE = re.compile(r"(LICEN[SC]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)


@dataclass(order=True)
class Component:
    """A third-party component, with its licence and notice texts by file name."""

    name: str
    version: str
    purl: str
    licence: str
    texts: list = field(default_factory=list)


def texts(*paths):
    return [(path.name, path.read_text(errors="replace")) for path in sorted(paths) if path.is_file()]


def crates(target):
    """All crates compiled into the program, without build and test dependencies."""
    features = "--features=probe-ebpf/kernel,tokengap/full"
    command = ["cargo", "metadata", "--locked", "--format-version=1", features, "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    left, seen = [id for id in metadata["workspace_members"] if packages[id]["name"] in SHIPPED], set()
    while left:
        if (id := left.pop()) not in seen:
            seen.add(id)
            left += [dep["pkg"] for dep in nodes[id]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
    for package in (packages[id] for id in seen - set(metadata["workspace_members"])):
        folder = Path(package["manifest_path"]).parent
        # zstd's C sources are dual-licensed; keep only the licence used here.
        files = [*filter(lambda path: LICENCE.match(path.name), folder.iterdir()), *folder.glob("zstd/LICENSE*")]
        # `A/B` is the deprecated notation for `A OR B`.
        licence = (package["license"] or "").replace("/", " OR ")
        name, version = package["name"], package["version"]
        yield Component(name, version, f"pkg:cargo/{name}@{version}", licence, texts(*files))


def linked(target):
    """Linked libraries that are not in Cargo.lock."""
    rustc = re.search(r"^release: (.*)$", subprocess.getoutput("rustc -vV"), re.MULTILINE)[1]
    yield Component("rust-std", rustc, f"pkg:github/rust-lang/rust@{rustc}", "MIT OR Apache-2.0")
    if target.endswith("-musl"):
        import ziglang

        zig = Path(ziglang.__file__).parent / "lib"
        musl = re.search(r'"(.*)"', (zig / "libc/musl/src/internal/version.h").read_text())[1]
        yield Component("musl", musl, f"pkg:generic/musl@{musl}", "MIT", texts(zig / "libc/musl/COPYRIGHT"))
        unwind = texts(zig / "libunwind/LICENSE.TXT")
        yield Component("llvm-libunwind", "of zig", "pkg:generic/llvm-libunwind", "Apache-2.0 WITH LLVM-exception", unwind)


def licences(components):
    """Each licence text once, under the names of all components that use it.

    >>> text = licences([Component(name, "1", "", "MIT", [("LICENSE", body)]) for name, body in zip("abc", ["one\\n", "one", "two"])])
    >>> text.count("\\none\\n"), "a 1 (LICENSE)\\nb 1 (LICENSE)\\n\\none" in text, "c 1 (LICENSE)\\n\\ntwo" in text
    (1, True, True)
    """
    text = "tokengap is MIT OR Apache-2.0. It contains third-party software under the following licences.\n\n"
    owners = {}
    for part in components:
        text += f"{part.name} {part.version}: {part.licence}\n"
        for file, body in part.texts:
            owners.setdefault(body.strip(), []).append(f"{part.name} {part.version} ({file})")
    for body, names in sorted(owners.items(), key=lambda item: item[1]):
        text += "\n" + "=" * 100 + "\n" + "\n".join(names) + f"\n\n{body}\n"
    return text


def bill(version, target, components):
    """CycloneDX 1.5, without a random serial number, so that builds are reproducible."""
    built_at = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc)

    def described(kind, name, version, purl, licence, **more):
        about = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
        return about | {"licenses": [{"expression": licence}]} | more

    own = described("application", "tokengap", version, f"pkg:cargo/tokengap@{version}", "MIT OR Apache-2.0",
                    properties=[{"name": "target", "value": target}])  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": built_at.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": own},
        "components": [described("library", c.name, c.version, c.purl, c.licence) for c in components],
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [c.purl for c in components]}],
    }


def main(target, version, folder):
    components = sorted([*crates(target), *linked(target)])
    (Path(folder) / "THIRD-PARTY-LICENSES.txt").write_text(licences(components))
    (Path(folder) / "tokengap.cdx.json").write_text(json.dumps(bill(version, target, components), indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
