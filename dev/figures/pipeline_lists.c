// Prints the lists of a pipeline's stages, for fig_pipeline.py and for curious readers, an instruction in a line:
//
//     cc -I. -o pipeline_lists dev/figures/pipeline_lists.c && ./pipeline_lists 1f1b 4 1 8
//
// The arguments are the schedule, the number of stages, the chunks of each, and the micro-batches.
#include "llmc/ranks/schedule.h"

static void print_list(const Pipeline *p) {
    static const char *const names[] = {"GET_INPUT", "FORWARD", "PUT_OUTPUT", "GET_GRAD", "BACKWARD", "PUT_GRAD"};
    PipeInstruction *list = (PipeInstruction *)malloc((size_t)pipe_length(p) * sizeof(PipeInstruction));
    if (list == NULL) { abort(); }
    pipe_write(p, list);
    for (const PipeInstruction *i = list; i < list + pipe_length(p); i++) {
        printf("stage %d %s micro-batch %d chunk %d slot %d%s\n", p->stage, names[i->action], i->micro_batch, i->chunk,
               i->slot, i->joined ? " joined" : "");
    }
    free(list);
}

int main(int argc, char **argv) {
    Pipeline p = {PIPE_AFAB, 0, 0, 0, 0};
    Error error = {"usage: pipeline_lists SCHEDULE STAGES CHUNKS MICRO_BATCHES"};
    int schedule = 0;
    while (argc == 5 && schedule <= PIPE_FORWARD_ONLY && strcmp(argv[1], pipe_names[schedule]) != 0) { schedule++; }
    if (argc == 5 && schedule <= PIPE_FORWARD_ONLY) {
        p.schedule = (PipeSchedule)schedule;
        p.stages = atoi(argv[2]), p.chunks = atoi(argv[3]), p.micro_batches = atoi(argv[4]);
    }
    if (p.stages == 0 || !pipe_check(&p, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return EXIT_FAILURE;
    }
    for (; p.stage < p.stages; p.stage++) { print_list(&p); }
    return EXIT_SUCCESS;
}
