# SPDX-License-Identifier: Apache-2.0
"""fistapruner.torch on models of transformers, compared with what prune_checkpoint() makes of the same
windows. SOURCE is the source folder."""
import json
import os
import pathlib
import tempfile
import unittest

import fistapruner

try:
    import torch
    import transformers

    import fistapruner.torch
    from fistapruner import _semi_structured
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch with transformers: {error}") from None

MODELS = pathlib.Path(os.environ["SOURCE"]) / "models"
LENGTH, COUNT = 64, 64
# what prune_checkpoint() does besides solving operators
PLAIN = dict(basis="none", row_importance=False, bias_update=False, residual=0, residual_output=0)


def windows(folder):
    """The first windows of the calibration text, as the sampler "packed" cuts them."""
    ids = []
    for line in (MODELS / "calibration.jsonl").read_text().splitlines():
        ids += fistapruner.tokenize(folder, json.loads(line)["text"])
        if len(ids) >= LENGTH * COUNT:
            break
    return torch.tensor(ids[:LENGTH * COUNT]).reshape(COUNT, LENGTH)


def save(model, folder, source="llama-demo"):
    """As a checkpoint in float, so that both ways prune the same numbers; with the tokenizer of `source`."""
    model.float().save_pretrained(folder)
    for path in (MODELS / source).glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def two_layers(name, folder):
    config = transformers.AutoConfig.from_pretrained(MODELS / name)
    config.num_hidden_layers = 2
    return save(transformers.AutoModelForCausalLM.from_pretrained(MODELS / name, config=config), folder, name)


def qwen3(folder):
    torch.manual_seed(1)
    config = transformers.Qwen3Config(vocab_size=2048, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, head_dim=16, max_position_embeddings=256, tie_word_embeddings=False)
    return save(transformers.Qwen3ForCausalLM(config), folder)


class Prune(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.work = pathlib.Path(self.folder.name)

    def check(self, folder, *, same=0.999, **settings):
        """Every operator has the same error, within 1%, and this share of its zeros at the same
        places. One zero elsewhere, where rounding decides, changes the inputs of all operators after
        it, so with correction="cross" this holds for the first group only."""
        output = self.work / f"pruned-{len(list(self.work.iterdir()))}"
        extra = PLAIN if settings.get("method", "fista") == "fista" else {}
        document = fistapruner.prune_checkpoint(folder, output, MODELS / "calibration.jsonl", samples=COUNT, sequence_length=LENGTH,
                                                threads=1, progress=None, **{**extra, **settings})
        theirs = transformers.AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32).state_dict()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        result = fistapruner.torch.prune(model, windows(folder), threads=1, progress=None, **settings)
        self.assertEqual(len(result.operators), len(document["operators"]))
        errors = {row["name"]: row["relative_error"] for row in document["operators"]}
        for count, row in enumerate(result.operators):
            self.assertEqual(row["sparsity"], 0.5)
            self.assertAlmostEqual(row["relative_error"] / errors[row["name"]], 1, delta=0.01, msg=(settings, row))
            a, b = model.state_dict()[row["name"]], theirs[row["name"]]
            shared = ((a == 0) == (b == 0)).float().mean().item()
            self.assertGreaterEqual(shared, 0.999 if count < 3 else same, (settings, row))
            if shared == 1:
                self.assertLess(((a - b).norm() / b.norm()).item(), 1e-2, (settings, row))

    def test_llama(self):
        folder = two_layers("llama-demo", self.work / "llama")
        self.check(folder, same=1, method="magnitude", pattern="2:4")
        self.check(folder, method="wanda", pattern="2:4")
        self.check(folder, same=0.99, method="sparsegpt")
        self.check(folder, preset="paper", pattern="2:4")
        self.check(folder, same=0.8, preset="fast", pattern="2:4")

    def test_opt(self):
        folder = two_layers("opt-demo", self.work / "opt")
        self.check(folder, preset="paper")
        self.check(folder, preset="fast", correction="none", pattern="2:4")

    def test_qwen3(self):
        folder = qwen3(self.work / "qwen3")
        self.check(folder, preset="paper", pattern="2:4")
        self.check(folder, same=0.8, preset="fast")

    def test_choice(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / "llama-demo", dtype=torch.float32).train()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        seen = []
        result = fistapruner.torch.prune(model, windows(MODELS / "llama-demo")[:2], method="wanda", pattern="2:4", only=r"layers\.[01]\.",
                                         skip="down_proj", progress=lambda *step: seen.append(step))
        names = {row["name"] for row in result.operators}
        self.assertEqual(len(names), 12)
        self.assertEqual(seen[-1], ("pruning", 12, 12))
        self.assertTrue(model.training)
        for name, tensor in model.state_dict().items():
            self.assertEqual(torch.equal(tensor, before[name]), name not in names, name)
        self.assertIn("q_proj", str(result))
        self.assertIn("<table>", result._repr_html_())

    def test_invalid(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / "llama-demo", dtype=torch.float32)
        for message, rows, more in [("no windows", [], {}), ("same length", [[1, 2], [1, 2, 3]], {}), ("best", [[1, 2]], {"preset": "best"}),
                                    ("correction", [[1, 2]], {"correction": "some"}), ("no linear", [[1, 2]], {"only": "nothing"}),
                                    ("not str", "Once", {}), ("not dict", {"input_ids": [[1, 2]]}, {}), ("token ids", torch.rand(1, 2), {}),
                                    ("token ids", torch.tensor([1, 2]), {}), ("from 1 to 99999.*vocabulary", [[1, 99999]], {}),
                                    ("regular expression", [[1, 2]], {"only": "("}), ("^pattern '50'", [[1, 2]], {"pattern": "50"}),
                                    ("^'sparsity'", [[1, 2]], {"sparsity": 0.5}), ("^quantize=", [[1, 2]], {"quantize": "int4"})]:
            with self.assertRaisesRegex(fistapruner.UsageError, message):
                fistapruner.torch.prune(model, rows, progress=None, **more)

    def test_invalid_models(self):
        def load():
            return transformers.AutoModelForCausalLM.from_pretrained(MODELS / "llama-demo", dtype=torch.float32)

        empty, quantised, broken = load().to("meta"), load(), load()
        quantised.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
        broken.model.layers[1].mlp.up_proj.weight.data[0, 0] = float("nan")
        gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2))
        for kind, message, model in [(fistapruner.UsageError, "takes a path", "models/llama-demo"), (fistapruner.UsageError, "meta device", empty),
                                     (fistapruner.UsageError, r"layers\.1\.mlp\.up_proj.*uint8.*quantised", quantised),
                                     (fistapruner.InputError, r"layers\.1\.mlp\.up_proj.*NaN", broken),
                                     (fistapruner.UsageError, "GPT2Block.*no nn.Linear", gpt2)]:
            with self.assertRaisesRegex(kind, message):
                fistapruner.torch.prune(model, [[1, 2]], progress=None)
        self.assertTrue((broken.model.layers[0].mlp.up_proj.weight != 0).all())  # nothing was changed

    def test_experts_stay_dense(self):
        model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
            num_local_experts=2))
        with self.assertWarnsRegex(UserWarning, "in no nn.Linear, such as .*experts.*stay dense"):
            fistapruner.torch.prune(model, [[1, 2]], method="magnitude", progress=None)


