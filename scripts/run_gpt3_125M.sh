#!/usr/bin/env bash
# Reproduces GPT-3 125M (12 layers, 768 channels, context 2048) from 100 billion tokens of FineWeb, read three times.
#
#   scripts/run_gpt3_125M.sh                on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt3_125M.sh        every stage in small, on the CPU, in two minutes
#
# Fetches the data, builds, trains, starts again after failures, exports for Hugging Face and draws the curves. Ctrl-C
# saves; the same command goes on. Options behind the script's name take the place of those below, as in
#     OUT_DIR=/disk/run scripts/run_gpt3_125M.sh --steps 1000 --batch-size 16
# --help lists the settings of the environment.
#
#   300.0 billion tokens: 572,204 steps of 524,288; 2.6e+20 FLOPs
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                    511.2 hours       64.1 hours      184.7 hours       23.2 hours
#   sequences at once                32               32               32               32
#   memory of each             21.4 GiB         20.2 GiB         21.4 GiB         20.2 GiB
#
# The times are predicted by dev/bench/predict.py --figures, not measured, for so many sequences at once. --auto chooses
# how many it is by the free memory. Validation, HellaSwag and saving come on top.
#
# To expect: 33.7 % of HellaSwag, if FineWeb serves as well as the paper's data did (GPT-3 paper, table H.1, no examples
# given). Batch, rate, warm-up (375 million tokens), final rate and number of tokens are the paper's (table 2.1 and
# appendix B), but the rate falls until the end, and each token sees all before it in every layer. For the loss on
# FineWeb nothing was found that is published.
set -eu
NAME=gpt3_125M
TITLE="GPT-3 125M"
DATA=fineweb100B # what is fetched
EXPECT="33.7 % of HellaSwag"
# shellcheck source=scripts/reproduce.sh
. "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"

train=(--train-data "$DATA_ROOT/$DATA/fineweb_train_*.bin" --val-data "$DATA_ROOT/$DATA/fineweb_val_*.bin"
    --tokenizer "$DATA_ROOT/gpt2_tokenizer.bin"
    --init gpt3:c768 --seq-len 2048 --total-batch 524288 --steps 572204 --auto 1
    --lr 6e-4 --schedule cosine --warmup 715 --final-lr-frac 0.1 --weight-decay 0.1
    --val-every 250 --val-sequences 5120
    --hellaswag 1 --hellaswag-data "$DATA_ROOT/hellaswag/hellaswag_val.bin"
    --sample-every 5000 --stop-on-divergence 1
    --out-dir "$OUT_DIR" --checkpoint-every 500 --keep 3 --keep-major 50000
    --zero-stage 1 --start-timeout 600) # zero-stage: several GPUs share the optimizer's state
reproduce "$@"
