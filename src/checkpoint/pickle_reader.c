/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/pickle_reader.h"

#include "base/memory.h"
#include <string.h>

/* The opcodes that torch.save() writes for a state dict, in protocols 2 and 4. */
enum opcode {
	OP_MARK = '(',
	OP_STOP = '.',
	OP_BININT = 'J',
	OP_BININT1 = 'K',
	OP_BININT2 = 'M',
	OP_NONE = 'N',
	OP_BINPERSID = 'Q',
	OP_REDUCE = 'R',
	OP_BINUNICODE = 'X',
	OP_APPEND = 'a',
	OP_BUILD = 'b',
	OP_GLOBAL = 'c',
	OP_APPENDS = 'e',
	OP_BINGET = 'h',
	OP_LONG_BINGET = 'j',
	OP_BINPUT = 'q',
	OP_LONG_BINPUT = 'r',
	OP_SETITEM = 's',
	OP_TUPLE = 't',
	OP_SETITEMS = 'u',
	OP_EMPTY_LIST = ']',
	OP_EMPTY_DICT = '}',
	OP_EMPTY_TUPLE = ')',
	OP_BINFLOAT = 'G',
	OP_PROTO = 0x80,
	OP_TUPLE1 = 0x85,
	OP_TUPLE2 = 0x86,
	OP_TUPLE3 = 0x87,
	OP_NEWTRUE = 0x88,
	OP_NEWFALSE = 0x89,
	OP_LONG1 = 0x8A,
	OP_SHORT_BINUNICODE = 0x8C,
	OP_STACK_GLOBAL = 0x93,
	OP_MEMOIZE = 0x94,
	OP_FRAME = 0x95,
};

/* A tensor takes about 20 values. One byte of the file can become a value of 200 bytes in memory, so that the file's
 * size alone is no limit. */
enum { MAX_VALUES = 1000000 };

enum kind { NOTHING, NUMBER, TEXT, TUPLE, LIST, DICT, CALLABLE, STORAGE, TENSOR, MARK };
static const char *const kind_names[] = {"None, a bool or a float",
										 "a number",
										 "a string",
										 "a tuple",
										 "a list",
										 "a dict",
										 "a callable",
										 "a storage",
										 "a tensor",
										 "a mark"};

enum callable { ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, STORAGE_TYPE };

/* The globals that a pickle may name. Any other could run code when Python loads it, and is refused. */
static const struct global {
	const char *module, *name;
	enum callable callable;
	fp_dtype dtype;
	const char *dtype_name;
	int element_size;
} globals[] = {
	{"collections", "OrderedDict", ORDERED_DICT, FP_OTHER_DTYPE, NULL, 0},
	{"torch._utils", "_rebuild_tensor_v2", REBUILD_TENSOR, FP_OTHER_DTYPE, NULL, 0},
	{"torch._utils", "_rebuild_parameter", REBUILD_PARAMETER, FP_OTHER_DTYPE, NULL, 0},
	{"torch", "FloatStorage", STORAGE_TYPE, FP_F32, "F32", 4},
	{"torch", "HalfStorage", STORAGE_TYPE, FP_F16, "F16", 2},
	{"torch", "BFloat16Storage", STORAGE_TYPE, FP_BF16, "BF16", 2},
	{"torch", "DoubleStorage", STORAGE_TYPE, FP_F64, "F64", 8},
	{"torch", "LongStorage", STORAGE_TYPE, FP_I64, "I64", 8},
	{"torch", "IntStorage", STORAGE_TYPE, FP_I32, "I32", 4},
	{"torch", "ShortStorage", STORAGE_TYPE, FP_OTHER_DTYPE, "I16", 2},
	{"torch", "CharStorage", STORAGE_TYPE, FP_I8, "I8", 1},
	{"torch", "ByteStorage", STORAGE_TYPE, FP_U8, "U8", 1},
	{"torch", "BoolStorage", STORAGE_TYPE, FP_OTHER_DTYPE, "BOOL", 1},
	{"torch", "ComplexFloatStorage", STORAGE_TYPE, FP_OTHER_DTYPE, "C64", 8},
};

struct node {
	enum kind kind;
	int64_t number; /* NUMBER: the value; TEXT: its length; CALLABLE: index in globals */
	const char *text;
	int64_t *items; /* TUPLE, LIST: nodes; DICT: key, value, key, value … */
	int64_t item_count, item_capacity;
	fp_pickled_tensor *tensor; /* TENSOR; STORAGE: only its storage fields */
};

