# SPDX-License-Identifier: Apache-2.0
"""Compares the declarations for ctypes with the headers, because ctypes cannot check them. A new
function or field in a header belongs in FUNCTIONS or STRUCTURES of fistapruner/_library.py."""
import pathlib
import re
import unittest

from fistapruner import _library

HEADERS = pathlib.Path(__file__).resolve().parents[2] / "include" / "fistapruner"


def headers():
    text = "\n".join(path.read_text() for path in sorted(HEADERS.glob("*.h")))
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


class Declarations(unittest.TestCase):
    def test_functions(self):
        declared = {}
        for name, arguments in re.findall(r"FP_API[^;(#]*?(fp_\w+)\(([^)]*)\)\s*;", headers()):
            declared[name] = 0 if arguments.strip() == "void" else arguments.count(",") + 1
        self.assertGreater(len(declared), 20)
        self.assertEqual(declared, {name: len(arguments) for name, (_, arguments) in _library.FUNCTIONS.items()})

    def test_structures(self):
        kinds = {"c_char_p": "const char *", "c_double": "double", "c_int": "int"}
        found = {}
        for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", headers(), flags=re.S):
            fields = []
            for line in filter(None, (part.strip() for part in body.split(";"))):
                names = line.split(",")
                fields += [re.search(r"(\w+)$", part.strip()).group(1) for part in names]
                first = fields[-len(names)]
                declared = dict(_library.STRUCTURES[name]._fields_)[first].__name__
                if declared in kinds and "fp_setting_kind" not in line:
                    self.assertTrue(line.startswith(kinds[declared]), f"{name}: '{line}' is declared as {declared}")
            found[name] = fields
        self.assertEqual(found, {name: [field for field, _ in kind._fields_] for name, kind in _library.STRUCTURES.items()})


if __name__ == "__main__":
    unittest.main()
