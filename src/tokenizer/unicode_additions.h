/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unicode_additions.h: characters that Unicode 15 and 16 have added to a class, as ranges in PCRE2's syntax. Debian's
 * PCRE2 (10.42) has Unicode 14 and Hugging Face tokenizers (0.23) has 16, so that they would split text with these
 * characters differently.
 */
#ifndef FP_TOKENIZER_UNICODE_ADDITIONS_H
#define FP_TOKENIZER_UNICODE_ADDITIONS_H

#define FP_NEW_LETTERS                                                                                                 \
	"\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}"              \
	"\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}"         \
	"\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}"          \
	"\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}"                   \
	"\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}"                    \
	"\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"

#define FP_NEW_DIGITS                                                                                                  \
	"\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}\\x{16130}-\\x{16139}"        \
	"\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"

#define FP_NEW_NUMBERS FP_NEW_DIGITS "\\x{1D2C0}-\\x{1D2D3}"

#define FP_NEW_MARKS                                                                                                   \
	"\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}\\x{113B8}-\\x{113C0}\\x{113C2}"      \
	"\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}\\x{113D2}\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}"         \
	"\\x{11F03}\\x{11F34}-\\x{11F3A}\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}"                    \
	"\\x{1611E}-\\x{1612F}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}-\\x{1E5EF}"

/* The UTF-8 of each of them begins with one of these bytes. */
static inline int fp_may_begin_addition(unsigned char byte)
{
	return byte == 0xF0 || byte == 0xE0 || byte == 0xE1 || byte == 0xEA;
}

#endif
