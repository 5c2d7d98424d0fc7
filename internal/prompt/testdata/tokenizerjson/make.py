"""Makes small tokenizers of each kind that prompt.Counter knows, with the reference implementation (pip install tokenizers==0.23.3), and
what it makes of difficult texts:  python3 make.py"""
import json
from tokenizers import Tokenizer, Regex, AddedToken, models, trainers, pre_tokenizers, normalizers, processors

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

CORPUS = ["The quick brown fox jumps over the lazy dog, isn't it? They'll say we've 1234 of 5,678.", "def f(x):\n    return x + 1\n\n\n# done\n",
          "Die Straße führt über die Brücke; größer als 12,5 km.", "日本語の文章です。漢字とかな。", "Привет, мир! Как дела?", "a  b   c    d\t\te\r\nf", "e\u0301le\u0300ve n\u0303"] * 20

TEXTS = ["", "a", " ", "\n", "Hello, world!", "The quick brown fox jumps over the lazy dog.", "isn't THEY'LL We'Ve 'S 'x 1234567 12 3", "a  b   c    d\t\te\r\nf\n\n\ng  ",
         "    indented\n        more\n", "日本語の文章です。漢字とかな。日本", "Привет, мир! Как дела? Ёлка", "größer\u00a0als\u2003zwölf", "emoji 😀👩‍👩‍👧‍👦 and \u200b zero", "e\u0301le\u0300ve", "\u1100\u1161\u11a8 한글",
         "x<|end|>y<|end|", "<|begin|><|begin|> text <tool>call</tool>", "no<tool>space", "१२३ ٣٤٥ ½ Ⅷ", "a" * 300, "ab" * 500, " " * 200 + "x", "((((([[[[{{{{----====", "it's\nfine\r\n\r\n  'd", "\ufeffBOM", "ÅÅ \u212b \u2126",
         "word " * 200, "\n" * 50 + "end", "mixed 12abc34 d5e", "don't''t''''s"]

def make(name, pre, normalizer=None, post=None, ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer = pre
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens(["<|begin|>", "<|end|>"])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("</tool>", normalized=True)])
    if post:
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", t.token_to_id("<|begin|>"))])])
    out = {"tokenizer": json.loads(t.to_str()), "texts": []}
    for s in TEXTS:
        out["texts"].append([s, len(t.encode(s).ids), len(t.encode(s, add_special_tokens=False).ids)])
    json.dump(out, open(name + ".json", "w"), ensure_ascii=True, separators=(",", ":"))

B = pre_tokenizers.ByteLevel
split = lambda r: pre_tokenizers.Split(Regex(r), "isolated")
make("gpt2", B(add_prefix_space=False))
make("gpt2-split", pre_tokenizers.Sequence([split(GPT2), B(add_prefix_space=False, use_regex=False)]))
make("digits", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), B(add_prefix_space=False)]))
make("llama3", pre_tokenizers.Sequence([split(LLAMA3), B(add_prefix_space=False, use_regex=False)]), post=True, ignore_merges=True)
make("qwen2", pre_tokenizers.Sequence([split(QWEN2), B(add_prefix_space=False, use_regex=False)]), normalizer=normalizers.NFC())
