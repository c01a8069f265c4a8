"""Packs a release folder as a wheel, whose only file besides its metadata is the static program. pip and uv install it as a script.

usage: wheel.py VERSION TARGET RELEASE OUT     prints the wheel's name

maturin, which uv and ruff use, would build the program itself, without the flags of build.sh.
"""

import base64
import hashlib
import os
import re
import sys
import time
import zipfile
from pathlib import Path

README = Path(__file__).parents[3] / "README.md"
LICENCES = ("LICENSE-MIT", "LICENSE-APACHE", "THIRD-PARTY-LICENSES.txt")
BILL = "tokengap.cdx.json"
# A static program also runs on hosts without that libc. pip takes a wheel only for its own.
PLATFORMS = ("manylinux2014", "manylinux_2_17", "musllinux_1_1")


def tags(target):
    """Platforms of a target.

    >>> tags("aarch64-unknown-linux-musl")
    ['manylinux2014_aarch64', 'manylinux_2_17_aarch64', 'musllinux_1_1_aarch64']
    """
    return [f"{platform}_{target.split('-')[0]}" for platform in PLATFORMS]


def description(readme):
    r"""The README for a page that has none of its files: without pictures and comments, and without links to files.

    >>> description("![A](a.svg)\n\n[Install](docs/install.md), [b](https://b)\n<!-- not run: c -->\n")
    'Install, [b](https://b)\n'
    """
    text = re.sub(r"!\[[^]]*\]\([^)]*\)\n*|<!--.*?-->\n?", "", readme, flags=re.DOTALL)
    return re.sub(r"\[([^]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def metadata(version, readme):
    """The core metadata, in version 2.4."""
    summary = re.search(r"^\*\*(.*)\*\*$", readme, re.MULTILINE)[1]
    fields = [
        ("Metadata-Version", "2.4"),
        ("Name", "tokengap"),
        ("Version", version),
        ("Summary", summary),
        ("Keywords", "llm,sglang,vllm,ebpf,zeromq,latency"),
        ("License-Expression", "MIT OR Apache-2.0"),
        *(("License-File", name) for name in LICENCES),
        ("Classifier", "Environment :: Console"),
        ("Classifier", "Operating System :: POSIX :: Linux"),
        ("Classifier", "Programming Language :: Rust"),
        ("Requires-Python", ">=3.8"),
        ("Description-Content-Type", "text/markdown"),
    ]
    return "".join(f"{name}: {value}\n" for name, value in fields) + "\n" + description(readme)


def hashed(content):
    """A file's hash and size in the format of RECORD.

    >>> hashed(b"")
    'sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0'
    """
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(content)}"


def main(version, target, release, out):
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        sys.exit(f"wheel: {version}: Python packages name pre-releases differently")
    release = Path(release)
    stem, platforms = f"tokengap-{version}", tags(target)
    info, script = f"{stem}.dist-info", f"{stem}.data/scripts/tokengap"
    about = "".join(f"Tag: py3-none-{platform}\n" for platform in platforms)
    files = {script: (release / "tokengap").read_bytes()}
    files |= {f"{info}/licenses/{name}": (release / name).read_bytes() for name in LICENCES}
    files[f"{info}/sboms/{BILL}"] = (release / BILL).read_bytes()
    files[f"{info}/METADATA"] = metadata(version, README.read_text()).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tokengap\nRoot-Is-Purelib: false\n{about}".encode()
    record = "".join(f"{name},{hashed(content)}\n" for name, content in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = f"{stem}-py3-none-{'.'.join(platforms)}.whl"
    built_at = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
    with zipfile.ZipFile(Path(out) / wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, built_at)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name == script else 0o100644) << 16
            archive.writestr(entry, content)
    print(wheel)


if __name__ == "__main__":
    main(*sys.argv[1:])