struct reader {
	fp_context *ctx;
	const char *path;
	const unsigned char *bytes;
	int64_t size, at, opcode_at;
	struct node *nodes;
	int64_t node_count, node_capacity;
	int64_t *stack; /* nodes */
	int64_t depth, stack_capacity;
	int64_t *memo; /* node + 1, or 0 */
	int64_t memo_capacity, memo_count;
};

static fp_status damaged(struct reader *reader, const char *why)
{
	return fp_fail(reader->ctx, FP_ERROR_INPUT, "%s: the pickle is damaged at byte %lld: %s", reader->path,
				   (long long)reader->opcode_at, why);
}

static fp_status take(struct reader *reader, const unsigned char **out, uint64_t count)
{
	if (count > (uint64_t)(reader->size - reader->at))
		return damaged(reader, "it ends too early");
	*out = reader->bytes + reader->at;
	reader->at += (int64_t)count;
	return FP_OK;
}

/* A little-endian number of 1 to 8 bytes. */
static fp_status take_number(struct reader *reader, uint64_t *out, int count)
{
	const unsigned char *bytes = NULL;
	fp_status status = take(reader, &bytes, (uint64_t)count);
	*out = 0;
	for (int i = 0; status == FP_OK && i < count; i++)
		*out |= (uint64_t)bytes[i] << (8 * i);
	return status;
}

static fp_status take_line(struct reader *reader, const char **out, int64_t *length)
{
	const unsigned char *start = reader->bytes + reader->at;
	const unsigned char *end = memchr(start, '\n', (size_t)(reader->size - reader->at));
	if (!end)
		return damaged(reader, "it ends too early");
	*out = (const char *)start;
	*length = end - start;
	reader->at += *length + 1;
	return FP_OK;
}

static fp_status push_index(struct reader *reader, int64_t node)
{
	fp_status status = FP_GROW(reader->ctx, &reader->stack, &reader->stack_capacity, reader->depth + 1);
	if (status == FP_OK)
		reader->stack[reader->depth++] = node;
	return status;
}

static fp_status push(struct reader *reader, struct node node)
{
	if (reader->node_count >= MAX_VALUES)
		return fp_fail(reader->ctx, FP_ERROR_INPUT, "%s: its pickle has more than %d values; save it as safetensors",
					   reader->path, MAX_VALUES);
	fp_status status = FP_GROW(reader->ctx, &reader->nodes, &reader->node_capacity, reader->node_count + 1);
	if (status != FP_OK)
		return status;
	reader->nodes[reader->node_count] = node;
	return push_index(reader, reader->node_count++);
}

static fp_status push_number(struct reader *reader, int64_t value)
{
	return push(reader, (struct node){.kind = NUMBER, .number = value});
}

/* Pops a node, which is valid until the next push. A mark is not a value. */
static fp_status pop(struct reader *reader, int64_t *out)
{
	if (reader->depth == 0 || reader->nodes[reader->stack[reader->depth - 1]].kind == MARK)
		return damaged(reader, "a value is missing on the stack");
	*out = reader->stack[--reader->depth];
	return FP_OK;
}

/* The index of the first value above the topmost mark. */
static fp_status find_mark(struct reader *reader, int64_t *out)
{
	for (int64_t i = reader->depth; i > 0; i--) {
		if (reader->nodes[reader->stack[i - 1]].kind == MARK) {
			*out = i;
			return FP_OK;
		}
	}
	return damaged(reader, "a mark is missing on the stack");
}

static fp_status append(struct reader *reader, int64_t container, const int64_t *values, int64_t count)
{
	struct node *node = &reader->nodes[container];
	fp_status status = FP_GROW(reader->ctx, &node->items, &node->item_capacity, node->item_count + count);
	if (status != FP_OK)
		return status;
	memcpy(node->items + node->item_count, values, (size_t)count * sizeof *values);
	node->item_count += count;
	return FP_OK;
}

