# SPDX-License-Identifier: Apache-2.0
"""The models of train.py: the teacher with a key/value cache, and plain forward passes of the demo models.

The passes use the parameters of transformers' own classes, so that what is saved is what transformers loads;
they are written out because they compile quickly and build no attention mask. All are checked against
transformers before they are used.
"""
import torch
import transformers
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from story_text import BEGIN, END, TOKENIZER, VOCABULARY

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def rotary_table(positions, head_size, theta, device):
	"""cos and sin, each [positions, head_size], in the half-split order of the Hugging Face layout."""
	inverse = theta ** -(torch.arange(0, head_size, 2, device=device, dtype=torch.float64) / head_size)
	angles = torch.outer(torch.arange(positions, device=device, dtype=torch.float64), inverse)
	angles = torch.cat((angles, angles), dim=-1)
	return angles.cos().float(), angles.sin().float()


def rotate(x, cosine, sine):
	first, second = x.chunk(2, dim=-1)
	return (x * cosine + torch.cat((-second, first), dim=-1) * sine).to(x.dtype)


class Teacher:
	"""A LLaMA checkpoint (without grouped heads) that draws one token for a whole batch at a time."""

	def __init__(self, folder, device, dtype, batch):
		model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
		config = model.config
		self.positions, self.heads = config.max_position_embeddings, config.num_attention_heads
		self.head_size, self.epsilon = config.hidden_size // self.heads, config.rms_norm_eps
		self.begin, self.device = config.bos_token_id, device
		self.embedding, self.head = model.model.embed_tokens.weight.data, model.lm_head.weight.data
		self.final_norm, self.layers = model.model.norm.weight.data, []
		for layer in model.model.layers:
			attention, mlp = layer.self_attn, layer.mlp
			self.layers.append((
				layer.input_layernorm.weight.data,
				torch.cat([p.weight.data for p in (attention.q_proj, attention.k_proj, attention.v_proj)]),
				attention.o_proj.weight.data,
				layer.post_attention_layernorm.weight.data,
				torch.cat([mlp.gate_proj.weight.data, mlp.up_proj.weight.data]),
				mlp.down_proj.weight.data,
			))
		theta = getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]
		self.cosine, self.sine = (table.to(dtype) for table in rotary_table(self.positions, self.head_size, theta, device))
		shape = (len(self.layers), batch, self.heads, self.positions, self.head_size)
		self.keys, self.values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))

	@torch.no_grad()
	def step(self, tokens, position):
		"""tokens [batch] at one position -> logits [batch, vocabulary]."""
		batch = len(tokens)
		cosine, sine = self.cosine[position], self.sine[position]
		x = self.embedding[tokens]
		for i, (norm, qkv, out, mlp_norm, gate_up, down) in enumerate(self.layers):
			h = functional.linear(functional.rms_norm(x, norm.shape, norm, self.epsilon), qkv)
			q, k, v = h.view(batch, 3, self.heads, self.head_size).unbind(1)
			keys, values = self.keys[i, :batch], self.values[i, :batch]
			keys[:, :, position] = rotate(k, cosine, sine)
			values[:, :, position] = v
			with sdpa_kernel(BACKENDS):
				h = functional.scaled_dot_product_attention(
					rotate(q, cosine, sine).unsqueeze(2), keys[:, :, : position + 1], values[:, :, : position + 1]
				)
			x = x + functional.linear(h.reshape(batch, -1), out)
			gate, up = functional.linear(functional.rms_norm(x, norm.shape, mlp_norm, self.epsilon), gate_up).chunk(2, dim=-1)
			x = x + functional.linear(functional.silu(gate) * up, down)
		return functional.linear(functional.rms_norm(x, norm.shape, self.final_norm, self.epsilon), self.head)

	@torch.no_grad()
	def sample(self, pick_token, temperature, min_p):
		"""[batch, positions] tokens, drawn from BOS on; a row goes on with another story after its end."""
		batch = self.keys.shape[1]
		tokens = torch.full((batch,), self.begin, device=self.device)
		drawn = torch.empty(batch, self.positions, dtype=torch.int32, device=self.device)
		for position in range(self.positions):
			tokens = pick_token(self.step(tokens, position), temperature, min_p)
			drawn[:, position] = tokens
		return drawn


@torch.no_grad()
def check_teacher(folder, device):
	model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
	tokens = torch.randint(3, model.config.vocab_size, (4, 24), generator=torch.Generator().manual_seed(0)).to(device)
	teacher = Teacher(folder, device, torch.float32, 4)
	ours = torch.stack([teacher.step(tokens[:, t], t) for t in range(24)], dim=1)
	difference = float((ours - model(input_ids=tokens).logits).abs().max())
	if not difference < 1e-2:
		raise SystemExit(f"the teacher's own forward pass differs from transformers' by {difference}")
	return difference


