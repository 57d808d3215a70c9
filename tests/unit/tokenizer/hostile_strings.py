# SPDX-License-Identifier: Apache-2.0
"""A page of strings that tokenizers get wrong, as bytes: they are decoded with errors="replace" before encoding."""
import random


def utf8(*texts):
    return [text.encode("utf-8") for text in texts]


def hostile_strings():
    strings = [b"", b" ", b"  ", b"\n", b"\t", b"\r\n", b"\x00", b"a\x00b\x00", b"\x7f\x1b[0m"]
    # runs of white space of every kind, at the start, inside and at the end
    for run in (1, 2, 3, 4, 7, 8, 16, 17, 100, 1000):
        strings += [b" " * run + b"x", b"x" + b" " * run, b"x" + b" " * run + b"y", b"\n" * run, b" \n" * run, b"\t" * run + b"z"]
    strings += utf8("a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g\u1680h\u202fi\u205fj", "a\u180eb \u180e c\u180e\u180e",
                    "\u200b\u200c\u200d\ufeff", "\ufeffbegins with a mark", "x \u00a0 y", "\u2003\u2003word", "1\u00a02\u00a03",
                    "\x1c\x1d\x1e\x1f", "a\x0bb\x0cc", "\u2581", "\u2581\u2581a", "a\u2581b \u2581 c", " \u2581")
    # apostrophes, in both cases and with letters that fold to s
    strings += utf8("I'm you're he's we've they'll I'd can't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D CAN'T", "'s'S'ſ'\u212a",
                    "''s 's 'x '' ' '", "o'clock 'tis don\u2019t")
    # numbers
    strings += utf8("1 12 123 1234 12345 1234567890", "3.14159 1e-5 -42 +7 1,000,000", "٣٤٥ ४५६ Ⅷ ½ ² ₃ ① 〇 一二三", "a1b2c3", "007")
    # scripts, marks and joined characters
    strings += utf8("日本語のテキスト、中文文本。한국어 텍스트", "Ελληνικά Русский עברית العربية हिन्दी ไทย", "e\u0301 é \u0301 n\u0303 ñ",
                    "Z\u0351\u036b\u0343a\u0321l\u0349g\u0330o", "ﬁ ﬂ Ⅳ ① ｆｕｌｌ", "\u1100\u1161\u11a8 각", "क्षि \u0915\u094d\u0937",
                    "😀 😃😄 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷", "☃\ufe0f ☃\ufe0e", "\U0001f9ff\U0001faf0\U0001fae8", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛",
                    "\U00010ffff \ue000 \uffff \ufffd", "\U000e0041\U000e0042", "\u202eright to left\u202c", "İstanbul ıI ẞß", "ǅ ǈ ʰ ª º")
    # characters younger than Unicode 14
    strings += utf8("1\U00010d422", "12\U0001d2c53 \U0001e5f3\U0001e5f4", "x\U000105c3y \ua7cb1", "a\U00031350\U0002ebf0b", "\u0897a \U00011f00")
    # punctuation, code, addresses
    strings += utf8("Hello, world!! ... --- ??? #$%^&*()_+{}|:<>?", "if (x<=0) {\n\treturn -1;\n}\n\n\n", "https://a.b/c?d=e&f=g#h",
                    "a_b-c/d\\e", "x=\"1\"; y='2'", "<html><body>\r\n</body></html>\r\n", "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", "____", "\u00a1\u00bf\u00b7",
                    "…—–‘’“”", " .\n", " ,\r\n\r\n x", "!\n\n\n", "a\n b\n  c\n   d")
    # special tokens as text
    strings += utf8("<s>", "</s>", "<unk>", "<pad>", "<s>a</s>", "a <s> b </s> c <unk> d <pad> e", "</s></s>", " </s> ", "<s", "</s >", "<<s>>",
                    "<|begin_of_text|>", "<|end_of_text|>x", "a <|eot_id|> b", "<|begin_of_text|><|begin_of_text|>", "<|reserved_special_token_250|>",
                    "<|reserved_special_token_2500|>", "<|endoftext|>", "<0x0A>", "<0x41>a<0xff>", "[INST] <<SYS>> hi <</SYS>> [/INST]", "<mask>")
    # bytes that are not UTF-8
    strings += [b"\x80", b"\xff\xfe", b"a\xc3", b"\xc3(", b"\xe2\x82", b"\xe2\x82x", b"\xe2(\xa1", b"\xf0\x9f\x98", b"\xf0\x9f\x98a", b"\xf0\x28\x8c\x28",
                b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80",
                b"ok \xe9\xe8 caf\xe9 \xa9", b"\xef\xbf", b"\xc2\xc2\xa0", bytes(range(256)), bytes(range(255, -1, -1))]
    # long pieces without a break: merging must not be quadratic, nor recursive
    strings += [b"a" * 5000, b"ab" * 3000, b"0123456789" * 500, "é".encode() * 2000, "日本".encode() * 1500, "😀".encode() * 800, b"=" * 4097,
                b"The quick brown fox " * 200]
    # random mixtures
    generator = random.Random(20240807)
    pool = ["a", "e", "the", "ing", " ", "  ", "\n", "\t", "'", "'s", "1", "42", "é", "e\u0301", "日", "😀", "\u180e", "\u00a0", "<s>", "</s>", "<|eot_id|>",
            "\x00", "\u2581", "_", ".", ",", "!", "-", "A", "Z", "ß", "\u200d", "\r", "\ufffd", "क्", "ا", "Ж"]
    for _ in range(150):
        strings.append("".join(generator.choice(pool) for _ in range(generator.randint(1, 60))).encode("utf-8"))
    for _ in range(50):
        strings.append(bytes(generator.randrange(256) for _ in range(generator.randint(1, 80))))
    return strings
