"""`python -m testbed RELEASE send|receive|detokenize|route|client ...`: see README.md."""

import argparse
import importlib

COMMANDS = ("send", "receive", "detokenize", "route", "client", "launch", "dynamo.worker", "dynamo.client")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed", description="Run one process of the real engine's output path")
    parser.add_argument("release", help="SGLang release, unpacked by `cargo xtask engine`")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in COMMANDS:
        module = importlib.import_module(f"testbed.{name}")
        command = commands.add_parser(name, help=module.__doc__.partition(": ")[2].rstrip("."))
        module.add_options(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args()
    return options.run(options)


if __name__ == "__main__":
    raise SystemExit(main())