/* Replaces the values from `start` on, and `drop` more below them (the mark), by a tuple of the values. */
static fp_status make_tuple(struct reader *reader, int64_t start, int drop)
{
	int64_t count = reader->depth - start, tuple;
	fp_status status = push(reader, (struct node){.kind = TUPLE});
	if (status != FP_OK)
		return status;
	tuple = reader->stack[reader->depth - 1];
	if (count > 0)
		status = append(reader, tuple, reader->stack + start, count);
	reader->depth = start - drop;
	return status == FP_OK ? push_index(reader, tuple) : status;
}

static fp_status make_short_tuple(struct reader *reader, int64_t count)
{
	if (reader->depth < count)
		return damaged(reader, "a value is missing on the stack");
	for (int64_t i = 1; i <= count; i++)
		if (reader->nodes[reader->stack[reader->depth - i]].kind == MARK)
			return damaged(reader, "a value is missing on the stack");
	return make_tuple(reader, reader->depth - count, 0);
}

/* APPENDS and SETITEMS take all values above the mark, APPEND and SETITEM the last `count`. */
static fp_status extend(struct reader *reader, enum kind kind, int64_t count)
{
	int64_t start = reader->depth - count, below = start - 1;
	fp_status status = FP_OK;
	if (count == 0) {
		status = find_mark(reader, &start);
		below = start - 2;
	}
	if (status != FP_OK)
		return status;
	if (below < 0 || reader->nodes[reader->stack[below]].kind != kind)
		return damaged(reader, kind == DICT ? "items are set in something that is not a dict"
											: "items are appended to something that is not a list");
	for (int64_t i = start; i < reader->depth; i++)
		if (reader->nodes[reader->stack[i]].kind == MARK)
			return damaged(reader, "a value is missing on the stack");
	int64_t values = reader->depth - start;
	if (kind == DICT && values % 2 != 0)
		return damaged(reader, "a key has no value");
	if (values > 0)
		status = append(reader, reader->stack[below], reader->stack + start, values);
	reader->depth = below + 1;
	return status;
}

static fp_status push_global(struct reader *reader, const char *module, int64_t module_length, const char *name,
							 int64_t name_length)
{
	for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++) {
		if ((int64_t)strlen(globals[i].module) == module_length && (int64_t)strlen(globals[i].name) == name_length &&
			memcmp(globals[i].module, module, (size_t)module_length) == 0 &&
			memcmp(globals[i].name, name, (size_t)name_length) == 0)
			return push(reader, (struct node){.kind = CALLABLE, .number = (int64_t)i});
	}
	return fp_fail(
		reader->ctx, FP_ERROR_INPUT,
		"%s: forbidden pickle global '%.*s.%.*s' at byte %lld; only plain tensors are read: save the model as "
		"safetensors",
		reader->path, (int)(module_length < 100 ? module_length : 100), module,
		(int)(name_length < 100 ? name_length : 100), name, (long long)reader->opcode_at);
}

static fp_status stack_global(struct reader *reader)
{
	int64_t name = 0, module = 0;
	fp_status status = pop(reader, &name);
	if (status == FP_OK)
		status = pop(reader, &module);
	if (status != FP_OK)
		return status;
	const struct node *first = &reader->nodes[module], *second = &reader->nodes[name];
	if (first->kind != TEXT || second->kind != TEXT)
		return damaged(reader, "a global's name is not a string");
	return push_global(reader, first->text, first->number, second->text, second->number);
}

static const struct node *item(const struct reader *reader, const struct node *container, int64_t index)
{
	return &reader->nodes[container->items[index]];
}

static fp_status new_tensor(struct reader *reader, enum kind kind, const fp_pickled_tensor *tensor)
{
	struct node node = {.kind = kind};
	fp_status status = FP_NEW(reader->ctx, &node.tensor, 1);
	if (status != FP_OK)
		return status;
	*node.tensor = *tensor;
	status = push(reader, node);
	if (status != FP_OK)
		fp_free(node.tensor);
	return status;
}

