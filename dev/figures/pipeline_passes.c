// Prints when the stages of a pipeline do what, for fig_pipeline.py and for curious readers, a pass in a line:
//
//     cc -I. -o pipeline_passes dev/figures/pipeline_passes.c -lm && ./pipeline_passes 1f1b 4 1 8
//
// The arguments are the schedule, the number of stages, the chunks of each, and the micro-batches.
#include "dev/exercises/pipeline.h"

static void print_pass(int stage, const PipeInstruction *i, double begin) {
    if (i->action != PIPE_FORWARD && i->action != PIPE_BACKWARD) { return; }
    printf("stage %d %s micro-batch %d chunk %d slot %d begin %.0f\n", stage,
           i->action == PIPE_FORWARD ? "FORWARD" : "BACKWARD", i->micro_batch, i->chunk, i->slot, begin);
}

int main(int argc, char **argv) {
    Pipeline p = {PIPE_AFAB, 0, 0, 0, 0};
    Error error = {"usage: pipeline_passes SCHEDULE STAGES CHUNKS MICRO_BATCHES, at most 8, 4 and 32"};
    int schedule = 0;
    while (argc == 5 && schedule <= PIPE_FORWARD_ONLY && strcmp(argv[1], pipe_names[schedule]) != 0) { schedule++; }
    if (argc == 5 && schedule <= PIPE_FORWARD_ONLY) {
        p.schedule = (PipeSchedule)schedule;
        p.stages = atoi(argv[2]), p.chunks = atoi(argv[3]), p.micro_batches = atoi(argv[4]);
    }
    if (p.stages == 0 || p.stages > MOST_STAGES || p.chunks > MOST_CHUNKS || p.micro_batches > MOST_MICRO_BATCHES ||
        !pipe_check(&p, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return EXIT_FAILURE;
    }
    if (isnan(play_pipeline(&p, print_pass))) {
        fprintf(stderr, "pipeline_passes: the stages wait for each other for ever\n");
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
