"""The imports of a Python package against the order of its modules (for check_layers)."""

import ast


class Package:
    """A [python] table: a folder, and layers of modules from bottom to top.

    A module may import modules that stand before it in its own layer, and those of the layers that
    its own one may import.
    """

    def __init__(self, path, content):
        self.folder = content["folder"]
        self.name = self.folder.rpartition("/")[2]
        self.layer, self.place, self.may_import = {}, {}, {}
        for layer in content["layers"]:
            self.may_import[layer["name"]] = layer.get("may_import", [])
            for module in layer["modules"]:
                self.layer[module] = layer["name"]
                self.place[module] = len(self.place)
        for name, others in self.may_import.items():
            for other in others:
                if other not in self.may_import:
                    raise SystemExit(f"{path}: '{name}' may import '{other}', which is no layer")

    def files(self, root):
        """{dotted name: path} of the modules; the package itself is __init__."""
        found = {}
        for suffix in (".pyi", ".py"):  # an extension module has a stub only
            for path in sorted((root / self.folder).rglob(f"*{suffix}")):
                parts = path.relative_to(root / self.folder).with_suffix("").parts
                if parts[-1] == "__init__" and len(parts) > 1:
                    parts = parts[:-1]
                found[".".join(parts)] = path.relative_to(root)
        return found

    def full(self, module):
        return self.name if module == "__init__" else f"{self.name}.{module}"


def _is_for_types(node):
    test = node.test
    return (test.id if isinstance(test, ast.Name) else getattr(test, "attr", "")) == "TYPE_CHECKING"


def _import_nodes(node, inside=False):
    """(node, whether it is inside a function) of the imports that happen at run time."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, inside
        elif isinstance(child, ast.If) and _is_for_types(child):
            for other in child.orelse:
                yield from _import_nodes(ast.Module([other], []), inside)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _import_nodes(child, inside or function)


def _targets(node, package, module, is_package, known):
    """The modules of the package that an import names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        base = node.module or ""
        if node.level:
            home = [package, *module.split(".")] if module != "__init__" else [package, ""]
            up = len(home) - node.level + (is_package and module != "__init__")
            base = ".".join([*home[:up], *([base] if base else [])])
        names = [f"{base}.{alias.name}" for alias in node.names]
    for name in names:
        if name == package or name.startswith(f"{package}."):
            inner = name[len(package) + 1 :]
            outer = inner.rpartition(".")[0]
            yield next((x for x in (inner, outer) if x in known), "__init__")


def _check_import(package, module, target, place):
    own, other = package.layer[module], package.layer.get(target)
    names = package.full(module), package.full(target)
    if other is None or other in package.may_import[own]:
        return None
    if other != own:
        return f"{place}: {own} may import nothing of {other}, not {names[1]} (tools/layers.toml)"
    if package.place[target] < package.place[module]:
        return None
    return f"{place}: {names[0]} is below {names[1]} and may not import it (tools/layers.toml)"


def check(root, package):
    """The errors, and the graph of imports by path."""
    files, errors, graph = package.files(root), [], {}
    for module in package.layer.keys() - files.keys():
        errors.append(f"tools/layers.toml:1: there is no module {package.full(module)}")
    for module, path in files.items():
        graph[path] = []
        if module not in package.layer:
            errors.append(f"{path}:1: this module belongs to no layer of tools/layers.toml")
            continue
        code = ast.parse((root / path).read_text(), path.as_posix())
        for node, inside in _import_nodes(code):
            is_package = path.stem == "__init__"
            for target in _targets(node, package.name, module, is_package, files):
                graph[path].append(files[target])
                place = f"{path}:{node.lineno}"
                if inside:
                    full = package.full(target)
                    errors.append(f"{place}: {full} is imported inside a function, not at the top")
                errors.append(_check_import(package, module, target, place))
    return errors, graph
