/* SPDX-License-Identifier: Apache-2.0 */
/* Hand-made pickles that torch never writes. */
#include "support.h"

#include "checkpoint/pickle_reader.h"
#include <stdlib.h>
#include <string.h>

static fp_status read_pickle(fp_context *ctx, const char *bytes, size_t size, int64_t *count)
{
	fp_pickled_tensor *tensors;
	unsigned char *copy = malloc(size + 1);
	memcpy(copy, bytes, size);
	fp_status status = fp_pickle_read(&tensors, count, ctx, copy, (int64_t)size, "x.bin");
	fp_free(tensors);
	free(copy);
	return status;
}

#define REFUSED(message, text)                                                                                         \
	do {                                                                                                               \
		int64_t count_;                                                                                                \
		fp_context *ctx_ = fp_context_new();                                                                           \
		assert_fails(ctx_, FP_ERROR_INPUT, message, read_pickle(ctx_, text, sizeof(text) - 1, &count_));               \
		fp_context_free(ctx_);                                                                                         \
	} while (0)

static void stack_errors(void **state)
{
	(void)state;
	REFUSED("ends too early", "");
	REFUSED("ends too early", "\x80");
	REFUSED("protocol is not 2", "\x80\x01.");
	REFUSED("protocol is not 2", "\x80\x05.");
	REFUSED("contains several values", "\x80\x02.");
	REFUSED("contains a mark", "\x80\x02(.");
	REFUSED("a value is missing", "\x80\x02\x85.");
	REFUSED("a value is missing", "\x80\x02(\x85.");
	REFUSED("a value is missing", "\x80\x02R.");
	REFUSED("a value is missing", "\x80\x02(R.");
	REFUSED("a value is missing", "\x80\x02Q.");
	REFUSED("a value is missing", "\x80\x02"
								  "b.");
	REFUSED("a mark is missing", "\x80\x02t.");
	REFUSED("a mark is missing", "\x80\x02}u.");
	REFUSED("not a dict", "\x80\x02(u.");
	REFUSED("not a dict", "\x80\x02]K\x01K\x02s.");
	REFUSED("not a dict", "\x80\x02K\x01K\x02s.");
	REFUSED("not a list", "\x80\x02}K\x01"
						  "a.");
	REFUSED("a key has no value", "\x80\x02}(K\x01u.");
	REFUSED("not a dict", "\x80\x02]}b.");
	REFUSED("a memo slot is empty", "\x80\x02h\x00.");
	REFUSED("a memo slot is out of range", "\x80\x02q\x00.");
	REFUSED("a memo slot is out of range", "\x80\x02}r\xFF\xFF\xFF\x7F.");
	REFUSED("more than 64 bits", "\x80\x02\x8A\x09"
								 "123456789.");
	REFUSED("ends too early", "\x80\x02X\xFF\xFF\xFF\xFF"
							  "ab.");
}

static void calls(void **state)
{
	(void)state;
	REFUSED("forbidden pickle global 'builtins.eval'", "\x80\x02"
													   "cbuiltins\neval\n.");
	REFUSED("forbidden pickle global 'torch.'", "\x80\x02"
												"ctorch\n\n.");
	REFUSED("forbidden pickle global 'os.system'", "\x80\x04\x8C\x02os\x8C\x06system\x93.");
	REFUSED("not a string", "\x80\x04K\x01\x8C\x06system\x93.");
	REFUSED("ends too early", "\x80\x02"
							  "ccollections");
	REFUSED("not a function", "\x80\x02})R.");
	REFUSED("not a function", "\x80\x02"
							  "ccollections\nOrderedDict\n}R.");
	REFUSED("made from something", "\x80\x02"
								   "ccollections\nOrderedDict\nK\x01\x85R.");
	REFUSED("a storage type is called", "\x80\x02"
										"ctorch\nFloatStorage\n)R.");
	REFUSED("not built from a storage", "\x80\x02"
										"ctorch._utils\n_rebuild_tensor_v2\n)R.");
	REFUSED("not built from a tensor", "\x80\x02"
									   "ctorch._utils\n_rebuild_parameter\n)R.");
	REFUSED("a persistent id is not a storage", "\x80\x02K\x01Q.");
	REFUSED("a persistent id is not a storage", "\x80\x02(X\x07\x00\x00\x00storageK\x01K\x02K\x03K\x04tQ.");
	REFUSED("forbidden pickle opcode 0x6F", "\x80\x02o.");
	REFUSED("forbidden pickle opcode 0x81", "\x80\x02\x81.");
	REFUSED("forbidden pickle opcode 0x50", "\x80\x02P1\n.");
	REFUSED("entry 'a' of the state dict is a number", "\x80\x02}X\x01\x00\x00\x00"
													   "aK\x01s.");
	REFUSED("entry '' of the state dict is a number", "\x80\x02}K\x01K\x02s.");
}

/* A list that contains itself must neither loop nor leak. */
static void cycles_are_harmless(void **state)
{
	(void)state;
	REFUSED("contains a list", "\x80\x02]q\x00h\x00"
							   "a.");
}

static void an_empty_state_dict_is_one(void **state)
{
	(void)state;
	fp_context *ctx = fp_context_new();
	int64_t count = -1;
	assert_ok(ctx, read_pickle(ctx, "\x80\x02}.", 4, &count));
	assert_int_equal(count, 0);
	fp_context_free(ctx);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stack_errors),
		cmocka_unit_test(calls),
		cmocka_unit_test(cycles_are_harmless),
		cmocka_unit_test(an_empty_state_dict_is_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
