"""HellaSwag and MMLU in the GPU trainer: the answers of a straightforward computation, on one rank and on several, in
all stages of sharding. During a run: test_llama.py. A signal, and ranks that have other questions: test_gpu_ranks.py.

TRAIN_GPT2CU names the program (./train_gpt2emu; on a machine with several GPUs: ./train_gpt2cu).
"""
import functools

import cli
from evalfiles import CONFIG, eval_file, questions, relabelled, results
from gpu_program import ran as single
from ranks import ran

COUNT = 8


@functools.lru_cache(None)
def right_answers():
    """The model's file, and questions with the answers of the independent computation as labels. The best is further
    ahead than bf16 rounds: of losses around 4 by 2^-9 a value, some tens of values in a row."""
    params = cli.make_params(CONFIG, deviation=0.3)
    return cli.model("gpu_answers.bin", CONFIG, params), questions(CONFIG, params, COUNT, 24, margin=0.2)


def options(name, *more):
    return ["--init", right_answers()[0], "--steps", 0, "--sample-every", 0, "-h", 1, "--hellaswag-data", name, *more]


def test_answers_of_an_independent_computation():
    """On one rank, once with all checks of the emulator, however the sequences are packed; one that is cut, too."""
    model, examples = right_answers()
    for shift, correct, batch, length in ((lambda i: 0, COUNT, 4, 24), (lambda i: i % 4 == 0, COUNT * 3 // 4, 25, 1)):
        name = eval_file("gpu_val.bin", relabelled(examples, shift))
        out = single(*options(name, "-b", batch, "-t", length))
        assert results(out) == [(0, correct, COUNT)], out
    name = eval_file("gpu_val.bin", examples[:3])
    assert results(single(*options(name, "-b", 5, "-t", 24), EMU_CHECK="1")) == [(0, 3, 3)]
    params = cli.make_params(CONFIG, deviation=0.3)
    name = eval_file("gpu_cut_val.bin", questions(CONFIG, params, 4, 24, longest=40, margin=0.2))
    out = single(*options(name, "-b", 3, "-t", 3))
    assert results(out) == [(0, 4, 4)] and "lose the beginning of their context" in out, out


def test_several_ranks():
    """The same answers on 2 to 4 ranks, with and without sharding; batches that no number of ranks divides. The bits of
    a loss do not depend on the rank either: completions that are the same are equal, and the first is the answer."""
    model, examples = right_answers()
    name = eval_file("gpu_ranks_val.bin", relabelled(examples, lambda i: i % 4 == 1))
    for count, stage, batch in ((2, 0, 3), (3, 3, 4), (4, 2, 5)):
        out = ran(count, *options(name, "-b", batch, "-t", 24, "-z", stage))
        assert results(out) == [(0, COUNT - COUNT // 4, COUNT)], (count, stage, out)
    name = eval_file("gpu_equal_val.bin", [(context, [completions[0]] * 4, 0) for context, completions, _ in examples])
    assert results(ran(3, *options(name, "-b", 2, "-t", 24))) == [(0, COUNT, COUNT)]


def test_fewer_questions_than_ranks():
    """Ranks without a batch of their own wait for the others, whose parameters are also theirs."""
    model, examples = right_answers()
    name = eval_file("gpu_few_val.bin", examples[:1])
    mmlu = ["--mmlu", eval_file("gpu_few_mmlu.bin", relabelled(examples[1:3], lambda i: i))]
    for count, stage in ((4, 3), (3, 0)):
        out = ran(count, *options(name, *mmlu, "-b", 64, "-t", 24, "-z", stage), EMU_CHECK="1" if count == 3 else "0")
        assert results(out) == [(0, 1, 1)] and results(out, "MMLU") == [(0, 1, 2)], out