/* ("storage", torch.FloatStorage, "0", "cpu", 1024) refers to the bytes of the archive's entry data/0. */
static fp_status persistent_id(struct reader *reader)
{
	int64_t top = 0;
	fp_status status = pop(reader, &top);
	if (status != FP_OK)
		return status;
	const struct node *id = &reader->nodes[top];
	if (id->kind != TUPLE || id->item_count != 5)
		return damaged(reader, "a persistent id is not a storage");
	const struct node *tag = item(reader, id, 0), *type = item(reader, id, 1), *key = item(reader, id, 2),
					  *elements = item(reader, id, 4);
	if (tag->kind != TEXT || tag->number != 7 || memcmp(tag->text, "storage", 7) != 0 || type->kind != CALLABLE ||
		globals[type->number].callable != STORAGE_TYPE || key->kind != TEXT || elements->kind != NUMBER ||
		elements->number < 0)
		return damaged(reader, "a persistent id is not a storage");
	const struct global *global = &globals[type->number];
	fp_pickled_tensor storage = {.storage_key = key->text,
								 .storage_key_length = key->number,
								 .dtype = global->dtype,
								 .dtype_name = global->dtype_name,
								 .element_size = global->element_size,
								 .storage_elements = elements->number};
	return new_tensor(reader, STORAGE, &storage);
}

static bool read_sizes(const struct reader *reader, int64_t *out, int *rank, const struct node *tuple)
{
	if (tuple->kind != TUPLE || tuple->item_count > FP_MAX_RANK)
		return false;
	for (int64_t i = 0; i < tuple->item_count; i++) {
		const struct node *size = item(reader, tuple, i);
		if (size->kind != NUMBER || size->number < 0)
			return false;
		out[i] = size->number;
	}
	*rank = (int)tuple->item_count;
	return true;
}

/* _rebuild_tensor_v2(storage, first element, shape, stride, requires_grad, hooks[, metadata]) */
static fp_status rebuild_tensor(struct reader *reader, const struct node *arguments)
{
	if (arguments->item_count < 6 || item(reader, arguments, 0)->kind != STORAGE ||
		item(reader, arguments, 1)->kind != NUMBER || item(reader, arguments, 1)->number < 0)
		return damaged(reader, "a tensor is not built from a storage and an offset");
	fp_pickled_tensor tensor = *item(reader, arguments, 0)->tensor;
	tensor.first_element = item(reader, arguments, 1)->number;
	int rank;
	if (!read_sizes(reader, tensor.shape, &tensor.rank, item(reader, arguments, 2)) ||
		!read_sizes(reader, tensor.stride, &rank, item(reader, arguments, 3)) || rank != tensor.rank)
		return damaged(reader, "a tensor's shape or stride is not a tuple of at most 8 sizes");
	return new_tensor(reader, TENSOR, &tensor);
}

static fp_status reduce(struct reader *reader)
{
	int64_t argument_node = 0, callable_node = 0;
	fp_status status = pop(reader, &argument_node);
	if (status == FP_OK)
		status = pop(reader, &callable_node);
	if (status != FP_OK)
		return status;
	const struct node *arguments = &reader->nodes[argument_node], *callable = &reader->nodes[callable_node];
	if (callable->kind != CALLABLE || arguments->kind != TUPLE)
		return damaged(reader, "something is called that is not a function");
	switch (globals[callable->number].callable) {
	case ORDERED_DICT:
		if (arguments->item_count != 0)
			return damaged(reader, "an OrderedDict is made from something");
		return push(reader, (struct node){.kind = DICT});
	case REBUILD_TENSOR:
		return rebuild_tensor(reader, arguments);
	case REBUILD_PARAMETER:
		if (arguments->item_count < 1 || item(reader, arguments, 0)->kind != TENSOR)
			return damaged(reader, "a parameter is not built from a tensor");
		return push_index(reader, arguments->items[0]);
	default:
		return damaged(reader, "a storage type is called");
	}
}

/* Attributes of a dict (torch stores _metadata so) are ignored; no other value may have attributes. */
static fp_status build(struct reader *reader)
{
	int64_t state = 0;
	fp_status status = pop(reader, &state);
	if (status != FP_OK)
		return status;
	if (reader->depth == 0 || reader->nodes[reader->stack[reader->depth - 1]].kind != DICT)
		return damaged(reader, "attributes are set on something that is not a dict");
	return FP_OK;
}

static fp_status remember(struct reader *reader, uint64_t slot)
{
	/* Python numbers the memo from 0 without gaps; a large number would only waste memory. */
	if (reader->depth == 0 || slot > (uint64_t)reader->memo_count)
		return damaged(reader, "a memo slot is out of range");
	fp_status status = FP_GROW(reader->ctx, &reader->memo, &reader->memo_capacity, (int64_t)slot + 1);
	if (status != FP_OK)
		return status;
	reader->memo[slot] = reader->stack[reader->depth - 1] + 1;
	if (reader->memo_count <= (int64_t)slot)
		reader->memo_count = (int64_t)slot + 1;
	return FP_OK;
}

