# SPDX-License-Identifier: Apache-2.0
"""The tokenizers of the shared models as Hugging Face builds them. Needs: transformers, tokenizers, sentencepiece, protobuf."""
import os

import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

ORACLES = {"opt": "models/opt-stories-26m", "llama2": "models/stories15M", "llama3": "tokenizers/llama3"}


def sentencepiece_oracle(path, legacy=True):
    """tokenizer.model as LlamaTokenizerFast of transformers 4 converts it: the same ids as sentencepiece, and special tokens.

    transformers 5 ranks the merges by id instead of score and, for a legacy tokenizer, leaves the space in front out where the
    text starts with one; both differ from sentencepiece, with which the models were trained.
    """
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    size = model.get_piece_size()
    vocabulary = {model.id_to_piece(i): i for i in range(size)}
    merges = []
    for piece, number in vocabulary.items():
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                merges.append((-model.get_score(number), vocabulary[piece[:cut]], vocabulary[piece[cut:]], piece[:cut], piece[cut:]))
    merges.sort()
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[m[3:] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def open_oracle(shared, name):
    """A tokenizers.Tokenizer whose encode() adds what the model's tokenizer adds."""
    folder = os.path.join(shared, name)
    model = os.path.join(folder, "tokenizer.model")
    if os.path.exists(model):
        return sentencepiece_oracle(model)
    return AutoTokenizer.from_pretrained(folder).backend_tokenizer
