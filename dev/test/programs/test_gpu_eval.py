"""HellaSwag and MMLU during a run of the GPU trainer: the answers of a straightforward computation, on one rank and on
several, in all stages of sharding; stopping, and ranks that have other questions.

TRAIN_GPT2CU names the program (./train_gpt2emu; on a machine with several GPUs: ./train_gpt2cu).
"""
import functools
import os
import re
import signal

import cli
import evalfiles
from evalfiles import CONFIG, eval_file, questions, relabelled, results
from gpu_program import ran as single
from ranks import Ranks, ran, refused

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


def test_training_is_not_disturbed():
    """A run that evaluates ends with the weights, and logs the losses, of one that does not. A question here is longer
    than the micro-batches."""
    train = cli.shard("gpu_chain_train.bin", evalfiles.chain(2000, 1))
    name = eval_file("gpu_chain_val.bin", evalfiles.chain_questions(4))
    run = ["-i", train, "--vocab", 61, "--layers", 2, "--heads", 2, "--channels", 16, "--context", 16, "-t", 8, "-b", 1,
           "-x", 4, "-v", 3, "-s", 0, "-d", 64]
    evaluates = ["-h", 1, "--hellaswag-data", name]
    folders = [cli.new_folder("gpu_eval_run"), cli.new_folder("gpu_run")]
    outs = [ran(2, *run, *more, "-z", 3, "-o", folder, EMU_CHECK="1")
            for more, folder in zip((evaluates, []), folders)]
    assert [step for step, _, _ in results(outs[0])] == [0, 3, 4], outs[0]
    assert evalfiles.logged(folders[0]) == [(step, f"{n / 4:.4f}") for step, n, _ in results(outs[0])]
    assert cli.weights_hash(outs[0]) == cli.weights_hash(outs[1]) and cli.losses(outs[0]) == cli.losses(outs[1])


def test_stopped_in_the_middle():
    """A signal to one of the ranks ends the evaluation on all of them, in order; the run goes on with it."""
    model, examples = right_answers()
    train = cli.shard("gpu_long_train.bin", evalfiles.chain(2000, 1))
    name = eval_file("gpu_long_val.bin", examples * 1500)
    short = eval_file("gpu_short_val.bin", examples[:2])
    folder = cli.new_folder("gpu_stopped")
    run = ["--init", model, "-i", train, "-t", 24, "-b", 2, "-x", 2, "-v", 1, "-s", 0, "-z", 3, "-o", folder, "-h", 1,
           "--hellaswag-data"]
    ranks = Ranks(2, *run, name)
    ranks.until_printed("^machine ")
    ranks.send(1, signal.SIGUSR1)  # which is caught from the start
    out = ranks.finish()
    assert "stopped by a signal after 0 of 2 steps; --resume goes on" in out and results(out) == [], out
    assert evalfiles.logged(folder) == [] and cli.checkpoints(folder) == [0]
    ran(2, *run, short, "--resume")
    assert [step for step, _ in evalfiles.logged(folder)] == [0, 1, 2]


def test_other_questions():
    """Ranks that see other files under the same name."""
    model, examples = right_answers()
    places = [cli.new_folder("gpu_place_0"), cli.new_folder("gpu_place_1")]
    for place, used in zip(places, (examples, examples[:3])):
        os.mkdir(place)
        eval_file(os.path.join(place, "q.bin"), used)
    refused(2, *options("q.bin", "-b", 2, "-t", 24), only={r: {"folder": places[r]} for r in range(2)},
            says=["the HellaSwag file's fingerprint", "rank 1"])
    os.remove(os.path.join(places[1], "q.bin"))
    refused(2, *options("q.bin", "-b", 2, "-t", 24), only={r: {"folder": places[r]} for r in range(2)},
            says=["q.bin: no such file", "python3 dev/data/hellaswag.py"])


def test_planned():
    """What each rank keeps of the losses: those of all."""
    model, examples = right_answers()
    name = eval_file("gpu_planned_val.bin", examples)
    rows = sum(len(completions) for _, completions, _ in examples)
    for count in (1, 3):
        out = single(*options(name, "-b", 4, "-t", 24, "--plan", "all", "-pn", count))
        places = -(-rows // (4 * count)) * 4 * count
        assert len(re.findall(rf"^eval_losses +\({places}, 2\) +f64 +{16 * places} ", out, re.M)) == 2, out
