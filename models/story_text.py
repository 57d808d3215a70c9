# SPDX-License-Identifier: Apache-2.0
"""The text side of train.py: choosing tokens, turning them into stories, and the tokenizers."""
import json
import math
import re

import numpy
import sentencepiece
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

# Which model's tokenizer a model has.
TOKENIZER = {"llama": "llama", "opt": "opt", "moe": "llama"}
SPECIAL = {"llama": ["<|begin_of_text|>", "<|end_of_text|>"], "opt": ["<s>", "<pad>", "</s>", "<unk>"]}
# OPT begins a text with </s>, as the published OPT checkpoints do.
BEGIN = {"llama": 0, "opt": 2}
END = {"llama": 1, "opt": 2}
VOCABULARY = {"llama": 1536, "opt": 1024}
LLAMA3_SPLIT = (
	r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
	r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SENTENCE_END = re.compile(r"[.!?][\"'”’]?(?=\s|$)")
_cache = {}


def pick_token(logits, temperature, min_p):
	"""Gumbel-max: argmax(z + g) is a draw from softmax(z); g = -log(-log(u)), u uniform."""
	z = logits.float() / temperature
	z = z.masked_fill(z < z.amax(-1, keepdim=True) + math.log(min_p), float("-inf"))
	return (z - torch.log(-torch.log(torch.rand_like(z).clamp_min(1e-9)))).argmax(-1)


def is_sound(text):
	"""Drops stubs, broken bytes and stories that go round in circles."""
	words = text.lower().split()
	if not 40 <= len(words) <= 400 or "\ufffd" in text or len(set(words)) < 0.35 * len(words):
		return False
	sentences = [s for s in re.split(r"(?<=[.!?])\s+", text) if len(s) > 12]
	return len(sentences) - len(set(sentences)) < 2


def decode_rows(teacher, rows):
	"""[(text, whether the story was finished)] of token rows; the teacher ends a story with BOS (1)."""
	if "teacher" not in _cache:
		_cache["teacher"] = sentencepiece.SentencePieceProcessor(model_file=f"{teacher}/tokenizer.model")
	processor, stories = _cache["teacher"], []
	for row in rows:
		ends = numpy.flatnonzero(row <= 2)
		pieces = numpy.split(row, ends)
		for i, piece in enumerate(pieces):
			piece = piece[piece > 2]
			if len(piece) < 50:
				continue
			text, complete = processor.decode(piece.tolist()).strip(), i < len(pieces) - 1
			if not complete:
				last = [match.end() for match in SENTENCE_END.finditer(text)]
				text = text[: last[-1]] if last else ""
			if is_sound(text):
				stories.append((text, complete and SENTENCE_END.search(text[-2:]) is not None))
	return stories


def train_tokenizer(name, texts):
	"""Byte-level BPE: LLaMA 3's pipeline for the one, GPT-2's and OPT's for the other. Returns the JSON."""
	tokenizer = Tokenizer(models.BPE())
	if name == "llama":
		split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated")
		to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
		tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
	else:
		tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
	tokenizer.decoder = decoders.ByteLevel()
	trainer = trainers.BpeTrainer(
		vocab_size=VOCABULARY[name],
		special_tokens=SPECIAL[name],
		initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
		show_progress=False,
	)
	tokenizer.train_from_iterator(texts, trainer)
	begin = SPECIAL[name][BEGIN[name]]
	template = processors.TemplateProcessing(
		single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, BEGIN[name])]
	)
	tokenizer.post_processor = template
	return tokenizer.to_str()


def encode_texts(tokenizer_json, texts, begin_token):
	"""BOS + tokens of every text, in one array."""
	key = hash(tokenizer_json)
	if key not in _cache:
		_cache[key] = Tokenizer.from_str(tokenizer_json)
	stream = []
	for text in texts:
		ids = _cache[key].encode(text).ids
		assert ids[0] == begin_token
		stream += ids
	return numpy.array(stream, dtype=numpy.uint16)


def write_tokenizer(name, tokenizer_json, config, folder):
	Tokenizer.from_str(tokenizer_json).save(str(folder / "tokenizer.json"), pretty=False)
	special = SPECIAL[name]
	settings = {
		"add_bos_token": True,
		"add_prefix_space": False,
		"bos_token": special[BEGIN[name]],
		"clean_up_tokenization_spaces": False,
		"eos_token": special[END[name]],
		"model_max_length": config.max_position_embeddings,
		"tokenizer_class": "PreTrainedTokenizerFast",
	}
	if name == "opt":
		settings["pad_token"] = "<pad>"
		settings["unk_token"] = "<unk>"
	(folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
