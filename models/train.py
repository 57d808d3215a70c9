#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes everything that ships in models/: text, tokenizers and the demo checkpoints.

A teacher (stories15M, a LLaMA checkpoint of 15M parameters in the Hugging Face layout) writes the
stories; two byte-level BPE tokenizers and three models of about 1.4M parameters are trained on them.
Every stage has a limit in wall-clock seconds, and what is finished is packed after every stage, so
that a run on a rented machine always comes back with something.

    python3 train.py --teacher stories15M --output out            # one GPU, about seven minutes
    python3 train.py --teacher stories15M --output out --quick    # every code path, on a CPU
    python3 train.py --teacher stories15M --output out --models moe --keep models   # one more model, same text and tokenizer
"""
import argparse
import json
import math
import multiprocessing
import os
import platform
import random
import shutil
import sys
import tarfile
import time
from pathlib import Path

START = time.monotonic()
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import numpy
import safetensors
import sentencepiece
import tokenizers
import torch
import transformers

import story_text
from story_models import FORWARD, Teacher, build_model, check_forward, check_teacher

def say(message):
	print(f"[{time.monotonic() - START:7.1f} s] {message}", flush=True)


def parse_arguments():
	parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
	parser.add_argument("--teacher", required=True, help="directory of the stories15M checkpoint")
	parser.add_argument("--output", required=True, help="directory to write demo.tar.gz and train_log.txt to")
	parser.add_argument("--seed", type=int, default=20261115)
	parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
	parser.add_argument("--sample-seconds", type=float, default=110)
	parser.add_argument("--sample-batch", type=int, default=8192)
	parser.add_argument("--sample-batches", type=int, default=1000, help="stop after so many, if time has not run out")
	parser.add_argument("--temperature", type=float, default=1.0)
	parser.add_argument("--min-p", type=float, default=0.02, help="drop tokens below this share of the likeliest one's probability")
	parser.add_argument("--train-seconds", type=float, default=90, help="per model, without compilation")
	parser.add_argument("--llama-steps", type=int, default=0, help="fix the number of steps (0: as many as the time allows)")
	parser.add_argument("--opt-steps", type=int, default=0)
	parser.add_argument("--moe-steps", type=int, default=0)
	parser.add_argument("--models", default="llama,opt,moe", help="which to train [%(default)s]")
	parser.add_argument("--keep", help="folder of an earlier run whose held-out text and tokenizers are kept")
	parser.add_argument("--balance", type=float, default=0.01, help="weight of the experts' balance loss")
	parser.add_argument("--total-seconds", type=float, default=460, help="training is shortened to end by then")
	parser.add_argument("--batch", type=int, default=128)
	parser.add_argument("--length", type=int, default=512)
	parser.add_argument("--learning-rate", type=float, default=3e-3)
	parser.add_argument("--workers", type=int, default=max(2, (os.cpu_count() or 2) - 2))
	parser.add_argument("--no-compile", action="store_true")
	parser.add_argument("--quick", action="store_true", help="tiny settings: a test of the script, not a result")
	arguments = parser.parse_args()
	arguments.models = arguments.models.split(",")
	if arguments.quick:
		arguments.sample_seconds, arguments.sample_batch, arguments.sample_batches = 60, 64, 2
		arguments.train_seconds, arguments.batch, arguments.total_seconds = 20, 8, 600
		arguments.llama_steps = arguments.llama_steps or 12
	return arguments


def compiled(function, arguments, *trial):
	"""torch.compile where there is a GPU, tried on one input; a failure there only costs speed."""
	if arguments.no_compile or not arguments.device.startswith("cuda"):
		return function
	fast = torch.compile(function, dynamic=False)
	try:
		result = fast(*trial)
		if result.requires_grad:
			result.backward()
		return fast
	except Exception as error:  # noqa: BLE001 - any failure of the compiler
		say(f"compilation failed, going on without: {str(error)[:300]}")
		return function


def synchronise(arguments):
	if arguments.device.startswith("cuda"):
		torch.cuda.synchronize()


def sample_stories(arguments, pool, log):
	"""Rows of token ids from the teacher, decoded by the worker processes while the next ones are drawn."""
	difference = check_teacher(arguments.teacher, arguments.device)
	say(f"teacher: logits differ from transformers' by at most {difference:.2e}")
	dtype = torch.float16 if arguments.device.startswith("cuda") else torch.float32
	teacher = Teacher(arguments.teacher, arguments.device, dtype, arguments.sample_batch)
	trial = teacher.step(torch.full((arguments.sample_batch,), teacher.begin, device=arguments.device), 0)
	pick_token = compiled(story_text.pick_token, arguments, trial, arguments.temperature, arguments.min_p)
	del trial
	begin, pending, rows, slowest = time.monotonic(), [], 0, 0.0
	for batch in range(arguments.sample_batches):
		batch_begin = time.monotonic()
		if batch_begin - begin + slowest > arguments.sample_seconds and batch > 0:
			break
		tokens = teacher.sample(pick_token, arguments.temperature, arguments.min_p).cpu().numpy().astype(numpy.uint16)
		for part in numpy.array_split(tokens, max(1, len(tokens) // 1024)):
			pending.append(pool.apply_async(story_text.decode_rows, (arguments.teacher, part)))
		rows += len(tokens)
		seconds = time.monotonic() - batch_begin
		slowest = seconds if batch == 1 else max(slowest, seconds) if batch > 1 else 0.0
		if batch < 3 or batch % 5 == 0:
			say(f"sampled {rows} rows of {tokens.shape[1]} tokens, {tokens.size / seconds:.0f} tokens/s")
	sampled = rows * teacher.positions
	log["sampling"] = {
		"rows": rows,
		"tokens": sampled,
		"seconds": round(time.monotonic() - begin, 1),
		"temperature": arguments.temperature,
		"min_p": arguments.min_p,
	}
	del teacher
	complete, cut = {}, {}
	for result in pending:
		for text, is_complete in result.get(timeout=300):
			(complete if is_complete else cut)[text] = None
	log["sampling"]["complete_stories"] = len(complete)
	log["sampling"]["trimmed_stories"] = len(cut)
	say(f"kept {len(complete)} complete and {len(cut)} trimmed stories of {rows} rows")
	return list(complete), [text for text in cut if text not in complete]


def hold_out(complete, cut, arguments, folder, log):
	"""Calibration and evaluation text; the rest, in random order, is for training."""
	order = random.Random(arguments.seed)
	order.shuffle(complete)
	limits = {"calibration": 300_000, "evaluation": 150_000}
	if arguments.quick:
		limits = {"calibration": 12_000, "evaluation": 12_000}
	used = 0
	for name, limit in limits.items():
		size, first = 0, used
		with open(folder / f"{name}.jsonl", "w", encoding="utf-8", newline="\n") as file:
			while used < len(complete) // 2:
				line = json.dumps({"text": complete[used]}, ensure_ascii=False) + "\n"
				if size + len(line.encode()) > limit:
					break
				file.write(line)
				size += len(line.encode())
				used += 1
		log[name] = {"stories": used - first, "bytes": size}
	training = complete[used:] + cut
	order.shuffle(training)
	log["training_text"] = {"stories": len(training), "bytes": sum(len(text.encode()) for text in training)}
	say(f"held out {used} stories; {log['training_text']} for training")
	return training


def held_out_before(complete, cut, arguments, folder, log):
	"""The calibration and evaluation text of an earlier run; all other stories, in random order, are for training."""
	held_out = set()
	for name in ("calibration", "evaluation"):
		shutil.copy(Path(arguments.keep) / f"{name}.jsonl", folder)
		with open(folder / f"{name}.jsonl", encoding="utf-8") as file:
			held_out |= {json.loads(line)["text"] for line in file}
	training = [text for text in complete + cut if text not in held_out]
	random.Random(arguments.seed).shuffle(training)
	log["training_text"] = {"stories": len(training), "bytes": sum(len(text.encode()) for text in training)}
	say(f"{len(complete) + len(cut) - len(training)} of the held-out stories were drawn again; {log['training_text']} for training")
	return training


def make_tokenizers(arguments, texts):
	"""The tokenizers that the models need, by name."""
	tokenizers_json = {}
	for name in dict.fromkeys(story_text.TOKENIZER[model] for model in arguments.models):
		if arguments.keep:
			tokenizers_json[name] = (Path(arguments.keep) / f"{name}-demo" / "tokenizer.json").read_text(encoding="utf-8")
		else:
			tokenizers_json[name] = story_text.train_tokenizer(name, texts[:60000])
			say(f"{name}: tokenizer trained")
	return tokenizers_json


def encode_begin(pool, tokenizer_json, texts, begin_token):
	size = 2000
	return [
		pool.apply_async(story_text.encode_texts, (tokenizer_json, texts[i : i + size], begin_token))
		for i in range(0, len(texts), size)
	]


def encode_end(pending):
	return torch.from_numpy(numpy.concatenate([result.get(timeout=300) for result in pending]).astype(numpy.int16))


def windows(tokens, batch, length, generator):
	"""Endless batches [batch, length+1]: per epoch a random shift and a random order of the windows."""
	span = torch.arange(length + 1, device=tokens.device)
	while True:
		shift = int(torch.randint(0, length, (1,), generator=generator))
		count = (len(tokens) - shift - 1) // length
		if count < batch:
			raise SystemExit(f"{len(tokens)} training tokens are too few for a batch of {batch} windows of {length}")
		order = torch.randperm(count, generator=generator).to(tokens.device)
		for i in range(0, count - batch + 1, batch):
			yield tokens[(order[i : i + batch] * length + shift)[:, None] + span].long()


def train(name, model, tokens, arguments, log):
	device = arguments.device
	model.to(device).train()
	tokens = tokens.to(device)
	forward = FORWARD[name]
	say(f"{name}: logits differ from transformers' by at most {check_forward(name, model, device):.2e}")

	def loss_of(inputs, targets):
		with torch.autocast(device.split(":")[0], dtype=torch.bfloat16):
			logits = forward(model, inputs)
		loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
		return loss + arguments.balance * model.balance if name == "moe" else loss

	decay = [p for p in model.parameters() if p.dim() >= 2]
	plain = [p for p in model.parameters() if p.dim() < 2]
	groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
	optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=device.startswith("cuda"))
	generator = torch.Generator().manual_seed(arguments.seed)
	batches = windows(tokens, arguments.batch, arguments.length, generator)
	trial = next(batches)
	begin = time.monotonic()
	step_loss = compiled(loss_of, arguments, trial[:, :-1].contiguous(), trial[:, 1:].contiguous())
	optimizer.zero_grad(set_to_none=True)
	total = getattr(arguments, f"{name}_steps")
	warm_up, calibrate = (4, 8) if arguments.quick else (200, 120)
	curve, running, step, hard_stop = [], None, 0, False
	say(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, {len(tokens)} tokens per epoch")
	while total == 0 or step < total:
		if step == 10:
			synchronise(arguments)
			say(f"{name}: first ten steps (with compilation) took {time.monotonic() - begin:.1f} s")
			begin = time.monotonic()
		if step == calibrate and total == 0:
			synchronise(arguments)
			seconds_per_step = (time.monotonic() - begin) / (calibrate - 10 if calibrate > 10 else calibrate)
			# What is left of the total serves this model and those after it, each with 30 s to compile.
			after = len(arguments.models) - 1 - arguments.models.index(name)
			left = (arguments.total_seconds - (time.monotonic() - START) - 15 - 45 * after) / (1 + after)
			seconds = max(10.0, min(arguments.train_seconds, left))
			total = max(calibrate + 2, int(0.97 * seconds / seconds_per_step))
			say(f"{name}: {1000 * seconds_per_step:.2f} ms per step, so {total} steps")
		progress = 0.0 if total == 0 else max(0.0, (step - warm_up) / max(1, total - warm_up))
		rate = min(1.0, (step + 1) / warm_up) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
		for group in optimizer.param_groups:
			group["lr"] = arguments.learning_rate * rate
		batch = next(batches)
		loss = step_loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
		loss.backward()
		torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
		optimizer.step()
		optimizer.zero_grad(set_to_none=True)
		running = loss.detach() if running is None else 0.98 * running + 0.02 * loss.detach()
		step += 1
		if step % (4 if arguments.quick else 500) == 0:
			curve.append([step, round(float(running), 4)])
			say(f"{name}: step {step} of {total or '?'}, loss {curve[-1][1]}")
			if time.monotonic() - begin > 1.3 * arguments.train_seconds + 10:
				say(f"{name}: stopped by the clock")
				hard_stop = True
				break
	synchronise(arguments)
	log[name] = {
		"parameters": sum(p.numel() for p in model.parameters()),
		"steps": step,
		"stopped_by_the_clock": hard_stop,
		"batch": arguments.batch,
		"length": arguments.length,
		"training_tokens_per_epoch": len(tokens),
		"epochs": round(step * arguments.batch * arguments.length / len(tokens), 2),
		"learning_rate": arguments.learning_rate,
		"warm_up": warm_up,
		"seconds_after_compilation": round(time.monotonic() - begin, 1),
		"final_training_loss": round(float(running), 4),
		"curve": curve,
	}
	say(f"{name}: trained, loss {float(running):.4f}")


def perplexity(model, tokenizer, path, length):
	"""The `documents` protocol: BOS + tokens of every document, windows of `length`, tail dropped."""
	stream = []
	with open(path, encoding="utf-8") as file:
		for line in file:
			stream += tokenizer(json.loads(line)["text"])["input_ids"]
	count = len(stream) // length
	if count == 0:
		raise ValueError(f"{path} holds fewer than {length} tokens")
	data = torch.tensor(stream[: count * length]).view(count, length)
	total = 0.0
	with torch.no_grad():
		for part in data.split(32):
			logits = model(input_ids=part).logits[:, :-1].double()
			total += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
	return math.exp(total / (count * (length - 1))), count


def prune_by_magnitude(model, pattern):
	"""A yardstick for the log: how much does the crudest pruning hurt this model?"""
	for weight_name, weight in model.named_parameters():
		if weight.dim() < 2 or "embed" in weight_name or "mlp.gate.weight" in weight_name:
			continue
		with torch.no_grad():
			if pattern == "2:4":
				groups = weight.abs().view(-1, 4)
				keep = torch.zeros_like(groups).scatter_(1, groups.topk(2, dim=1).indices, 1.0).view_as(weight)
			else:
				keep = (weight.abs() > weight.abs().flatten().kthvalue(weight.numel() // 2).values).to(weight.dtype)
			weight.mul_(keep)


def measure(name, folder, work, log):
	"""Reads the written checkpoint back as any user would, in fp32 on the CPU."""
	tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
	load = lambda: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
	raw = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
	for line in (work / "evaluation.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
		text = json.loads(line)["text"]
		if tokenizer(text)["input_ids"] != raw.encode(text).ids or raw.decode(raw.encode(text).ids) != text:
			raise ValueError(f"{name}: the tokenizer that transformers loads differs from the one that was trained")
	model = load()
	value, count = perplexity(model, tokenizer, work / "evaluation.jsonl", 256)
	log[name].update({"perplexity": round(value, 4), "windows": count, "protocol": "documents", "sequence_length": 256})
	say(f"{name}: perplexity {value:.4f} over {count} windows of 256")
	torch.manual_seed(1)
	prompt = tokenizer("Once upon a time", return_tensors="pt")["input_ids"]
	story = model.generate(prompt, do_sample=True, temperature=0.7, max_new_tokens=120)
	log[name]["sample"] = tokenizer.decode(story[0], skip_special_tokens=True)
	for pattern in ("50%", "2:4"):
		pruned = load()
		prune_by_magnitude(pruned, pattern)
		value, _ = perplexity(pruned, tokenizer, work / "evaluation.jsonl", 256)
		log[name][f"perplexity_magnitude_{pattern}"] = round(value, 4)
		say(f"{name}: {pattern} by magnitude, perplexity {value:.4f}")


def write_model(name, model, tokenizer_json, work):
	folder, tokenizer = work / f"{name}-demo", story_text.TOKENIZER[name]
	folder.mkdir(exist_ok=True)
	model = model.float().cpu().half().eval()
	if not all(torch.isfinite(weight).all() for weight in model.parameters()):
		raise SystemExit(f"{name}: a weight does not fit fp16")
	# A story ends where the next one begins: let generation stop there.
	model.generation_config.eos_token_id = sorted({story_text.BEGIN[tokenizer], story_text.END[tokenizer]})
	model.save_pretrained(folder)
	story_text.write_tokenizer(tokenizer, tokenizer_json, model.config, folder)
	size = sum(path.stat().st_size for path in folder.iterdir())
	say(f"{name}: {size} bytes in {sorted(path.name for path in folder.iterdir())}")
	if size > 3_000_000:
		say(f"{name}: WARNING: over 3 MB")
	return folder


def plain_entry(entry):
	entry.uid = entry.gid = 0
	entry.uname = entry.gname = ""
	entry.mode = 0o755 if entry.isdir() else 0o644
	return entry


def pack(arguments, work, log):
	log["seconds"] = round(time.monotonic() - START, 1)
	(work / "train_log.json").write_text(json.dumps(log, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
	archive = Path(arguments.output) / "demo.tar.gz"
	with tarfile.open(archive.with_suffix(".part"), "w:gz") as file:
		for path in sorted(work.iterdir()):
			file.add(path, arcname=path.name, filter=plain_entry)
	os.replace(archive.with_suffix(".part"), archive)
	shutil.copy(work / "train_log.json", Path(arguments.output) / "train_log.json")
	say(f"packed {archive.name} ({archive.stat().st_size} bytes)")


def main():
	arguments = parse_arguments()
	# Before anything touches the GPU: a forked process cannot use its parent's CUDA context, and these do not.
	pool = multiprocessing.get_context("fork").Pool(arguments.workers)
	work = Path(arguments.output) / "work"
	shutil.rmtree(work, ignore_errors=True)
	work.mkdir(parents=True)
	random.seed(arguments.seed)
	torch.manual_seed(arguments.seed)
	torch.backends.cuda.matmul.allow_tf32 = False
	transformers.utils.logging.disable_progress_bar()
	versions = {m.__name__: m.__version__ for m in (torch, transformers, tokenizers, sentencepiece, safetensors, numpy)}
	device = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.machine()
	log = {"python": platform.python_version(), "versions": versions, "device": device, "seed": arguments.seed, "quick": arguments.quick}
	say(json.dumps(log))
	failures = 0
	try:
		complete, cut = sample_stories(arguments, pool, log)
		texts = (held_out_before if arguments.keep else hold_out)(complete, cut, arguments, work, log)
		if arguments.device.startswith("cuda"):
			torch.cuda.empty_cache()
		pack(arguments, work, log)
		encoded = {}
		for name, tokenizer_json in make_tokenizers(arguments, texts).items():
			encoded[name] = tokenizer_json, encode_begin(pool, tokenizer_json, texts, story_text.BEGIN[name])
		for name in arguments.models:
			try:
				tokenizer_json, pending = encoded[story_text.TOKENIZER[name]]
				tokens = encode_end(pending)
				torch.manual_seed(arguments.seed)
				model = build_model(name, arguments.length)
				train(name, model, tokens, arguments, log)
				folder = write_model(name, model, tokenizer_json, work)
				pack(arguments, work, log)
				measure(name, folder, work, log)
			except Exception as error:  # noqa: BLE001 - the other model may still be made
				failures += 1
				log.setdefault("failures", []).append(f"{name}: {error!r}")
				sys.excepthook(type(error), error, error.__traceback__)
	finally:
		pack(arguments, work, log)
		pool.terminate()
		pool.join()
		shutil.rmtree(work, ignore_errors=True)
	return 1 if failures else 0


if __name__ == "__main__":
	sys.exit(main())
