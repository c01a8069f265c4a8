"""Updates the table of vLLM's message layouts by parsing released wheels: nothing is installed, imported or run.

usage: layouts.py TABLE [--all] [--check]

Options and table format are those of schemas.py.
"""

import ast
import sys

import schemas

MODULE = "vllm/v1/engine/__init__.py"
HEADER = """\
# Messages of vLLM's V1 engine, every layout they have had. Written by `cargo xtask schemas`; do not edit.
# CLASS FORM RELEASES FIELD...   fields in the order of the wire, equal layouts of neighbouring releases in one line
"""
FIRST = "0.6.4"
CLASSES = ("EngineCoreOutputs", "EngineCoreOutput")


def layouts_of(tree):
    """Layouts of a release: `CLASS FORM FIELD...`. `FinishReason` is listed as a class whose fields are its members.

    >>> layouts_of(ast.parse("class EngineCoreOutput(S):\\n  request_id: str\\n  n: int = 0\\nclass FinishReason(E):\\n  STOP = 0\\n"))
    ['EngineCoreOutput struct request_id n', 'FinishReason enum STOP']
    """
    module = schemas.Module(tree)
    rows = [" ".join((name, "struct", *module.fields(name))) for name in CLASSES if name in module.classes]
    if reasons := module.classes.get("FinishReason"):
        members = [a for a in reasons.body if isinstance(a, ast.Assign) and isinstance(a.value, ast.Constant)]
        if [a.value.value for a in members] == list(range(len(members))):
            rows.append(" ".join(("FinishReason", "enum", *(a.targets[0].id for a in members))))
    return rows


def main(table, *options):
    schemas.keep(table, HEADER, "vllm", FIRST, layouts_of, MODULE, options)


if __name__ == "__main__":
    main(*sys.argv[1:])
