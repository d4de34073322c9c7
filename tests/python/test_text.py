"""Programs in their text form: `segfuse.Fusion.from_text`."""

import numpy as np
import pytest

import segfuse

TEXT = """fusion "scaled" {
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


def test_a_text_is_a_program_on_arrays():
    program = segfuse.Fusion.from_text(TEXT)
    assert isinstance(program, segfuse.Program)
    assert program.inputs == [("x", "float32", "[N, M]"), ("scale", "float32", "[M]")]
    x, scale = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 10, 100], np.float32)
    y, total = program(x, scale)
    np.testing.assert_array_equal(y, x * scale)
    assert total == (x * scale).sum()
    np.testing.assert_array_equal(program(scale=scale, x=x)[0], y)
    np.testing.assert_allclose(program.reference(x, scale)[0], y)


def test_texts_and_built_programs_are_the_same():
    f = segfuse.Fusion("step")
    p, g = f.input("p", "float32", ("N",)), f.input("g", "float32", ("N",))
    new = p - 0.5 * g
    f.output(new, "new")
    f.alias(new, p)
    for program in (f.build(), segfuse.Fusion.from_text(f.text())):
        mine = np.ones(3, np.float32)
        (found,) = program(mine, np.full(3, 2, np.float32))
        np.testing.assert_array_equal(found, 0)
        np.testing.assert_array_equal(mine, 0)  # overwritten in place
        with pytest.raises(ValueError, match="'p' is overwritten by the program, but"):
            fixed = np.ones(3, np.float32)
            fixed.flags.writeable = False
            program(fixed, fixed)
        assert program.text() == f.text()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("fusion", segfuse.DataError, "<text>:1:"),
        (TEXT.replace("mul", "mull"), segfuse.DataError, "<text>:6:"),
        (b"fusion", segfuse.UsageError, "text is a bytes, expected a str"),
        (None, segfuse.UsageError, "text is a NoneType, expected a str"),
    ],
)
def test_what_is_no_program(text, error, message):
    with pytest.raises(error, match=message):
        segfuse.Fusion.from_text(text)


def test_messages_name_the_source():
    with pytest.raises(segfuse.DataError, match=r"^layer\.sf:1:"):
        segfuse.Fusion.from_text("fusion", source="layer.sf")
    with pytest.raises(segfuse.UsageError, match="threads is 'two', expected an integer"):
        segfuse.Fusion.from_text(TEXT, threads="two")
