"""Checks a manifest of the kubectl plugin by krew's rules, and that the files it installs are in the packed archive.

usage: krew.py MANIFEST FOLDER     FOLDER has the archive; needs the package pyyaml
"""

import hashlib
import re
import sys
import tarfile
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath


def complaints(manifest):
    """What krew would reject in a manifest.

    >>> platform = {"uri": "u", "sha256": "a" * 64, "bin": "b", "files": [{"from": "f", "to": "."}],
    ...             "selector": {"matchExpressions": [{"key": "os"}]}}
    >>> spec = {"version": "v1.2.3", "shortDescription": "s", "platforms": [platform]}
    >>> good = {"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": {"name": "a"}, "spec": spec}
    >>> complaints(good)
    []
    >>> complaints(good | {"spec": spec | {"version": "1.2.3", "platforms": [platform | {"sha256": "SHA256"}]}})
    ['version', 'sha256']
    """
    spec = manifest["spec"]
    holds = {
        "apiVersion": manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2",
        "kind": manifest["kind"] == "Plugin",
        "name": re.fullmatch(r"[\w-]+", manifest["metadata"]["name"]),
        "version": re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"]),
        "shortDescription": re.fullmatch(r".+", spec["shortDescription"]),
        "platforms": spec["platforms"],
    }
    for platform in spec["platforms"]:
        keys = {expression["key"] for expression in platform["selector"]["matchExpressions"]}
        holds |= {
            "selector": keys and keys <= {"os", "arch"},
            "uri": platform["uri"],
            "sha256": re.fullmatch("[a-f0-9]{64}", platform["sha256"]),
            "bin": platform["bin"],
            "files": platform["files"] and all(file["from"] and file["to"] for file in platform["files"]),
        }
    return [name for name, held in holds.items() if not held]


def main(manifest, folder):
    import yaml

    manifest = yaml.safe_load(Path(manifest).read_text())
    if wrong := complaints(manifest):
        sys.exit(f"krew would reject {', '.join(wrong)}")
    for platform in manifest["spec"]["platforms"]:
        archive = Path(folder) / platform["uri"].rpartition("/")[2]
        if hashlib.sha256(archive.read_bytes()).hexdigest() != platform["sha256"]:
            sys.exit(f"krew: the checksum is not that of {archive}")
        with tarfile.open(archive) as files:
            members = [member for member in files.getmembers() if member.isfile()]
        installed = []
        for pattern in (file["from"] for file in platform["files"]):
            found = [member for member in members if fnmatchcase(member.name, pattern) and member.name.count("/") == pattern.count("/")]
            if not found:
                sys.exit(f"krew: {archive} has no {pattern}")
            installed += found
        programs = [member for member in installed if PurePosixPath(member.name).name == platform["bin"]]
        if len(programs) != 1 or not programs[0].mode & 0o111:
            sys.exit(f"krew: {platform['bin']} is not an installed program: {installed}")
        print(f"krew: installs {', '.join(member.name for member in installed)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
