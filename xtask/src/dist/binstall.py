"""Checks that the address in `[package.metadata.binstall]` of tokengap/Cargo.toml is that of the packed archive.

usage: binstall.py VERSION TARGET FOLDER     FOLDER has the archive
"""

import re
import sys
import tarfile
import tomllib
from pathlib import Path

MANIFEST = Path(__file__).parents[3] / "tokengap/Cargo.toml"


def filled(template, values):
    """The template with its variables replaced.

    >>> filled("{ name }-{version}.tgz", {"name": "a", "version": "1.2"})
    'a-1.2.tgz'
    """
    return re.sub(r"\{ *([a-z-]+) *\}", lambda variable: values[variable[1]], template)


def main(version, target, folder):
    metadata = tomllib.loads(MANIFEST.read_text())["package"]["metadata"]["binstall"]
    values = {"repo": "https://host/owner/name", "name": "tokengap", "bin": "tokengap", "version": version, "target": target}
    place, _, archive = filled(metadata["pkg-url"], values).rpartition("/")
    if place != f"https://host/owner/name/releases/download/v{version}":
        sys.exit(f"binstall: {place}: releases are made from a tag v{version}")
    program = filled(metadata["bin-dir"], values)
    try:
        with tarfile.open(Path(folder) / archive) as files:
            files.getmember(program)
    except (FileNotFoundError, KeyError) as missing:
        sys.exit(f"binstall: {archive} with {program}, as tokengap/Cargo.toml says: {missing}")


if __name__ == "__main__":
    main(*sys.argv[1:])
