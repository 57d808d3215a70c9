# SPDX-License-Identifier: Apache-2.0
"""Progress bars, and results that print as tables. MATERIAL as in test_fistapruner.py."""
import io
import json
import os
import pathlib
import pickle
import unittest
from unittest import mock

import numpy

import fistapruner
from fistapruner import _command, _progress, _results

MATERIAL = pathlib.Path(os.environ["MATERIAL"])


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Bar(unittest.TestCase):
    def draw(self, steps, seconds):
        """What a bar writes when each step takes this long."""
        stream, clock = Terminal(), iter(range(10**6))
        with mock.patch.object(_progress.time, "monotonic", lambda: next(clock) * seconds):
            bar = _progress.Bar(stream)
            for step in steps:
                bar(*step)
            bar.close()
        return stream.getvalue()

    def test_states(self):
        text = self.draw([("reading", done, 4) for done in range(5)] + [("pruning", 1, 2)], 1.0)
        states = text.replace("\n", "\r").split("\r")
        self.assertTrue(any(state.startswith("reading  50% |██████████          | 2/4 [0:02<0:02]") for state in states), states)
        self.assertTrue(any(state.startswith("reading 100%") for state in states), states)
        self.assertTrue(text.endswith("\n"))

    def test_quick_stages_are_not_shown(self):
        self.assertEqual(self.draw([("reading", done, 40) for done in range(41)], 0.001), "")

    def test_steps_in_between_are_not_shown(self):
        self.assertLess(self.draw([("reading", done, 1000) for done in range(1001)], 0.01).count("\r"), 110)

    def test_who_listens(self):
        with mock.patch.object(_progress.sys, "stderr", Terminal()):
            self.assertIsInstance(_progress.listener(True), _progress.Bar)
            self.assertIsNone(_progress.listener(False))
            self.assertIsNone(_progress.listener(None))
            self.assertIs(_progress.listener(print), print)
        with mock.patch.object(_progress.sys, "stderr", io.StringIO()):
            self.assertIsNone(_progress.listener(True))
            notebook = mock.Mock()
            notebook.get_ipython.return_value.config = {"IPKernelApp": {}}
            with mock.patch.dict(_progress.sys.modules, {"IPython": notebook}):
                self.assertIsInstance(_progress.listener(True), _progress.Bar)

    def test_long_times(self):
        self.assertEqual([_progress.spell(seconds) for seconds in (0, 61, 3661)], ["0:00", "1:01", "1:01:01"])


class Tables(unittest.TestCase):
    def test_inspection(self):
        document = fistapruner.inspect(MATERIAL / "good", progress=False)
        self.assertIsInstance(document, fistapruner.Inspection)
        self.assertEqual(document, json.loads(json.dumps(document)))  # still a dictionary
        self.assertEqual(document.architecture, document["architecture"])
        with self.assertRaises(AttributeError):
            document.nothing
        self.assertEqual(pickle.loads(pickle.dumps(document)), document)
        text = str(document)
        self.assertRegex(text, r"(?m)^architecture +\w+ForCausalLM$")
        self.assertRegex(text, r"(?m)^tensor +shape +dtype +sparsity$")
        self.assertIn(f"<td>{document.architecture}</td>", document._repr_html_())

    def test_evaluation_and_comparison(self):
        text = MATERIAL / "documents.jsonl"
        one = fistapruner.evaluate(MATERIAL / "good", text, sequence_length=32, threads=1, progress=None)
        self.assertRegex(str(one), rf"(?m)^perplexity +{one.perplexity:,.3f}$")
        table = fistapruner.compare(MATERIAL / "good", text, text, methods=["wanda"], patterns=["2:4"], samples=[8], sequence_length=32,
                                    threads=1, progress=None)
        self.assertRegex(str(table), rf"(?m)^wanda +2:4 .*{table.rows[1]['perplexity']:,.3f} ")
        self.assertEqual(table._repr_html_().count("<tr>"), len(table._summary()) + 1 + len(table.rows))

    def test_prune(self):
        document = fistapruner.prune_checkpoint(MATERIAL / "good", None, MATERIAL / "documents.jsonl", dry_run=True, samples=8,
                                                sequence_length=32, threads=1, progress=None)
        self.assertRegex(str(document), r"(?m)^memory_bytes +[\d,]+$")
        operators = [{"operator": "q", "sparsity": 0.5, "relative_error": error} for error in (0.1, 0.3)]
        self.assertRegex(str(_results.PruneResult(operators=operators)), r"(?m)^q +2 +50.00% +0.2 +0.3$")

    def test_matrix(self):
        result = fistapruner.prune_matrix(numpy.eye(4), numpy.eye(4), method="magnitude", threads=1)
        self.assertRegex(str(result), r"(?m)^weights +4 × 4$")
        self.assertIn("<th>sparsity</th>", result._repr_html_())

    def test_other_documents(self):
        self.assertEqual(str(fistapruner.Document(name="x", tokens=1234, results=[1])), "name    x\ntokens  1,234")

    def test_html_is_escaped(self):
        self.assertIn("&lt;b&gt;", _results.Evaluation(model="<b>")._repr_html_())


class CudaFolders(unittest.TestCase):
    def found(self, root, *paths):
        spec = mock.Mock(submodule_search_locations=[root])
        folders = {root: ["cu13", "cudnn"]}
        with mock.patch.object(_command.importlib.util, "find_spec", return_value=spec), \
                mock.patch.object(_command.os, "listdir", folders.get), mock.patch.object(_command.os.path, "isdir", return_value=True), \
                mock.patch.object(_command.os.path, "exists", lambda path: path in paths):
            return _command.cuda_folders()

    def test_where(self):
        self.assertEqual(self.found("/other/nvidia", "/other/nvidia/cu13/lib/libcublas.so.13"), ["/other/nvidia/cu13/lib"])
        self.assertEqual(self.found("/other/nvidia"), [])
        beside = os.path.join(os.path.dirname(os.path.dirname(_command.NATIVE)), "nvidia")  # the module finds these itself
        self.assertEqual(self.found(beside, beside + "/cu13/lib/libcublas.so.13"), [])


if __name__ == "__main__":
    unittest.main()
