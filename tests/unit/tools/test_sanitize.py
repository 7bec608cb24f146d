"""The compiled loops under AddressSanitizer: they pass; what reads behind its buffer does not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.tool import load_tool

sanitize = load_tool("sanitize")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc with its sanitizers"),
]
#: Reads the byte behind a buffer, which otherwise nobody sees.
FAULT = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *look(PyObject *self, PyObject *bytes) {
    char *copy = malloc(PyBytes_GET_SIZE(bytes));
    memcpy(copy, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
    long seen = copy[PyBytes_GET_SIZE(bytes)];
    free(copy);
    return PyLong_FromLong(seen);
}
static PyMethodDef methods[] = {{"look", look, METH_O, ""}, {NULL}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fault", "", -1, methods};
PyMODINIT_FUNC PyInit_fault(void) { return PyModule_Create(&module); }
"""


def test_the_compiled_loops_read_and_write_within_their_buffers() -> None:
    """The short form: tests of the codec and of iterations. ``make sanitize`` runs more.

    Without what other tests need: an import takes several times as long under a watch.
    """
    chosen = [
        "tests/unit/store/records/test_codec.py",
        "tests/unit/client/consumer/deliver/test_asking.py",
        "tests/unit/client/consumer/deliver/test_bulk.py",
        "tests/unit/remoting/test_room.py",
    ]
    chosen += ["-k", "compiled and not last_whole", "--noconftest"]
    assert sanitize.run(chosen) == 0


def test_a_read_behind_a_buffer_ends_the_process(tmp_path: Path) -> None:
    """So a run that passes says something."""
    source = tmp_path / "fault.c"
    source.write_text(FAULT)
    sanitize.compile_module(source, sanitize.target_of(source), sanitize.FLAGS)
    ended = subprocess.run(
        [sys.executable, "-c", "import fault; fault.look(b'x' * 100)"],
        env=sanitize.watched(tmp_path, ":".join(sanitize.libraries())),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 99
    assert "heap-buffer-overflow" in ended.stderr
