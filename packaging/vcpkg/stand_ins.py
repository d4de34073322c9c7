"""usage: stand_ins.py FOLDER NAMES [CMAKE OPTION...]

Writes ports for vcpkg that are empty: they stand for the libraries that the port of segfuse names,
where the distribution has them and vcpkg is to fetch none. NAMES are those of libraries, or `all`.
The options are for segfuse, in a triplet that builds no debug variant."""

import json
import pathlib
import sys

TRIPLET = """set(VCPKG_TARGET_ARCHITECTURE x64)
set(VCPKG_CRT_LINKAGE dynamic)
set(VCPKG_LIBRARY_LINKAGE static)
set(VCPKG_CMAKE_SYSTEM_NAME Linux)
set(VCPKG_BUILD_TYPE release)
if(PORT STREQUAL "segfuse")
  set(VCPKG_CMAKE_CONFIGURE_OPTIONS -DCMAKE_CXX_FLAGS= {options})
  # vcpkg sets it, and ccache looks at it.
  unset(ENV{{LC_ALL}})
endif()
"""


def main(folder, names, *options):
    port = json.loads((pathlib.Path(__file__).parent / "segfuse/vcpkg.json").read_text())
    needed = port["dependencies"] + [
        name for feature in port["features"].values() for name in feature.get("dependencies", ())
    ]
    for name in needed:
        if isinstance(name, dict):  # vcpkg's own helpers, which are its scripts
            continue
        if names != "all" and name not in names.split():
            continue
        place = pathlib.Path(folder, "ports", name)
        place.mkdir(parents=True)
        (place / "vcpkg.json").write_text(json.dumps({"name": name, "version-string": "system"}))
        (place / "portfile.cmake").write_text("set(VCPKG_POLICY_EMPTY_PACKAGE enabled)\n")
    triplets = pathlib.Path(folder, "triplets")
    triplets.mkdir()
    (triplets / "x64-linux.cmake").write_text(TRIPLET.format(options=" ".join(options)))


main(*sys.argv[1:])
