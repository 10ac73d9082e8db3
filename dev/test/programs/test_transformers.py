"""dev/hf.py against Hugging Face's own library: models, tokenizers. Skipped where torch and
transformers are not installed (pip install torch transformers)."""
import array
import glob
import json
import os
import random
import struct
import subprocess
import sys
import warnings

import pytest

import cli
import formats
from cli import new_folder, path, ran, write
from tools import ROOT, text_of

sys.path.insert(0, ROOT)
from dev import hf, hf_tokenizer  # noqa: E402 (their folder had to be named first)

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1",
                  TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")
warnings.filterwarnings("ignore")
torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

ODD = {"n_layer": 3, "n_head": 5, "n_embd": 35, "n_positions": 23, "vocab_size": 301}
AWKWARD = ["", " ", "  leading and  double spaces", "trailing ", "\n\n\t\r\n x", "It's we'll I'D y'all'd've",
           "naïve café", "emoji 🎸👩‍👩‍👧‍👦 🏳️‍🌈",
           "漢字とかな交じり文、한국어도", "العربية עברית",
           "\x01\x02\x1f\x7f\x80\x9f\xad\xa0", "a\u0301 e\u0308 ﬁ", "1234567 3.14e-10 ½ ²", "<|endoftext|>",
           "a<|endoftext|> b", "<|endoftext", "ĠĊ Ā ġ", "\u2028\u2029\ufeff\u200b", "x" * 300 + " " * 70 + "y",
           '"\\/\b\f{}[]', "\U0010ffff\ufffd"]
CUTS = ["'s", "'S", "'\u017f", "'Ll", "'lL", "'ve", "'", " ", "  ", "\t", "\n", "\r\n", "\r", " \n", "\u00a0", "\u3000",
        "\x85", "1", "123", "4567", "½", "٣٤", "a", "The", "é", "e\u0301", "\u0301", "漢字", "العربية",
        "हिन्दी", "ภาษาไทย", "😀", "!", "...", "-", "(", "//", "_", "<|endoftext|>", "\x00",
        "\ufeff", "\u017f", "\u200b"]


def our_ids(tokenizer, end, texts):
    """What ./tokenize makes of these texts, each behind an end-of-text."""
    write("texts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    subprocess.run(["./tokenize", "--tokenizer", tokenizer, "--jsonl", "text", "--output", path("texts"), "--overwrite",
                    path("texts.jsonl")], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    found = []
    for token in formats.read_tokens(path("texts_train_000001.bin")):
        if token == end:
            found.append([])
        else:
            found[-1].append(token)
    return found


def check_loss(init, model):
    """The mean loss of random tokens is the library's in double precision. Roundings along the longest way through the
    model, half a unit in the last place of the largest logit each, add up like a random walk; four deviations."""
    c = model.config
    tokens = cli.random_tokens(20 * c.n_positions + 1, c.vocab_size)
    found = cli.val_losses(ran("--init", init, "-x", 0, "-s", 0, "-j", cli.shard("random.bin", tokens), "-t",
                               c.n_positions, "-b", 1))
    with torch.no_grad():
        logits = model.double()(torch.tensor(tokens[:-1]).view(20, -1)).logits.flatten(0, 1)
    want = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]))
    length = c.n_layer * (7 * c.n_embd + c.n_positions) + c.n_embd
    tolerance = 5e-7 + 4.0 * length**0.5 * 2.0**-24 * float(logits.abs().max())
    assert float(logits.std()) > 0.05, "logits that say nothing"
    assert abs(found[0] - float(want)) <= tolerance, (init, found, want, tolerance)


def odd_model(**changes):
    """A random model of the library, with biases and gains that are not 0 and 1."""
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**ODD, **changes}, initializer_range=0.2)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


# ---- Models ----


def test_their_models_here():
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        folder = new_folder("theirs")
        model = odd_model().to(dtype)
        model.save_pretrained(folder, max_shard_size="50KB" if dtype == torch.float32 else "1GB")
        hf.import_model(folder, path("theirs.bin"))
        check_loss(path("theirs.bin"), model)


def test_our_models_there():
    """A run, with the tokenizer of bytes."""
    folder, export = new_folder("ours"), new_folder("ours_hf")
    ran("-i", cli.text_file(), "--layers", 2, "--heads", 3, "--channels", 33, "--context", 40, "--seq-len", 40, "-b", 4,
        "-x", 30, "-l", 0.01, *cli.QUIET, "-o", folder)
    hf.export_model(folder, export)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
    assert type(model) is transformers.GPT2LMHeadModel and not any(report.values()), report
    assert model.dtype == torch.float32 and model.lm_head.weight is model.transformer.wte.weight
    c = model.config
    assert (c.n_positions, c.vocab_size, c.eos_token_id, c.bos_token_id) == (40, 257, 256, 256), c
    check_loss(os.path.join(folder, "model_00000030.bin"), model.eval())
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    assert tokenizer.is_fast and len(tokenizer) == 257 and tokenizer.model_max_length == 40
    for text in AWKWARD:
        ids = tokenizer(text, split_special_tokens=True)["input_ids"]
        assert ids == list(text.encode()) and tokenizer.decode(ids) == text, (text, ids)


