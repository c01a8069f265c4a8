"""Reads SGLang's message classes from a release's wheel by syntax alone: nothing is imported or run.

usage: schemas.py WHEEL   ->  one line a class on stdout: CLASS FORM FIELD...   (FORM is dataclass or struct)

Field order is wire order: dataclasses and msgspec.Structs collect their fields from the base classes first, in reverse method resolution
order.
"""

import ast
import sys
import zipfile

MODULE = "sglang/srt/managers/io_struct.py"


def name_of(node):
    """The last part of a dotted name: `msgspec.Struct` -> `Struct`, `dataclass(kw_only=True)` -> `dataclass`."""
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


def main(wheel):
    with zipfile.ZipFile(wheel) as z:
        module = Module(ast.parse(z.read(MODULE)))
    for name in sorted(module.classes):
        if form := module.form(name):
            print(name, form, *module.fields(name))


main(sys.argv[1])