class Notebook(unittest.TestCase):
    def test_runs(self):
        """The cells of the example, one after the other, in its folder."""
        path = MODELS.parent / "examples" / "prune_in_memory.ipynb"
        names, before = {"display": print}, os.getcwd()
        os.chdir(path.parent)
        try:
            for cell in json.loads(path.read_text())["cells"]:
                if cell["cell_type"] == "code":
                    exec("".join(cell["source"]), names)
        finally:
            os.chdir(before)
        self.assertEqual(len(names["result"].operators), 42)
        self.assertLess(names["dense"], names["pruned"])
        self.assertLess(names["pruned"], 3 * names["dense"])


class SemiStructured(unittest.TestCase):
    def model(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.Linear(128, 64, bias=False), torch.nn.Linear(64, 64))
        with torch.no_grad():
            for linear in model[:2]:
                linear.weight.view(-1, 4)[:, :2] = 0
        return model

    def test_without_a_gpu_nothing_changes(self):
        model = self.model()
        result = fistapruner.torch.to_semi_structured(model, tokens=8, progress=None)
        self.assertEqual((result.converted, result.left, len(result.operators)), (0, 2, 2))
        self.assertIn("not on a GPU", str(result))
        self.assertTrue(all(type(linear.weight) is torch.nn.Parameter for linear in model))

    def test_pattern(self):
        W = torch.zeros(4, 8)
        self.assertFalse(_semi_structured.is_2_of_4(W))  # nothing to gain from zeros only
        W[:, :2] = 1
        self.assertTrue(_semi_structured.is_2_of_4(W))
        W[3, 3] = 1
        self.assertFalse(_semi_structured.is_2_of_4(W))
        self.assertFalse(_semi_structured.is_2_of_4(torch.ones(2, 6)))

    @unittest.skipUnless(torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0), "no GPU of capability 8.0")
    def test_on_a_gpu(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4096, 11008, bias=False), torch.nn.Linear(11008, 4096)).cuda().bfloat16()
        with torch.no_grad():
            model[0].weight.view(-1, 4)[:, :2] = 0
            model[1].weight.view(-1, 4)[:, 1:3] = 0
        x = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            expected = model(x).float()
            result = fistapruner.torch.to_semi_structured(model, tokens=16384, progress=None)
            print(result)
            off = ((model(x).float() - expected).norm() / expected.norm()).item()
        self.assertLess(off, 1e-2)
        self.assertEqual(result.converted, sum(row["dense_ms"] > row["sparse_ms"] for row in result.operators))
        many = fistapruner.torch.to_semi_structured(torch.nn.Sequential(torch.nn.Linear(64, 64)).cuda().half(), tokens=8, progress=None)
        self.assertEqual(many.operators, [])  # dense operators are not even measured


if __name__ == "__main__":
    unittest.main()
