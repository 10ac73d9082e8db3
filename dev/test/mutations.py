#!/usr/bin/env python3
"""Plants a mistake in a copy of the source, runs the test that must find it, and says whether it did.

    python3 dev/test/mutations.py               all mistakes below
    python3 dev/test/mutations.py --only optim  those whose file holds this word
    python3 dev/test/mutations.py --check       only says which rows no longer fit the code
    python3 dev/test/mutations.py --list

A test that misses its mistake is no test. A row has the file, the text to replace, its replacement, and the test: UNIT
names suites of build/unit_tests, FUZZ a fuzzer, KERNELS groups of build/emu/test_kernels, GPT2 and LLAMA tests of
test_gpt2emu and test_llama3emu, NCCL tests of build/emu/emu_nccl, CPU and EMU a test file of dev/test/programs with
pytest's -k, for train_gpt2 and train_gpt2emu, and if it names llama for train_llama3 and train_llama3emu. GRID names
tests of test_grid.py, for train_gpt2emu in fp32, or in bf16 if it names bf16. Run it before and after tests are merged.
"""
import argparse
import collections
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TREE = os.path.join(ROOT, "build", "mutations")
UNIT, FUZZ, KERNELS, NCCL, CPU, EMU = "unit", "fuzz", "kernels", "nccl", "cpu", "emu"
GPT2, LLAMA, GRID = "gpt2", "llama", "grid"
Mistake = collections.namedtuple("Mistake", "file old new kind test")

