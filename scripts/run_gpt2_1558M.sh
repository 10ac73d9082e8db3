#!/usr/bin/env bash
# Reproduces the GPT-2, 1558M (48 layers, 1600 channels), from the first 34 billion of FineWeb-Edu's 100 billion tokens.
#
#   scripts/run_gpt2_1558M.sh                on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_1558M.sh        every stage in small, on the CPU, in two minutes
#
# Fetches the data, builds, trains, starts again after failures, exports for Hugging Face and draws the curves. Ctrl-C
# saves; the same command goes on. Options behind the script's name take the place of those below, as in
#     OUT_DIR=/disk/run scripts/run_gpt2_1558M.sh --steps 1000 --batch-size 16
# --help lists the settings of the environment.
#
#   33.6 billion tokens: 32,000 steps of 1,048,576; 3.3e+20 FLOPs
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    533.2 hours       66.7 hours      181.3 hours       22.7 hours
#   sequences at once                16               16               16               16
#   memory of each             64.7 GiB         49.5 GiB         64.7 GiB         49.5 GiB
#
# The times are predicted by dev/bench/predict.py --figures, not measured, for so many sequences at once. --auto chooses
# how many it is by the free memory. Validation, HellaSwag and saving come on top.
#
# To expect: more than the 48.9 % of HellaSwag of OpenAI's model (llm.c's discussion 677: passed near step 25,000;
# 24 hours on 8 H100). For the loss on FineWeb-Edu nothing was found that is published, for OpenAI's model
# neither: llm.c's figure for that, 2.8313, is for FineWeb.
set -eu
NAME=gpt2_1558M
TITLE="GPT-2 1558M"
DATA=edu_fineweb100B # what is fetched
EXPECT="more than the 48.9 % of HellaSwag of OpenAI's model"
# shellcheck source=scripts/reproduce.sh
. "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"

train=(--train-data "$DATA_ROOT/$DATA/edu_fineweb_train_*.bin" --val-data "$DATA_ROOT/$DATA/edu_fineweb_val_*.bin"
    --tokenizer "$DATA_ROOT/gpt2_tokenizer.bin"
    --init d48 --seq-len 1024 --total-batch 1048576 --steps 32000 --auto 1
    --lr 6e-4 --schedule cosine --warmup 700 --final-lr-frac 0.1 --weight-decay 0.1
    --val-every 250 --val-sequences 10240
    --hellaswag 1 --hellaswag-data "$DATA_ROOT/hellaswag/hellaswag_val.bin"
    --sample-every 5000 --stop-on-divergence 1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 10000
    --zero-stage 1 --start-timeout 600) # zero-stage: several GPUs share the optimizer's state
reproduce "$@"