LLAMA = os.path.join(ROOT, "dev", "test", "fixtures", "llama")


@pytest.mark.parametrize("state", sorted(glob.glob(f"{LLAMA}/*_state.bin")), ids=os.path.basename)
def test_llama(state):
    """The library loads an export, finds all its tensors, computes the fixture's losses in float32, and saves several
    files that come back to the byte."""
    file, export = state.replace("_state", ""), new_folder("llama_hf")
    hf.export_model(file, export)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
    assert not any(report.values()), report
    data = cli.read(state)
    B, T = struct.unpack("<4i", data[:16])[2:]
    inputs, targets, want = (torch.tensor(array.array(kind, data[1024 + 4 * B * T * i:1024 + 4 * B * T * (i + 1)]))
                             for i, kind in enumerate("iif"))
    with torch.no_grad():
        logits = model.eval()(inputs.view(B, T).long()).logits.flatten(0, 1)
    losses = torch.nn.functional.cross_entropy(logits, targets.long(), reduction="none")
    assert float((losses - want).abs().max()) <= 1e-5  # transformers in float32 is off by 4e-6, distances.txt says
    saved = new_folder("llama_saved")
    model.save_pretrained(saved, max_shard_size="20KB")
    assert os.path.exists(os.path.join(saved, "model.safetensors.index.json"))
    hf.import_model(saved, path("llama.bin"))
    assert cli.read("llama.bin") == cli.read(file)


# ---- Tokenizers ----


def their_tokenizer(kind, special):
    """One that the library trains, with the rules of a kind of model: its own saved folder, loaded. With `special`
    among its tokens."""
    import tokenizers as library
    from tokenizers import models, pre_tokenizers, trainers
    before = {"gpt2": [], "smollm2": [pre_tokenizers.Digits(individual_digits=True)],
              "llama3": [pre_tokenizers.Split(library.Regex(hf_tokenizer.LLAMA3), "isolated")]}[kind]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind != "llama3")
    trained = library.Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    trained.pre_tokenizer = pre_tokenizers.Sequence([*before, level]) if before else level
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind != "smollm2" else []  # SmolLM2's lacks rare bytes
    trained.train_from_iterator([" ".join(AWKWARD[:-3]), text_of("README.md")] * 3, trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, show_progress=False, initial_alphabet=alphabet))
    whole = json.loads(trained.to_str())
    if kind == "llama3":  # tokens that no merge makes, and special ones last
        tokens = [bytes(hf_tokenizer.VALUES[symbol] for symbol in word)
                  for word in list(sorted(whole["model"]["vocab"], key=whole["model"]["vocab"].get))[len(special):]]
        tokens += [b" whole", "漢字とか".encode(), *(token.encode() for token in special)]
        end = len(tokens) - len(special)
        whole = hf_tokenizer.files(hf_tokenizer.Tokenizer(tokens, end, 3, 1, 1, 0, end), 99)["tokenizer.json"]
    folder = new_folder(kind)
    os.makedirs(folder)
    write(f"{kind}/tokenizer.json", json.dumps(whole))
    odd_model(vocab_size=len(whole["model"]["vocab"])).save_pretrained(folder)
    return folder, library.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


@pytest.mark.parametrize("kind, special", (("gpt2", ["<|endoftext|>"]), ("smollm2", ["<|endoftext|>", "<|im_start|>"]),
                                           ("llama3", ["<|begin_of_text|>", "<|end_of_text|>"])))
def test_their_tokenizers(kind, special):
    """Equal ids from the library's file, from ours, and from the library again on what we export."""
    folder, theirs = their_tokenizer(kind, special)
    hf.import_model(folder, path("their.bin"))
    again = new_folder("their_again")
    hf.export_model(path("their.bin"), again)
    loaded = transformers.AutoTokenizer.from_pretrained(again)
    assert type(loaded).__name__ in ("PreTrainedTokenizerFast", "TokenizersBackend"), type(loaded)
    assert loaded.bos_token == special[0] and loaded.eos_token == (special[1] if kind == "llama3" else special[0])
    theirs.encode_special_tokens = True
    generator = random.Random(7)
    texts = AWKWARD + ["".join(generator.choices(CUTS, k=generator.randrange(60))) for _ in range(200)]
    ours = our_ids(path("their_tokenizer.bin"), loaded.bos_token_id, texts)
    assert len(ours) == len(texts)
    for text, found in zip(texts, ours):
        assert theirs.encode(text, add_special_tokens=False).ids == found, (kind, text)
        assert loaded(text, split_special_tokens=True, add_special_tokens=False)["input_ids"] == found, (kind, text)
    assert (loaded("a")["input_ids"][0] == loaded.bos_token_id) == (kind == "llama3")
    hf.import_model(again, path("again.bin"))
    assert cli.read("again_tokenizer.bin") == cli.read("their_tokenizer.bin")