MISTAKES = [Mistake(*row) for row in (
    ("llmc/base/hash.h", "sum + rand_mix(~(uint64_t)bytes)", "sum", UNIT, "hash"),
    ("llmc/base/hash.h", "[2] = {hash, hash64(data, bytes)};", "[2] = {0, hash + hash64(data, bytes)};", UNIT, "hash"),
    ("llmc/base/utils.h", "if (S_ISDIR(info->st_mode)) {", "if (false) {", UNIT, "files"),
    ("llmc/base/files.h", "fchmod(lock->fd, 0600);", "", UNIT, "planted"),
    ("llmc/base/input_file.h", "*size <= max_bytes ||", "*size <= max_bytes + 1 ||", UNIT, "files"),
    ("llmc/base/files.h", " || !files_remove(file->temporary, error)", "", UNIT, "files"),
    ("llmc/base/files.h", "if (ftruncate(file->fd, (off_t)bytes) != 0) {", "if (false) {", UNIT, "files"),
    ("llmc/base/files.h", "(int64_t)info.st_size == bytes) ||", "true) ||", UNIT, "files"),
    ("llmc/base/hash.h", "sum64_word((uint64_t)(first + i), word)", "sum64_word((uint64_t)i, word)", UNIT, "hash"),
    ("llmc/base/utils.h", "memset(text + strlen(text) - tail, '\\n', tail);", "", UNIT, "text_out"),
    ("llmc/base/utils.h", "p[0] < 0xc2 ||", "p[0] < 0xc0 ||", UNIT, "text_out"),
    ("llmc/base/text.h", "held < 4 &&", "held < 3 &&", UNIT, "text_out"),
    ("llmc/files/state_file.h", "checksum == found && ", "", UNIT, "checkpoint"),
    ("llmc/files/state_file.h", "(fits && left == 0)", "fits", UNIT, "checkpoint"),
    ("llmc/files/state_file.h", "if (preamble->version != STATE_VERSION) {", "if (false) {", UNIT, "checkpoint"),
    ("llmc/files/state_file.h", "bool fits = n >= 0 && n < room;", "bool fits = true;", UNIT, "checkpoint"),
    ("llmc/files/checkpoint.h", '"step", step, step, &step', '"step", 0, INT64_MAX, &step', UNIT, "checkpoint"),
    ("llmc/files/checkpoint.h", "if (strcmp(found, expected) == 0) {", "if (true) {", UNIT, "checkpoint"),
    ("llmc/files/checkpoint.h", "    w->model.pending = false;", "", UNIT, "checkpoint"),
    ("llmc/files/checkpoint.h", "a == CHECKPOINT_PARAMS ? r->model.path :", "", UNIT, "checkpoint"),
    ("llmc/files/checkpoint.h", "step = newest_step + 1;", "step = INT64_MAX;", UNIT, "checkpoint"),
    ("llmc/files/checkpoint.h", "if (step < before) { largest = max_i64(largest, step); }",
     "if (step >= 0 && step < before) { largest = step; }", UNIT, "checkpoint"),
    ("llmc/files/checkpoint.h", "if (found->passed.text[0] == '\\0') { found->passed = problem; }",
     "found->passed = problem;", UNIT, "model_file"),
    ("llmc/base/rand.h", "(n - 1) >> (2 * half_bits)", "n >> (2 * half_bits + 2)", UNIT, "rand"),
    ("llmc/data/json_line.h", "low >= 0xdc00 && ", "", UNIT, "json_line"),
    ("llmc/data/json_line.h", "depth != 1 || ", "", UNIT, "json_line"),
    ("llmc/base/json_out.h", "text_steers(c)", "c < 32 || c == 127", UNIT, "json_out"),
    ("llmc/base/utils.h", "c <= 0x202e", "c <= 0x202d", UNIT, "text_out"),
    ("llmc/base/utils.h", "end - i, i < head, &taken", "end - i, true, &taken", UNIT, "text_out"),
    ("llmc/base/utils.h", "if (sum > LARGEST_WHOLE) { return false; }", "", UNIT, "args"),
    ("llmc/base/files.h", "if (rename(file->temporary, file->path) != 0)", "if (false)", UNIT, "files"),
    ("llmc/base/openmp.h", "execv(path, argv)", 'execv("/proc/self/exe", argv)', CPU, "test_openmp.py -k stay"),
    ("llmc/base/openmp.h", "now <= OPENMP_MAX_THREADS ||", "true ||", CPU, "test_openmp.py -k too_many"),
    ("llmc/base/openmp.h", " || getauxval(AT_BASE) == 0", "", CPU, "test_openmp.py -k goes_on"),
    ("llmc/run/train_loop.h", "    openmp_wait_briefly(argv);\n", "", CPU, "test_openmp.py -k too_many"),
    ("llmc/run/train_loop.h", "run_check_stack(&error) &&", "", CPU, "test_faults.py -k small_stack"),
    ("llmc/base/files.h", "flags | O_NOFOLLOW | O_NONBLOCK", "flags | O_NONBLOCK", UNIT, "planted"),
    ("llmc/base/files.h", "if (info.st_nlink <= 1)", "if (true)", UNIT, "planted"),
    ("llmc/base/files.h", "(lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) ||", "true ||", UNIT, "comm"),
    ("llmc/base/files.h", "held.st_ino == named.st_ino) ||", "true) ||", UNIT, "files"),
    ("llmc/base/files.h", "bytes -= n, *written += n;", "bytes = 0;", UNIT, "files"),
    ("llmc/run/run_state.h", "directory_check_lock(&run->folder.lock, error)", "true", CPU, "test_hostile.py -k lock"),
    ("llmc/base/files.h", "flock(lock->fd, LOCK_EX | LOCK_NB) == 0", "true", UNIT, "files"),
    ("llmc/run/args.h", "bool sets = args_is_value(next)", "bool sets = args_is_digit(next)", UNIT, "args"),
    ("llmc/run/train_loop.h", "return ok && outcome == ARGS_RUN && ", "return ok && ", CPU,
     "test_options.py -k mpirun"),
    ("llmc/run/args.h", "least = length / 2 + 1", "least = 99", UNIT, "args"),
    ("llmc/run/args.h", "== '_' ? '-'", "== '_' ? '_'", UNIT, "args"),
    ("llmc/run/args.h", """ || text[strspn(text, "0123456789.+-eE")] != '\\0'""", "", UNIT, "args"),
    ("llmc/run/args.h", "n == length && memcmp(list, word, n) == 0", "memcmp(list, word, length) == 0", UNIT, "args"),
    ("llmc/run/args.h", '|| strcmp(next, "--") == 0 || strcmp(next, "--help") == 0 ||', "|| false &&", UNIT, "args"),
    ("llmc/run/train_options.h", "max_i64(total / micro, 1)", "(total / micro + 1)", UNIT, "args"),
    ("llmc/run/args.h", "if (strcmp(value, spec->fallback) == 0 && args_is_off", "if (args_is_off", UNIT, "args"),
    ("llmc/run/args.h", "return holds != negated;", "return holds || negated;", UNIT, "args"),
    ("llmc/run/train_options.h", "shown(line, value, 0, 0)", "shown(line, value, 9999, 0)", UNIT, "args"),
    ("llmc/run/train_options.h", "o->context == 0 && o->seq_len > 0", "false", CPU, "test_options.py -k context"),
    ("llmc/run/train_options.h", "o->muon_lr == 0.0) {", "true) {", UNIT, "args"),
    ("llmc/model/muon.h", "sqrtf((float)max_i64(rows, cols))", "sqrtf((float)min_i64(rows, cols))", UNIT, "muon"),
    ("llmc/model/muon.h", "fminf(last, MUON_FIRST_MOMENTUM)", "MUON_FIRST_MOMENTUM", UNIT, "muon"),
    ("llmc/cpu/muon.h", "u->grad_scale * grad[i]", "grad[i]", CPU, "test_practice.py -k clipped"),
    ("llmc/files/checkpoint.h", "return array == CHECKPOINT_ADAM_V ?", "return array != CHECKPOINT_PARAMS ?", UNIT,
     "checkpoint"),
    ("llmc/files/checkpoint.h", "checkpoint_place(&w->config, w->optimizer, array, first + n)", "at + n", UNIT,
     "pieces"),
    ("llmc/files/checkpoint.h", "(r->skips_moments ? CHECKPOINT_ADAM_M : CHECKPOINT_ARRAYS)", "CHECKPOINT_ARRAYS",
     UNIT, "checkpoint"),
    ("llmc/run/run_state.h", "        run->updates = 0;\n", "", CPU, "test_practice.py -k test_another"),
    ("llmc/trainer/cpu_program.h", "    clear_moments(model);\n", "", CPU, "test_practice.py -k back"),
    ("llmc/model/params.h", "strcmp(name, model_sizes[i].millions) == 0", "false", UNIT, "sizes"),
    ("llmc/model/memory_plan.h", "madvise(memory, (size_t)bytes, MADV_HUGEPAGE);", "", UNIT, "memory_plan"),
    ("llmc/model/memory_plan.h", "group[strcspn(group, \"\\n\")] = '\\0';", "", UNIT, "memory_plan"),
    ("llmc/run/run_report.h", "c <= PLAN_DATA", "c <= PLAN_ACTIVATION", CPU, "test_options.py -k consistent"),
    ("llmc/trainer/gpu_choices.h", "most * o->seq_len < AUTO_TOKENS", "true", UNIT, "gpu_choices"),
    ("llmc/trainer/gpu_choices.h", "> run_gpu_budget(run)) {", "> INT64_MAX - 1) {", UNIT, "gpu_choices"),
    ("llmc/trainer/gpu_choices.h", "must_fit = o->auto_plan || ", "must_fit = ", UNIT, "gpu_choices"),
    ("llmc/trainer/gpu_choices.h", "{ share /= max_i64(o->pp, 1); }", "{}", UNIT, "gpu_choices"),
    ("llmc/optim/global_norm.cuh", "records[records[i].leader].checksum", "records[0].checksum", KERNELS, "update"),
    ("llmc/trainer/program.cuh", "run->evals[EVAL_HELLASWAG].T, ", "(int)o->seq_len, ", GRID, "test_evaluation"),
    ("llmc/trainer/print.cuh", "if (missing <= 0) {", "if (missing < 0) {", EMU, "test_gpu_plan.py -k byte"),
    ("llmc/ranks/rank_gpus.cuh", "all.data)[r]); }", "all.data)[0]); }", EMU, "test_gpu_plan.py -k ranks_choose"),
    ("doc/usage.md", "12 | 768 | 1,024 | 2.1 GiB", "12 | 768 | 1,024 | 2.2 GiB", EMU, "test_gpu_plan.py -k documents"),
    ("llmc/model/gpu_peak.h", "0.0}, 1555, 300,", "0.0}, 2039, 300,", UNIT, "gpu_peak"),
    ("llmc/model/gpu_peak.h", 'strstr(name, "MIG") != NULL || ', "", UNIT, "gpu_peak"),
    ("llmc/model/gpu_peak.h", 'if (strncmp(name, "NVIDIA ", 7) == 0) { name += 7; }', "", UNIT, "gpu_peak"),
    ("llmc/ranks/zero.h", "stage >= ZERO_GRADIENTS ? micro_batches : 1", "1", UNIT, "zero"),
    ("llmc/ranks/zero.h", "2 * micro_batches * (blocks", "micro_batches * (blocks", UNIT, "zero"),
    ("llmc/model/params.h", "weights + 6.0 * L", "weights + 12.0 * L", EMU, "test_predict.py"),
    ("dev/bench/predict.py", "2 * layers, 4 * tensor + 8", "2 * layers, 3 * tensor + 8", CPU, "test_predict.py"),
    ("dev/bench/predict.py", "min(self.gpu.link, cards)", "cards", CPU, "test_predict.py"),
    ("dev/bench/predict.py", "puts = 2 * self.run.pp_chunks - 1", "puts = self.run.pp_chunks", EMU, "test_predict.py"),
    ("dev/bench/predict.py", "(pp - 1) / (self.run.pp_chunks", "pp / (self.run.pp_chunks", CPU, "test_predict.py"),
    ("llmc/run/foreign_options.h", '"give --layers"', '"give --depth"', UNIT, "args"),
    ("llmc/trainer/cpu_model.h", "lnf, NULL, V, C, rows, true, mm", "lnf, NULL, V, C, rows, false, mm", UNIT, "model"),
    ("llmc/cpu/layers.h", "inp, C), NULL, OC, C, N, true, mm", "inp, C), NULL, OC, C, N, false, mm", UNIT, "model"),
    ("llmc/trainer/cpu_program.h", "    clear_rows(model->grads, model_num_params(&model->config));\n", "", CPU,
     "test_resume.py"),
    ("llmc/cpu/rows.h", " + r3[c]", "", UNIT, "layers"),
    ("llmc/cpu/gemm_tile.h", "if (add) {", "if (false) {", UNIT, "gemm"),
    ("llmc/ranks/star.h", "strcmp(head->name, zero->name) == 0", "head->name[0] != 0", UNIT, "comm"),
    ("llmc/ranks/agree.h", "if (a >= a_end && b >= b_end) { return true; }", "return true;", UNIT, "comm"),
    ("llmc/ranks/agree.h", "rank == comm->num_ranks && all->used == (size_t)rank", "rank > 0", FUZZ, "fuzz_wire"),
    ("llmc/ranks/star.h", "difference |= x[i]", "difference = x[i]", UNIT, "comm"),
    ("llmc/ranks/star.h", " && token_equal(join.token, s->token.caller)", "", UNIT, "comm"),
    ("llmc/ranks/star.h", " && token_equal(half, s->token.zero)", "", FUZZ, "fuzz_wire"),
    ("llmc/ranks/star.h", "    s->num_strangers += !belongs;\n", "", UNIT, "comm"),
    ("llmc/ranks/star.h", "|| socket_has_ended(*caller) ||", "||", FUZZ, "fuzz_wire"),
    ("llmc/ranks/star.h", "TCP_DEFER_ACCEPT, &hold, sizeof(hold)", "TCP_NODELAY, &on, sizeof(on)", UNIT, "comm"),
    ("llmc/ranks/meet.h", "!s->token.known && !meet_is_loopback(s->hosts)", "false", UNIT, "comm"),
    ("llmc/ranks/meet.h", "meet_listen(s->port, s->token.known)", "meet_listen(s->port, true)", UNIT, "comm"),
    ("llmc/ranks/meet.h", "(info.st_mode & 077) == 0 ||", "true ||", UNIT, "comm"),
    ("llmc/ranks/watch.h", "since + gap < now ? since + gap : now", "since", UNIT, "comm"),
    ("llmc/ranks/watch.h", "late && !beat->waits ? &hangs : &last", "late ? &hangs : &last", UNIT, "comm"),
    ("llmc/ranks/watch.h", "    alarm(WATCH_END_SECONDS);\n", "", UNIT, "comm"),
    ("llmc/ranks/star.h", "head->bytes > STAR_MAX_BYTES ||", "", FUZZ, "fuzz_wire"),
    ("llmc/ranks/star.h", "(ok && (head->kind == TALK_MINE) == (rank > 0))", "ok", FUZZ, "fuzz_wire"),
    ("llmc/ranks/star.h", "    comm->broken = true;\n    comm_all_know", "    comm_all_know", UNIT, "comm"),
    ("llmc/ranks/agree.h", "bool known = strcmp(text, comm->known) == 0;", "bool known = false;", UNIT, "comm"),
    ("llmc/ranks/meet.h", "here && i < me", "here && i <= me", UNIT, "comm"),
    ("llmc/ranks/meet.h", "    unsetenv(TOKEN_VARIABLE);\n", "", UNIT, "comm"),
    ("llmc/ranks/meet.h", "getentropy(bytes, sizeof(bytes)) == 0", "memset(bytes, 7, sizeof(bytes)) != NULL", UNIT,
     "comm"),
    ("llmc/ranks/meet.h", "    comm->start_deadline = 0.0;\n", "", UNIT, "comm"),
    ("llmc/ranks/meet.h", "} while (!s->told && seconds_now()", "} while (seconds_now()", UNIT, "comm"),
    ("llmc/ranks/watch.h", "watch_say_last(comm, fails ? BEAT_END : BEAT_GOODBYE, comm->failure, deadline);", "", UNIT,
     "comm"),
    ("llmc/ranks/watch.h", "if (verdict >= w->verdict)", "if (w->verdict < VERDICT_NONE)", UNIT, "comm"),
    ("llmc/ranks/star.h", "    s->refusal = error->text;\n", "", UNIT, "comm"),
    ("llmc/ranks/star.h", "join->num_ranks != comm->num_ranks || rank < 0", "rank < 0", UNIT, "comm"),
    ("llmc/ranks/watch.h", "comm->slow ? WATCH_SLOW_FACTOR : 1.0", "1.0", UNIT, "comm"),
    ("llmc/data/dataloader.h", "(dl->bin.header[2] != dl->shards[shard].num_tokens)", "(false)", UNIT, "dataloader"),
    ("llmc/base/input_file.h", "? format->late_element :", "? format->element :", UNIT, "checkpoint"),
    ("llmc/data/evalloader.h", " || field[EVAL_INDEX] != e", "", UNIT, "evalloader"),
    ("llmc/data/evalloader.h", "EVAL_LENGTH_UNIT), eval->max_seq_len);",
     "EVAL_LENGTH_UNIT), eval->max_seq_len / 2);", UNIT, "evalloader"),
    ("llmc/data/evalloader.h", "return word == end ||", "return true ||", UNIT, "evalloader"),
    ("llmc/base/input_file.h", "strchr(format->versions, '0' + header[1]) == NULL) {", "false) {", UNIT, "tokenizer"),
    ("llmc/base/input_file.h", "if (header[0] != magic || ", "if (", UNIT, "dataloader"),
    ("llmc/base/input_file.h", "file == 0 || used == 0 || file == used ||", "true ||", CPU,
     "test_kept_tokenizer.py -k another_tokenizer"),
    ("llmc/data/dataloader.h", "dl->shards[i].tokenizer = bin_tokenizer(bin.header);", "", UNIT, "dataloader"),
    ("llmc/data/dataloader.h", "2 * i + 1 < count ? ids[2 * i + 1] << 16 : 0", "ids[2 * i] << 16", UNIT, "dataloader"),
    ("llmc/data/data_file.h", "2 * (count + i)", "2 * i", UNIT, "dataloader"),
    ("llmc/data/evalloader.h", "memmove(wide + 2 * count, wide, (size_t)(2 * count));", "", UNIT, "evalloader"),
    ("llmc/data/tokenizer.h", "if (keep == 0 || tokens[keep] == first) { return", "{ return", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "behind == CHAR_LETTER && text[i - 1] == '\\''", "false", FUZZ, "fuzz_encode"),
    ("llmc/data/tokenizer.h", "(behind == CHAR_LETTER || tokenizer_ends_line(text[i]))", "behind == CHAR_LETTER", FUZZ,
     "fuzz_encode"),
    ("llmc/data/tokenizer.h", "text[i + 1] == 0xc5 && text[i + 2] == 0xbf", "false", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "digits < 3", "digits < 4", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "while (end < n && tokenizer_ends_line(text[end])) { end++; }", "", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "return line > i ? line : end == n", "return end == n", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "n - end, &length) == CHAR_NUMBER) { return end; }",
     "n - end, &length) < 0) { return i; }", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "n += t->byte_ids[word[i]] != NO_TOKEN;", "n++;", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "tokenizer_is_special(t, t->eot_token)) ||", "true) ||", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "if (slot->length != 0) { return false; }", "", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "!(t->lacks_bytes && t->merge_rule == MERGE_BY_BYTES)", "true", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "while (n > 1 && !tokenizer_is_stopped(t)) {", "while (n > 1) {", UNIT, "tokenizer"),
    ("llmc/data/tokenizer.h", "eot < tokens)", "eot <= tokens)", UNIT, "tokenizer"),
    ("llmc/data/dataloader.h", "in_epoch = sequence % ", "in_epoch = (sequence + 1) % ", UNIT, "dataloader"),
    ("llmc/data/dataloader.h", "(n - count) / (NUM_SAMPLES - 1) * i", "0", UNIT, "dataloader"),
    ("llmc/data/text_data.h", "count - validation >= window ?", "count > validation ?", UNIT, "dataloader"),
    ("llmc/data/evalloader.h", "end - s->completion_length", "end - s->completion_length + 1", FUZZ, "fuzz_evalloader"),
    ("llmc/data/evalloader.h", "return label < completions ||", "return label <= completions ||", UNIT, "evalloader"),
    ("llmc/data/questions.h", "if (*count > EVAL_MAX_WORDS) {", "if (*count > 2 * EVAL_MAX_WORDS) {", CPU,
     "test_tokenize.py -k questions"),
    ("tokenize.c", "if (!val && set->next == 0) { set->next = 1; }", "", CPU, "test_tokenize.py -k sizes"),
    ("llmc/files/state_file.h", "found == record->checksum ||", "true ||", UNIT, "checkpoint"),
    ("llmc/files/checkpoint.h", "if (!ok || !atomic_place(&w->state, error)) { return false; }\n",
     "return ok && atomic_commit(&w->model, error) && atomic_commit(&w->state, error);\n", UNIT, "kill"),
    ("llmc/files/checkpoint.h", "if (!belongs) { return files_remove(paths->temporary_model, error); }",
     "return files_remove(paths->temporary_model, error);", UNIT, "kill"),
    ("llmc/model/memory_plan.h", "row->first <= other->last && other->first <= row->last",
     "row->first < other->last && other->first < row->last", EMU,
     "test_gpu_trainer.py::test_like_the_cpu_trainer[gpt2]"),
    ("llmc/model/gpt2.h", "X(att, floatX, LAYER, RECOMPUTE_BLOCK", "X(att, floatX, ONE, NEVER", UNIT, "gpt2"),
    ("llmc/model/params.h", "(2.0f * (float)config->num_layers)", "((float)config->num_layers)", UNIT, "pieces"),
    ("llmc/cpu/simd.h", "r * 1.38145988e-3f", "r * 2.0e-3f", UNIT, "simd"),
    ("llmc/cpu/gemm.h", "p->accumulate || !first_block", "p->accumulate", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", " && pass->k0 == k0", "", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", "k + 1 < s->depth ? vf_load_n(from + s->k_stride, left)", "true ? vf_load_n(from, left)", UNIT,
     "gemm"),
    ("llmc/cpu/gemm.h", "block > 0 || p->accumulate", "block > 0", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", "square[i] = vf_round_bf16(square[i]);", "(void)0;", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", "min_i64(N, (col + 1)", "min_i64(N, col", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", "plain = bias == NULL && ", "plain = ", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", "(!add || kernel->adds)", "true", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", "p->B.packed_depth, pass->k0 + k, n)", "p->K, pass->k0 + k, n)", UNIT, "gemm"),
    ("llmc/cpu/layers.h", "2 * packed, transpose_of(v, stride)", "2 * packed, transpose_of(k, stride)", UNIT, "layers"),
    ("llmc/cpu/gemm.h", "k / gemm_per_word(kernel->words) * kernel->cols", "k * kernel->cols", UNIT, "gemm"),
    ("llmc/cpu/shuffles.h", "vu nan = bits | 0x400000;", "vu nan = bits;", UNIT, "gemm"),
    ("llmc/cpu/shuffles.h", "bits + 0x7fff + ((bits >> 16) & 1)", "bits + 0x8000", UNIT, "gemm"),
    ("llmc/trainer/cpu_model.h", "if (g->packed != NULL)", "if (false)", UNIT, "model"),
    ("llmc/cpu/simd.h", "magnitude < 0.625f", "magnitude < 1.5f", UNIT, "simd"),
    ("llmc/cpu/simd.h", "exponent - half + 127", "exponent - half + 126", UNIT, "simd"),
    ("llmc/cpu/rows.h", "for (; row < N; row++)", "for (; row < N - 1; row++)", UNIT, "layers"),
    ("llmc/cpu/gemm_tile.h", "a += GEMM_LANES;", "a += GEMM_LANES - 1;", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", "k0 + gemm_pass_depth(p)), n0, n1)", "k0 + GEMM_DEPTH), n0, n1)", UNIT, "gemm"),
    ("llmc/cpu/gemm.h", "vf_load_n(to, cols - j) + sum", "sum", UNIT, "gemm"),
    ("llmc/cpu/kernels.h", "kernel->words == GEMM_PAIRS && !bf16", "false", CPU, "test_cpu_kernels.py -k says_why"),
    ("llmc/cpu/nonfinite.h", "memory + piece.place", "memory + piece.in_file", UNIT, "model"),
    ("llmc/model/params.h", "layer + (j < i) : 1", "layer + (j <= i) : 1", UNIT, "gpt2"),
    ("llmc/cpu/layers.h", "k = row + C + kv * HS", "k = row + C + (kv + 1) % KV * HS", UNIT, "layers"),
    ("llmc/cpu/layers.h", "key = row + C + kv * HS", "key = row + C + (kv + 1) % KV * HS", UNIT, "layers"),
    ("llmc/cpu/layers.h", "kv = (int64_t)(h / (heads.NH / heads.KV))", "kv = (int64_t)(h % heads.KV)", UNIT, "llama3"),
    ("train_llama3.c", "(first + i % T) * heads", "(first + i) * heads", UNIT, "llama3"),
    ("train_llama3.c", "table + i % T * heads.HS, -1.0f", "table + i % T * heads.HS, 1.0f", UNIT, "llama3"),
    ("train_llama3.c", "- x[c] * r * mean_gn", "+ x[c] * r * mean_gn", UNIT, "llama3"),
    ("train_llama3.c", "(float)C + epsilon)", "(float)C)", UNIT, "llama3"),
    ("train_llama3.c", "vf_set1(1.0f) + x * (vf_set1(1.0f) - s)", "vf_set1(1.0f) + x * s", UNIT, "llama3"),
    ("llmc/model/rope.h", "-2.0 * j / c->head_size", "-1.0 * j / c->head_size", UNIT, "llama3"),
    ("llmc/cpu/layers.h", "lse[i] = max + logf(sums[i])", "lse[i] = logf(sums[i])", UNIT, "layers"),
    ("llmc/cpu/layers.h", "row[targets[i]] -= dloss;", "row[targets[i]] -= 1.0f;", UNIT, "layers"),
    ("llmc/base/processor.h", "constructor(101)", "unused", CPU, "test_cpu_kernels.py -k another_processor"),
    ("llmc/cpu/kernels.h", "bf16 && kernel->words == GEMM_FLOATS", "false", CPU,
     "test_cpu_kernels.py -k each_kernel"),
    ("llmc/run/run_state.h", 'run_list_change(saved, &own, "arithmetic", changes);', "", CPU,
     "test_cpu_kernels.py -k other_arithmetic"),
    ("llmc/cpu/gemm_amx.h", "_tile_loadd(7, b + 16, 128)", "_tile_loadd(7, b + 16, 64)", UNIT, "gemm"),
    ("llmc/cpu/gemm_amx.h", "{ _tile_release(); }", "{}", UNIT, "gemm"),
    ("llmc/cpu/gemm_amx.h", " && syscall(SYS_arch_prctl, 0x1023L, 18L) == 0", "", UNIT, "gemm"),
    ("dev/cpu/packed.h", "c[j] += tile", "c[j] = tile", UNIT, "ladder"),
    ("dev/cpu/step8_bf16.h", "k < round_up_i64(depth, 32)", "k < depth", UNIT, "ladder"),
    ("dev/cpu/step9_amx.h", "_tile_loadd(7, b + 16, AMX_SIZE * 4)", "_tile_loadd(7, b + 16, 64)", UNIT, "ladder"),
    ("dev/cpu/check.h", "!(fabs((double)c->p.C[i] - c->expected[i]) <= tolerance)",
     "fabs((double)c->p.C[i] - c->expected[i]) > tolerance", UNIT, "ladder"),
    ("llmc/data/evalloader.h", "< (best < 0 ? INFINITY : means[best])",
     "<= (best < 0 ? INFINITY : means[best])", UNIT, "evalloader"),
    ("llmc/base/utils.h", "CLOCK_MONOTONIC, &t", "CLOCK_REALTIME, &t", UNIT, "logger"),
    ("llmc/run/log.h", "s / 60 % 60, s % 60", "s / 60, s % 60", UNIT, "logger"),
    ("llmc/run/schedulers.h", "(double)(step + 1) / (double)s->", "(double)step / (double)s->", UNIT, "schedulers"),
    ("llmc/run/schedulers.h", "step >= s->total ? 1.0", "step > s->total ? 1.0", UNIT, "schedulers"),
    ("llmc/run/schedulers.h", "1.0 - sqrt(x)", "1.0 - x", UNIT, "schedulers"),
    ("llmc/run/train_options.h", "if (!schedule_falls(schedule_kind(o->schedule)))", "if (false)", UNIT, "args"),
    ("dev/hf.py", "begin != covered or ", "", CPU, "test_hf.py -k damaged_header"),
    ("dev/hf.py", "if short in found:", "if False:", CPU, "test_hf.py -k damaged_header"),
    ("dev/hf.py", "name not in shapes and name not in copy and not BUFFER.match(name)", "False", CPU,
     "test_hf.py -k other_tensors"),
    ("dev/hf.py", "if end - begin != BYTES[kind] * math.prod(shape)", "if False", CPU, "test_hf.py -k damaged_header"),
    ("dev/hf.py", "[0] if transposed else max(1, PIECE // max(1, cols))", "[0]", CPU, "test_hf_llama.py -k pieces"),
    ("dev/hf.py", 'in parts.values()} == {"BF16"', 'in parts.values()} >= {"BF16"', CPU, "test_hf_llama.py -k biases"),
    ("dev/hf_llama.py", "C // max(heads, 1)", "width // max(heads, 1)", CPU, "test_hf_llama.py -k leaves_out"),
    ("dev/hf_llama.py", 'values.get("tie_word_embeddings", False)', 'values.get("tie_word_embeddings", True)', CPU,
     "test_hf_llama.py -k refused"),
    ("dev/hf.py", "read(8) not in (UNKNOWN", "read(8) is (UNKNOWN", CPU, "test_hf_llama.py -k tokenizer"),
    ("dev/hf_llama.py", 'given.get("type", "default")', '"default"', CPU, "test_hf_llama.py -k config"),
    ("dev/hf_llama.py", '"model.layers.{}.self_attn.v_proj', '"model.layers.{}.self_attn.k_proj', CPU,
     "test_hf_llama.py -k import"),
    ("dev/hf_llama.py", "or c.head_size % 2 != 0", "", CPU, "test_hf_llama.py -k refused"),
    ("dev/hf.py", "shape[::-1] if TRANSPOSED.search(name) else shape", "shape", CPU, "test_hf.py -k transformers"),
    ("dev/hf.py", "max(names)", "min(names)", CPU, "test_hf.py -k a_run"),
    ("dev/hf_tokenizer.py", 'and not level["add_prefix_space"]', "", CPU, "test_hf.py -k other_tokenizers"),
    ("dev/hf_tokenizer.py", 'if not token["special"]', "if False", CPU, "test_hf.py -k other_tokenizers"),
    ("dev/twin/options.py", 'PARTS = {"wsd": 5}', 'PARTS = {}', CPU, "test_twin.py -k schedules"),
    ("llmc/run/outlier.h", "*z > threshold", "fabs(*z) > threshold", UNIT, "outlier"),
    ("llmc/run/outlier.h", "->rejected >= OUTLIER_MAX_REJECTED", "->rejected > OUTLIER_MAX_REJECTED", UNIT, "outlier"),
    ("llmc/run/outlier.h", "detector->rejected >= 0 &&", "true &&", UNIT, "outlier"),
    ("llmc/files/checkpoint.h", "array == CHECKPOINT_ADAM_V ? 0.0f : -FLT_MAX", "-FLT_MAX", UNIT, "checkpoint"),
    ("llmc/run/run_state.h", "LARGEST_WHOLE / old_T", "LARGEST_WHOLE", CPU, "test_numbers.py -k facts"),
    ("llmc/run/run_state.h", '"updates", 0, run->step', '"updates", 0, LARGEST_WHOLE', CPU, "test_numbers.py -k facts"),
    ("llmc/run/args.h", "if (all ? spec->fallback[0] != '\\0' :", "if (all ? false :", UNIT, "args"),
    ("llmc/run/run_start.h", "checkpoint_prune(dir, run->step, o->keep, o->keep_major);", "", CPU,
     "test_faults.py -k full_disk"),
    ("llmc/data/tokenizer.h", "t->token_bytes[i] == i) {", "true) {", CPU, "test_faults.py -k test_tokenizers"),
    ("llmc/run/run_inputs.h", "checkpoint_step_of_name(path_name(model), \"model\", \"\") >= 0", "false",
     CPU, "test_kept_tokenizer.py -k keeps"),
    ("llmc/run/run_state.h", "run_list_change(saved, &own, RUN_TOKENIZER_KEY, changes);", "",
     CPU, "test_kept_tokenizer.py -k another"),
    ("llmc/optim/adamw.cuh", "f.beta2, *v, (1.0f - f.beta2) *", "f.beta2, *v, (1.0f - f.beta1) *", KERNELS, "update"),
    ("llmc/optim/adamw.cuh", "(sqrtf(f.correction2 * *v) + f.epsilon)",
     "sqrtf(f.correction2 * *v + f.epsilon)", KERNELS, "update"),
    ("llmc/optim/adamw.cuh", "begin + k < a.decayed", "begin + k <= a.decayed", KERNELS, "update"),
    ("llmc/ranks/zero.h", "(group == ZERO_MUON && optimizer == OPTIMIZER_MUON)", "(group == ZERO_MUON)", UNIT, "zero"),
    ("dev/emu/nccl.cpp", "if (misses && problem.empty() && !rung) { find_cycle(*comm); }", "", NCCL, "other_order"),
    ("dev/emu/nccl.cpp", "if (!rung) { find_ended(*comm); }", "", NCCL, "fault_die_in_part"),
    ("dev/emu/nccl.cpp", "c.reduces() && peer > 0", "c.reduces() && peer > 1", NCCL, "all_reduce"),
    ("dev/emu/nccl.cpp", "a.type == b.type && a.count == b.count", "a.type == b.type", NCCL, "other_count"),
    ("dev/emu/nccl_shared.cpp", "!p.done && p.peer == t.own && ", "p.peer == t.own && ", NCCL, "group_and_single"),
    ("dev/emu/nccl_shared.cpp", "process < start || ", "", NCCL, "other_order cycle"),
    ("dev/emu/include/emu_ptx.h", "n > i ? n : i", "n < i ? n : i", CPU, "test_emu_courses.py -k ptx_bits"),
    ("dev/emu/fibers.cpp", "now.order_global = stamp_of_interval(the_grid.since);", "", CPU,
     "test_emu_courses.py -k heat"),
    ("dev/emu/rewrite.cpp", "given < found->second", "given == 0", CPU, "test_emu_courses.py -k launches"),
    ("llmc/ranks/nccl.h", "bytes / group->size * (group->size - 1);", "bytes;", GRID, "gpt2_z3"),
    ("llmc/trainer/state.cuh", "piece_element(&t->shards, state_array(t, array), piece) != NULL ||", "true ||",
     EMU, "test_gpu_ranks.py -k other_ranks"),
    ("llmc/trainer/state.cuh", "array == CHECKPOINT_PARAMS && run->updates > 0", "false", EMU,
     "test_runs.py -k bf16-plain"),
    ("llmc/trainer/state.cuh", "if (read) { upload_piece(t, run, array, piece); }",
     "if (read && array < CHECKPOINT_ADAM_V) { upload_piece(t, run, array, piece); }", EMU,
     "test_runs.py -k bf16-plain"),
    ("llmc/trainer/state.cuh", "    forget_fetched(s);\n    quantize", "    quantize", EMU, "test_gpu_ranks.py"),
    ("llmc/ranks/matrices.cuh", "i % owners ==", "i ==", EMU, "test_runs.py -k bf16-ranks-muon"),
    ("llmc/ranks/matrices.cuh", "if (sharded && !cut) { clear_on_the_way(s, room.spare, padded); }", "", GRID,
     "gpt2_muon_4_-z_3"),
    ("llmc/trainer/update.cuh", "(blocks - matrices_own_number(s) + owners - 1)", "blocks", GRID, "gpt2_muon_4_-z_3"),
    ("llmc/trainer/update.cuh", "zero_begin(zero, 1, t->shards.rank), min_i64", "0, min_i64", GRID, "gpt2_muon_4_-z_1"),
    ("llmc/ranks/buckets.cuh", "group_reduce_scatter(&s->data, whole + s->rank * count, whole, count, NULL);", "", EMU,
     "test_gpu_ranks.py -k other_ranks"),
    ("llmc/trainer/update.cuh", "muon = zero_muon(zero, bucket);", "muon = 0;", EMU, "test_gpu_trainer.py -k muon"),
    ("llmc/optim/adamw.cuh", "(key, (uint64_t)(a.first_index + place))", "(key, (uint64_t)place)", KERNELS, "muon"),
    ("llmc/optim/adamw.cuh", "column < width ? column : column - width + stride", "column", KERNELS, "update"),
    ("llmc/optim/adamw.cuh", "row * stride + (column", "row * width + (column", KERNELS, "update"),
    ("llmc/optim/adamw.cuh", "width > 0 ? strip_place(i, 0, width, stride) : i", "i", KERNELS, "update"),
    ("llmc/optim/adamw.cuh", "kernel = part.width >", "kernel = part.update == NULL && part.width >", KERNELS, "muon"),
    ("llmc/optim/muon.cuh", "x < MUON_NORM_BLOCKS ?", "x < MUON_NORM_BLOCKS - 1 ?", KERNELS, "muon"),
    ("llmc/optim/muon.cuh", "x + blockIdx.y * stride;", "x + blockIdx.y * vectors * x128::size;", KERNELS, "muon"),
    ("llmc/optim/muon.cuh", "left.transposed = !tall", "left.transposed = tall", KERNELS, "muon"),
    ("llmc/cuda/cublas_common.h", "on->C != NULL ? on->C : on->D", "on->D", KERNELS, "muon"),
    ("llmc/cuda/cublas_common.h", "(uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE",
     "(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE", KERNELS, "terms"),
    ("llmc/cuda/cublas_common.h", "a->fp32_output == b->fp32_output &&", "", KERNELS, "matmul"),
    ("llmc/trainer/plan.cuh", "strcmp(was, OWN_ATTENTION) == 0", "false", EMU, "test_gpu_cudnn.py -k resumed"),
    ("llmc/optim/global_norm.cuh", "norm > (double)grad_clip", "norm > 2.0 * (double)grad_clip", KERNELS, "update"),
    ("llmc/optim/global_norm.cuh", "isfinite(norm) &&", "true &&", KERNELS, "update"),
    ("llmc/layers/gelu.cuh", "0.044715f", "0.044f", KERNELS, "gelu"),
    ("llmc/layers/embedding.cuh", "(&place, (int)(row % T)) :", "(&place, 0) + (int)(row % T) :", KERNELS, "embedding"),
    ("llmc/layers/embedding.cuh", "id >= 0 ? load128(token + c) : packed_zeros<floatX>()",
     "load128(wte + (id >= 0 ? id : 0) * C + c)", KERNELS, "embedding"),
    ("llmc/layers/embedding.cuh", "int32_t first = 0;", "int32_t first = 1;", KERNELS, "embedding"),
    ("llmc/layers/embedding.cuh", "begins = ids[own] >= 0 &&", "begins = true &&", KERNELS, "embedding"),
    ("llmc/layers/embedding.cuh", "context_position(&place, (int)(at / C)) * (int64_t)C",
     "(context_position(&place, 0) + at / C) * (int64_t)C", KERNELS, "embedding"),
    ("llmc/layers/loss.cuh", "v + k < V ? x[k] : 0.0f", "v + k <= V ? x[k] : 0.0f", KERNELS, "cross_entropy"),
    ("llmc/layers/loss.cuh", "sum *= cross_entropy_exp(state.max - max)", "sum *= 1.0f", KERNELS, "cross_entropy"),
    ("llmc/layers/loss.cuh", "target >= 0 ? to_float(row[target]) : 0.0f", "to_float(row[target >= 0 ? target : 0])",
     KERNELS, "cross_entropy"),
    ("llmc/layers/loss.cuh", "fmaxf(whole.max, part[0])", "part[0]", KERNELS, "cross_entropy"),
    ("llmc/layers/loss.cuh", "part[1] * cross_entropy_exp(part[0] - whole.max)", "part[1]", KERNELS, "cross_entropy"),
    ("llmc/layers/loss.cuh", "row_gradient(row, row, V_own,", "row_gradient(row, row, Vl,", KERNELS, "cross_entropy"),
    ("llmc/layers/layernorm.cuh", "fmaf(-n, mean_gn,", "fmaf(n, mean_gn,", KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "rstd[row] = r;", "rstd[row] = m;", KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "m = RMS ? 0.0f : layernorm_row_sum", "m = layernorm_row_sum", KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "(float)C + epsilon)", "(float)C)", KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "residual_sum(load128(inp + i), load128(projection + i))", "load128(inp + i)",
     KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "if (i < n) { store128(out + i,", "{ store128(out + i,", KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "uint32_t row = blockIdx.x; row < rows && c < C;",
     "uint32_t row = gridDim.x - 1 - blockIdx.x; row < rows && c < C;", KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "amax_join(largest, values);", "amax_join(0u, values);", KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "(blockIdx.y * blockDim.x + threadIdx.x) *", "threadIdx.x *", KERNELS, "layernorm"),
    ("llmc/layers/layernorm.cuh", "x.x = RMS ? 0.0f : warp_sum(x.x)", "x.x = warp_sum(x.x)", KERNELS, "layernorm"),
    ("llmc/model/rope.h", "{ return slow; }", "{ return f; }", UNIT, "rope"),
    ("llmc/model/rope.h", "(1.0 - s) * slow + s * f", "s * slow + (1.0 - s) * f", UNIT, "rope"),
    ("llmc/layers/rope.cuh", "half = HS / 2, parts", "half = 1, parts", KERNELS, "rope"),
    ("llmc/layers/rope.cuh", "HS, -1.0f, stream", "HS, 1.0f, stream", KERNELS, "rope"),
    ("llmc/layers/rope.cuh", "x % context_rows(&place)", "x % (context_rows(&place) + 1)", KERNELS, "rope"),
    ("llmc/layers/rope.cuh", "table, place, NH + KV, HS,", "table, place, NH, HS,", KERNELS, "rope"),
    ("llmc/layers/swiglu.cuh", "(amax_join(largest, dgate), dup)", "(largest, dgate)", KERNELS, "swiglu"),
    ("llmc/layers/swiglu.cuh", "fmaf(silu, 1.0f - s, s), dup", "s, dup", KERNELS, "swiglu"),
    ("llmc/layers/swiglu.cuh", "value = x * swiglu_gate(x) * to_float(up[i]);",
     "value = to_float(up[i]) * swiglu_gate(to_float(up[i])) * x;", KERNELS, "swiglu"),
    ("train_llama3.cu", "    rope_backward(a.dqkv", "    if (false) rope_backward(a.dqkv", LLAMA, "llama3"),
    ("train_llama3.cu", "a.qkv, model->rope", "a.qkv, model->rope + c.head_size", LLAMA, "llama3"),
    ("train_llama3.cu", "b.qkv.bias = b.p.qb", "b.qkv.bias = b.p.kb", LLAMA, "llama3"),
    ("train_llama3.cu", "b.qkv.dbias = b.g.qb", "b.qkv.dbias = b.g.kb", LLAMA, "llama3"),
    ("train_llama3.cu", "weights(grads_of_layer(model, 0))", "grads_of_layer(model, 0).wte", LLAMA, "llama3"),
    ("train_llama3.cu", "b.ln2, false, b.attproj,", "b.ln2, true, b.attproj,", LLAMA, "llama3"),
    ("train_llama3.cu", "        activate(gpu, b, N);",
     "        if (model->shape.recompute != RECOMPUTE_LAYERNORM) { activate(gpu, b, N); }", LLAMA, "test_gradients"),
    ("train_llama3.cu", "model->params, 2 +", "model->params, 1 +", EMU, "test_runs.py -k llama-bf16-ranks"),
    ("train_llama3.cu", "model, shards, 1 + layer", "model, shards, layer", GRID, "llama_adamw_4_-z_2"),
    ("train_llama3.cu", "gpu->stream, b.fc.dout_amax()", "gpu->stream, NULL", LLAMA, "test_scales_of_8_bits"),
    ("train_llama3.cu", "else if (b.qkv.dout_amax() != NULL) {", "else if (false) {", LLAMA, "test_scales_of_8_bits"),
    ("llmc/run/run_inputs.h", "(fits || fail(", "(true || fail(", EMU, "test_llama.py -k refusals"),
    ("llmc/model/llama3.h", "MODEL_GELU_FUSION 0", "MODEL_GELU_FUSION 2", EMU, "test_llama.py -k refusals"),
    ("llmc/layers/attention.cuh", "float score = key + lane <= query + r",
     "float score = key + lane < query + r + 2", KERNELS, "attention"),
    ("llmc/layers/attention.cuh", "float p = key + r <= query +", "float p = key + r < query +", KERNELS, "attention"),
    ("llmc/layers/attention_mma.cuh", "alignas(8) float statistics", "float statistics", KERNELS, "attention"),
    ("llmc/layers/attention_mma.cuh", "if (query < key + 16 * M - 1)", "if (query < key - 1)", KERNELS, "attention"),
    ("llmc/layers/attention_tiles.cuh", "kv = h * s.KV / s.NH", "kv = h % s.KV", KERNELS, "attention"),
    ("llmc/layers/attention.cuh", "q += HS, dO += HS, head.row += shape.T", "q += HS, dO += HS", KERNELS, "attention"),
    ("llmc/layers/attention_mma.cuh", "if (next >= T && h > 0) {", "if (next >= T && h > 1) {", KERNELS, "attention"),
    ("llmc/layers/attention_mma.cuh", "dk_rows + shape.KV * HS;", "dk_rows + shape.NH * HS;", KERNELS, "attention"),
    ("llmc/layers/attention_tiles.cuh", "row < c.chunk ? c.first : c.second;", "c.first;", KERNELS, "context"),
    ("llmc/layers/attention_tiles.cuh", "return row < c.chunk ? c.chunk : s.T;", "return s.T;", KERNELS, "context"),
    ("llmc/layers/attention_tiles.cuh", "(c.chunk, key - c.second)", "(c.chunk, key - c.first)", KERNELS, "context"),
    ("llmc/layers/attention_tiles.cuh", "index / s.NH * c.T * c.", "index / s.NH * s.T * c.", KERNELS, "context"),
    ("llmc/layers/attention_tiles.cuh", "{kv, place.T, 2 * s.KV", "{kv, place.T - 32, 2 * s.KV", KERNELS, "context"),
    ("llmc/layers/attention_tiles.cuh", "attention_tiles(c.chunk, rows) + attention_tiles(s.T - c.chunk, rows);",
     "attention_tiles(c.chunk, rows);", KERNELS, "context"),
    ("llmc/layers/attention_mma.cuh", "(first + ROWS, end), KEYS", "(first + ROWS, shape.T), KEYS", KERNELS, "context"),
    ("llmc/layers/attention_mma.cuh", "next = min(row + QUERIES, end);",
     "next = row + QUERIES < end ? row + QUERIES : T;", KERNELS, "context"),
    ("llmc/layers/attention.cuh", "next = min(row + SIMT_COLUMNS, end);",
     "next = row + SIMT_COLUMNS < end ? row + SIMT_COLUMNS : shape.T;", KERNELS, "context"),
    ("llmc/layers/attention_mma.cuh", "min(attention_first_row(first, context), T - 1)",
     "attention_first_row(first, context)", KERNELS, "context"),
    ("llmc/layers/context.cuh", "to += (SPLIT ? i : at) * W, from += (SPLIT ? at : i) * W;",
     "to += (SPLIT ? at : i) * W, from += (SPLIT ? i : at) * W;", KERNELS, "context"),
    ("llmc/layers/context.cuh", "i / rows % B * (int64_t)all.T", "i / rows % B * (int64_t)rows", KERNELS, "context"),
    ("llmc/model/context.h", "2 * place->size - 2 - place->rank", "place->size - 1 + place->rank", KERNELS, "context"),
    ("llmc/layers/attention_cudnn.h", "if (is_shared) { cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD,",
     "if (is_shared) { cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX,", KERNELS, "cudnn"),
    ("llmc/layers/attention_cudnn.h", "array <= CUDNN_DV ? shape->", "array < CUDNN_DV ? shape->", KERNELS, "cudnn"),
    ("llmc/layers/attention_cudnn.h", "CUDNN_LSE ? 0 : sequence *", "CUDNN_LSE ? 0 : row *", KERNELS, "cudnn"),
    ("llmc/layers/attention_cudnn.h", "shape->B % chunk != 0 || ", "", KERNELS, "cudnn"),
    ("llmc/layers/attention_cudnn.h", "if (sum_bytes > 0) {", "if (false) {", KERNELS, "cudnn"),
    ("llmc/layers/attention_cudnn.h", "cudnnGetVersion() < 91801", "cudnnGetVersion() < 91800", KERNELS, "cudnn"),
    ("llmc/layers/attention_cudnn.h", "CUDNN_POINTWISE_CMP_GE, i, j", "CUDNN_POINTWISE_CMP_GE, j, i", KERNELS, "cudnn"),
    ("llmc/layers/attention_cudnn.h", "if (g->shape.deterministic && cudnn_is_random(g, configs[i])) {",
     "if (false) {", KERNELS, "cudnn"),
    ("llmc/layers/attention_cudnn.h", "shape->B > CUDNN_ATT_MAX_BATCH", "false", KERNELS, "cudnn"),
    ("llmc/layers/linear.cuh", "< c.end; row += BIAS_WARPS", "< c.end - 1; row += BIAS_WARPS", KERNELS, "matmul"),
    ("llmc/layers/column_sums.cuh", "[column - kind * C] +=", "[column - kind * C] =", KERNELS, "layernorm"),
    ("llmc/layers/embedding.cuh", "[own + EMBEDDING_LONG_RUN]", "[own + EMBEDDING_LONG_RUN + 1]", KERNELS, "embedding"),
    ("llmc/layers/fp8.cuh", "int largest_exponent = 15", "int largest_exponent = 16", KERNELS, "fp8"),
    ("llmc/layers/fp8.cuh", "> three_quarters ? 1 : 0", "> three_quarters ? 0 : 0", KERNELS, "fp8"),
    ("llmc/ranks/zero.h", "ceil_div_i64(most, num_ranks)", "most / num_ranks", UNIT, "zero"),
    ("llmc/ranks/zero.h", "#define ZERO_ALIGNMENT 64", "#define ZERO_ALIGNMENT 32", EMU, "test_predict.py"),
    ("llmc/ranks/schedule.h", "2 * behind +", "behind +", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "(p->chunks - 1) * p->stages, p", "p->chunks * p->stages, p", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "pipe_puts(i->action) &&", "i->action == PIPE_PUT_OUTPUT &&", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", " && i->slot != i[1].slot", "", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "k = pipe_forward_of(p, k - slots);", "k -= slots;", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "pipe_warm_up(p) + 1);", "pipe_warm_up(p) + 2);", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "    pipe_add(p, end, PIPE_BACKWARD, k);\n    pipe_add(p, end, PIPE_PUT_OUTPUT, k);\n"
     "    pipe_add(p, end, PIPE_GET_INPUT, k + 1);", "    pipe_add(p, end, PIPE_PUT_OUTPUT, k);\n"
     "    pipe_add(p, end, PIPE_GET_INPUT, k + 1);\n    pipe_add(p, end, PIPE_BACKWARD, k);", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "k + (p->chunks - 1 - k / p->stages % p->chunks * 2) * p->stages", "k", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "k = pipe_forward_of(p, k);", "k = pipe_num_forwards(p) - 1 - k;", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "a <= PIPE_PUT_GRAD", "a < PIPE_PUT_GRAD", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "    pipe_add(p, end, PIPE_PUT_GRAD, k);\n", "", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "neighbour < p->chunks * p->", "neighbour <= p->chunks * p->", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "{-1, 0, 1, 1, 0, -1}", "{-1, 0, 1, -1, 0, 1}", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "p->stages, p->micro_batches - first", "p->stages, p->micro_batches", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "- ends * p->micro_batches", "- ends", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "!ring || m % S == 0 ||", "!ring || m >= S ||", UNIT, "schedule"),
    ("llmc/ranks/schedule.h", "* v > INT32_MAX / 8", "> INT32_MAX / 2", UNIT, "schedule"),
    ("llmc/ranks/buckets.cuh", "stream_follows(s->comm_stream, s->stream, s->computed);",
     "", EMU, "test_gpu_ranks.py -k nothing_is_reported"),
    ("llmc/ranks/grid.h", "cp = rank / g->tp % g->cp, pp = rank / (g->tp * g->cp) % g->pp",
     "cp = rank / (g->tp * g->pp) % g->cp, pp = rank / g->tp % g->pp", UNIT, "grid"),
    ("llmc/ranks/grid.h", "((place->dp * g->pp + place->pp) * g->cp + place->cp)",
     "((place->dp * g->cp + place->cp) * g->pp + place->pp)", UNIT, "grid"),
    ("llmc/ranks/grid.h", "axes & AXIS_PP ? g->pp : other, axes & AXIS_CP ? g->cp : other",
     "axes & AXIS_CP ? g->pp : other, axes & AXIS_PP ? g->cp : other", UNIT, "grid"),
    ("llmc/ranks/grid.h", "grid_rank(g, &outside)}", "grid_rank(g, &inside)}", UNIT, "grid"),
    ("llmc/ranks/grid.h", "c->num_kv_heads % tp == 0 && ", "", UNIT, "grid"),
    ("llmc/ranks/grid.h", "left % *size == 0 && (fits || *size == 1)", "fits || *size == 1", UNIT, "grid"),
    ("llmc/ranks/grid.h", "*size * chunks <= c->num_layers", "*size <= c->num_layers", UNIT, "grid"),
    ("llmc/ranks/grid.h", "if (left % pp != 0) { return", "if (false) { return", UNIT, "grid"),
    ("llmc/model/model_part.h", "part->at.tp_rank * width};", "0};", UNIT, "zero"),
    ("llmc/model/model_part.h", "{width, width * ranks, split", "{width, width, split", UNIT, "zero"),
    ("llmc/model/model_part.h", "split == SPLIT_THIRDS ? 3 : 1", "1", UNIT, "zero"),
    ("llmc/model/model_part.h", "return part_first_of_chunk(p, chunk) + layer - part_chunk_begin(p, chunk);",
     "return layer;", UNIT, "zero"),
    ("llmc/ranks/zero.h", "z->shard[0] = max_i64(z->shard[0], other.shard[0]);", "", UNIT, "zero"),
    ("llmc/ranks/matrices.cuh", "->tensor.rank * s->layout.num_ranks + s->rank", "->rank", GRID, "gpt2_muon_4_--tp_2"),
    ("llmc/ranks/matrices.cuh", "block, room.slices, true", "block, room.slices, false", GRID, "gpt2_muon_4_--tp_2"),
    ("llmc/ranks/matrices.cuh", "z->whole_offset[i] + strips.first", "z->whole_offset[i]", GRID, "gpt2_muon_4_--tp_2"),
    ("llmc/trainer/update.cuh", "+ at - held.begin;\n                    muon_apply",
     ";\n                    muon_apply", GRID, "gpt2_muon_4_--tp_2"),
    ("llmc/trainer/update.cuh", "if (zero_lies_whole(zero, c.bucket))", "if (c.bucket >= 0)", GRID, "bf16 and adamw"),
    ("llmc/trainer/update.cuh", "USES_WEIGHTS, [&](const UpdateChunk &c) {\n                visit_update_parts(t, c, ",
     "USES_WEIGHTS, [&](const UpdateChunk &c) {\n                [&](auto visit) { visit(update_part(t, c, c.begin, "
     "c.end), c.begin); }(", GRID,
     "bf16 and muon"),
    ("llmc/trainer/state.cuh", "to, n, piece.index,", "to, n, piece.in_bucket,", GPT2, "test_checkpoints_of_any_ranks"),
    ("llmc/trainer/state.cuh", "    if (!counts_tensor(s, piece.tensor)) { reader->sums = before; }\n",
     "    (void)s, (void)before;\n", GPT2, "test_checkpoints_of_any_ranks"),
    ("llmc/ranks/buckets.cuh", "return !copy && (s->tensor.rank == 0 || param_is_split(i));", "return !copy;", GPT2,
     "test_checkpoints_of_any_ranks"),
    ("llmc/ranks/buckets.cuh", "return !copy &&", "return (copy || !copy) &&", GRID, "gpt2_adamw_4_--cp_2_--pp_2"),
    ("llmc/ranks/buckets.cuh", "if (s->tensor.rank > 0)", "if (false)", GRID, "gpt2_adamw_2_--tp_2"),
    ("llmc/ranks/buckets.cuh", "if (bucket == 0 && part_has_copy(&s->layout.part))", "if (false)", GRID,
     "gpt2_adamw_4_--cp_2_--pp_2"),
    ("llmc/ranks/buckets.cuh", "if (s->sums_unsplit) { sum_unsplit(s, whole, bucket); }", "", GRID,
     "gpt2_adamw_2_--tp_2"),
    ("llmc/trainer/plan.cuh", "row_ranks(&shape) > 1);", "shape.grid.tp > 1);", GRID, "gpt2_adamw_4_--tp_4_--sp_0"),
    ("llmc/ranks/buckets.cuh", "if (counts_once)", "if (false)", GRID, "gpt2_adamw_8_--pp_2_--tp_2_-z_3"),
    ("llmc/trainer/step.cuh", "if (ok) { finish_gradients(&t->shards, t->model.grads); }", "", GRID,
     "gpt2_adamw_4_--cp_2_--pp_2"),
    ("llmc/ranks/buckets.cuh", "&& !waits) { gather_bucket", ") { gather_bucket", GRID, "happens and pp_cp_tp"),
    ("llmc/ranks/buckets.cuh", "if (shares)", "if (false)", GRID, "gpt2_adamw_6_--pp_3_-z_0"),
    ("train_gpt2.cu", "added_once(model->shards, b.p.attprojb)", "b.p.attprojb", GRID, "gpt2_adamw_2_--tp_2"),
    ("train_gpt2.cu", "sum_bias_of_stage(model, gpu, fcproj, N);", "", GRID, "gpt2_adamw_4_--cp_2_--pp_2"),
    ("llmc/trainer/tensor.cuh", "added_once(shards, wpe)", "wpe", GRID, "gpt2_adamw_2_--tp_2"),
    ("llmc/trainer/tensor.cuh", "shards->sums_unsplit ? added_once(shards, dwpe) : dwpe", "dwpe", GRID,
     "gpt2_adamw_2_--tp_2"),
    ("llmc/trainer/tensor.cuh", "shards->sums_unsplit ? added_once(shards, dwpe) : dwpe", "added_once(shards, dwpe)",
     GRID, "gpt2_adamw_4_--tp_4_--sp_0"),
    ("llmc/trainer/tensor.cuh", "    ContextPlace place = context_place(model, T);\n    embedding_forward",
     "    ContextPlace place = {1, 0, T};\n    embedding_forward", GRID, "gpt2_adamw_2_--cp_2"),
    ("llmc/trainer/tensor.cuh", "    ContextPlace place = context_place(model, T);\n    embedding_backward",
     "    ContextPlace place = {1, 0, T};\n    embedding_backward", GRID, "gpt2_adamw_2_--cp_2"),
    ("train_llama3.cu", "rope_forward(a.qkv, model->rope, N, context_place(model, T)",
     "rope_forward(a.qkv, model->rope, N, {1, 0, T}", GRID, "llama_adamw_4_--cp_2_-z_2"),
    ("train_llama3.cu", "rope_backward(a.dqkv, model->rope, N, context_place(model, T)",
     "rope_backward(a.dqkv, model->rope, N, {1, 0, T}", GRID, "llama_adamw_4_--cp_2_-z_2"),
    ("llmc/trainer/step.cuh", "added_once(&t->shards, t->stats.loss_sum)", "t->stats.loss_sum", GRID,
     "gpt2_adamw_2_--tp_2"),
    ("llmc/trainer/types.cuh", "return pass.slot * each +", "return 0 * each +", GRID, "gpt2_adamw_4_--cp_2_--pp_2"),
    ("llmc/trainer/pipeline.cuh", "i->action == PIPE_PUT_GRAD ? backwards - 1 : backwards", "backwards", GRID,
     "gpt2_adamw_4_--cp_2_--pp_2"),
    ("llmc/trainer/pipeline.cuh", "stages > 1 ? backward % 2 : 0", "stages > 1 ? 0 : 0", GRID, "llama8_muon_4_--pp_2"),
    ("llmc/trainer/pipeline.cuh", "place.T + context_position(&place, i)", "place.T + i", GRID, "gpt2_adamw_2_--cp_2"),
    ("llmc/trainer/pipeline.cuh", "i < 3 - in_order", "i < 2", GPT2, "test_own_positions"),
    ("llmc/trainer/pipeline.cuh", "slot->staging, 2 * N);", "slot->staging, N);", GRID, "gpt2_adamw_4_--tp_4_--sp_0"),
    ("llmc/trainer/pipeline.cuh", "&& own < rows ? own : -1", "? own % rows : -1", GRID, "gpt2_adamw_4_--tp_4_--sp_0"),
    ("llmc/model/context.h", "number < place->size ? number : 2 * place->size - 1 - number", "number % place->size",
     GRID, "test_evaluation"),
    ("llmc/trainer/block.cuh", "|| model->shape.pipeline.stages > 1", "", GRID, "gpt2_adamw_4_--cp_2_--pp_2"),
    ("llmc/trainer/block.cuh", "    AttentionContext context = gather_context(model, gpu, shards, a.qkv, shape);\n    "
     "floatX *dkv", "    AttentionContext context =\n        shards->context.size > 1 ? attention_gathered_context("
     "model->context_kv, shape, context_place(model, T))\n                                 : attention_own_context("
     "a.qkv, shape);\n    floatX *dkv", GRID, "gpt2_adamw_2_--cp_2"),
    ("llmc/trainer/block.cuh", "    sum_context(model, gpu, shards, a.dqkv, shape);\n", "", GRID,
     "gpt2_adamw_2_--cp_2"),
    ("llmc/trainer/head.cuh", "logits, states, group->size,", "logits, states, 1,", GRID, "gpt2_adamw_4_--tp_4_--sp_0"),
    ("llmc/trainer/head.cuh", "own = logits + group->rank * Vp;", "own = logits;", GRID, "test_evaluation"),
    ("llmc/trainer/evaluate.cuh", "cp < grid->cp; cp++", "cp < 1; cp++", GRID, "test_evaluation"),
    ("llmc/ranks/traffic.h", "part_ends(part) ? s->rows * 3 * 4 * (R - 1) : 0", "0", GRID, "happens and pp_cp_tp"),
    ("llmc/ranks/traffic.h", "{ whole *= m; }", "{ whole *= 1; }", GRID, "happens and pp_tp"),
    ("llmc/ranks/buckets.cuh", "cuda_check(cudaStreamWaitEvent(stream, s->reduced[zero_slot(&s->layout, bucket)], 0));",
     "", EMU, "test_offload.py -k gpt2_"),
    ("llmc/ranks/buckets.cuh",
     "cuda_check(cudaStreamWaitEvent(s->stream, s->host.begun[zero_slot(&s->layout, bucket)], 0));", "", EMU,
     "test_offload.py -k gpt2_"),
    ("llmc/ranks/buckets.cuh", "return s->stage >= ZERO_GRADIENTS;", "return true;", EMU, "test_offload.py -k tp_2"),
    ("llmc/ranks/buckets.cuh", "if (slot == 0) { release_bucket(s, params, bucket); }", "", EMU,
     "test_offload.py -k llama8_"),
    ("llmc/ranks/zero.h", "max_i64(z->shard[ZERO_OUTSIDE], z->shard[ZERO_HEAD])", "z->shard[ZERO_OUTSIDE]", EMU,
     "test_offload.py -k llama8_"),
    ("llmc/ranks/traffic.h", "if (forward && ends) {", "if (false) {", EMU, "test_offload.py -k llama8_"),
    ("llmc/trainer/update.cuh", "cuda_check(cudaStreamWaitEvent(s->comm_stream, s->host.left[window], 0));", "", EMU,
     "test_offload.py -k gpt2_"),
    ("llmc/trainer/update.cuh", "stream_follows(t->shards.comm_stream, t->shards.host.out, t->shards.host.reached);",
     "", EMU, "test_offload.py -k gpt2_"),
    ("llmc/trainer/update.cuh", "visit(o->master), visit(t->model.params); }",
     "visit(o->master); if (!reads) { visit(t->model.params); } }", EMU, "test_offload.py -k refused_update"),
    ("llmc/trainer/update.cuh", "    await_host(&t->shards);\n", "", EMU, "test_offload.py -k gpt2_"),
    ("llmc/trainer/update.cuh", "+ i - c.begin", "", EMU, "test_offload.py -k tp"),
    ("llmc/trainer/types.cuh", "model->grads.on_host && role->last", "false", EMU, "test_offload.py -k gpt2_"),
    ("llmc/trainer/block.cuh", "cuda_check(cudaStreamWaitEvent(s->stream, s->host.left[(layer + 1) % 2], 0));", "", EMU,
     "test_offload.py -k llama_"),
    ("llmc/trainer/block.cuh", "    communicate_after_compute(s); // the block above has read what lies there\n", "",
     EMU, "test_offload.py -k llama_"),
    ("llmc/trainer/block.cuh", "cuda_check(cudaStreamWaitEvent(shards->stream, shards->host.arrived[layer % 2], 0));",
     "", EMU, "test_offload.py -k llama_"),
    ("llmc/trainer/block.cuh", "    await_bucket(shards, model->params, zero_head(&shards->layout));\n", "", EMU,
     "test_offload.py -k llama8_"),
    ("llmc/trainer/plan.cuh", "->on_host && trains ? 2", "->on_host && trains ? 1", EMU, "test_offload.py -k gpt2_"),
    ("llmc/trainer/program.cuh", "o->zero_stage >= offloads[i].stage;", "true;", EMU, "test_offload.py -k refusals"),
    ("llmc/trainer/gpu_choices.h", "i < NUM_OFFLOADS && most * o->seq_len < AUTO_TOKENS", "i < NUM_OFFLOADS", EMU,
     "test_offload.py -k llama_leaves"),
    ("llmc/trainer/print.cuh", "*bytes += m * waiting *", "*bytes += waiting *", EMU, "test_offload.py -k happens"),
    ("llmc/cuda/gpu.h", 'plan->total > machine_memory("") / ranks', "false", EMU, "test_offload.py -k short"),
    ("llmc/optim/adamw.cuh", "f.key + KEY_V", "f.key", KERNELS, "update"),
    ("llmc/optim/muon.cuh", "f.key + KEY_M", "f.key", KERNELS, "muon"),
    ("llmc/ranks/traffic.h", "*slot == bucket || zero_size", "zero_size", GRID, "happens and pp_tp"),
    ("llmc/ranks/traffic.h", "+ again * s->again_contexts", "", GRID, "happens and llama_cp_tp"),
    ("llmc/data/dataloader.h", "/ dl->num_sequences", "/ (dl->num_sequences + 1)", UNIT, "dataloader"),
    ("llmc/data/tokenizer.h", "(text[last] & 0xc0) == 0x80", "(text[last] & 0xc0) == 0xc0", UNIT, "tokenizer"),
    ("llmc/files/state_file.h", "memcmp(preamble->magic, STATE_MAGIC, sizeof(preamble->magic)) != 0",
     "false", UNIT, "checkpoint"),
    ("llmc/run/args.h", "real >= spec->min && real <= spec->max", "real >= spec->min", UNIT, "args"),
    ("llmc/run/args.h", "(double)whole >= spec->min", "(double)whole > spec->min", UNIT, "args"),
    ("llmc/run/sampler.h", "(logits[i] - logits[best]) /", "(logits[i] - logits[best]) *", UNIT, "sampler"),
    ("llmc/run/run_state.h", "(long long)run->next_sequence,", "(long long)run->next_sequence + 1,", CPU,
     "test_resume.py"),
    ("llmc/run/run_inputs.h", "samples_only ? context", "samples_only ? 8", CPU, "test_options.py -k whole_context"),
    ("llmc/run/run_state.h", "? roundings : changes", "? changes : changes", CPU, "test_resume.py -k another"),
    ("llmc/run/run_start.h", "(run) && run->step >= run->num_steps", "(run)", CPU, "test_resume.py -k every_step"),
    ("train_gpt2.c", "dbias[c] += dy[c];", "dbias[c] = dy[c];", UNIT, "layers"),
    ("train_gpt2.c", "mean_g - n * mean_gn", "mean_g + n * mean_gn", UNIT, "layers"),
    ("train_gpt2.c", "token[c] + position[c]", "token[c] - position[c]", UNIT, "layers"),
    ("llmc/ranks/buckets.cuh", "first_micro_batch || begin", "begin", EMU, "test_runs.py -k bf16-ranks-parts"),
    ("llmc/base/input_file.h", "if (size == expected) { return true; }", "return true;", CPU,
     "test_faults.py -k model"),
    ("llmc/data/data_file.h", "tokens[i] < (uint32_t)vocab_size", "tokens[i] < (uint32_t)vocab_size + 100000",
     CPU, "test_faults.py -k vocabulary"),
    ("llmc/run/run_state.h", "if (free_bytes < bytes) {", "if (false) {", CPU, "test_faults.py -k full_disk"),
    ("llmc/run/run_inputs.h", "tokens > config->vocab_size : tokens != config->vocab_size", "false : false",
     CPU, "test_faults.py -k tokenizer"),
    ("llmc/run/train_run.h", "min_i64(o->val_sequences, run->val.num_sequences)",
     "min_i64(o->val_sequences / 4 * o->batch_size, run->val.num_sequences)", CPU, "test_options.py -k sequences"),
    ("llmc/run/train_run.h", "all / count * i + all % count * i / count;", "i;", CPU, "test_options.py -k sequences"),
    ("llmc/run/train_run.h", "o->steps == 0 && !o->given", "false && !o->given", CPU, "test_options.py -k sequences"),
    ("llmc/run/run_evaluate.h", "run->options->val_batches >= 0}", "0}", CPU, "test_practice.py -k other_data"),
    ("llmc/run/lowest.h", "l->source != source", "l->source == 0", CPU, "test_practice.py -k other_data"),
    ("llmc/run/lowest.h", "|| (again && step == l->step)", "", UNIT, "lowest"),
    ("llmc/run/lowest.h", "} else if (!first && !again) {", "} else if (!first) {", UNIT, "lowest"),
    ("llmc/run/lowest.h", "l->last <= LARGEST_WHOLE && ", "", UNIT, "lowest"),
    ("llmc/run/run_evaluate.h", "!lower || !", "lower || !", CPU, "test_practice.py -k best"),
    ("llmc/run/train_loop.h", "->kept.lowest.since >=", "->kept.lowest.since >", CPU, "test_practice.py -k patience"),
    ("llmc/files/checkpoint.h", "    if (path_join(best, dir, CHECKPOINT_BEST_NAME, &ignored)) { files_remove(best, "
     "&ignored); }\n", "", CPU, "test_practice.py -k removes"),
    ("llmc/files/checkpoint.h",
     "CHECKPOINT_BEST_NAME TEMPORARY_SUFFIX, error) &&\n           files_remove(paths.model, error);",
     "CHECKPOINT_BEST_NAME TEMPORARY_SUFFIX, error);", CPU, "test_practice.py -k removes"),
    ("llmc/files/model_bin.h", "variant != MODEL_VARIANT", "false", EMU, "test_llama.py -k other_program"),
    ("llmc/run/run_state.h", "bool stays = o->given[i] ||", "bool stays =", CPU, "test_practice.py -k alone"),
    ("llmc/run/run_state.h", "o->given[i] = is_taken && train_shapes_run[i] == FREE;", "", CPU,
     "test_practice.py -k alone"),
    ("llmc/run/run_state.h", "        run_list_rate(run, &changes);\n", "", CPU, "test_practice.py -k more_steps"),
    ("llmc/data/tokenizer.h", "if (!tokenizer_is_special(t, tokens[i]) && ", "if (", CPU,
     "test_practice.py -k documents"),
    ("llmc/data/text_data.h", "*bytes -= *bytes > 0 && (*prompt)[*bytes - 1] == '\\n';", "", CPU,
     "test_practice.py -k samples"),
    ("llmc/run/train_loop.h", "(run->step + number) << 32;", "run->step << 32;", CPU, "test_practice.py -k samples"),
    ("llmc/run/train_loop.h", "!ranks_agree(run->comm, ok, error) || !run_is_stopping()", "true", CPU,
     "test_practice.py -k interrupted"),
    ("llmc/run/run_inputs.h", "run_take_options(run, o, error) && run_check_sizes(run, error)",
     "run_take_options(run, o, error)", CPU, "test_practice.py -k alone"),
    ("llmc/trainer/state.cuh", "< writer->num_arrays", "< CHECKPOINT_ARRAYS", EMU, "test_gpu_ranks.py -k starts"),
    ("llmc/run/signals.h", "    catch_stop_signal(SIGPIPE, handler);\n", "", CPU, "test_practice.py -k reader"),
    ("llmc/trainer/cpu_program.h",
     "for (int b = 0; b < rows; b++) { t->val_sum += row_mean(model->acts.losses.data + b * T, T); }",
     "t->val_sum += rows * row_mean(model->acts.losses.data, rows * T);", UNIT, "model"),
    ("llmc/trainer/evaluate.cuh", "(grid_rank(grid, &place) * last.rounds + batch / grid->dp) * most", "batch * most",
     GRID, "test_evaluation"),
    ("llmc/run/run_state.h", "used > 0 && run->options->allow_changes", "used > 0", CPU, "test_resume.py -k changed"),
    ("llmc/run/run_state.h", "if (!run_go_back(run, error)) { return false; }",
     "return false;", CPU, "test_practice.py -k back"),
    ("llmc/run/train_loop.h", """message[0] != '\\0' ? "stopped" : "done\"""", '"done"', CPU,
     "test_run_folder.py -k ends"),
    ("llmc/run/signals.h", "    catch_stop_signal(SIGHUP, handler);\n", "", CPU, "test_run_folder.py -k terminal"),
    ("tokenize.c", "? min_i64(set->shard_size, set->val_left)", "? set->val_left", CPU, "test_tokenize.py -k sizes"),
    ("tokenize.c", "(!run->options->overwrite && path_exists(path))", "(false)", CPU, "test_tokenize.py -k questions"),
    ("llmc/files/model_bin.h", "if (begin >= part.end)", "if (begin != part.end + 1)", UNIT, "pieces"),
    ("llmc/model/params.h", " of layer %d\", layer)", " of layer %d\", 0)", UNIT, "model"),
    ("llmc/trainer/cpu_model.h", "int C = model->", "free(malloc(16));\n    int C = model->", UNIT, "model"),
    ("llmc/trainer/pipeline.cuh", "role.first = i.micro_batch == 0", "role.first = true", EMU,
     "test_gpu_trainer.py::test_like_the_cpu_trainer[gpt2]"),
    ("llmc/trainer/state.cuh", "return comm_sum_u64(t->shards.ranks, hash, 1, error);",
     "return t != NULL || fail(error, \"\");", GRID, "llama_pipeline"),
    ("llmc/trainer/evaluate.cuh", "t >= begin && t <", "t >= begin && t <=", EMU, "test_gpu_trainer.py -k independent"),
    ("llmc/trainer/step.cuh", "*skip = run_skips_update(run, &step->info);", "", EMU, "test_runs.py -k bf16-outliers"),
    ("llmc/trainer/step.cuh", "updates + 1", "updates", EMU, "test_gpu_trainer.py::test_like_the_cpu_trainer[gpt2]"),
    ("llmc/cuda/cublas_common.h", "b->ldb, b->stride_b", "b->ldb, b->stride_a", KERNELS, "muon"),
    ("llmc/cuda/cublas_common.h", "problem->accumulate ? on->beta : 0.0f", "on->beta", KERNELS, "matmul"),
    ("llmc/cuda/cublas_common.h", "p->transpose_a ? p->k : p->m, p->transpose_a ? p->m :", "p->m,", KERNELS, "matmul"),
    ("llmc/cuda/cuda_utils.cuh", "random & 0xffffu", "random & 0x7fffu", KERNELS, "update"),
    ("llmc/cuda/cuda_utils.cuh", "lane < warps ? partial[lane] : T(0)", "partial[lane]", KERNELS, "cross_entropy"),
    ("llmc/cuda/cuda_utils.cuh", "((uint64_t)place << 32) + ((uint64_t)place >> 32) + word + 1", "(uint64_t)word + 1",
     KERNELS, "checksum"),
    ("llmc/cuda/gpu.h", " || (driver / 1000 < runtime / 1000)", "", EMU, "test_gpu_trainer.py -k no_gpu"),
    ("llmc/cuda/gpu.h", "devices == 1 ? 0 : number", "number", EMU, "test_gpu_ranks.py -k unfit"),
    ("llmc/trainer/step.cuh", "role.dloss = 1.0f / (float)run->options->total_batch",
     "role.dloss = 1.0f / (float)(run->options->batch_size * run->options->seq_len)", EMU,
     "test_gpu_trainer.py::test_like_the_cpu_trainer[gpt2]"),
    ("llmc/trainer/nonfinite.cuh", "        if (!any_nonfinite(data, piece.strips * piece.count, t->transfer.flag, "
     "t->gpu.stream)) { return true; }", "", EMU, "test_gpu_trainer.py -k no_number"),
    ("llmc/trainer/nonfinite.cuh", "found->place < first->place", "false", EMU, "test_gpu_ranks.py -k not_a_number"),
    ("llmc/optim/global_norm.cuh", "isfinite(loss_sum) && !isfinite", "!isfinite", KERNELS, "update"),
    ("llmc/model/activations.h", "+= layer * *slots[i].stride *", "+= 0 *", EMU, "test_gpu_trainer.py -k no_number"),
    ("llmc/model/memory_plan.h", "row->first > last &&", "row->first >= last &&", UNIT, "memory_plan"),
    ("dev/data/common.py", "hashlib.sha256(data).hexdigest() != sha256", "False", CPU, "test_data.py -k wrong_files"),
    ("scripts/packages.sh", 'sudo="sudo -n"', 'sudo="sudo"', CPU, "test_quickstart.py -k compiler"),
    ("scripts/common.sh", "USR1 || echo TERM", "TERM || echo USR1", CPU, "test_multi_node.py -k first_signal"),
    ("scripts/common.sh", "    set -m\n", "", CPU, "test_multi_node.py -k ctrl_c"),
    ("scripts/common.sh", "start <= MAX_STARTS", "start < MAX_STARTS", CPU, "test_multi_node.py -k gives_up"),
    ("scripts/common.sh", '= "$saved" ] || failures=0', '= "$saved" ] || true', CPU, "test_multi_node.py -k gives_up"),
    ("scripts/common.sh", "flock -n 9 ||", "true ||", CPU, "test_multi_node.py -k two_at_once"),
    ("scripts/common.sh", '[ "$(id -u)" != 0 ] ||', "true ||", CPU, "test_multi_node.py -k as_root"),
    ("scripts/common.sh", "! grep -q '^fits *no'", "true", EMU, "test_reproduce.py -k plan_refuses"),
    ("scripts/multi_node/run_tcp.sh", "exec env $variables", "exec env GPT2C_SECRET=$GPT2C_SECRET $variables", CPU,
     "test_multi_node.py -k over_ssh"),
    ("scripts/multi_node/run.sbatch", '"$status" = 138', '"$status" -ge 128', CPU, "test_multi_node.py -k time_limit"),
    ("dev/find_libraries.sh", '"$made_for" = "${major', '"$major" = "${major', CPU, "test_find_libraries.py -k misfit"),
    ("dev/compare.py", "math.isnan(a) and math.isnan", "math.isnan(a) or math.isnan", CPU, "test_compare.py -k column"),
    ("scripts/quickstart.sh", "(nats per byte, on", "(nats per token, on", CPU, "test_quickstart.py -k own_sources"),
    (".dockerignore", "dev/data/*/*", "dev/data/*", CPU, "test_build.py -k copied"),
    ("Dockerfile", "make ARCH= test", "make ARCH= check", CPU, "test_build.py -k dockerfile"),
    ("dev/compare.py", '"training loss", 1)', '"training loss", 0)', CPU, "test_compare.py -k column"),
    ("dev/run_logs.py", "last(self.loss) + 1", "last(self.loss)", CPU, "test_compare.py -k lengths"),
    ("dev/run_logs.py", "forget_from(step + 1, run.val", "forget_from(step, run.val", CPU, "test_plot.py -k twice"),
    ("dev/run_logs.py", "run.start, run.end = event, {}", "run.start = event", CPU, "test_compare.py -k weights"),
    ("dev/doctor.sh", "', [1-7]", "', [2-6]", CPU, "test_find_libraries.py -k what_runs"),
    ("llmc/run/log.h", "s:%lld trl:%.4f lr:%.6f", "s:%lld trl:%.4f lr:%.5f", UNIT, "logger"),
    ("llmc/run/run_state.h", "all ? train_options_takes(i, trainer_facts.on_gpu)", "all ? true", CPU,
     "test_run_folder.py -k describes"),
    ("llmc/run/sampler.h", "if (sum > target) { return i; }", "if (sum >= target) { return i; }", UNIT, "sampler"),
    ("llmc/run/schedulers.h", "final_fraction + (1.0 - s->final_fraction)", "final_fraction + 1.0", UNIT, "schedulers"),
    ("llmc/run/run_inputs.h", "o->resume || o->overwrite || !is_used", "true", CPU, "test_faults.py -k used_folder"),
    ("llmc/run/run_start.h", "if (o->overwrite) {", "if (false) {", CPU, "test_faults.py -k used_folder"),
    ("llmc/run/run_state.h", "(long long)run->updates);", "0LL);", CPU, "test_resume.py -k every_step"),
    ("llmc/run/run_state.h", "run_list_change(saved, &own, RUN_DATA_KEY, changes);", "", CPU,
     "test_resume.py -k changed"),
    ("llmc/run/run_inputs.h", "num_sequences / sequences;", "num_sequences;", CPU, "test_faults.py -k all_sizes"),
    ("llmc/run/run_report.h", "(run->data.ranks > 1)", "(run->data.ranks > 2)", EMU, "test_gpu_ranks.py -k starts"),
    ("dev/tensorboard.py", "os.remove(old)", "pass", CPU, "test_tensorboard.py -k points"),
    ("dev/plot.py", "x[window // 2:]", "x", CPU, "test_plot.py -k drawn"),
)]


