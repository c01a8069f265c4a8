"""Installs the release in every documented way in a minimal Debian without Rust, or its wheel in clean Python environments, and runs it.

usage: install.py SHIPPED VERSION     as root; SHIPPED is the folder of `cargo xtask dist`
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from container import spec
from levels import LEVELS

ROOT = Path(__file__).parents[3]
# root's PATH in a login and under sudo.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Folder of `cargo install` in the Debian, on its user's PATH only.
CARGO = "/home/user/.cargo"
UV = "uv==0.13.9"
# Oldest and newest release of Python that the wheel is installed in.
PYTHONS = ("3.10", "3.13")
# Without an engine, doctor exits with 1.
NO_ENGINE = 1


def expect(holds, message):
    if not holds:
        sys.exit(message)


def output(*command, code=0, env=None):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    expect(done.returncode == code, f"{command} exited with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def release_name(text):
    """Code name of a distribution from its os-release file.

    >>> release_name('ID=debian\\nVERSION_CODENAME=bookworm\\n')
    'bookworm'
    """
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)["VERSION_CODENAME"].strip('"')


class Debian:
    """A root folder with the essential packages of this machine's distribution."""

    def __init__(self, root):
        self.root = root
        sources = [file for file in map(Path, ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")) if file.exists()]
        suite = release_name(Path("/etc/os-release").read_text())
        output("mmdebstrap", "--mode=root", "--variant=essential", suite, root, *sources[:1])
        print(f"{suite}: {len(self.run('dpkg-query', '--show').splitlines())} packages, no Rust")

    def run(self, *command, code=0, path=PATH):
        """Runs the command alone in a PID namespace and returns its output."""
        enter = 'mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/tmp" && exec chroot "$0" env -i PATH="$@"'
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        return output(*apart, "sh", "-c", enter, self.root, path, *command, code=code)

    def program(self, path):
        return lambda *options, code=0: self.run(path, *options, code=code)


def check(way, program):
    """Runs the installed program."""
    version = program("--version").strip()
    expect(version == f"tokengap {VERSION}", f"{way}: the version is {version}")
    report = json.loads(program("demo", "--headless", "--json", "--duration", "1s"))
    expect(report["tokens"]["delivered"] > 0, f"{way}: the demo delivered no tokens")
    doctor = json.loads(program("doctor", "--json", code=NO_ENGINE))
    states = {row["name"]: row["state"] for row in doctor["features"]}
    expect(states["engine"] == "missing" and states["tap"] == "works", f"{way}: doctor said {states}")
    print(f"{way}: version, demo, doctor", flush=True)


def package(debian):
    [package] = SHIPPED.glob("*.deb")
    (debian.root / "root/tokengap.deb").write_bytes(package.read_bytes())
    debian.run("dpkg", "--install", "/root/tokengap.deb")
    check("Debian package", debian.program("tokengap"))
    debian.run("dpkg", "--purge", "tokengap")
    left = debian.run("find", "/usr", "/etc", "/var/lib", "-name", "*tokengap*").strip()
    expect(not left, f"after the package was removed, these files remain: {left}")


def archive(debian):
    [archive] = SHIPPED.glob(f"*-{platform.machine()}-*.tar.gz")
    output("tar", "-xzf", archive, "-C", debian.root / "opt")
    check("archive", debian.program(f"/opt/{archive.name.removesuffix('.tar.gz')}/tokengap"))


def check_remedy(way, run, folder):
    """A user's program is in a folder that sudo does not search; the command that its doctor prints starts it."""
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    doctor = json.loads(run(*user, f"{folder}/tokengap", "doctor", "--json", code=NO_ENGINE))
    fixes = {str(reason["fix"]).split(", or:")[0] for row in doctor["features"] for reason in row["reasons"]}
    [remedy] = [fix for fix in fixes if fix.startswith("sudo ")]
    sudo = f'PATH={folder}:$PATH; sudo() {{ env -i PATH={PATH} "$@"; }}; '
    run("sh", "-c", f"{sudo} sudo tokengap --version", code=127)
    run("sh", "-c", f"{sudo} {remedy} --version")
    print(f"{way}: `sudo tokengap` is not found; `{remedy}` works")


def cargo(debian):
    """`cargo install` of this folder and of its newest commit."""
    prefix = f"{debian.root}{CARGO}"
    committed = ["--git", ROOT.as_uri(), "--rev", output("git", "-C", ROOT, "rev-parse", "HEAD").strip(), "tokengap"]
    for place in (committed, ["--path", ROOT / "tokengap"]):
        install = ["cargo", "install", "--quiet", "--locked", *place, "--features", "full", "--no-track", "--force"]
        output(*install, "--target-dir", ROOT / "target", "--root", prefix)
        check(f"cargo install {place[0]}", debian.program(f"{CARGO}/bin/tokengap"))
    check_remedy("cargo install", debian.run, f"{CARGO}/bin")


def wheel(folder):
    """The wheel, installed by pip into an environment of each Python, and run by uvx without being installed."""
    [wheel] = SHIPPED.glob(f"*_{platform.machine()}.whl")
    output(sys.executable, "-m", "venv", folder / "uv")
    output(folder / "uv/bin/python", "-m", "pip", "install", "--quiet", UV)
    environment = os.environ | {"UV_CACHE_DIR": str(folder / "uv-cache")}
    if shutil.which("pyenv"):
        # Its commands start only chosen releases, by default one.
        environment["PYENV_VERSION"] = ":".join(output("pyenv", "versions", "--bare").split())
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    for python in PYTHONS:
        installed = folder / f"python-{python}"
        try:
            output(folder / "uv/bin/uv", "venv", "--quiet", "--seed", "--python", python, installed, env=environment)
        except SystemExit as missing:
            print(f"SKIPPED: the wheel with Python {python}: {str(missing).splitlines()[0]}")
            continue
        pip = [installed / "bin/python", "-m", "pip"]
        output(*pip, "install", "--no-index", wheel)
        check(f"wheel, pip, Python {python}", lambda *options, code=0: output(*alone, installed / "bin/tokengap", *options, code=code))
        check_remedy(f"wheel, pip, Python {python}", output, installed / "bin")
        output(*pip, "uninstall", "--yes", "tokengap")
        left = [str(file) for file in installed.rglob("*tokengap*")]
        expect(not left, f"after the wheel was removed, these files remain: {left}")
    uvx = [*alone, folder / "uv/bin/uvx", "--offline", "--from", wheel, "tokengap"]
    check("wheel, uvx", lambda *options, code=0: output(*uvx, *options, code=code, env=environment))
    check_first_screen(wheel, folder / "uv/bin/uvx", folder / "uv-cache-2")


def check_first_screen(wheel, uvx, cache):
    """The README's first command, without anything installed before, shows the demo's verdict in a terminal within a minute."""
    tmux = ["tmux", "-S", f"{cache}.tmux", "-f", "/dev/null"]
    started = time.monotonic()
    environment = os.environ | {"UV_CACHE_DIR": str(cache), "LC_ALL": "C.UTF-8"}
    output(*tmux, "new-session", "-d", "-x", "100", "-y", "30", f"{uvx} --offline --from {wheel} tokengap demo", env=environment)
    try:
        while not re.search(r"(CRITICAL|WARNING)  ", screen := output(*tmux, "capture-pane", "-p")):
            expect(time.monotonic() - started < 60, f"wheel, uvx: no verdict within a minute:\n{screen}")
            time.sleep(0.2)
    finally:
        output(*tmux, "kill-server")
    print(f"wheel, uvx: verdict on the screen after {time.monotonic() - started:.1f} s", flush=True)


def image(folder):
    """The image of deploy/Dockerfile, built by buildah and started by runc with its user, environment and entry point."""
    [release] = SHIPPED.glob(f"tokengap-*-{platform.machine()}-*/")
    buildah = ["buildah", "--root", folder / "storage", "--runroot", folder / "run", "--storage-driver", "vfs"]
    output(*buildah, "build", "--isolation", "chroot", "--file", ROOT / "deploy/Dockerfile", "--tag", "tokengap", release)
    config = json.loads(output(*buildah, "inspect", "--type", "image", "tokengap"))["OCIv1"]["config"]
    root = output(*buildah, "mount", output(*buildah, "from", "tokengap").strip()).strip()
    level = LEVELS[0]
    expect(config["User"] == f"{level.uid}:{level.uid}", f"the image's user is {config['User']}")

    def program(*options, code=0):
        with tempfile.TemporaryDirectory(dir=folder) as bundle:
            wanted = spec(level, root, ())
            wanted["process"] |= {"args": [*config["Entrypoint"], *options], "env": config["Env"]}
            wanted["linux"]["namespaces"].append({"type": "pid"})
            Path(bundle, "config.json").write_text(json.dumps(wanted))
            return output("runc", "--root", folder / "runc", "run", "--bundle", bundle, Path(bundle).name, code=code)

    check("container image", program)
    output(*buildah, "umount", "--all")


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        # Other users must reach the programs in it.
        folder.chmod(0o755)
        wheel(folder)
        debian = Debian(folder / "debian")
        package(debian)
        archive(debian)
        cargo(debian)
        image(folder)


if __name__ == "__main__":
    SHIPPED, VERSION = Path(sys.argv[1]), sys.argv[2]
    main()
