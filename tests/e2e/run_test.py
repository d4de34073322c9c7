"""segfuse run: a program in its text form on files of NumPy's."""

import json
import os
import struct
import unittest

import tool
from tool import npy

PROGRAM = """fusion "scaled" {
  symbols N, M
  %0 = input "x" : f32[N, M]
  %1 = input "scale" : f32[M]
  %2 = broadcast(%1) {axes=[1], shape=[N, M]}
  %3 = mul(%0, %2)
  output %3 "y"
  %4 = sum(%3) {axes=[0, 1]}
  output %4
}
"""


def values_of(data, code="f"):
    size = struct.unpack_from("<H", data, 8)[0]
    return list(struct.unpack(f"<{(len(data) - 10 - size) // struct.calcsize(code)}{code}", data[10 + size:]))


class RunTest(tool.ToolTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = cls.write("scaled.sf", PROGRAM.encode())
        cls.x = cls.write("x.npy", npy((2, 3), [1, 2, 3, 4, 5, 6]))
        cls.scale = cls.write("scale.npy", npy((3,), [1, 10, 100]))

    @classmethod
    def write(cls, name, content):
        path = cls.directory / name
        path.write_bytes(content)
        return path

    def run_it(self, *more, check=0, program=None):
        inputs = ["--input", f"x={self.x}", "--input", f"scale={self.scale}"]
        return tool.run("run", program or self.program, *inputs, *more, check=check)

    def refused(self, *arguments, code=2):
        result = tool.run("run", *arguments, check=code)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        return result.stderr

    def test_outputs_on_every_backend(self):
        for backend in ("compiled", "loops", "reference"):
            out = self.directory / backend
            text = self.run_it("--out", out, "--backend", backend, "--threads", 1).stdout
            self.assertIn("y  f32[2, 3]  min 1, mean 162.5, max 600\n  1 20 300 4 50 600\n", text)
            self.assertIn("output_1  f32[]  min 975, mean 975, max 975\n  975\n", text)
            self.assertEqual(values_of((out / "y.npy").read_bytes()), [1, 20, 300, 4, 50, 600])
            self.assertEqual(values_of((out / "output_1.npy").read_bytes()), [975])
            self.assertEqual(sorted(p.name for p in out.iterdir()), ["output_1.npy", "y.npy"])

    def test_json_and_special_numbers(self):
        x = self.write("special.npy", npy((1, 3), [float("nan"), float("inf"), 2]))
        result = tool.run("run", self.program, "--input", f"x={x}", "--input", f"scale={self.scale}", "--json", check=0)
        y = json.loads(result.stdout)["outputs"][0]
        self.assertEqual((y["name"], y["dtype"], y["shape"]), ("y", "f32", [1, 3]))
        self.assertEqual((y["nan"], y["infinite"], y["min"], y["max"]), (1, 1, 200, 200))

    def test_nothing_is_overwritten_in_silence(self):
        out = self.directory / "kept"
        out.mkdir()
        (out / "output_1.npy").write_text("mine")
        message = self.run_it("--out", out, check=2).stderr
        self.assertIn("output_1.npy exists already; pass --overwrite", message)
        self.assertEqual([p.name for p in out.iterdir()], ["output_1.npy"])
        self.assertEqual((out / "output_1.npy").read_text(), "mine")
        self.run_it("--out", out, "--overwrite")
        self.assertEqual(values_of((out / "output_1.npy").read_bytes()), [975])
        self.assertIn("is not a folder", self.run_it("--out", self.x, check=3).stderr)

    def test_names_that_are_no_file_names(self):
        text = PROGRAM.replace('output %3 "y"', 'output %3 "../y"').replace("output %4", 'output %4 "a b"')
        out = self.directory / "names" / "below"
        self.run_it("--out", out, program=self.write("names.sf", text.encode()))
        self.assertEqual(sorted(p.name for p in out.iterdir()), ["output_0.npy", "output_1.npy"])
        self.assertEqual([p.name for p in out.parent.iterdir()], ["below"])

    def test_values_in_comments(self):
        text = PROGRAM + "#: x = 1 2*2 3 4 5\n#: scale = 2*3\n"
        program = self.write("values.sf", text.encode())
        result = tool.run("run", program, "--size", "N=2", "--size", "M=3", check=0)
        self.assertIn("2 4 4 6 8 10", result.stdout)
        result = tool.run("run", program, "--size", "N=2", "--size", "M=3", "--input", f"scale={self.scale}", check=0)
        self.assertIn("1 20 200 3 40 500", result.stdout)

    def test_mistakes(self):
        x, scale = ["--input", f"x={self.x}"], ["--input", f"scale={self.scale}"]
        self.assertIn("scaled.sf: the input 'scale' (f32[M]) has no values; pass --input scale=FILE.npy", self.refused(self.program, *x))
        self.assertIn("the program has no such input; its inputs are 'x', 'scale'", self.refused(self.program, *x, *scale, "--input", f"z={self.x}"))
        self.assertIn("'x' is given twice", self.refused(self.program, *x, *x, *scale))
        self.assertIn("write --input NAME=FILE.npy", self.refused(self.program, "--input", self.x))
        doubles = self.write("doubles.npy", npy((3,), [1, 2, 3], "d"))
        self.assertIn("doubles.npy: holds f64[3], but the input 'scale' of the program is f32[M]", self.refused(self.program, *x, "--input", f"scale={doubles}"))
        short = self.write("short.npy", npy((2,), [1, 2]))
        self.assertIn("'scale'", self.refused(self.program, *x, "--input", f"scale={short}"))
        self.assertIn("is not a .npy file", self.refused(self.program, *x, "--input", f"scale={self.program}", code=3))
        cut = self.write("cut.npy", npy((3,), [1, 2]))
        self.assertIn("holds 8 bytes of elements, expected 12", self.refused(self.program, *x, "--input", f"scale={cut}", code=3))
        self.assertIn("nothing.npy", self.refused(self.program, *x, "--input", "scale=nothing.npy", code=3))
        self.assertIn("nothing.sf", self.refused("nothing.sf", code=3))
        self.assertIn("broken.sf:", self.refused(self.write("broken.sf", PROGRAM[:-10].encode()), code=3))

    def test_refused_arrays_are_named(self):
        """Whatever it is about an array that the program cannot take, its file is named, and of several the one that it is about."""
        x, scale = ["--input", f"x={self.x}"], ["--input", f"scale={self.scale}"]
        flat = self.write("flat.npy", npy((6,), [1, 2, 3, 4, 5, 6]))
        short = self.write("short.npy", npy((2,), [1, 2]))
        for backend in ("compiled", "loops", "reference"):
            said = self.refused(self.program, "--input", f"x={flat}", *scale, "--backend", backend)
            self.assertIn(f"input 'x' has the shape [6] with 1 axes; expected [N, M] with 2 (x is {flat})", said)
            said = self.refused(self.program, *x, "--input", f"scale={short}", "--backend", backend)
            self.assertIn(f"(x is {self.x}, scale is {short})", said)
        said = self.refused(self.program, *x, *scale, "--backend", "nonsense")
        self.assertIn("backend 'nonsense' is unknown", said)
        self.assertNotIn(str(self.x), said)
        text = PROGRAM.replace("scaled", "named") + "#: x = 1 2*2 3 4 5\n#: scale = 2*3\n"
        said = self.refused(self.write("sizes.sf", text.encode()), "--size", "N=2", "--size", "M=3", "--input", f"scale={short}")
        self.assertIn(f"scale is {short}", said)
        gather = self.write("gather.sf", b"""fusion "picked" {
  symbols N, M
  %0 = input "a" : f32[N]
  %1 = input "places" : i64[M]
  %2 = gather(%0, %1) {axis=0}
  output %2 "picked"
}
""")
        places = self.write("places.npy", npy((2,), [0, 9], "q"))
        for backend in ("compiled", "loops", "reference"):
            said = self.refused(gather, "--input", f"a={self.scale}", "--input", f"places={places}", "--backend", backend)
            self.assertIn("out of range", said)
            self.assertIn(f"places is {places}", said)

    def test_what_is_no_array(self):
        scale = ["--input", f"scale={self.scale}"]
        folder, pipe, loop, holes = (self.directory / name for name in ("folder.npy", "pipe.npy", "loop.npy", "holes.npy"))
        folder.mkdir()
        os.mkfifo(pipe)
        loop.symlink_to(loop.name)
        with open(holes, "wb") as file:  # 1 TB, as its header says
            file.write(npy((2**38, 1), []))
            file.truncate(128 + 2**40)
        sizes = {f"size{i}.npy": npy(shape, []) for i, shape in enumerate(((2**62,), (2**62, 2**62), (0, 2**62, 2**62), (2**62, 0), (2**40, 0)))}
        for path in (folder, pipe, loop, holes, "/dev/zero", *(self.write(*each) for each in sizes.items())):
            with self.subTest(path=path):
                self.assertIn(str(path), self.refused(self.program, "--input", f"x={path}", *scale, code=3))


if __name__ == "__main__":
    unittest.main()