def build_model(name, positions):
	tokenizer = TOKENIZER[name]
	common = {
		"vocab_size": VOCABULARY[tokenizer],
		"hidden_size": 128,
		"num_hidden_layers": 6,
		"num_attention_heads": 4,
		"max_position_embeddings": positions,
		"bos_token_id": BEGIN[tokenizer],
		"eos_token_id": END[tokenizer],
		"tie_word_embeddings": True,
	}
	if name == "llama":
		config = transformers.LlamaConfig(
			**common, intermediate_size=384, num_key_value_heads=2, rms_norm_eps=1e-5, initializer_range=0.02
		)
		return transformers.LlamaForCausalLM(config)
	if name == "moe":
		config = transformers.MixtralConfig(
			**{**common, "num_hidden_layers": 4}, intermediate_size=80, num_key_value_heads=2, num_local_experts=8,
			num_experts_per_tok=2, rms_norm_eps=1e-5, initializer_range=0.02, head_dim=32,
			rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
		)
		return transformers.MixtralForCausalLM(config)
	config = transformers.OPTConfig(
		**common, ffn_dim=512, word_embed_proj_dim=128, dropout=0.0, attention_dropout=0.0, pad_token_id=1, init_std=0.02
	)
	return transformers.OPTForCausalLM(config)


def heads_of(x, count):
	return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def llama_forward(model, tokens):
	return attention_and(swiglu, model, tokens)


def moe_forward(model, tokens):
	"""Every expert runs on every token, weighted by the router (0 for all but two): wasteful, but one product each.
	model.balance collects the sum of the layers' balance losses, 1 each where all experts are used alike."""
	model.balance = 0.0
	return attention_and(lambda mlp, h: experts(model, mlp, h), model, tokens)


def swiglu(mlp, h):
	return mlp.down_proj(functional.silu(mlp.gate_proj(h)) * mlp.up_proj(h))


def experts(model, moe, h):
	config = model.config
	probability = functional.linear(h, moe.gate.weight).float().softmax(-1)
	kept, index = probability.topk(config.num_experts_per_tok, dim=-1)
	weight = torch.zeros_like(probability).scatter(-1, index, kept / kept.sum(-1, keepdim=True))
	used = (weight > 0).float().mean((0, 1)) / config.num_experts_per_tok
	model.balance = model.balance + config.num_local_experts * (used * probability.mean((0, 1))).sum()
	gate, up = torch.einsum("btd,eid->btei", h, moe.experts.gate_up_proj).chunk(2, dim=-1)
	inner = functional.silu(gate) * up * weight.to(gate.dtype).unsqueeze(-1)
	return torch.einsum("btei,edi->btd", inner, moe.experts.down_proj)


def attention_and(mlp_of, model, tokens):
	config, body = model.config, model.model
	heads, groups = config.num_attention_heads, config.num_key_value_heads
	cosine, sine = (table[: tokens.shape[1]] for table in model.rotary)
	norm = lambda module, x: functional.rms_norm(x, module.weight.shape, module.weight, config.rms_norm_eps)
	x = body.embed_tokens(tokens)
	for layer in body.layers:
		attention = layer.self_attn
		h = norm(layer.input_layernorm, x)
		q = rotate(heads_of(attention.q_proj(h), heads), cosine, sine)
		k = rotate(heads_of(attention.k_proj(h), groups), cosine, sine)
		v = heads_of(attention.v_proj(h), groups)
		k, v = (t.repeat_interleave(heads // groups, dim=1) for t in (k, v))
		h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
		x = x + attention.o_proj(h.transpose(1, 2).flatten(2))
		x = x + mlp_of(layer.mlp, norm(layer.post_attention_layernorm, x))
	return functional.linear(norm(body.norm, x), body.embed_tokens.weight)


def opt_forward(model, tokens):
	config, body = model.config, model.model.decoder
	heads = config.num_attention_heads
	# The table of positions of OPT begins with two rows that stand for padding.
	places = body.embed_positions.weight[2 : 2 + tokens.shape[1]]
	x = body.embed_tokens(tokens) + places
	for layer in body.layers:
		attention = layer.self_attn
		h = layer.self_attn_layer_norm(x)
		q, k, v = (heads_of(p(h), heads) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
		h = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
		x = x + attention.out_proj(h.transpose(1, 2).flatten(2))
		x = x + layer.fc2(functional.relu(layer.fc1(layer.final_layer_norm(x))))
	return functional.linear(body.final_layer_norm(x), body.embed_tokens.weight)


FORWARD = {"llama": llama_forward, "opt": opt_forward, "moe": moe_forward}


@torch.no_grad()
def check_forward(name, model, device):
	"""Prepares the training pass. Largest difference from transformers' logits, with weights large enough to make every operator count."""
	if name != "opt":
		config = model.config
		model.rotary = rotary_table(config.max_position_embeddings, config.head_dim, config.rope_parameters["rope_theta"], device)
	kept = {key: value.clone() for key, value in model.state_dict().items()}
	generator = torch.Generator().manual_seed(0)
	for weight in model.parameters():
		weight.add_(0.05 * torch.randn(weight.shape, generator=generator).to(device))
	tokens = torch.randint(4, model.config.vocab_size, (2, 64), generator=generator).to(device)
	difference = float((FORWARD[name](model, tokens) - model(input_ids=tokens).logits).abs().max())
	model.load_state_dict(kept)
	if not difference < 1e-2:
		raise SystemExit(f"{name}: the training pass differs from transformers' by {difference}")
	return difference