def call(*command, **more):
    return subprocess.run(command, cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", check=False, **more)


def copy_tree():
    """A copy of what git knows, so that nobody's working tree is touched. What it built before serves again."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in names.splitlines():
        source, target = os.path.join(ROOT, name), os.path.join(TREE, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isfile(source) and not (os.path.exists(target) and read(source) == read(target)):
            shutil.copy(source, target)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def unit_program(suite):
    return f"build/test_{'trainer' if suite in ('gpt2', 'layers', 'model') else suite}"


def grid_folder(mistake):
    """Where the trainers of a test of grids are built."""
    return "." if "bf16" in mistake.test else "build/emu_fp32"


def targets_of(mistake):
    """What make builds for the test, after the variables that it is built with."""
    if mistake.kind == GRID:
        folder = grid_folder(mistake)
        fp32 = [] if folder == "." else ["PRECISION=FP32", f"BUILD={folder}", f"BIN={folder}"]
        models = ["gpt2", "llama3"] if "llama" in mistake.test else ["gpt2"]
        return fp32 + [os.path.normpath(f"{folder}/train_{model}emu") for model in models]
    llama = ["train_llama3", "train_llama3emu"] if "llama" in mistake.test else []
    return {UNIT: [unit_program(suite) for suite in mistake.test.split()], FUZZ: [f"build/{mistake.test}"],
            KERNELS: ["build/emu/test_kernels"], GPT2: ["test_gpt2emu"], LLAMA: ["test_llama3emu"],
            NCCL: ["build/emu/emu_nccl"], CPU: ["train_gpt2", "tokenize"],
            EMU: ["train_gpt2", "train_gpt2emu", *llama]}[mistake.kind]


def test_passes(mistake):
    """(does the test of a mistake pass, what was said)"""
    environment = None
    if mistake.kind == UNIT:
        runs = [[unit_program(suite), suite] for suite in mistake.test.split()]
        runs += [["build/test_llama3", "model"]] * (mistake.test == "llama3")
    elif mistake.kind == FUZZ:
        runs = [[f"build/{mistake.test}"]]
    elif mistake.kind == KERNELS:
        runs = [["build/emu/test_kernels", *mistake.test.split()]]
    elif mistake.kind == NCCL:
        runs = [["build/emu/emu_nccl", *mistake.test.split()]]
    elif mistake.kind in (GPT2, LLAMA):
        runs = [["./test_gpt2emu" if mistake.kind == GPT2 else "./test_llama3emu", *mistake.test.split()]]
    else:
        name, *more = mistake.test.split()
        if mistake.kind == GRID:
            name, trainer = "test_grid.py", os.path.join(TREE, grid_folder(mistake), "train_gpt2emu")
            more = ["-k", mistake.test]
            variables = ("TRAIN_GPT2", "TOKENIZE", "TRAIN_GPT2CU", "TRAIN_GPT2CU_FP32")  # no other program is needed
            environment = {**os.environ, **{variable: trainer for variable in variables}}
        runs = [[sys.executable, "-m", "pytest", "-x", "-q", "-n", "2", f"dev/test/programs/{name}", *more]]
    for run in runs:
        result = call(*run, timeout=900, env=environment)
        if result.returncode != 0:
            return False, result.stdout
    return True, ""


def passes_without(mistake, known={}):
    """Does the test pass in the unchanged copy? Otherwise its failure would say nothing about the mistake."""
    key = mistake.kind, mistake.test
    if key not in known:
        built = call("make", "-j2", *targets_of(mistake))
        known[key] = built.returncode == 0 and test_passes(mistake)[0]
    return known[key]


def unfit(mistakes):
    """Those whose text the code no longer has."""
    return [mistake for mistake in mistakes if mistake.old not in read(os.path.join(ROOT, mistake.file)).decode()]


def try_mistake(mistake):
    """found, MISSED, or why the mistake could not be planted."""
    path = os.path.join(TREE, mistake.file)
    right = read(path).decode()
    if right.count(mistake.old) == 0:
        return "no such text"
    if not passes_without(mistake):
        return "fails without it"
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(right.replace(mistake.old, mistake.new, 1))
        built = call("make", "-j2", *targets_of(mistake))
        if built.returncode != 0:
            return "does not compile"
        try:
            passes, _ = test_passes(mistake)
        except subprocess.TimeoutExpired:
            passes = False
        return "MISSED" if passes else "found"
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mistakes in files whose path holds this word")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    mistakes = [mistake for mistake in MISTAKES if arguments.only in mistake.file]
    if arguments.list:
        for mistake in mistakes:
            print(f"{mistake.file}: {mistake.old}  ->  {mistake.new}  ({mistake.kind} {mistake.test})")
        return
    if arguments.check:
        sys.exit("\n".join(f"no such text: {mistake.file}: {mistake.old}" for mistake in unfit(mistakes)) or 0)
    copy_tree()
    results = collections.Counter()
    for mistake in mistakes:
        result = try_mistake(mistake)
        results[result] += 1
        print(f"{result:17} {mistake.file}: {mistake.old}  ({mistake.kind} {mistake.test})", flush=True)
    print(", ".join(f"{count} {result}" for result, count in sorted(results.items())))
    sys.exit(results["found"] != len(mistakes))


if __name__ == "__main__":
    main()