static fp_status recall(struct reader *reader, uint64_t slot)
{
	if (slot >= (uint64_t)reader->memo_count || reader->memo[slot] == 0)
		return damaged(reader, "a memo slot is empty");
	return push_index(reader, reader->memo[slot] - 1);
}

static fp_status push_text(struct reader *reader, uint64_t length)
{
	const unsigned char *text = NULL;
	fp_status status = take(reader, &text, length);
	if (status != FP_OK)
		return status;
	return push(reader, (struct node){.kind = TEXT, .text = (const char *)text, .number = (int64_t)length});
}

static fp_status push_long(struct reader *reader)
{
	uint64_t length, value = 0;
	fp_status status = take_number(reader, &length, 1);
	if (status != FP_OK)
		return status;
	if (length > 8)
		return damaged(reader, "a number needs more than 64 bits");
	status = take_number(reader, &value, (int)length);
	if (status != FP_OK)
		return status;
	if (length > 0 && length < 8 && (value >> (8 * length - 1) & 1))
		value |= ~(uint64_t)0 << (8 * length);
	return push_number(reader, (int64_t)value);
}

/* Opcodes that push a value. */
static fp_status read_value(struct reader *reader, int opcode, bool *known)
{
	uint64_t value;
	const unsigned char *skipped;
	fp_status status = FP_OK;
	*known = true;
	switch (opcode) {
	case OP_BININT:
		status = take_number(reader, &value, 4);
		return status == FP_OK ? push_number(reader, (int32_t)(uint32_t)value) : status;
	case OP_BININT1:
		status = take_number(reader, &value, 1);
		return status == FP_OK ? push_number(reader, (int64_t)value) : status;
	case OP_BININT2:
		status = take_number(reader, &value, 2);
		return status == FP_OK ? push_number(reader, (int64_t)value) : status;
	case OP_LONG1:
		return push_long(reader);
	case OP_BINFLOAT:
		status = take(reader, &skipped, 8);
		return status == FP_OK ? push(reader, (struct node){.kind = NOTHING}) : status;
	case OP_NONE:
	case OP_NEWTRUE:
	case OP_NEWFALSE:
		return push(reader, (struct node){.kind = NOTHING});
	case OP_BINUNICODE:
		status = take_number(reader, &value, 4);
		return status == FP_OK ? push_text(reader, value) : status;
	case OP_SHORT_BINUNICODE:
		status = take_number(reader, &value, 1);
		return status == FP_OK ? push_text(reader, value) : status;
	case OP_EMPTY_DICT:
		return push(reader, (struct node){.kind = DICT});
	case OP_EMPTY_LIST:
		return push(reader, (struct node){.kind = LIST});
	case OP_EMPTY_TUPLE:
		return push(reader, (struct node){.kind = TUPLE});
	case OP_MARK:
		return push(reader, (struct node){.kind = MARK});
	default:
		*known = false;
		return FP_OK;
	}
}

/* Opcodes for the memo and for frames. */
static fp_status read_bookkeeping(struct reader *reader, int opcode, bool *known)
{
	uint64_t value;
	const unsigned char *skipped;
	fp_status status;
	*known = true;
	switch (opcode) {
	case OP_PROTO:
		status = take_number(reader, &value, 1);
		if (status == FP_OK && (value < 2 || value > 4))
			return damaged(reader, "its protocol is not 2, 3 or 4");
		return status;
	case OP_FRAME:
		return take(reader, &skipped, 8);
	case OP_BINPUT:
	case OP_LONG_BINPUT:
		status = take_number(reader, &value, opcode == OP_BINPUT ? 1 : 4);
		return status == FP_OK ? remember(reader, value) : status;
	case OP_MEMOIZE:
		return remember(reader, (uint64_t)reader->memo_count);
	case OP_BINGET:
	case OP_LONG_BINGET:
		status = take_number(reader, &value, opcode == OP_BINGET ? 1 : 4);
		return status == FP_OK ? recall(reader, value) : status;
	default:
		*known = false;
		return FP_OK;
	}
}

