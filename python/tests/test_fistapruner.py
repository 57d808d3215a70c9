# SPDX-License-Identifier: Apache-2.0
"""Compares the package with plain numpy and with the program. FISTAPRUNER_PROGRAM is the program,
MATERIAL a directory made by tests/cli/make_material.py. tests/install/test_python.sh sets both."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy

import fistapruner

PROGRAM = os.environ["FISTAPRUNER_PROGRAM"]
MATERIAL = pathlib.Path(os.environ["MATERIAL"])
CALIBRATION = dict(samples=8, sequence_length=32, threads=1)


def problem(rows=24, cols=32, tokens=200, seed=5):
    generator = numpy.random.default_rng(seed)
    mixing = generator.standard_normal((cols, 8)) * generator.uniform(0.2, 3, (cols, 1))
    X = mixing @ generator.standard_normal((8, tokens)) + 0.3 * generator.standard_normal((cols, tokens))
    return generator.standard_normal((rows, cols)), X


def program(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


class Matrix(unittest.TestCase):
    def test_error_agrees_with_numpy(self):
        W, X = problem()
        errors = {}
        for method in ["magnitude", "wanda", "sparsegpt", "fista"]:
            result = fistapruner.prune_matrix(W, X @ X.T, pattern="2:4", method=method, threads=1)
            self.assertEqual(result.weights.dtype, numpy.float32)
            self.assertTrue(((result.weights.reshape(-1, 4) != 0).sum(axis=1) <= 2).all())
            self.assertAlmostEqual(result.sparsity, (result.weights == 0).mean(), places=12)
            measured = numpy.linalg.norm(result.weights @ X - W @ X)
            self.assertAlmostEqual(result.error / measured, 1, places=3)
            self.assertAlmostEqual(result.relative_error * numpy.linalg.norm(W @ X) / measured, 1, places=3)
            errors[method] = measured
        self.assertLess(errors["fista"], errors["sparsegpt"])
        self.assertLess(errors["sparsegpt"], errors["magnitude"])

    def test_wanda_agrees_with_numpy(self):
        W, X = problem()
        scores = abs(W) * numpy.sqrt((X**2).sum(axis=1))
        kept = numpy.argsort(-scores, axis=1, kind="stable")[:, :16]
        wanted = numpy.zeros_like(W)
        numpy.put_along_axis(wanted, kept, numpy.take_along_axis(W, kept, axis=1), axis=1)
        result = fistapruner.prune_matrix(W, X @ X.T, method="wanda", threads=1)
        numpy.testing.assert_allclose(result.weights, wanted, rtol=1e-6)

    def test_target_corrects_input_error(self):
        W, X = problem()
        seen = X + 0.2 * numpy.random.default_rng(6).standard_normal(X.shape)
        A, C = seen @ seen.T, W @ X @ seen.T
        energy = ((W @ X) ** 2).sum()
        blind = fistapruner.prune_matrix(W, A, threads=1)
        given = fistapruner.prune_matrix(W, A, C, energy=energy, threads=1)
        measured = numpy.linalg.norm(given.weights @ seen - W @ X)
        self.assertAlmostEqual(given.error / measured, 1, places=3)
        self.assertLess(measured, numpy.linalg.norm(blind.weights @ seen - W @ X))
        least = fistapruner.prune_matrix(W, A, C, threads=1)  # without the part that no V can reduce
        reachable = W @ X @ numpy.linalg.pinv(seen) @ seen
        self.assertAlmostEqual(least.error / numpy.linalg.norm(least.weights @ seen - reachable), 1, places=2)

    def test_inputs_are_converted_and_unchanged(self):
        W, X = problem()
        W16, A = numpy.asfortranarray(W.astype(numpy.float16)), X @ X.T
        before = W16.copy()
        one = fistapruner.prune_matrix(W16, A, method="wanda", threads=1)
        two = fistapruner.prune_matrix(W16.astype(numpy.float32).tolist(), A.tolist(), method="wanda", threads=1)
        numpy.testing.assert_array_equal(one.weights, two.weights)
        numpy.testing.assert_array_equal(W16, before)

    def test_invalid_arguments(self):
        W, X = problem()
        A = X @ X.T
        for message, call in [
                ("A must have the shape 32 × 32, but has 31 × 31", lambda: fistapruner.prune_matrix(W, A[:31, :31])),
                ("C must have the shape 24 × 32", lambda: fistapruner.prune_matrix(W, A, W.T)),
                ("W must have the shape", lambda: fistapruner.prune_matrix(W[0], A)),
                ("pattern", lambda: fistapruner.prune_matrix(W, A, pattern="5:4")),
                ("one of|must be", lambda: fistapruner.prune_matrix(W, A, method="magic")),
                ("mehtod", lambda: fistapruner.prune_matrix(W, A, mehtod="wanda"))]:
            with self.assertRaisesRegex(fistapruner.UsageError, message):
                call()
        with self.assertRaises(ValueError):
            fistapruner.prune_matrix(W, A, pattern="none")


class Checkpoint(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.work = pathlib.Path(self.folder.name)

    def prune(self, name, **more):
        return fistapruner.prune_checkpoint(MATERIAL / "good", self.work / name, MATERIAL / "documents.jsonl",
                                            **{**CALIBRATION, "pattern": "2:4", **more})

    def test_same_bytes_as_the_program(self):
        stages, lines = [], []
        document = self.prune("ours", progress=lambda *step: stages.append(step), metrics=lines.append)
        theirs = program("prune", MATERIAL / "good", "-o", self.work / "theirs", "--calibration", MATERIAL / "documents.jsonl",
                         "--samples", 8, "--sequence-length", 32, "--threads", 1, "--pattern", "2:4")
        self.assertEqual((self.work / "ours" / "model.safetensors").read_bytes(),
                         (self.work / "theirs" / "model.safetensors").read_bytes())
        self.assertEqual(document["relative_error"], theirs["relative_error"])
        self.assertEqual([line["name"] for line in lines], [operator["name"] for operator in document["operators"]])
        self.assertTrue(stages and all(isinstance(stage, str) and 0 <= done <= total for stage, done, total in stages))
        self.assertEqual(fistapruner.inspect(self.work / "ours", "2:4")["violations"], 0)

    def test_distill(self):
        fewer = dict(CALIBRATION, fit_steps=4, fit_tokens=64)
        document = fistapruner.distill(MATERIAL / "pruned", self.work / "near", MATERIAL / "good", MATERIAL / "documents.jsonl", **fewer)
        self.assertLessEqual(document.kl_after, document.kl_before)
        self.assertEqual(fistapruner.inspect(self.work / "near", "2:4")["violations"], 0)
        own = fistapruner.distill(MATERIAL / "pruned", self.work / "own", MATERIAL / "good", **fewer)
        self.assertGreater(own.own_text["texts"], 0)
        with self.assertRaises(fistapruner.UsageError):  # own text has no end
            fistapruner.distill(MATERIAL / "pruned", self.work / "other", MATERIAL / "good", **dict(fewer, samples=0))

    def test_pack_and_back(self):
        stages = []
        document = fistapruner.pack(MATERIAL / "pruned", self.work / "packed", progress=lambda *step: stages.append(step))
        self.assertEqual((document["by_mask"], document["as_2_4"]), (0, 14))
        self.assertTrue(stages)
        self.assertEqual(fistapruner.inspect(self.work / "packed", "2:4")["violations"], 0)
        fistapruner.unpack(self.work / "packed", self.work / "again")
        for name in ["model.safetensors", "config.json", "tokenizer.json"]:
            self.assertEqual((MATERIAL / "pruned" / name).read_bytes(), (self.work / "again" / name).read_bytes())
        with self.assertRaises(fistapruner.UsageError):
            fistapruner.unpack(MATERIAL / "pruned", self.work / "other")

    def test_same_perplexity_as_the_program(self):
        text = MATERIAL / "documents.jsonl"
        ours = fistapruner.perplexity(MATERIAL / "good", text, sequence_length=32, threads=1)
        theirs = program("eval", MATERIAL / "good", "--text", text, "--sequence-length", 32, "--threads", 1)
        self.assertEqual(ours, theirs["perplexity"])
        self.assertEqual(fistapruner.evaluate(MATERIAL / "good", text, sequence_length=32, threads=1)["windows"], theirs["windows"])

    def test_divergence_is_the_program_s(self):
        text = MATERIAL / "documents.jsonl"
        ours = fistapruner.evaluate(MATERIAL / "pruned", text, reference=MATERIAL / "good", sequence_length=32, threads=1)
        theirs = program("eval", MATERIAL / "pruned", "--reference", MATERIAL / "good", "--text", text, "--sequence-length", 32,
                         "--threads", 1)
        for key in ("perplexity", "kl", "kl_stderr", "kl_median", "kl_p99", "top1", "perplexity_ratio"):
            self.assertEqual(ours[key], theirs[key])

    def test_compare(self):
        document = fistapruner.compare(MATERIAL / "good", MATERIAL / "documents.jsonl", MATERIAL / "documents.jsonl",
                                       methods=["magnitude", "wanda"], patterns=["2:4"], samples=[8], seeds=[0], sequence_length=32,
                                       threads=1)
        rows = {row["method"]: row for row in document["rows"]}
        self.assertLessEqual({"dense", "magnitude", "wanda"}, set(rows))
        self.prune("wanda", method="wanda")
        alone = fistapruner.perplexity(self.work / "wanda", MATERIAL / "documents.jsonl", sequence_length=32, threads=1)
        self.assertAlmostEqual(rows["wanda"]["perplexity"] / alone, 1, places=5)
        self.assertIn("</html>", fistapruner.report_page(document))

    def test_basis(self):
        document = self.prune("full", method="wanda", basis="full")
        self.assertEqual((document["basis"]["kind"], document["basis"]["untied_head"]), ("full", True))
        self.assertLess(document["basis"]["removed"][1], document["basis"]["removed"][0])
        self.assertIn("residual stream and heads", fistapruner.report_page(document))
        rows = fistapruner.compare(MATERIAL / "good", MATERIAL / "documents.jsonl", MATERIAL / "documents.jsonl", methods=["wanda"],
                                   patterns=["2:4"], samples=[8], seeds=[0], sequence_length=32, threads=1, basis="full")["rows"]
        self.assertEqual([row["basis"]["kind"] for row in rows[1:]], ["full"])

    def test_tokens_and_settings(self):
        self.assertEqual(fistapruner.tokenize(MATERIAL / "good", "ab\n"), [256, 97, 98, 10])
        rows = {row.name: row for row in fistapruner.settings()}
        self.assertEqual((rows["samples"].kind, rows["samples"].initial), ("int", "128"))
        self.assertIn("wanda", rows["method"].choices)
        self.assertIn(fistapruner.__version__, subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout)

    def test_generate(self):
        request = {"max_tokens": 12, "temperature": 1.0, "seed": 5, "threads": 1}
        parts = []
        document = fistapruner.generate(MATERIAL / "good", "ab", text=parts.append, **request)
        command = [PROGRAM, "generate", str(MATERIAL / "good"), "--prompt", "ab", "--json", "--max-tokens", "12", "--temperature", "1",
                   "--seed", "5", "--threads", "1"]
        alone = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        self.assertEqual(document["results"], alone["results"])
        self.assertEqual("".join(parts), document["results"][0]["text"])
        prompts = self.work / "prompts.jsonl"
        prompts.write_text('{"prompt": "ab"}\n{"prompt": "c"}\n')
        batch = fistapruner.generate(MATERIAL / "good", batch=prompts, **request)["results"]
        self.assertEqual((batch[0], len(batch)), (document["results"][0], 2))
        with self.assertRaisesRegex(fistapruner.UsageError, "prompt is empty"):
            fistapruner.generate(MATERIAL / "good", "")
        with self.assertRaises(fistapruner.UsageError):
            fistapruner.generate(MATERIAL / "good")
        with self.assertRaises(ZeroDivisionError):
            fistapruner.generate(MATERIAL / "good", "ab", text=lambda part: 1 // 0, max_tokens=50)

    def test_bench(self):
        document = fistapruner.bench(MATERIAL / "good", threads=1, device="cpu")
        self.assertEqual([rate["held"] for rate in document["rates"]], ["dense"])
        self.assertGreater(document["read_bytes_per_second"], 0)

    def test_dry_run_writes_nothing(self):
        document = fistapruner.prune_checkpoint(MATERIAL / "good", None, [MATERIAL / "documents.jsonl"], dry_run=True, **CALIBRATION)
        self.assertTrue(document)
        self.assertEqual(list(self.work.iterdir()), [])

    def test_error_classes(self):
        with self.assertRaisesRegex(fistapruner.InputError, "no-such"):
            fistapruner.prune_checkpoint(MATERIAL / "no-such", self.work / "x", MATERIAL / "documents.jsonl")
        with self.assertRaises(fistapruner.CheckError) as caught:
            fistapruner.inspect(MATERIAL / "good", "2:4")
        self.assertGreater(caught.exception.document["violations"], 0)
        self.assertEqual(caught.exception.status, "FP_ERROR_CHECK")

    def test_exception_in_callback(self):
        class Enough(Exception):
            pass

        def stop(_):
            raise Enough

        def interrupt(*_):
            raise KeyboardInterrupt

        with self.assertRaises(Enough):
            self.prune("stopped", metrics=stop)
        with self.assertRaises(KeyboardInterrupt):
            self.prune("interrupted", progress=interrupt)
        self.assertEqual(list(self.work.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