/* Opcodes that combine values. */
static fp_status read_combination(struct reader *reader, int opcode)
{
	const char *module = NULL, *name = NULL;
	int64_t module_length = 0, name_length = 0, start = 0;
	fp_status status;
	switch (opcode) {
	case OP_TUPLE:
		status = find_mark(reader, &start);
		return status == FP_OK ? make_tuple(reader, start, 1) : status;
	case OP_TUPLE1:
	case OP_TUPLE2:
	case OP_TUPLE3:
		return make_short_tuple(reader, opcode - OP_TUPLE1 + 1);
	case OP_APPEND:
		return extend(reader, LIST, 1);
	case OP_APPENDS:
		return extend(reader, LIST, 0);
	case OP_SETITEM:
		return extend(reader, DICT, 2);
	case OP_SETITEMS:
		return extend(reader, DICT, 0);
	case OP_GLOBAL:
		status = take_line(reader, &module, &module_length);
		if (status == FP_OK)
			status = take_line(reader, &name, &name_length);
		return status == FP_OK ? push_global(reader, module, module_length, name, name_length) : status;
	case OP_STACK_GLOBAL:
		return stack_global(reader);
	case OP_BINPERSID:
		return persistent_id(reader);
	case OP_REDUCE:
		return reduce(reader);
	case OP_BUILD:
		return build(reader);
	default:
		return fp_fail(
			reader->ctx, FP_ERROR_INPUT,
			"%s: forbidden pickle opcode 0x%02X at byte %lld; only plain tensors are read: save the model as "
			"safetensors",
			reader->path, (unsigned int)opcode, (long long)reader->opcode_at);
	}
}

static fp_status run(struct reader *reader)
{
	for (;;) {
		uint64_t opcode;
		bool known;
		reader->opcode_at = reader->at;
		fp_status status = take_number(reader, &opcode, 1);
		if (status != FP_OK || opcode == OP_STOP)
			return status;
		status = read_value(reader, (int)opcode, &known);
		if (!known)
			status = read_bookkeeping(reader, (int)opcode, &known);
		if (!known)
			status = read_combination(reader, (int)opcode);
		if (status != FP_OK)
			return status;
	}
}

/* The last value on the stack must be a dict from names to tensors. */
static fp_status collect(struct reader *reader, fp_pickled_tensor **out, int64_t *count)
{
	if (reader->depth != 1 || reader->nodes[reader->stack[0]].kind != DICT)
		return fp_fail(reader->ctx, FP_ERROR_INPUT, "%s: contains %s, not a state dict of named tensors", reader->path,
					   reader->depth == 1 ? kind_names[reader->nodes[reader->stack[0]].kind] : "several values");
	const struct node *dict = &reader->nodes[reader->stack[0]];
	fp_pickled_tensor *tensors;
	fp_status status = FP_NEW(reader->ctx, &tensors, dict->item_count / 2);
	if (status != FP_OK)
		return status;
	for (int64_t i = 0; i < dict->item_count; i += 2) {
		const struct node *key = item(reader, dict, i), *value = item(reader, dict, i + 1);
		if (key->kind != TEXT || memchr(key->text, '\0', (size_t)key->number) || value->kind != TENSOR) {
			int shown = key->kind == TEXT ? (int)(key->number < 200 ? key->number : 200) : 0;
			fp_free(tensors);
			return fp_fail(reader->ctx, FP_ERROR_INPUT, "%s: entry '%.*s' of the state dict is %s, not a named tensor",
						   reader->path, shown, shown ? key->text : "", kind_names[value->kind]);
		}
		tensors[i / 2] = *value->tensor;
		tensors[i / 2].name = key->text;
		tensors[i / 2].name_length = key->number;
	}
	*out = tensors;
	*count = dict->item_count / 2;
	return FP_OK;
}

fp_status fp_pickle_read(fp_pickled_tensor **out, int64_t *count, fp_context *ctx, const unsigned char *bytes,
						 int64_t size, const char *path)
{
	struct reader reader = {.ctx = ctx, .path = path, .bytes = bytes, .size = size};
	*out = NULL;
	*count = 0;
	fp_status status = run(&reader);
	if (status == FP_OK)
		status = collect(&reader, out, count);
	for (int64_t i = 0; i < reader.node_count; i++) {
		fp_free(reader.nodes[i].items);
		fp_free(reader.nodes[i].tensor);
	}
	fp_free(reader.nodes);
	fp_free(reader.stack);
	fp_free(reader.memo);
	return status;
}
